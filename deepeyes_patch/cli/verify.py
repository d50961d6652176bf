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
from deepeyes_patch.cli import terminal
from deepeyes_patch.cli.terminal import colour
from deepeyes_patch.settings import RELAX_SWITCH, SWITCH

SECONDS = 900  # time limit for one child, which imports SGLang on a busy machine
ROPE_NOISE = 5e-3  # rounding of float32 rotations of values up to 5, computed in another order
PARTS = ("input_ids", "offsets", "grids", "mrope_positions", "mrope_position_delta")

_WHY = {
    "input_ids": "the caller's own ids, not those that decoding and tokenizing again gives",
    "offsets": "images lie where the caller's ids have them",
    "grids": "as transformers makes them",
    "mrope_positions": "they follow from the caller's ids",
    "mrope_position_delta": "it follows from the caller's ids",
    "error": "stock cannot serve it",
}

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
    cases = [judge(*answer) for answer in answers]
    rope = judge_rope(stock["rope"], patched["rope"])
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


# --- judging ------------------------------------------------------------------------------------------


def judge(case: dict[str, Any], stock: dict[str, Any], patched: dict[str, Any]) -> dict[str, Any]:
    """One row of the table: the results of stock and patched, and whether they are as promised."""
    if case["kind"] == "text":
        return _judge_text(case, stock, patched)
    expected = case["expected"]
    changed = _changed(stock, patched)
    if expected is None:
        ok, why = bool(patched.get("refused")), patched.get("error", "it was served")
    else:
        ok = verdict(patched, expected) == "exact"
        why = "; ".join(f"{part}: {_WHY[part]}" for part in changed) if ok else _difference(patched, expected)
    return {
        "name": case["name"],
        "kind": case["kind"],
        "stock": verdict(stock, expected),
        "patched": verdict(patched, expected),
        "ok": ok,
        "changed": changed,
        "why": why,
    }


def _judge_text(case: dict[str, Any], stock: dict[str, Any], patched: dict[str, Any]) -> dict[str, Any]:
    """Stock and patched must be identical on every key.

    If stock is wrong, because it resizes Qwen3-VL's images twice, patched may equal ``transformers`` instead.
    """
    unsteady = {*stock.get("unsteady", ()), *patched.get("unsteady", ())}
    patched_keys, stock_keys = patched.get("keys", {}), stock.get("keys", {})
    keys = {*patched_keys, *stock_keys} - unsteady
    changed = sorted(key for key in keys if patched_keys.get(key) != stock_keys.get(key))
    as_hf = verdict(patched, case["expected"]) == "exact"
    stock_wrong = verdict(stock, case["expected"]) != "exact"
    same = bool(keys) and not changed
    if same:
        why = f"identical on all {len(keys)} keys"
    elif as_hf and stock_wrong:
        why = "grids as transformers makes them; this SGLang resizes images twice"
    else:
        why = f"differs in {', '.join(changed)}" if keys else patched.get("error", "no result")
    return {
        "name": case["name"],
        "kind": case["kind"],
        "stock": verdict(stock, case["expected"]),
        "patched": verdict(patched, case["expected"]),
        "ok": same or (as_hf and stock_wrong),
        "changed": changed,
        "why": why,
    }


def verdict(answer: dict[str, Any], expected: dict[str, Any] | None) -> str:
    """The verdict in a few words: ``exact``, what differs from the expected values, or the error."""
    if "error" in answer:
        kind = str(answer["error"].partition(":")[0])
        if kind == "TimeoutError":
            return "no answer"
        return "HTTP 400" if answer.get("refused") else f"HTTP 500, {kind}"
    if expected is None:
        return "served"
    if answer["input_ids"] != expected["input_ids"]:
        counts = len(answer["input_ids"]), len(expected["input_ids"])
        return f"{counts[0]} of {counts[1]} ids" if counts[0] != counts[1] else "other ids"
    wrong = [part for part in PARTS if answer[part] != expected[part]]
    return f"wrong {_short(wrong[0])}" if wrong else "exact"


def _short(part: str) -> str:
    return {"mrope_positions": "positions", "mrope_position_delta": "delta"}.get(part, part)


def _changed(stock: dict[str, Any], patched: dict[str, Any]) -> list[str]:
    if "error" in stock or "error" in patched:
        return ["error"] if stock.get("error") != patched.get("error") else []
    return [part for part in PARTS if stock[part] != patched[part]]


def _difference(answer: dict[str, Any], expected: dict[str, Any]) -> str:
    if "error" in answer:
        return str(answer["error"])
    return "differs from transformers in " + ", ".join(p for p in PARTS if answer[p] != expected[p])


def judge_rope(stock: dict[str, Any], patched: dict[str, Any]) -> dict[str, Any]:
    """The largest error of a rotation, compared with ``transformers``, stock and patched."""
    error = patched["error"]
    ok = error is not None and error < ROPE_NOISE
    note = "" if ok else patched["failure"] or f"the largest error is {error:.2g}"
    if ok and stock["error"] is not None and stock["error"] < ROPE_NOISE:
        note = "right by itself here"
    return {"stock": stock["error"], "patched": error, "ok": ok, "note": note}


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
        for part in (*PARTS, "error"):
            if part in changed:
                print(f"  {part}: {_WHY[part]}")
    print(colour("as promised", "green") if ok else colour("NOT as promised", "red", "bold"))
