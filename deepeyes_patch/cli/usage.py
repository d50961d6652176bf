"""The parser of arguments. An error shows the usage of the command that was meant, and the nearest word."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Mapping, Sequence


class UsageError(Exception):
    """The arguments are not valid. `main` prints the message under the usage of the command."""


def parse(
    parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser], words: Sequence[str]
) -> argparse.Namespace:
    """Parse ``words``, or exit with 2.

    argparse itself shows the usage of the whole program for an unknown option of a command.
    """
    first = words[0]
    if first.startswith("-"):
        if takers := [name for name, command in commands.items() if first in options(command)]:
            if first not in options(parser):
                parser.error(f"{first!r} follows the command: {' or '.join(takers)} {first}")
        elif first not in options(parser):
            parser.error(f"no option {first!r}{nearest(first, options(parser))}")
    elif first not in commands:
        parser.error(f"no command {first!r}{nearest(first, commands)}")
    parsed, unknown = parser.parse_known_args(words)
    if unknown:
        command = commands[parsed.command]
        word = unknown[0]
        kind = "option" if word.startswith("-") else "argument"
        command.error(f"no {kind} {word!r}{nearest(word, options(command))}")
    return parsed


def options(parser: argparse.ArgumentParser) -> list[str]:
    """The options that a command takes, short and long."""
    return [name for action in parser._actions for name in action.option_strings]


def nearest(word: str, known: Iterable[str]) -> str:
    """A question that names the known word which looks most like ``word``, if one does."""
    found = difflib.get_close_matches(word.partition("=")[0], list(known), n=1)
    return f". Did you mean {found[0]!r}?" if found else ""
