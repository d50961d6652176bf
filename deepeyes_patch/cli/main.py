"""The parser of all commands, and what an error looks like."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

WRONG, USAGE, UNANSWERED = 1, 2, 3
# 128 and the number of the signal that ends other programs: SIGINT, SIGPIPE.
INTERRUPTED, UNREAD = 130, 141

_EPILOG = """\
examples:
  deepeyes-patch doctor
  deepeyes-patch run -- python -m sglang.launch_server --model-path DIR
  deepeyes-patch status 4242
  deepeyes-patch verify --model DIR
  deepeyes-patch parity http://127.0.0.1:30000 --model DIR

exit codes: 0 nothing is wrong; 1 something is wrong; 2 wrong usage; 3 cannot be
answered here. Details: docs/en/cli.md, docs/zh/cli.md
To report a fault, paste what `deepeyes-patch doctor --report` prints into
{issues}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code. Wrong arguments raise ``SystemExit``, as in argparse."""
    try:
        return _main(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED


def _main(words: Sequence[str]) -> int:
    try:
        from deepeyes_patch.cli import output, signals

        parser, commands = _parser()
    except Exception as error:  # half removed or half written
        print(f"deepeyes-patch: the installation is damaged: {error}.\n{_remedy()}", file=sys.stderr)
        return WRONG
    try:
        with signals.raised(), output.guarded():
            return _execute(parser, commands, words)
    except signals.Ended as ended:
        return ended.code
    except output.Unread:
        return UNREAD
    except output.Unwritable as error:
        output.complain(f"deepeyes-patch: cannot write to stdout: {error}.")
        return UNANSWERED


def _execute(
    parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser], words: Sequence[str]
) -> int:
    from deepeyes_patch.cli import output, terminal, usage

    if not words:
        parser.print_help(sys.stderr)
        return USAGE
    parsed = usage.parse(parser, commands, words)
    try:
        code: int = parsed.execute(parsed)
    except usage.UsageError as error:
        commands[parsed.command].error(str(error))
    except terminal.CommandError as error:
        output.complain(f"deepeyes-patch {parsed.command}: {error}")
        return error.code
    return code


def _remedy() -> str:
    try:
        from deepeyes_patch.cli import project
    except Exception:  # that file is gone too
        return "Install deepeyes-patch again."
    return f"Run: {project.reinstall()}"


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of the program, and that of each command by name."""
    from deepeyes_patch import __version__
    from deepeyes_patch.cli import doctor, parity, project, run, status, usage, verify

    parser = usage.Parser(
        prog="deepeyes-patch",
        description="Run-time repairs for Qwen-VL serving in SGLang.",
        epilog=_EPILOG.format(issues=project.issues()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="version", version=f"deepeyes-patch {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (doctor, verify, parity, run, status):
        module.add(commands)
    return parser, dict(commands.choices)
