"""The command line's own logic, without SGLang: arguments, flags, verdicts, sources."""

from __future__ import annotations

import argparse
import contextlib
import doctest
import fcntl
import json
import os
import pty
import shlex
import signal
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from deepeyes_patch.cli import deep, project, repairs, run, status, terminal
from deepeyes_patch.cli import main as cli_main
from deepeyes_patch.cli.terminal import CommandError
from deepeyes_patch.cli.usage import UsageError
from deepeyes_patch.seams import table
from tests.interpreters import CHECKOUT, Interpreter, clean_environ, held

COMMANDS = ("doctor", "verify", "parity", "run", "status")


def cli(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deepeyes_patch", *arguments],
        cwd=CHECKOUT,
        env=clean_environ(**environ),
        capture_output=True,
        text=True,
        timeout=60,
    )


def on_a_terminal(width: int, *arguments: str, seconds: float | None = None, **variables: str) -> str:
    """What a command writes on a terminal of so many columns, within so many seconds."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    environ = clean_environ(**{"NO_COLOR": "1", "TERM": "xterm", **variables})
    environ.pop("COLUMNS", None)
    with subprocess.Popen(
        [sys.executable, "-m", "deepeyes_patch", *arguments],
        cwd=CHECKOUT,
        env=environ,
        stdin=slave,
        stdout=slave,
        stderr=slave,
    ) as child:
        os.close(slave)
        if seconds is not None:
            threading.Timer(seconds, child.terminate).start()
        written = b""
        with contextlib.suppress(OSError):  # so a terminal says that nobody writes on it any more
            while part := os.read(master, 65536):
                written += part
    os.close(master)
    return written.decode().replace("\r\n", "\n")


# --- help and errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], *[[name] for name in COMMANDS]], ids=["", *COMMANDS])
def test_help_has_examples_in_80_columns(arguments: list[str]) -> None:
    done = cli(*arguments, "--help", COLUMNS="80")
    assert done.returncode == 0, done
    assert "examples:\n  deepeyes-patch " in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines()), done.stdout


def test_no_arguments_show_the_help() -> None:
    """The code is that of wrong usage: a script that forgot the command must not pass."""
    done = cli(COLUMNS="80")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == cli("--help", COLUMNS="80").stdout


@pytest.mark.parametrize(
    ("arguments", "command", "words"),
    [
        ("nonsense", "", "no command 'nonsense'. The commands are doctor,"),
        ("check", "", "no command 'check'. The commands are doctor, verify, parity, run, status\n"),
        ("-v", "", "no option '-v'. Did you mean '-V'?"),
        ("--json", "", "follows the command: doctor --json, verify --json, parity --json, status --json\n"),
        ("doctor --deep=yes", "doctor", "--deep takes no value, and 'yes' was given\n"),
        (
            "status --pid 5",
            "status",
            "no option '--pid'. Write it without the option: deepeyes-patch status PID",
        ),
        ("docter", "", "no command 'docter'. Did you mean 'doctor'?"),
        ("--verson", "", "no option '--verson'. Did you mean '--version'?"),
        ("--deep doctor", "", "'--deep' follows the command: doctor --deep"),
        ("doctor --jsn", "doctor", "no option '--jsn'. Did you mean '--json'?"),
        ("doctor here", "doctor", "no argument 'here'\n"),
        ("verify --modle=DIR", "verify", "no option '--modle=DIR'. Did you mean '--model'?"),
        ("hlep", "", "no command 'hlep'. Did you mean 'help'?"),
        ("help docter", "", "no command 'docter'. Did you mean 'doctor'?"),
        ("help run now", "", "no argument 'now' after 'help run'"),
        ("version now", "", "no argument 'now' after 'version'"),
        ("doctor help", "doctor", "no argument 'help'. Did you mean '--help'?"),
        ("status abc", "status", "'abc' is not a process id, a whole number from 1 to 1000000000\n"),
        ("status 0", "status", "'0' is not a process id"),
        ("status 1_0", "status", "'1_0' is not a process id"),
        ("status --watch x", "status", "'x' is not a number of seconds from 0.1 to 86400\n"),
        ("status --watch nan", "status", "'nan' is not a number of seconds"),
        ("status --watch 0", "status", "'0' is not a number of seconds"),
        ("parity URL --model DIR --turns x", "parity", "'x' is not a number of turns, a whole number from 1"),
        ("parity URL --model DIR --new-tokens 0", "parity", "'0' is not a number of tokens"),
        ("parity URL --model DIR --seconds 1e9", "parity", "'1e9' is not a number of seconds"),
        ("run", "run", "no command to start"),
        ("run --onyl mrope -- true", "run", "no option '--onyl'. Did you mean '--only'?"),
        ("run --only proccessor", "run", "not 'proccessor'. Did you mean 'processor'?"),
        ("run --only 1 -- true", "run", "--only takes some of processor, mrope, video"),
        ("run --only video -- true", "run", "--only video: 'video' stands on 'processor'"),
    ],
)
def test_wrong_usage(arguments: str, command: str, words: str) -> None:
    """What was meant, under the usage of the command that was meant."""
    done = cli(*arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    head, *rest = done.stderr.splitlines(keepends=True)
    program = f"deepeyes-patch {command}".strip()
    assert head.startswith(f"usage: {program} [-h]")
    assert words in "".join(rest)
    assert rest[-1].startswith(f"{program}: error: ")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        *(("help", "--help"), ("help help", "--help"), ("help version", "--help"), ("version", "-V")),
        *(("help doctor", "doctor --help"), ("help run", "run --help")),
    ],
)
def test_words_that_do_what_an_option_does(words: str, option: str) -> None:
    done, expected = cli(*words.split()), cli(*option.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == expected.stdout != ""


def test_no_message_names_a_function_of_python() -> None:
    """argparse does so for a converter that raises ValueError."""
    _, commands = cli_main._parser()
    for command in commands.values():
        for action in command._actions:
            if action.type is not None:
                assert callable(action.type)
                with pytest.raises(argparse.ArgumentTypeError, match=r"^'\?' is not a "):
                    action.type("?")


def test_start_up_imports_no_command_line(patched: Interpreter) -> None:
    program = "import sglang, sys; print(*[n for n in sys.modules if '.cli' in n or 'verification' in n])"
    assert patched.run(program, environ={"DEEPEYES_PATCH": "1"}).printed() == ""


def test_colours_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert terminal.colour("x", "red") == "x"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.colour("x", "red") == "\x1b[31mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.colour("x", "red") == "x"


# --- the project's address and the package ------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "on_index", "expected"),
    [
        ("file:///a%20checkout", False, "/a checkout"),
        ("file:///a%20checkout", True, "/a checkout"),
        ("https://somewhere/x.whl", True, "deepeyes-patch"),
        (None, True, "deepeyes-patch"),
        (None, False, "CHECKOUT  (the folder of deepeyes-patch's sources)"),
    ],
)
def test_what_pip_gets(
    url: str | None, on_index: bool, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    info = tmp_path / "deepeyes_patch-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: deepeyes-patch\nVersion: 0.1.0\n")
    if url is not None:
        (info / "direct_url.json").write_text(json.dumps({"url": url}))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(project, "ON_AN_INDEX", on_index)
    assert project.install("python") == f"python -m pip install {shlex.quote(expected) if url else expected}"


def test_the_address_is_in_the_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(project, "ADDRESS", "https://example.org/deepeyes-patch")
    with pytest.raises(SystemExit):
        cli_main.main(["--help"])
    assert capsys.readouterr().out.endswith("\nhttps://example.org/deepeyes-patch/issues\n")


def test_a_placeholder_is_not_shown_as_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "ADDRESS", "https://deepeyes-patch.invalid")
    assert not project.has_address()
    assert "invalid" not in project.issues()


# --- run ----------------------------------------------------------------------------------------------


def test_flags_of_python() -> None:
    assert doctest.testmod(run).failed == 0
    assert run.site_flags(["-c", "print()", "-S"]) == []
    assert run.site_flags(["-W", "-S", "x.py"]) == [], "a value that looks like a flag"
    assert run.site_flags(["-Wignore", "-S", "x.py"]) == ["-S"]
    assert run.site_flags(["--check-hash-based-pycs", "never", "-I", "x.py"]) == ["-I"]
    assert run.site_flags(["-u"]) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#!{python}", []),
        ("#!{python} -IS", ["-I", "-S"]),
        ("#!/usr/bin/env python3", []),
        ("#!/usr/bin/env -S python3 -E", ["-E"]),
        ("#!/usr/bin/env -S python3 -S", ["-S"]),
        ("#!/usr/bin/env -S A=1 python3 -s", ["-s"]),
    ],
)
def test_the_python_behind_a_script(line: str, expected: list[str], tmp_path: Path) -> None:
    script = tmp_path / "sglang"
    script.write_text(line.format(python="/some/where/python3.11") + "\nimport sglang\n")
    found = run.interpreter_of(str(script), ["-S"])
    assert found is not None
    assert Path(found[0]).name.startswith("python3")
    assert found[1] == expected


def test_the_python_behind_pips_script_with_a_long_path(tmp_path: Path) -> None:
    script = tmp_path / "sglang"
    script.write_text("#!/bin/sh\n'''exec' \"/a long/path/python3\" \"$0\" \"$@\"\n' '''\nimport sglang\n")
    assert run.interpreter_of(str(script), []) == ("/a long/path/python3", [])


@pytest.mark.parametrize(
    "content",
    [
        b"\x7fELF\x02",
        b"#!/bin/bash\npython x.py\n",
        b"#!/usr/bin/env -S -i python3\n",
        b"#!/some/where/python3 '\n",
        b"",
    ],
)
def test_programs_that_tell_no_python(content: bytes, tmp_path: Path) -> None:
    script = tmp_path / "program"
    script.write_bytes(content)
    assert run.interpreter_of(str(script), []) is None


@pytest.mark.parametrize(
    ("only", "environ", "expected"),
    [
        (None, {}, "1"),
        (None, {"DEEPEYES_PATCH": "off"}, "1"),
        (None, {"DEEPEYES_PATCH": "processor"}, "processor"),
        (None, {"DEEPEYES_PATCH": "processor,video,mrope"}, "mrope,processor,video"),
        (None, {"RELAX_DEEPEYES_QWEN_VL_PATCH": "1"}, "processor"),
        ("mrope", {"DEEPEYES_PATCH": "processor"}, "mrope"),
        ("mrope", {"DEEPEYES_PATCH": "nonsense"}, "mrope"),
    ],
)
def test_what_the_switch_becomes(only: str | None, environ: dict[str, str], expected: str) -> None:
    assert run.switch_value(only, environ) == expected


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("nosuch", 127, "'nosuch' was not found"),
        ("", 127, "'' was not found"),
        ("/", 126, "/ is not an exec"),
    ],
)
def test_a_command_that_is_none(command: str, code: int, words: str) -> None:
    done = cli("run", "--", command)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"deepeyes-patch run: {words}")


def test_run_gives_back_the_signals_that_python_ignores() -> None:
    """Else ``yes`` would complain about a pipe that `head` has closed."""
    line = f"{shlex.quote(sys.executable)} -m deepeyes_patch run -- yes | head -1"
    done = subprocess.run(
        ["bash", "-c", line], cwd=CHECKOUT, env=clean_environ(), capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "y\n"
    assert done.stderr.count("\n") == 1, "only what `run` itself says"


@pytest.mark.parametrize("only", ["nonsense", "off", "1", "", "video", "processor,x"])
def test_an_only_that_names_no_repairs(only: str) -> None:
    with pytest.raises(UsageError, match=r"^--only ") as caught:
        run.switch_value(only, {})
    assert "DEEPEYES_PATCH" not in str(caught.value)


def test_a_switch_that_is_not_understood() -> None:
    with pytest.raises(CommandError, match=r"^DEEPEYES_PATCH='maybe'") as caught:
        run.switch_value(None, {"DEEPEYES_PATCH": "maybe"})
    assert caught.value.code == 2


# --- status -------------------------------------------------------------------------------------------


def test_status_of_no_such_process() -> None:
    done = cli("status", "999999999")
    assert done.returncode == 3
    assert "no process 999999999" in done.stderr


def test_status_of_a_process_without_it() -> None:
    done = cli("status", "--json", str(os.getpid()))
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert (found["schema"], found["command"], found["ok"]) == (1, "status", False)
    assert os.getpid() in [process["pid"] for process in found["processes"]]


def test_status_without_psutil(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert cli_main.main(["status", str(os.getpid())]) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "psutil" in printed.err
    assert "-m pip install psutil" in printed.err


def test_no_other_command_imports_psutil() -> None:
    program = """
import sys
from deepeyes_patch.cli import doctor, findings, inspection, processes, run, status, verify
print("psutil" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, env=clean_environ(), capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_status_shows_descendants_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """Each process before its children, with its command line; a zombie has ended."""
    program = """
import atexit, os, subprocess, sys, time
from pathlib import Path

grandchild = "subprocess.Popen([sys.executable, '-c', 'input()', 'grandchild'])"
middle = f"import subprocess, sys; {grandchild}; input()"
child = subprocess.Popen([sys.executable, "-c", middle, "child"], stdin=subprocess.PIPE)
atexit.register(child.communicate, b"\\n\\n")
zombie = subprocess.Popen([sys.executable, "-c", "pass"])
os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
while not Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().strip():
    time.sleep(0.01)
"""
    with held(program) as pid:
        assert cli_main.main(["status", "--json", str(pid)]) == 1
    shown = json.loads(capsys.readouterr().out)["processes"]
    assert [process["name"].split()[-1] for process in shown[1:]] == ["child", "grandchild"]
    assert shown[0]["pid"] == pid
    assert [process["parent"] for process in shown] == [os.getpid(), pid, shown[1]["pid"]]
    assert not any(process["live"] for process in shown)


def test_status_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("deepeyes_patch.cli.processes.PROC", tmp_path)
    with pytest.raises(CommandError, match=r"no /proc here.*deepeyes_patch.status\(\)"):
        status.execute(None)  # type: ignore[arg-type]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root may")
def test_status_of_another_users_process() -> None:
    """A process of root's, looked at by nobody."""
    program = """
import os, psutil, sys
from deepeyes_patch.cli.main import main
from deepeyes_patch.cli import doctor, run, status, verify
os.setuid(65534)
sys.exit(main(["status", "1"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environ(PYTHONPATH=str(CHECKOUT)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3, done
    assert "may not be looked at" in done.stderr


def test_a_failed_repair_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "from deepeyes_patch.observe import record, counters\n"
        "record.publish('0.1.0', {'processor': 'failed (no such seam)'}, counters.NAMES)"
    )
    with held(program) as pid:
        assert cli_main.main(["status", str(pid)]) == 1
    assert "failed (no such seam)" in capsys.readouterr().out


def with_a_child(*command: str) -> str:
    """A program that has a record, and a child with this command line."""
    return (
        "import subprocess, sys\n"
        "from deepeyes_patch.observe import record, counters\n"
        "record.publish('0.1.0', {'processor': 'patched (x)'}, counters.NAMES)\n"
        f"child = subprocess.Popen({list(command)!r}, executable=sys.executable, stdin=-1)"
    )


WAIT = "import sys; sys.stdin.read()"
TRACKER = "from multiprocessing.resource_tracker import main; " + WAIT


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "-c", TRACKER], "Python's resource tracker"),
        (["sglang::detokenizer", "-c", WAIT], "SGLang's detokenizer"),
    ],
    ids=["tracker", "detokenizer"],
)
def test_a_helper_is_no_fault(command: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with held(with_a_child(*command)) as pid:
        assert cli_main.main(["status", str(pid)]) == 0
        shown = capsys.readouterr().out
        assert cli_main.main(["status", "--json", str(pid)]) == 0
        listed = json.loads(capsys.readouterr().out)["processes"]
    assert f"  {expected}\n         a helper: there is nothing to repair in it\n" in shown
    assert "not live" not in shown
    assert "1 of 1 processes live, 1 helper; SGLang" in shown
    assert [process["helper"] for process in listed] == [None, expected]


def test_what_is_no_helper_is_not_live(capsys: pytest.CaptureFixture[str]) -> None:
    with held(with_a_child("worker", "-c", WAIT)) as pid:
        assert cli_main.main(["status", str(pid)]) == 0
    shown = capsys.readouterr().out
    assert "         not live\n" in shown
    assert "1 of 2 processes live; SGLang" in shown


@pytest.mark.parametrize("width", [80, 200, 1000])
def test_status_uses_the_width_of_a_terminal(width: int) -> None:
    """For the command line of a process, and for the states of the repairs."""
    long = ["--model-path=" + 30 * "x", *(f"--option-{number}" for number in range(40))]
    states = {"processor": f"patched ({60 * 'y'})", "mrope": "native", "video": "off", "sampling": "off"}
    program = (
        "from deepeyes_patch.observe import record, counters\n"
        f"record.publish('0.1.0', {states!r}, counters.NAMES)"
    )
    with held(program, *long) as pid:
        piped = cli("status", str(pid)).stdout.splitlines()
        shown = on_a_terminal(width, "status", str(pid)).splitlines()
        asked = cli("status", str(pid), COLUMNS=str(width)).stdout.splitlines()
    assert max(map(len, piped)) <= terminal.WIDTH
    assert shown == asked, "COLUMNS counts for a pipe too"
    # The last two columns stay empty.
    assert max(map(len, shown)) <= width - 2
    whole = "; ".join(f"{name}: {state}" for name, state in states.items())
    assert (f"         {whole}" in shown) == (width >= 200)
    assert (shown[1].endswith(long[-1])) == (width == 1000)
    assert width == 1000 or len(shown[1]) == width - 2, "cut as late as possible"


def test_a_terminal_that_is_too_narrow() -> None:
    """Below 60 columns, the terminal breaks the lines."""
    with held(with_a_child("worker", "-c", WAIT)) as pid:
        shown = on_a_terminal(10, "status", str(pid)).splitlines()
    assert max(map(len, shown)) == 58
    assert any("worker" in line for line in shown)


def test_chinese_characters_take_two_columns() -> None:
    assert terminal.cut("模型/图片", 9) == "模型/图片"
    assert terminal.cut("模型/图片", 8) == "模型/..."


def test_status_again_and_again() -> None:
    """Until Ctrl-C, which ends it as the last look would."""
    program = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it\n"
        "from deepeyes_patch.cli.main import main\n"
        f"sys.exit(main(['status', '--watch', '0.1', '{os.getpid()}']))"
    )
    watching = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=CHECKOUT,
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    looks = 0
    while looks < 3:
        looks += "deepeyes-patch is not live" in watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    _, complained = watching.communicate(timeout=60)
    assert (watching.returncode, complained) == (1, "")


@pytest.mark.parametrize(("term", "clears"), [("xterm", True), ("dumb", False)])
def test_watch_on_a_terminal(term: str, clears: bool) -> None:
    """It clears the screen, if the terminal can. Codes for that are no colours: NO_COLOR does not matter."""
    shown = on_a_terminal(80, "status", "--watch", "0.2", str(os.getpid()), seconds=3, TERM=term)
    assert shown.count("is not live") > 1
    assert ("\x1b[2J" in shown) == clears
    assert clears or "\x1b" not in shown


def test_watch_is_not_for_json() -> None:
    assert cli("status", "--watch", "1", "--json").returncode == 2


def test_all_repairs_fit_the_width(capsys: pytest.CaptureFixture[str]) -> None:
    """As of 0.5.3 with the repair of videos."""
    states = {
        "processor": "patched (Qwen2_5VLImageProcessor)",
        "mrope": "patched (MRotaryEmbedding)",
        "video": "patched (preprocess_video)",
    }
    program = (
        "from deepeyes_patch.observe import record, counters\n"
        f"record.publish('0.1.0', {states!r}, counters.NAMES)"
    )
    with held(program) as pid:
        assert cli_main.main(["status", str(pid)]) == 0
    shown = capsys.readouterr().out
    assert all(f"{name}: {state}" in " ".join(shown.split()) for name, state in states.items()), shown
    assert max(map(len, shown.splitlines())) <= terminal.WIDTH, shown


# --- doctor -------------------------------------------------------------------------------------------


def test_a_folder_that_is_no_sglang_is_incompatible(tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    examined = repairs.examine_all(tmp_path / "sglang", {"processor"})
    assert examined["processor"].state == "incompatible"
    assert "process_mm_data_async: missing" in examined["processor"].detail
    assert examined["mrope"].state == "incompatible"
    assert repairs.wrapped_files(examined.values()) == []


def test_every_module_of_the_table_is_compared_with_the_wheel(tmp_path: Path) -> None:
    """Also one whose function is gone, which is what an edited file may look like."""
    expected = set()
    for module in {seam.module for seam in table.SEAMS if seam.module.startswith("sglang.")}:
        file = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        expected.add(file)
    examined = repairs.examine_all(tmp_path / "sglang", {"processor"})
    assert "process_mm_data_async: missing" in examined["processor"].detail
    assert set(repairs.wrapped_files(examined.values())) == expected


def test_the_file_that_defines_an_imported_function_is_compared_too(tmp_path: Path) -> None:
    processors = tmp_path / "sglang" / "srt" / "multimodal" / "processors"
    processors.mkdir(parents=True)
    (processors / "qwen_vl.py").write_text("from .videos import preprocess_video\n")
    (processors / "videos.py").write_text("async def preprocess_video(vr): ...\n")
    examined = repairs.examine_all(tmp_path / "sglang", {"video"})
    assert examined["video"].state == "ready"
    assert repairs.wrapped_files([examined["video"]]) == [processors / "qwen_vl.py", processors / "videos.py"]


@pytest.mark.parametrize(
    ("module", "missing", "expected"),
    [
        ("sglang.srt.entrypoints.grpc_server", "grpc", True),
        ("sglang.srt.rust_server.server", "sglang.srt.rust_server", True),
        ("sglang.srt.rust_server.server", "sglang.srt.rust_server.server", True),
        ("sglang.srt.models.qwen3_vl", "sglang.srt.layers.attention", False),
        ("sglang.srt.models.qwen3_vl", "sglang.srt.models.qwen", False),
        ("sglang.srt.models.qwen3_vl", "deepeyes_patch.mrope", False),
        ("smg_grpc_servicer.sglang.servicer", "sglang.srt.runtime_context", True),
    ],
)
def test_modules_that_deep_may_pass_over(module: str, missing: str, expected: bool) -> None:
    error = ModuleNotFoundError(f"No module named {missing!r}", name=missing)
    assert deep._is_excusable(module, error) == expected


def test_a_name_that_deep_does_not_find() -> None:
    """SGLang names any version of the gRPC servicer as a dependency, also one that does not fit it."""
    error = ImportError("cannot import name 'publish'", name="sglang.srt.runtime_context")
    assert deep._is_excusable("smg_grpc_servicer.sglang.servicer", error)
    assert not deep._is_excusable("sglang.srt.entrypoints.grpc_server", error)
