"""Runs `deepeyes_patch.verification.child`: one process for each side of a comparison with transformers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepeyes_patch.cli import needs, terminal
from deepeyes_patch.cli.progress import Progress
from deepeyes_patch.settings import RELAX_SWITCH, SWITCH

TRANSFORMERS, STOCK, PATCHED = "transformers", "stock", "patched"
_QUESTION = "question.json"
SECONDS = 900  # time limit for one child, which imports SGLang on a busy machine


def ask(folder: Path, question: Mapping[str, Any]) -> None:
    """Write what the children in ``folder`` are asked: ``model``, ``images``, ``stops``."""
    (folder / _QUESTION).write_text(json.dumps(question))


def run(progress: Progress, folder: Path, *roles: str) -> list[dict[str, Any]]:
    """Run one child for each role, at the same time; return their answers.

    Raises ``CommandError`` if one of them gives none, or not in time.
    """
    children: list[subprocess.Popen[bytes]] = []
    try:
        for role in roles:
            children.append(_start(folder, role))
        if not progress.wait(children, SECONDS, lambda: _doing(folder, roles)):
            raise terminal.CommandError(
                f"{' or '.join(roles)} did not end within {SECONDS} s: {_doing(folder, roles)}", 3
            )
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    return [_answer_of(folder, role, child.returncode) for role, child in zip(roles, children, strict=True)]


def _doing(folder: Path, roles: Sequence[str]) -> str:
    """What each child says that it is doing."""
    files = {role: folder / f"{role}.doing" for role in roles}
    return "; ".join(
        f"{role}: {(file.read_text() if file.exists() else '') or 'starting'}" for role, file in files.items()
    )


def _start(folder: Path, role: str) -> subprocess.Popen[bytes]:
    environ = {
        **os.environ,
        SWITCH: "1" if role == PATCHED else "off",
        "TOKENIZERS_PARALLELISM": "false",
    }
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
    if file.exists():
        answer: dict[str, Any] = json.loads(file.read_text())
        return answer
    _raise_plain_error(folder, role)
    log = (folder / f"{role}.log").read_text(errors="replace")
    tail = "\n".join(log.strip().splitlines()[-8:])
    raise terminal.CommandError(
        f"the {role} child ended with {code} and no answer. Its last words:\n{tail}\n"
        f"`deepeyes-patch doctor --deep` shows whether SGLang can be imported here at all.",
        3,
    )


def _raise_plain_error(folder: Path, role: str) -> None:
    """Raise what the user can mend: a missing package, or a checkpoint that transformers cannot use."""
    file = folder / f"{role}.error"
    if not file.exists():  # the child was killed, or crashed
        return
    error = json.loads(file.read_text())
    if error["is_import"]:
        what = "transformers" if role == TRANSFORMERS else "SGLang"
        raise terminal.CommandError(f"{what} cannot be imported here: {error['text']}. {needs.CHECK}", 3)
    model = json.loads((folder / _QUESTION).read_text())["model"]
    if role == TRANSFORMERS and model is not None:
        raise terminal.CommandError(
            f"transformers cannot use {model}: {error['text']}. Give a complete Qwen-VL checkpoint; its "
            f"weights are not needed.",
            2,
        )
