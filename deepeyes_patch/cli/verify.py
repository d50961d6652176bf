"""``deepeyes-patch verify``: run the same requests stock and patched, compare both with ``transformers``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from deepeyes_patch import __version__
from deepeyes_patch.cli import terminal, verdicts
from deepeyes_patch.cli.terminal import colour
from deepeyes_patch.settings import RELAX_SWITCH, SWITCH

SECONDS = 900  # time limit for one child, which imports SGLang on a busy machine

_EXAMPLES = """
deepeyes-patch verify                  with a tiny Qwen3-VL's processor
deepeyes-patch verify --model DIR      with that checkpoint's
deepeyes-patch verify --model DIR --image a.jpg --image b.png
"""


def add(commands: Any) -> None:
    parser = terminal.add_command(
        commands,
        "verify",
        "send the same requests, stock and patched, and compare with transformers",
        _EXAMPLES,
    )
    parser.add_argument("--model", metavar="DIR", help="a checkpoint's folder; no weights are loaded")
    parser.add_argument(
        "--image", metavar="FILE", action="append", default=[], help="a picture of your own; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    model = _checked_model(arguments.model)
    images = [str(_checked_file(image)) for image in arguments.image]
    with tempfile.TemporaryDirectory(prefix="deepeyes-verify-") as name:
        folder = Path(name)
        (folder / "question.json").write_text(json.dumps({"model": model, "images": images}))
        (expected,) = _run(folder, "transformers")
        stock, patched = _run(folder, "stock", "patched")
    for name, state in patched["repairs"].items():
        if state.startswith("failed"):
            raise terminal.CommandError(
                f"the {name} repair failed: {state}. `deepeyes-patch doctor` says more.", 1
            )
    answers = zip(expected["cases"], stock["answers"], patched["answers"], strict=True)
    cases = [verdicts.judge(*answer) for answer in answers]
    rope = verdicts.judge_rope(stock["rope"], patched["rope"])
    ok = rope["ok"] and all(case["ok"] for case in cases)
    about = {
        "version": __version__,
        "sglang": patched["sglang"],
        "transformers": expected["transformers"],
        "model": model or "built-in",
        "model_type": expected["model_type"],
    }
    if arguments.json:
        terminal.print_json("verify", ok, **about, cases=cases, rope=rope)
    else:
        _print(ok, about, cases, rope)
    return 0 if ok else 1


def _checked_model(model: str | None) -> str | None:
    if model is None:
        return None
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise terminal.CommandError(
            f"{model} holds no config.json. Give the folder of a local checkpoint.", 2
        )
    description = json.loads((folder / "config.json").read_text())
    if "vision_config" not in description:
        kind = description.get("model_type", "unknown")
        raise terminal.CommandError(
            f"{model} is a model of type {kind} without a vision_config. Give a Qwen-VL checkpoint.", 2
        )
    return str(folder.resolve())


def _checked_file(image: str) -> Path:
    path = Path(image)
    if not path.is_file():
        raise terminal.CommandError(f"{image} is no file.", 2)
    return path.resolve()


def _run(folder: Path, *roles: str) -> list[dict[str, Any]]:
    """Run one child for each role, at the same time; return their answers."""
    children: list[subprocess.Popen[bytes]] = []
    try:
        for role in roles:
            children.append(_start(folder, role))
        for child in children:
            child.wait(SECONDS)
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    return [_answer_of(folder, role, child.returncode) for role, child in zip(roles, children, strict=True)]


def _start(folder: Path, role: str) -> subprocess.Popen[bytes]:
    environ = {**os.environ, SWITCH: "1" if role == "patched" else "off", "TOKENIZERS_PARALLELISM": "false"}
    environ.pop(RELAX_SWITCH, None)
    with (folder / f"{role}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "deepeyes_patch.verification.child", role, str(folder)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _answer_of(folder: Path, role: str, code: int) -> dict[str, Any]:
    file = folder / f"{role}.json"
    if not file.exists():
        log = (folder / f"{role}.log").read_text(errors="replace")
        tail = "\n".join(log.strip().splitlines()[-8:])
        raise terminal.CommandError(
            f"the {role} child ended with {code} and no answer. Its last words:\n{tail}\n"
            f"`deepeyes-patch doctor --deep` shows whether SGLang can be imported here at all.",
            3,
        )
    answer: dict[str, Any] = json.loads(file.read_text())
    return answer


# --- writing ------------------------------------------------------------------------------------------


def _print(ok: bool, about: dict[str, Any], cases: list[dict[str, Any]], rope: dict[str, Any]) -> None:
    head = (
        f"deepeyes-patch {about['version']}, SGLang {about['sglang']}, transformers {about['transformers']}"
    )
    print(colour(head, "bold"))
    print(f"model: {about['model']} ({about['model_type']})\n")
    rows = [["REQUEST", "STOCK", "PATCHED", ""]]
    rows += [[c["name"], c["stock"], c["patched"], "ok" if c["ok"] else "WRONG"] for c in cases]
    rotated = [f"{e:.1g} off" if e is not None else "failed" for e in (rope["stock"], rope["patched"])]
    rows.append(["rope, image positions", *rotated, "ok" if rope["ok"] else "WRONG"])
    lines = terminal.table(rows)
    print(colour(lines[0], "bold"))
    for line in lines[1:]:
        print(colour(line, "red") if line.endswith("WRONG") else line)
    print()
    for case in cases:
        if case["kind"] == "text" or not case["ok"]:
            print(terminal.wrapped(f"{case['name']}: {case['why']}", "  ", ""))
    if rope["note"]:
        print(terminal.wrapped(f"rope: {rope['note']}", "  ", ""))
    changed = {part for case in cases if case["kind"] == "ids" and case["ok"] for part in case["changed"]}
    if changed:
        print("ids: what the repair changes, and why")
        for part in (*verdicts.PARTS, "error"):
            if part in changed:
                print(f"  {part}: {verdicts.WHY[part]}")
    print(colour("as promised", "green") if ok else colour("NOT as promised", "red", "bold"))
