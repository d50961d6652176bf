"""``deepeyes-patch parity``: does a running server see what the trainer sees?"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from deepeyes_patch.cli import checkpoint, needs, terminal, usage
from deepeyes_patch.cli.terminal import colour

if TYPE_CHECKING:
    from deepeyes_patch.verification.episode import Limits, Row

_LEGEND = {
    "other ids": "the server used another number of ids, so it did not use those that were sent",
    "other log-probs": "as many ids, but other ones, at other positions, or with other images; if text only "
    "is off, other weights or another sampling",
    "no answer": "within --seconds",
}

_EXAMPLES = """
deepeyes-patch parity http://127.0.0.1:30000 --model DIR
deepeyes-patch parity http://127.0.0.1:30000 --model DIR --device cuda
"""


def add(commands: Any) -> None:
    parser = terminal.add_command(
        commands,
        "parity",
        "play a visual episode on a running server, and compare with transformers",
        _EXAMPLES,
    )
    parser.add_argument("url", metavar="URL", help="the server, with or without deepeyes-patch")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        required=True,
        help="the server's checkpoint: its folder, or a model in the hub's local cache",
    )
    parser.add_argument(
        "--device", default="auto", help="where transformers runs: cpu, cuda, ... (default: auto)"
    )
    parser.add_argument("--dtype", help="its dtype (default: float32 on a cpu, else bfloat16)")
    parser.add_argument(
        "--turns",
        metavar="N",
        type=usage.whole("a number of turns", 1000),
        default=3,
        help="turns, with an image each (default: 3)",
    )
    parser.add_argument(
        "--new-tokens",
        metavar="N",
        type=usage.whole("a number of tokens", 100_000),
        default=32,
        help="sampled in each turn (default: 32)",
    )
    parser.add_argument(
        "--seconds",
        metavar="N",
        type=usage.whole("a number of seconds", 86400),
        default=300,
        help="time limit of an answer (default: 300)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    folder = checkpoint.find(arguments.model, weights=True)
    if not _is_address(arguments.url):
        raise terminal.CommandError(
            f"{arguments.url!r} is no address of a server; it begins with http:// or https://.", 2
        )
    needs.require("torch", "transformers", "PIL")
    try:
        import torch
        import transformers

        from deepeyes_patch.verification import episode
    except ImportError as error:
        raise terminal.CommandError(
            f"torch, transformers or Pillow cannot be imported here: {error}. {needs.CHECK}", 3
        ) from error
    device, dtype = _chosen(arguments, torch)
    server = episode.Server(arguments.url.rstrip("/"), arguments.seconds)
    try:
        about = {
            "url": server.url,
            "model": str(folder),
            "served": _served(server),
            "transformers": transformers.__version__,
            "device": device,
            "dtype": dtype,
        }
        if not arguments.json:
            _print_head(about)
        trainer = _trainer(folder, device, dtype)
        rows = []
        for row in episode.play(trainer, server, episode.drawn(arguments.turns), arguments.new_tokens):
            rows.append(row)
            limits = episode.Limits.of(rows)  # of text only, which comes first
            if not arguments.json:
                _print_row(row, limits.verdict(row))
    except episode.Unreachable as error:
        raise terminal.CommandError(str(error), 3) from error
    verdicts = [limits.verdict(row) for row in rows]
    ok = all(word == "exact" for word in verdicts)
    if arguments.json:
        found = [_as_dict(row, word) for row, word in zip(rows, verdicts, strict=True)]
        terminal.print_json("parity", ok, **about, limits=vars(limits), requests=found)
    else:
        _print_end(ok, limits, rows, verdicts)
    return 0 if ok else 1


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half a bracket; a port that is no number
        return False


def _trainer(folder: Path, device: str, dtype: str) -> Any:
    from deepeyes_patch.verification.trainer import Trainer

    try:
        return Trainer(folder, device, dtype)
    except Exception as error:  # of the files, of the model's code, or of a device that is not here
        raise terminal.CommandError(
            f"transformers cannot load {folder} on {device}: {type(error).__name__}: {error}", 3
        ) from error


def _as_dict(row: Row, word: str) -> dict[str, Any]:
    fields = ("turn", "form", "sent", "expected", "used", "largest", "mean", "message")
    found = {name: getattr(row, name) for name in fields}
    for name in ("largest", "mean"):  # JSON has no infinity
        if found[name] is not None and not math.isfinite(found[name]):
            found[name] = None
    return {**found, "verdict": word}


def _chosen(arguments: argparse.Namespace, torch: Any) -> tuple[str, str]:
    device = arguments.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.device(device)
    except RuntimeError as error:
        raise terminal.CommandError(f"torch has no device {device!r}; try cpu or cuda.", 2) from error
    dtype = arguments.dtype or ("float32" if device == "cpu" else "bfloat16")
    found = getattr(torch, dtype, None)
    if not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise terminal.CommandError(
            f"torch has no floating-point dtype {dtype!r}; try bfloat16 or float32.", 2
        )
    return device, dtype


def _served(server: Any) -> str | None:
    """The checkpoint that the server names, for the reader to compare."""
    for path in ("/get_model_info", "/model_info"):
        if isinstance(found := server.get(path), dict):
            named = found.get("model_path")
            return None if named is None else str(named)
    return None


_COLUMNS = "{:>4}  {:15}  {:>6}  {:>6}  {:>6}  {:>8}  {:>8}  {}"


def _print_head(about: dict[str, Any]) -> None:
    served = about["served"] or "what it does not say"
    print(colour(f"{about['url']}, serving {served}", "bold"))
    print(f"transformers {about['transformers']}, {about['dtype']} on {about['device']}: {about['model']}\n")
    head = ("TURN", "REQUEST", "SENT", "MEANT", "USED", "LARGEST", "MEAN", "")
    print(colour(_COLUMNS.format(*head).rstrip(), "bold"), flush=True)


def _print_row(row: Row, word: str) -> None:
    errors = ["-" if value is None else f"{value:.4f}" for value in (row.largest, row.mean)]
    used = "-" if row.used is None else row.used
    line = _COLUMNS.format(row.turn, row.form, row.sent, row.expected, used, *errors, word)
    print(line if word == "exact" else colour(line, "red"), flush=True)


def _print_end(ok: bool, limits: Limits, rows: Sequence[Row], verdicts: Sequence[str]) -> None:
    print()
    for text in (
        "SENT, MEANT, USED: ids in the request, ids with all images expanded, ids that the server used",
        "LARGEST, MEAN: |log-prob of the server - log-prob of transformers| over the sampled ids",
        f"exact: MEANT is USED, and LARGEST and MEAN are at most {limits.largest:.4f} and {limits.mean:.4f}, "
        f"three times those of text only",
    ):
        print(terminal.wrapped(text, "  ", ""))
    for word in dict.fromkeys(verdicts):
        if word in _LEGEND:
            print(terminal.wrapped(f"{word}: {_LEGEND[word]}", "  ", ""))
    messages = [(row.failure, row.message) for row in rows if row.message is not None]
    for failure, message in dict.fromkeys(messages):
        print(terminal.wrapped(f"{failure}: {terminal.printable(message or '')[:400]}", "  ", ""))
    images = [word for row, word in zip(rows, verdicts, strict=True) if row.form != "text only"]
    words = f"{images.count('exact')} of {len(images)} requests with images are exact"
    print(colour(words, "green") if ok else colour(words, "red", "bold"))
