"""``python3 -m tests.matrix.run [RELEASE ...]``: fill the table of supported releases, or a part of it.

Standard library only. A release's results are kept in the lab's cache, under the digest of our package and
of what is asked, so a run that was interrupted goes on where it stopped. Then ``docs/en/releases.md`` is
written, with lines of older sources for releases that were not asked, and from it the Chinese page and the
short tables of both languages. Ends with 1 if a patched release is not right.

``--mark`` runs nothing: the page then says which of its lines an older package made. ``make test`` demands
that. ``--check`` ends with 1 if there are such lines.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.lab import children, environments, pythons
from tests.lab.children import ChildFailed
from tests.lab.environments import CHECKOUT, python_of
from tests.lab.releases import RELEASES, SERVED
from tests.matrix import brief, chinese, table

DOCUMENT = CHECKOUT / "docs" / "en" / "releases.md"
# Its server is started on another Python, too, where there is one.
REFERENCE, OTHER_PYTHON = "0.5.12.post1", "3.12"
PROBE_SECONDS = 1200
# The children switch on what they need; more threads than cores would only wait for each other.
OFF = {"DEEPEYES_PATCH": None, "RELAX_DEEPEYES_QWEN_VL_PATCH": None, "OMP_NUM_THREADS": "1"}
SERVER_SECONDS = 900

# Whatever changes one of these changes what a result means. The command line serves nothing.
_PACKAGE = ("deepeyes_patch/**/*", "deepeyes_patch.pth", "deepeyes_patch.start")
_COMMAND_LINE = ("deepeyes_patch/cli/", "deepeyes_patch/__main__.py")
_QUESTIONS = (
    *("tests/matrix/cases.py", "tests/matrix/probe.py", "tests/matrix/served.py"),
    *("tests/sglang/rollouts.py", "tests/sglang/ways.py"),
    *("tests/sglang/test_mrope.py", "tests/sglang/test_preprocessed.py", "tests/e2e/shapes.py"),
    *("tests/lab/models.py", "tests/lab/vocabularies.py", "tests/lab/processors.py"),
    *("tests/lab/flags.py", "tests/lab/reference.py", "tests/lab/server.py", "tests/lab/client.py"),
    *("tests/lab/clips.py", "tests/sglang/films.py"),
    "tests/lab/standins/**/*.py",
)

FORMAT = "2"  # of the results that are kept

Entry = dict[str, Any]


def main(names: Sequence[str]) -> int:
    if names and names[0] in ("--mark", "--check"):
        return _say_age(mark=names[0] == "--mark")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if unknown := sorted(set(names).difference(RELEASES)):
        raise SystemExit(f"unknown release {', '.join(unknown)}; known: {', '.join(RELEASES)}")
    chosen = list(names) or list(RELEASES)
    todo = [name for name in chosen if _kept(name) is None]
    say(f"{len(chosen) - len(todo)} of {len(chosen)} releases are done already")
    start, done = time.monotonic(), 0
    for number, name in enumerate(todo, start=1):
        left = sum(map(_weight, todo[number - 1 :]))
        minutes = f", about {(time.monotonic() - start) / done * left / 60:.0f} min left" if done else ""
        say(f"[{number}/{len(todo)}] SGLang {name}{minutes}")
        environments.ensure([name])
        entry = examine(name)
        _keep(name, entry)
        done += _weight(name)
        say(f"    {table.summary(entry)}")
    _write(chosen)
    entries = [entry for name in chosen if (entry := _latest(name))]
    wrong = [fault for entry in entries for fault in table.faults(entry)]
    for fault in wrong:
        say(f"NOT RIGHT: {fault}")
    return 1 if wrong else 0


def package_digest() -> str:
    """Of all that decides how requests are served."""
    return _digest(_PACKAGE)


def _say_age(mark: bool) -> int:
    text = DOCUMENT.read_text()
    older = table.older(text, package_digest())
    say(f"made with an older package: {', '.join(older) or 'no line'}")
    if mark:
        _write_pages(text)
        return 0
    return 1 if older else 0


def _weight(name: str) -> int:
    """How long a release takes; a server takes twice as long as all else."""
    return 3 if name in SERVED else 1


def _write(chosen: Sequence[str]) -> None:
    """The whole document if there is a result of every release, else the lines of the chosen ones."""
    entries = {name: entry for name in RELEASES if (entry := _latest(name))}
    if len(entries) == len(RELEASES):
        text = table.document(list(entries.values()))
    elif DOCUMENT.exists():
        text = DOCUMENT.read_text()
        names = list(RELEASES)
        for name in chosen:
            text = table.updated(text, entries[name], names[: names.index(name)])
    else:
        say(f"{len(RELEASES) - len(entries)} releases are missing, and there is no document to rewrite yet")
        return
    _write_pages(text)
    say(f"wrote {DOCUMENT.relative_to(CHECKOUT)}")


def _write_pages(text: str) -> None:
    """The English page with a word on its age, and the pages that are made from it."""
    DOCUMENT.write_text(table.dated(text, package_digest()))
    docs = DOCUMENT.parents[1]
    chinese.write(docs)
    brief.write(docs)


def examine(name: str) -> Entry:
    """Ask the release everything, stock and patched."""
    entry: Entry = {
        "release": name,
        "transformers": RELEASES[name].transformers,
        "sources": package_digest(),
    }
    begin = time.monotonic()
    entry["probe"] = _child(name, "probe", PROBE_SECONDS)
    entry["server"] = _child(name, "served", SERVER_SECONDS) if name in SERVED else None
    if name == REFERENCE and pythons.find(OTHER_PYTHON):
        environments.ensure([name], OTHER_PYTHON)
        served = _child(name, "served", SERVER_SECONDS, OTHER_PYTHON)
        entry["elsewhere"] = {f"Python {OTHER_PYTHON}": served}
    entry["seconds"] = round(time.monotonic() - begin)
    return entry


def _child(name: str, module: str, seconds: float, python: str = environments.LOCK_PYTHON) -> Any:
    """What a child wrote; ``{"error": ...}`` where it failed."""
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        results, log = Path(folder) / "results.json", Path(folder) / "log.txt"
        command = [python_of(name, python), "-m", f"tests.matrix.{module}", results]
        try:
            children.run(command, log, seconds, OFF, quiet=True)
        except ChildFailed as error:
            return {"error": str(error)}
        return json.loads(results.read_text())


def _file(name: str) -> Path:
    row = hashlib.sha256(f"{FORMAT} {RELEASES[name]!r}".encode()).hexdigest()[:12]
    return environments.cache() / "matrix" / _digest((*_PACKAGE, *_QUESTIONS)) / f"{name}-{row}.json"


def _kept(name: str) -> Entry | None:
    """An earlier result of these sources; one with a failed child is asked again."""
    path = _file(name)
    if not path.exists():
        return None
    entry: Entry = json.loads(path.read_text())
    return None if table.failures(entry) else entry


def _latest(name: str) -> Entry | None:
    """The newest result of whatever sources; its line tells which."""
    folder = _file(name).parent.parent
    kept = sorted(folder.glob(f"*/{_file(name).name}"), key=lambda path: path.stat().st_mtime)
    return json.loads(kept[-1].read_text()) if kept else None


def _keep(name: str, entry: Entry) -> None:
    path = _file(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(f".{os.getpid()}")
    half.write_text(json.dumps(entry, indent=1))
    half.rename(path)


@functools.cache  # of the files as they were when the run began
def _digest(patterns: tuple[str, ...]) -> str:
    whole = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in CHECKOUT.glob(pattern) if path.is_file()}):
        name = path.relative_to(CHECKOUT).as_posix()
        if path.suffix == ".pyc" or name.startswith(_COMMAND_LINE):
            continue
        whole.update(f"{name}\0".encode())
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:12]


def say(what: str) -> None:
    print(f"matrix: {what}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\ninterrupted; run it again to go on")
        sys.exit(130)
