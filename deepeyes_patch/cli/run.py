"""``deepeyes-patch run``: start a command with the repairs on.

Python reads our ``.pth`` file if the package is installed in a site directory. If Python does not read it,
``run`` puts our folder with a ``sitecustomize.py`` at the front of ``PYTHONPATH``, as ddtrace-run and
opentelemetry-instrument do.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepeyes_patch import settings
from deepeyes_patch.cli import output, probe, project, signals, terminal, usage
from deepeyes_patch.errors import SettingsError
from deepeyes_patch.settings import SWITCH

FOLDER = Path(__file__).resolve().parent / "path"

_EXAMPLES = """
deepeyes-patch run -- python -m sglang.launch_server --model-path DIR
deepeyes-patch run --only processor -- sglang serve --model-path DIR
"""

_PYTHON = re.compile(r"python(\d+(\.\d+)?t?)?$")
_SITE_FLAGS = "ISEs"  # the flags of Python that decide which start-up files it reads


def add(commands: Any) -> None:
    parser = terminal.add_command(commands, "run", "start a command with the repairs on", _EXAMPLES)
    parser.usage = "deepeyes-patch run [-h] [--only REPAIRS] -- CMD ..."
    parser.add_argument(
        "--only",
        metavar="REPAIRS",
        help=f"some of {', '.join(settings.REPAIRS)}, separated by commas (default: what the environment "
        f"switches on, else {' and '.join(sorted(settings.DEFAULT, reverse=True))})",
    )
    parser.add_argument("cmd", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="what to start")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    command = arguments.cmd[1:] if arguments.cmd[:1] == ["--"] else arguments.cmd
    switch = switch_value(arguments.only, os.environ)
    if not command:
        raise usage.UsageError(
            "no command to start. Write it after --, as in: deepeyes-patch run -- python -m "
            "sglang.launch_server --model-path DIR"
        )
    program = shutil.which(command[0])
    if program is None:
        if os.sep in command[0] and os.path.exists(command[0]):
            raise terminal.CommandError(f"{command[0]} is not an executable file.", 126)
        raise terminal.CommandError(f"{command[0]!r} was not found.", 127)
    variables = {SWITCH: switch}
    variables.update(_variables_for_hooks(program, command))
    os.environ.update(variables)
    sys.stdout.flush()
    signals.restore()
    try:
        os.execv(program, command)
    except OSError as error:
        raise terminal.CommandError(f"{program} cannot be executed: {error.strerror}.", 126) from error


def switch_value(only: str | None, environ: Mapping[str, str]) -> str:
    """The value that ``run`` gives to the switch.

    Raises
    ------
    UsageError
        ``only`` does not name repairs.
    CommandError
        The value in the environment is unknown.
    """
    if only is not None:
        _require_repairs(only)
        return only
    try:
        selected = settings.read(environ)
    except SettingsError as error:
        raise terminal.CommandError(str(error), 2) from error
    return ",".join(sorted(selected.repairs)) if selected.repairs else "1"


def _require_repairs(only: str) -> None:
    names = only.lower().replace(",", " ").replace("+", " ").split()
    unknown = [name for name in names or [""] if name not in settings.REPAIRS]
    if unknown:
        raise usage.UsageError(
            f"--only takes some of {', '.join(settings.REPAIRS)}, separated by commas, not {only!r}"
            f"{usage.nearest(unknown[0], settings.REPAIRS)}"
        )
    try:
        settings.require_base(names, f"--only {only}")
    except SettingsError as error:
        raise usage.UsageError(str(error)) from error


def _variables_for_hooks(program: str, command: Sequence[str]) -> dict[str, str]:
    """The variables, besides the switch, that make the Python of ``command`` load the hooks.

    The dict is empty if that Python reads our ``.pth`` file. Else it holds ``PYTHONPATH`` with our folder in
    front.

    Raises
    ------
    CommandError
        That Python does not load the hooks either way.
    """
    interpreter = interpreter_of(program, command[1:])
    through_folder = {"PYTHONPATH": _with_our_folder(os.environ.get("PYTHONPATH", ""))}
    if interpreter is None:
        live = probe.look(sys.executable, [], {}) == probe.LIVE
        output.complain(
            f"deepeyes-patch run: which Python {command[0]} starts cannot be seen from here; "
            f"`deepeyes-patch status PID` shows what is live."
        )
        return {} if live else through_folder
    python, flags = interpreter
    state = probe.look(python, flags, {})
    if state == probe.LIVE:
        return {}
    shown = " ".join([python, *flags])
    if state == probe.FAILED:
        raise terminal.CommandError(f"{shown} does not run. Nothing was started.", 126)
    if state == probe.BROKEN:
        raise terminal.CommandError(
            f"the installation of deepeyes-patch in {python} is damaged. Nothing was started. Run: "
            f"{project.reinstall(python)}",
            1,
        )
    if probe.look(python, flags, through_folder) == probe.LIVE and probe.has_package(
        python, flags, through_folder
    ):
        return through_folder
    if "-S" not in flags and not probe.has_package(python, flags, {}):
        raise terminal.CommandError(
            f"{shown} has no deepeyes_patch. Nothing was started. Run: {project.install(python)}",
            1,
        )
    raise terminal.CommandError(
        f"with {' '.join(flags) or 'this installation'}, {python} reads neither our .pth file nor "
        f"PYTHONPATH, so SGLang would run unrepaired. Nothing was started. Leave the flag out, or install "
        f"deepeyes-patch into that Python's site-packages (which -I and -E do read, and -S does not).",
        1,
    )


def _with_our_folder(existing: str) -> str:
    # An empty part of PYTHONPATH would mean the working folder.
    return os.pathsep.join([str(FOLDER), *([existing] if existing else [])])


def interpreter_of(program: str, arguments: Sequence[str]) -> tuple[str, list[str]] | None:
    """The Python that a command runs, and those of its flags that decide which start-up files it reads.

    ``None`` for a compiled program or a script of another language: which Python it starts is not known.
    """
    if _PYTHON.match(Path(program).name):
        return program, site_flags(arguments)
    try:
        with open(program, "rb") as script:
            line = script.readline(1000).decode(errors="replace")
    except OSError:
        return None
    if not line.startswith("#!"):
        return None
    try:
        words = shlex.split(line[2:].strip())
    except ValueError:  # a quote that is not closed
        return None
    if words and Path(words[0]).name == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
        if words and words[0].startswith("-"):  # another option of env, which may clear the variables
            return None
        while words and "=" in words[0]:
            del words[0]
        words[:1] = [path for word in words[:1] if (path := shutil.which(word))]
    if not words or not _PYTHON.match(Path(words[0]).name):
        return _behind_shell(program, words)
    return words[0], site_flags(words[1:])


def _behind_shell(program: str, words: Sequence[str]) -> tuple[str, list[str]] | None:
    """The Python of a script that starts ``sh``, which then starts Python.

    pip writes such scripts if the path to Python is too long for the first line.
    """
    if not words or Path(words[0]).name != "sh":
        return None
    with open(program, encoding="utf-8", errors="replace") as script:
        head = [script.readline() for _ in range(2)]
    if match := re.match(r"'''exec' \"?([^\"\n]+?)\"? \"\$0\"", head[1]):
        return match[1], []
    return None


def site_flags(arguments: Sequence[str]) -> list[str]:
    """The options of Python, before a script, ``-m`` or ``-c``, that decide which start-up files it reads.

    >>> site_flags(["-u", "-Es", "-X", "dev", "script.py", "-S"])
    ['-E', '-s']
    >>> site_flags(["-Im", "sglang.launch_server", "-S"])
    ['-I']
    """
    flags: list[str] = []
    words = iter(arguments)
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            break
        if word.startswith("--"):  # --check-hash-based-pycs takes a value
            if "=" not in word and word != "--help" and word != "--version":
                next(words, None)
            continue
        for place, letter in enumerate(word[1:], 1):
            if letter in "mc":
                return flags
            if letter in "WX":
                if place == len(word) - 1:  # its value is the next word
                    next(words, None)
                break
            if letter in _SITE_FLAGS:
                flags.append(f"-{letter}")
    return flags
