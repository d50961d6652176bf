"""The parser of arguments. An error shows the usage of the command that was meant, and the nearest word."""

from __future__ import annotations

import argparse
import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """argparse, with a plain message for a flag that is given a value."""

    def error(self, message: str) -> NoReturn:
        flag = re.match(r"argument (\S+): ignored explicit argument (.*)", message)
        super().error(f"{flag[1]} takes no value, and {flag[2]} was given" if flag else message)


class UsageError(Exception):
    """The arguments are not valid. `main` prints the message under the usage of the command."""


def parse(
    parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser], words: Sequence[str]
) -> argparse.Namespace:
    """Parse ``words``, or exit with 2.

    argparse itself shows the usage of the whole program for an unknown option of a command.
    """
    words = _as_options(parser, words)
    first = words[0]
    if first.startswith("-"):
        if takers := [name for name, command in commands.items() if first in options(command)]:
            if first not in options(parser):
                lines = ", ".join(f"{name} {first}" for name in takers)
                parser.error(f"{first!r} follows the command: {lines}")
        elif first not in options(parser):
            parser.error(f"no option {first!r}{nearest(first, options(parser))}")
    elif first not in commands:
        known = f". The commands are {', '.join(commands)}"
        parser.error(f"no command {first!r}{nearest(first, [*commands, *_WORDS]) or known}")
    parsed, unknown = parser.parse_known_args(words)
    if unknown:
        command = commands[parsed.command]
        word = unknown[0]
        kind = "option" if word.startswith("-") else "argument"
        command.error(f"no {kind} {word!r}{nearest(word, options(command)) or _as_argument(command, word)}")
    return parsed


# Words that other programs take as commands, and the option that does it here.
_WORDS = {"help": "--help", "version": "--version"}


def _as_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> Sequence[str]:
    """``help``, ``help COMMAND`` and ``version`` as options."""
    first, *others = words
    if first not in _WORDS:
        return words
    if first == "help" and others and others[0] in _WORDS:
        return [_WORDS["help"]]
    if len(others) > (1 if first == "help" else 0):
        parser.error(f"no argument {others[-1]!r} after {' '.join(words[:-1])!r}")
    return [*others, _WORDS[first]]


def _as_argument(command: argparse.ArgumentParser, word: str) -> str:
    """For an option that is named like an argument: how to write the argument."""
    for action in command._actions:
        if not action.option_strings and word.partition("=")[0].lstrip("-") == action.dest:
            return f". Write it without the option: {command.prog} {action.metavar}"
    return ""


def options(parser: argparse.ArgumentParser) -> list[str]:
    """The options that a command takes, short and long."""
    return [name for action in parser._actions for name in action.option_strings]


def nearest(word: str, known: Iterable[str]) -> str:
    """A question that names the known word which looks most like ``word``, if one does."""
    by_lower_case = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.partition("=")[0].lower(), list(by_lower_case), n=1)
    return f". Did you mean {by_lower_case[found[0]]!r}?" if found else ""


def whole(what: str, most: int = 10**9) -> Callable[[str], int]:
    """A converter for argparse: a whole number of at least 1. ``what`` says what the number is."""

    def convert(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}, a whole number from 1 to {most}")
        return value

    return convert


def seconds(least: float, most: float) -> Callable[[str], float]:
    """A converter for argparse: a number of seconds, which may have decimals."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a number of seconds from {least:g} to {most:g}"
            )
        return value

    return convert
