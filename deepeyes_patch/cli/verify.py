"""``deepeyes-patch verify``: run the same requests stock and patched, compare both with ``transformers``."""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from deepeyes_patch import __version__
from deepeyes_patch.cli import checkpoint, needs, sides, terminal, verdicts
from deepeyes_patch.cli.progress import Progress
from deepeyes_patch.cli.terminal import colour

_LEGEND = {
    "exact": "ids, offsets, grids and M-RoPE positions are those of transformers",
    "HTTP 400": "refused before it costs anything; the message says why",
    "HTTP 500": "the error that a client of this SGLang gets",
    "no answer": "the request would never return",
    "N of M ids": "the model would get other ids than the caller sent",
    "N off": "largest difference to what transformers rotates",
}

_EXAMPLES = """
deepeyes-patch verify                  with a tiny Qwen3-VL's processor
deepeyes-patch verify --model DIR      with that checkpoint's
deepeyes-patch verify --model Qwen/Qwen3-VL-8B-Instruct   (in the hub cache)
deepeyes-patch verify --model DIR --image a.jpg --image b.png
"""


def add(commands: Any) -> None:
    parser = terminal.add_command(
        commands,
        "verify",
        "send the same requests, stock and patched, and compare with transformers",
        _EXAMPLES,
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a checkpoint's folder, or a model in the hub's local cache; no weights are loaded",
    )
    parser.add_argument(
        "--image", metavar="FILE", action="append", default=[], help="a picture of your own; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    model = None if arguments.model is None else str(checkpoint.find(arguments.model))
    images = [str(_existing(image)) for image in arguments.image]
    needs.require("sglang", "torch", "transformers", "PIL")
    for image in images:
        _require_picture(image)
    with tempfile.TemporaryDirectory(prefix="deepeyes-verify-") as name:
        folder = Path(name)
        sides.ask(folder, {"model": model, "images": images})
        with Progress() as progress:
            (expected,) = sides.run(progress, folder, sides.TRANSFORMERS)
            stock, patched = sides.run(progress, folder, sides.STOCK, sides.PATCHED)
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
        show(ok, about, cases, rope)
    return 0 if ok else 1


def _existing(image: str) -> Path:
    path = Path(image)
    if not path.is_file():
        raise terminal.CommandError(f"{image!r} is not a file.", 2)
    return path.resolve()


def _require_picture(image: str) -> None:
    from PIL import Image

    try:
        with Image.open(image) as picture:
            picture.convert("RGB")
    except Exception as error:  # Pillow raises many kinds for a broken file
        raise terminal.CommandError(f"Pillow cannot read the picture {image!r}: {error}", 2) from error


# --- writing ------------------------------------------------------------------------------------------


def show(ok: bool, about: dict[str, Any], cases: list[dict[str, Any]], rope: dict[str, Any]) -> None:
    head = (
        f"deepeyes-patch {about['version']}, SGLang {about['sglang']}, transformers {about['transformers']}"
    )
    print(colour(head, "bold"))
    print(f"model: {about['model']} ({about['model_type']})\n")
    rows = [["REQUEST", "STOCK", "PATCHED", ""]]
    rows += [[c["name"], c["stock"], c["patched"], "ok" if c["ok"] else "WRONG"] for c in cases]
    rotated = [f"{e:.1g} off" if e is not None else "failed" for e in (rope["stock"], rope["patched"])]
    rows.append(["rope, image positions", *rotated, "ok" if rope["ok"] else "WRONG"])
    right = [(True, row["stock_ok"], row["ok"], row["ok"]) for row in (*cases, rope)]

    def paint(row: int, column: int, cell: str) -> str:
        if row == 0:
            return colour(cell, "bold")
        return cell if column == 0 else colour(cell, "green" if right[row - 1][column] else "red")

    print("\n".join(terminal.table(rows, paint=paint)))
    print()
    _print_legend({cell for row in rows for cell in row})
    for case in cases:
        if case["kind"] == verdicts.TEXT or not case["ok"]:
            print(terminal.wrapped(f"{case['name']}: {case['why']}", "  ", ""))
    if rope["note"]:
        print(terminal.wrapped(f"rope: {rope['note']}", "  ", ""))
    changed = {part for case in cases if case["kind"] == "ids" and case["ok"] for part in case["changed"]}
    if changed:
        print("ids: what the repair changes, and why")
        for part in (*verdicts.PARTS, "error"):
            if part in changed:
                print(f"  {part}: {verdicts.WHY[part]}")
    print()
    print(colour(verdicts.summary(cases, rope), *(["green"] if ok else ["red", "bold"])))


def _print_legend(cells: Collection[str]) -> None:
    """What the words in the table mean, as far as they stand in it."""
    for word, meaning in _LEGEND.items():
        pattern = re.compile(re.escape(word).replace("N", r"\S+").replace("M", r"\d+"))
        if any(pattern.match(cell) for cell in cells):
            print(f"  {word:<10}  {meaning}")
    print()
