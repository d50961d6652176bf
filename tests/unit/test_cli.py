"""The command line's own logic, without SGLang: arguments, flags, verdicts, sources."""

from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deepeyes_patch.cli import main as cli_main
from deepeyes_patch.cli import repairs, run, status, terminal, verify
from deepeyes_patch.cli.terminal import CommandError
from deepeyes_patch.seams.examine import Seam
from deepeyes_patch.seams.source import Sources
from tests.interpreters import CHECKOUT, Interpreter, clean_environ, held

COMMANDS = ("doctor", "verify", "run", "status")


def cli(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deepeyes_patch", *arguments],
        cwd=CHECKOUT,
        env=clean_environ(**environ),
        capture_output=True,
        text=True,
        timeout=60,
    )


# --- help and errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], *[[name] for name in COMMANDS]], ids=["", *COMMANDS])
def test_help_has_examples_in_80_columns(arguments: list[str]) -> None:
    done = cli(*arguments, "--help", COLUMNS="80")
    assert done.returncode == 0, done
    assert "examples:\n  deepeyes-patch " in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines()), done.stdout


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["status", "abc"], ["run"], ["run", "--only", "x", "--", "true"]]
)
def test_wrong_usage(arguments: list[str]) -> None:
    done = cli(*arguments)
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr


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
    ("only", "environ"),
    [("nonsense", {}), ("off", {}), ("1", {}), ("", {}), ("video", {}), (None, {"DEEPEYES_PATCH": "maybe"})],
)
def test_a_switch_that_is_not_understood(only: str | None, environ: dict[str, str]) -> None:
    with pytest.raises(CommandError) as caught:
        run.switch_value(only, environ)
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


def test_status_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("deepeyes_patch.cli.processes.PROC", tmp_path)
    with pytest.raises(CommandError, match=r"no /proc here.*deepeyes_patch.status\(\)"):
        status.execute(None)  # type: ignore[arg-type]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root may")
def test_status_of_another_users_process() -> None:
    """A process of root's, looked at by nobody."""
    program = """
import os, sys
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
        "from deepeyes_patch import record, counters\n"
        "record.publish('0.1.0', {'processor': 'failed (no such seam)'}, counters.NAMES)"
    )
    with held(program) as pid:
        assert cli_main.main(["status", str(pid)]) == 1
    assert "failed (no such seam)" in capsys.readouterr().out


def test_all_repairs_fit_the_width(capsys: pytest.CaptureFixture[str]) -> None:
    """As of 0.5.3 with the repair of videos."""
    states = {
        "processor": "patched (Qwen2_5VLImageProcessor)",
        "mrope": "patched (MRotaryEmbedding)",
        "video": "patched (preprocess_video)",
    }
    program = (
        f"from deepeyes_patch import record, counters\nrecord.publish('0.1.0', {states!r}, counters.NAMES)"
    )
    with held(program) as pid:
        assert cli_main.main(["status", str(pid)]) == 0
    shown = capsys.readouterr().out
    assert all(f"{name}: {state}" in " ".join(shown.split()) for name, state in states.items()), shown
    assert max(map(len, shown.splitlines())) <= terminal.WIDTH, shown


# --- sources ------------------------------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    package = tmp_path / "pack"
    files = {
        "__init__.py": "",
        "base.py": "class Base:\n    async def asked(self, a, *, b=1, **rest): ...\n",
        "sub/__init__.py": "from .inner import Inner as Renamed\nfrom pack.base import *\nAlias = Renamed\n",
        "sub/inner.py": (
            "from ..base import Base\n"
            "if True:\n    from pack.base import Base as B2\n"
            "class Inner(B2):\n    @abc.abstractmethod\n    def left(self): ...\n    def own(self, x): ...\n"
            "def loop(a): ...\n"
        ),
        "circle.py": "from .circle import thing\n",
        "broken.py": "def (",
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    return Sources(package)


def test_names_are_followed_through_imports(sources: Sources) -> None:
    module = sources.module("pack.sub")
    for name, home in (("Renamed", "pack.sub.inner"), ("Alias", "pack.sub.inner"), ("Base", "pack.base")):
        found = sources.find(module, name)
        assert found is not None, name
        assert found.module.name == home
    assert sources.find(module, "nothing") is None
    assert sources.find(sources.module("pack.circle"), "thing") is None
    assert sources.module("pack.broken") is None
    assert sources.module("other") is None


@pytest.mark.parametrize(
    ("seam", "problem"),
    [
        (Seam("own", ("x",), coroutine=False), None),
        (Seam("asked", ("a", "b", "rest"), coroutine=True), None),
        (Seam("asked", ("c",)), "it takes no c"),
        (Seam("own", (), coroutine=True), "it must be async"),
        (Seam("asked", (), coroutine=False), "it must not be async"),
        (Seam("left", ()), "abstract, and nothing implements it"),
        (Seam("gone", ()), "missing"),
        (Seam("gone", (), optional=True), None),
    ],
)
def test_seams_in_a_source(sources: Sources, seam: Seam, problem: str | None) -> None:
    owner = sources.find(sources.module("pack.sub"), "Renamed")
    (finding,) = sources.examine(owner, [seam])
    assert finding.problem == problem


def test_a_folder_that_is_no_sglang_is_incompatible(tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    found = repairs.examine(tmp_path / "sglang", {"processor"})
    assert found["processor"].state == "incompatible"
    assert "process_mm_data_async: missing" in found["processor"].detail
    assert found["mrope"].state == "incompatible"


# --- verify -------------------------------------------------------------------------------------------

DEMANDED = {
    "input_ids": [1, 2, 2, 3],
    "offsets": [[1, 2]],
    "grids": [[1, 2, 4]],
    "mrope_positions": [[0], [0], [0]],
    "mrope_position_delta": -1,
}
EXACT = {**DEMANDED, "keys": {"a": "1", "b": "2"}}


def case(kind: str, demanded: object = DEMANDED) -> dict[str, object]:
    return {"name": "n", "kind": kind, "expected": demanded}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (EXACT, "exact"),
        ({"error": "IndexError: x", "refused": False}, "HTTP 500, IndexError"),
        ({"error": "ValueError: x", "refused": True}, "HTTP 400"),
        ({"error": "TimeoutError: ", "refused": False}, "no answer"),
        ({**EXACT, "input_ids": [1, 2, 3]}, "3 of 4 ids"),
        ({**EXACT, "input_ids": [1, 2, 2, 4]}, "other ids"),
        ({**EXACT, "mrope_positions": [[1], [0], [0]]}, "wrong positions"),
        ({**EXACT, "grids": None}, "wrong grids"),
    ],
)
def test_verdicts(answer: dict[str, object], expected: str) -> None:
    assert verify.verdict(answer, DEMANDED) == expected


def test_ids_that_come_out_wrong_are_not_as_promised() -> None:
    wrong = {**EXACT, "mrope_position_delta": 0}
    stock = {"error": "IndexError: x", "refused": False}
    assert verify.judge(case("ids"), stock, EXACT)["ok"]
    row = verify.judge(case("ids"), stock, wrong)
    assert not row["ok"]
    assert row["why"] == "differs from transformers in mrope_position_delta"
    row = verify.judge(case("ids"), wrong, EXACT)
    assert row["changed"] == ["mrope_position_delta"]
    assert row["why"] == "mrope_position_delta: it follows from the caller's ids"


def test_a_refusal_that_is_served_is_not_as_promised() -> None:
    refused = {"error": "ValueError: named", "refused": True}
    assert verify.judge(case("refused", None), EXACT, refused)["ok"]
    assert not verify.judge(case("refused", None), EXACT, EXACT)["ok"]
    crash = {"error": "IndexError: x", "refused": False}
    assert not verify.judge(case("refused", None), EXACT, crash)["ok"]


def test_text_must_be_identical_on_every_key() -> None:
    row = verify.judge(case("text"), EXACT, EXACT)
    assert (row["ok"], row["why"]) == (True, "identical on all 2 keys")
    other = {**EXACT, "keys": {"a": "1", "b": "3"}}
    row = verify.judge(case("text"), EXACT, other)
    assert (row["ok"], row["changed"]) == (False, ["b"])
    row = verify.judge(case("text"), {**EXACT, "unsteady": ["b"]}, other)
    assert (row["ok"], row["why"]) == (True, "identical on all 1 keys")
    nothing = {**EXACT, "keys": {}}
    assert not verify.judge(case("text"), nothing, nothing)["ok"], "nothing was compared"
    # To 0.5.5.post1 the images of text prompts get the grids of transformers.
    twice = {**EXACT, "grids": [[1, 4, 4]]}
    assert verify.judge(case("text"), twice, other)["ok"]
    assert not verify.judge(case("text"), other, twice)["ok"]


def test_the_rope_must_be_right() -> None:
    right, wrong = {"error": 1e-6, "failure": None}, {"error": 2.0, "failure": None}
    assert verify.judge_rope(wrong, right)["ok"]
    assert not verify.judge_rope(right, wrong)["ok"]
    failed = {"error": None, "failure": "ValueError: named"}
    assert verify.judge_rope(wrong, failed) == {
        "stock": 2.0,
        "patched": None,
        "ok": False,
        "note": "ValueError: named",
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "/nowhere"], "holds no config.json"),
        (["--image", "/nowhere.png"], "is no file"),
    ],
)
def test_verify_says_what_is_wrong_with_its_arguments(arguments: list[str], words: str) -> None:
    done = cli("verify", *arguments)
    assert done.returncode == 2, done
    assert words in done.stderr


def test_verify_of_a_text_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    done = cli("verify", "--model", str(tmp_path))
    assert done.returncode == 2, done
    assert "type qwen3 without a vision_config" in done.stderr


def test_verify_without_sglang_says_what_the_child_said() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from deepeyes_patch.cli.main import main; import sys; sys.exit(main(['verify']))",
        ],
        cwd=CHECKOUT,
        env={**clean_environ(), "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 3, done
    assert "No module named" in done.stderr
    assert "doctor --deep" in done.stderr
