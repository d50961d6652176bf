"""The list of messages in Troubleshooting and the sources hold the same messages.

Every text of three words or more in the sources that is no docstring counts as a message, whether it is
raised, logged, or handed to whoever raises it. The exceptions are listed.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import pytest

from tests.docs import pages
from tests.docs.pages import CHECKOUT

PACKAGE = CHECKOUT / "deepeyes_patch"
# Modules that talk to a terminal have a page of their own. What `run` puts into SGLang's processes is none.
ELSEWHERE = ("cli", "verification", "__main__.py")
IN_SGLANG = ("cli", "path")
GAP = "\0"  # stands for a value in a message

# The texts of the table of seams describe functions; what is wrong with one is said elsewhere.
NOT_SAID = (
    *("seams/table.py", "seams/table_deepstack.py"),
    *("seams/table_mrope.py", "seams/table_server.py"),
)

# Texts that are no message by themselves: states, versions, names of things, and parts of messages.
NO_MESSAGES = {
    "from multiprocessing.forkserver import main",
    f"{GAP}: {GAP} ({GAP})",
    f"SGLang {GAP} ({GAP}, {GAP})",
    f"patched ({GAP})",
    f"failed ({GAP})",
    "an unknown module",
    "an unknown place",
    "of unknown version",
    "no distribution: a source tree",
    "import sys; sys.exit(not any(type(f).__name__ == 'SGLangFinder' for f in sys.meta_path))",
    # The classes that a row of the table of seams is about.
    f"the class with {GAP}",
    f"every class that defines {GAP}",
    f"every class named ...{GAP}",
    # What a preprocessed item holds, before "leave them out".
    f"offsets of shape {GAP}",
    "offsets that are no pairs",
    f"{GAP} is no reason for a refusal",  # for whoever writes a refusal
    f"{GAP} frames at {GAP} fps",  # part of "the times of a video's frames are unknown"
    # The help of a Prometheus counter.
    "Requests that deepeyes-patch restored, passed through to SGLang, or refused (by reason).",
}


def literal(node: ast.AST) -> str | None:
    """The text of a string, with `GAP` for each value in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[sd]|\{\w+\}", GAP, node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else GAP for v in node.values)
    return None


def texts() -> Iterator[str]:
    """Every text in the sources that is no docstring."""
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).parts
        if (place[0] in ELSEWHERE and place[:2] != IN_SGLANG) or "/".join(place) in NOT_SAID:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        skipped: set[ast.AST] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr):
                skipped.add(node.value)  # a docstring
            elif isinstance(node, ast.JoinedStr):
                skipped.update(node.values)
        for node in ast.walk(tree):
            text = None if node in skipped else literal(node)
            if text is not None:
                yield text


def messages() -> Iterator[str]:
    """Every text in the sources that may come out."""
    for text in texts():
        if text in NO_MESSAGES or text[:1].isdigit():  # the releases that are tested
            continue
        if len(re.findall(r"[A-Za-z]+", text)) >= 3 and " " in text.strip():
            yield text


@functools.cache
def listed() -> list[str]:
    tables = pages.page("troubleshooting").tables
    rows = [row[0] for table in tables for row in table[1:]]
    assert all(row.startswith("`") and row.endswith("`") for row in rows)
    return [row.strip("`") for row in rows]


def describes(entry: str, message: str) -> bool:
    """Whether the parts of an entry, between its dots, stand in the message in that order."""
    parts = [part.strip() for part in entry.split("...") if len(part.strip()) > 1]
    if sum(map(len, parts)) < 8:
        return False
    return re.search(".*".join(map(re.escape, parts)), message.replace(GAP, "\t"), re.DOTALL) is not None


MESSAGES = sorted(set(messages()))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda text: text.replace(GAP, "_")[:60].strip())
def test_every_message_is_listed(message: str) -> None:
    assert any(describes(entry, message) for entry in listed()), message.replace(GAP, "...")


@pytest.mark.parametrize("entry", listed(), ids=lambda text: text[:60])
def test_every_entry_is_in_the_sources(entry: str) -> None:
    # The last one is Python's own; `test_security` has it say so.
    sources = [
        *MESSAGES,
        f"{GAP}: found nothing: missing",
        f"Error processing line 1 of {GAP}deepeyes_patch.pth",
    ]
    assert any(describes(entry, message) for message in sources), entry


def test_the_exceptions_are_in_the_sources() -> None:
    assert NO_MESSAGES - set(texts()) == set()


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 80


def test_an_entry_that_nobody_says_is_noticed() -> None:
    assert not any(describes("the moon is ... made of cheese", message) for message in MESSAGES)
