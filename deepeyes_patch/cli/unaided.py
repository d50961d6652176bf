"""What this SGLang does with expanded ids of images while the repairs are off: it is asked.

``doctor`` reads the need of every other repair in SGLang's source. Whether SGLang has learned to serve
expanded ids, only an answer can tell: nobody knows the names of the code that will do it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from deepeyes_patch.cli import sides, terminal, verdicts
from deepeyes_patch.cli.progress import Progress


def ask() -> dict[str, Any]:
    """Send the requests of ``verify`` to stock SGLang, until one fails.

    Returns
    -------
    dict
        ``right`` and ``of``: how many requests came out right, and how many there are; ``wrong``: the first
        that did not, with what came of it, or None; ``error``: why SGLang could not be asked, or None.
    """
    with tempfile.TemporaryDirectory(prefix="deepeyes-doctor-") as name:
        folder = Path(name)
        sides.ask(folder, {"model": None, "images": [], "stops": True})
        try:
            with Progress() as progress:
                (expected,) = sides.run(progress, folder, sides.TRANSFORMERS)
                (stock,) = sides.run(progress, folder, sides.STOCK)
        except terminal.CommandError as error:
            return {"right": 0, "of": 0, "wrong": None, "error": str(error)}
    return judge(expected["cases"], stock["answers"])


def judge(cases: list[dict[str, Any]], answers: list[dict[str, Any]]) -> dict[str, Any]:
    """What `ask` returns. There may be fewer answers than cases: then the last one is an error."""
    right, wrong = 0, None
    for case, answer in zip(cases, answers, strict=False):
        if case["kind"] == verdicts.TEXT:
            continue
        came = verdicts.verdict(answer, case["expected"])
        if came == verdicts.EXACT or (case["expected"] is None and answer.get("refused")):
            right += 1
        elif wrong is None:
            wrong = f"{case['name']}: {came}"
    count = sum(case["kind"] != verdicts.TEXT for case in cases)
    return {"right": right, "of": count, "wrong": wrong, "error": None}
