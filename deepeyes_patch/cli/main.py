"""The parser of all commands, and what an error looks like."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

OK, WRONG, USAGE, UNANSWERED = 0, 1, 2, 3

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
        from deepeyes_patch.cli import terminal, usage

        parser, commands = _parser()
    except Exception as error:  # half removed or half written
        print(f"deepeyes-patch: the installation is damaged: {error}.\n{_remedy()}", file=sys.stderr)
        return WRONG
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words:
        parser.print_help(sys.stderr)
        return USAGE
    parsed = usage.parse(parser, commands, words)
    try:
        code: int = parsed.execute(parsed)
    except usage.UsageError as error:
        commands[parsed.command].error(str(error))
    except terminal.CommandError as error:
        print(f"deepeyes-patch {parsed.command}: {error}", file=sys.stderr)
        return error.code
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return OK
    except KeyboardInterrupt:
        return 130
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
    from deepeyes_patch.cli import doctor, parity, project, run, status, verify

    parser = argparse.ArgumentParser(
        prog="deepeyes-patch",
        description="Run-time repairs for Qwen-VL serving in SGLang.",
        epilog=_EPILOG.format(issues=project.issues()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"deepeyes-patch {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (doctor, verify, parity, run, status):
        module.add(commands)
    return parser, commands.choices
