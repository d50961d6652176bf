"""``deepeyes-patch run`` in real environments: the hooks are live, or nothing is started."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from tests import interpreters
from tests.install.conftest import on_made_up
from tests.install.test_damage import away
from tests.interpreters import HOOKS_LIVE, Interpreter, Result

SWITCH = "import os; print(os.environ['DEEPEYES_PATCH'], end=' ')\n"

# A spawned child, which inherits flags and variables, must be live too.
SPAWNED = """
if __name__ == "__main__":
    import multiprocessing
    from sglang import work
    child = multiprocessing.get_context("spawn").Process(target=work.report)
    child.start()
    child.join()
"""


def run(environment: Interpreter, *command: str | Path, only: str | None = None, **environ: str) -> Result:
    options = ["--only", only] if only else []
    return environment.run("-m", "deepeyes_patch", "run", *options, "--", *command, environ=environ)


@pytest.fixture
def targeted(
    tmp_path_factory: pytest.TempPathFactory, installed: Interpreter, sglang_path: Path
) -> Interpreter:
    """The package on PYTHONPATH alone, as ``pip install --target`` leaves it: no ``.pth`` is read."""
    folder = tmp_path_factory.mktemp("targeted")
    created = interpreters.create(folder / "env")
    (folder / "target").mkdir()
    for name in ("deepeyes_patch", "wrapt", "deepeyes_patch.pth"):
        (folder / "target" / name).symlink_to(installed.site_packages / name)
    return on_made_up(created, sglang_path, PYTHONPATH=f"{folder / 'target'}:{sglang_path}")


def test_the_pth_does_it(installed: Interpreter) -> None:
    result = run(installed, installed.python, "-c", SWITCH + HOOKS_LIVE + "print(os.environ['PYTHONPATH'])")
    switch, folders = result.printed().splitlines()
    assert switch == "1 True"
    assert "deepeyes_patch" not in folders


def test_only_what_was_asked_for(installed: Interpreter) -> None:
    assert (
        run(installed, installed.python, "-c", SWITCH + HOOKS_LIVE, only="mrope").printed() == "mrope False"
    )


def test_it_replaces_itself(installed: Interpreter) -> None:
    """One process: signals and exit codes need nobody to hand them on."""
    program = "import os, sys; sys.stdout.flush(); os.execv(sys.argv[1], sys.argv[1:])"
    show = "import os, sys; print(os.getpid()); sys.exit(7)"
    result = installed.run(
        "-c",
        "import os; print(os.getpid(), flush=True)\n" + program.replace("import os, sys;", "import sys;"),
        installed.python,
        "-m",
        "deepeyes_patch",
        "run",
        "--",
        installed.python,
        "-c",
        show,
    )
    assert result.code == 7, result
    before, after = result.out.split()
    assert before == after


def test_a_folder_on_pythonpath_where_no_pth_is_read(targeted: Interpreter) -> None:
    assert targeted.run(HOOKS_LIVE, environ={"DEEPEYES_PATCH": "1"}).printed() == "False"
    result = run(targeted, targeted.python, "-c", SWITCH + HOOKS_LIVE + SPAWNED)
    # The parent's answer, and the spawned child's.
    assert result.printed() == "1 True\nTrue"


def test_the_hidden_sitecustomize_runs_too(targeted: Interpreter, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.theirs = __file__\n")
    path = f"{tmp_path}:{targeted.environ['PYTHONPATH']}"
    program = "import sys, sitecustomize; print(sys.theirs == sitecustomize.__file__, end=' ')\n" + HOOKS_LIVE
    assert run(targeted, targeted.python, "-c", program, PYTHONPATH=path).printed() == "True True"
    # With the switch off in a child that inherits the folder: theirs alone.
    child = "import os, subprocess, sys; os.environ['DEEPEYES_PATCH'] = 'off'; " + (
        "sys.exit(subprocess.run([sys.executable, '-c', sys.argv[1]]).returncode)"
    )
    result = run(targeted, targeted.python, "-c", child, program, PYTHONPATH=path)
    assert result.printed() == "True False"


def test_a_sitecustomize_that_raises_is_reported_as_without_us(targeted: Interpreter, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    path = f"{tmp_path}:{targeted.environ['PYTHONPATH']}"
    plain = targeted.run("print(1)", environ={"PYTHONPATH": path})
    result = run(targeted, targeted.python, "-c", "print(1)", PYTHONPATH=path)
    assert (result.code, result.out) == (plain.code, plain.out) == (0, "1\n")
    assert "ValueError: theirs" in result.err
    assert "ValueError: theirs" in plain.err


def test_a_script_with_a_first_line(installed: Interpreter, targeted: Interpreter, tmp_path: Path) -> None:
    for environment, flags in ((installed, ""), (targeted, ""), (installed, " -I")):
        script = tmp_path / "serve"
        look = "" if not flags else f"import sys; sys.path.append({environment.environ['PYTHONPATH']!r})\n"
        script.write_text(f"#!{environment.python}{flags}\n{look}{HOOKS_LIVE}")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        assert run(environment, script).printed() == "True"


def test_what_others_print_at_start_is_no_answer(installed: Interpreter, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('welcome')\n")
    path = f"{tmp_path}:{installed.environ['PYTHONPATH']}"
    result = run(installed, installed.python, "-c", HOOKS_LIVE, PYTHONPATH=path)
    assert (result.code, result.out.splitlines()[-1]) == (0, "True"), result


def test_a_script_whose_env_line_skips_site(installed: Interpreter, tmp_path: Path) -> None:
    script = tmp_path / "serve"
    script.write_text(f"#!/usr/bin/env -S {installed.python} -S\nprint('started')\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    result = run(installed, script)
    assert (result.code, result.out) == (1, ""), result
    assert "Nothing was started" in result.err


@pytest.mark.parametrize("flag", ["-S", "-IS"])
def test_without_site_nothing_is_started(flag: str, installed: Interpreter) -> None:
    result = run(installed, installed.python, flag, "-c", "print('started')")
    assert (result.code, result.out) == (1, ""), result
    assert "Nothing was started" in result.err
    assert "which -I and -E do read, and -S does not" in " ".join(result.err.split())


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_flags_that_shut_out_the_folder(flag: str, targeted: Interpreter) -> None:
    result = run(targeted, targeted.python, flag, "-c", "print('started')")
    assert (result.code, result.out) == (1, ""), result
    assert "Nothing was started" in result.err


@pytest.mark.parametrize("flag", ["-I", "-E"])
def test_flags_that_leave_the_pth(flag: str, installed: Interpreter, sglang_path: Path) -> None:
    program = f"import sys; sys.path.append({str(sglang_path)!r})\n" + HOOKS_LIVE
    assert run(installed, installed.python, flag, "-c", program).printed() == "True"


def test_another_python_that_has_no_such_package(installed: Interpreter, fresh: Interpreter) -> None:
    result = run(installed, fresh.python, "-c", "print('started')")
    assert (result.code, result.out) == (1, ""), result
    assert f"{fresh.python} has no deepeyes_patch" in result.err
    # The wheel from which pip installed it here: no index may have it.
    assert re.search(rf"{re.escape(str(fresh.python))} -m pip install /\S+\.whl", result.err), result


def test_a_python_below_a_shell_that_has_no_such_package(targeted: Interpreter, fresh: Interpreter) -> None:
    """It cannot be seen beforehand; there SGLang is stopped, and nothing else."""
    path = f"$(echo $PYTHONPATH | cut -d: -f1):{fresh.environ['PYTHONPATH']}"
    shell = f"PYTHONPATH={path} {fresh.python} -c"
    result = run(targeted, "sh", "-c", f"{shell} 'print(1)'")
    assert (result.code, result.out) == (0, "1\n"), result
    assert "which Python sh starts cannot be seen" in result.err
    result = run(targeted, "sh", "-c", f"{shell} 'import sglang'")
    assert result.code == 1
    assert f"its Python ({fresh.python}) cannot load deepeyes_patch" in result.err


def test_a_damaged_installation(installed: Interpreter) -> None:
    with away(installed.site_packages / "deepeyes_patch" / "bootstrap.py"):
        result = run(installed, installed.python, "-c", "print('started')")
    assert (result.code, result.out) == (1, ""), result
    assert "damaged" in result.err


def test_no_such_command(installed: Interpreter, tmp_path: Path) -> None:
    result = run(installed, "no-such-command")
    assert (result.code, result.out) == (127, "")
    assert "'no-such-command' was not found" in result.err
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x7fELF nonsense")
    binary.chmod(0o755)
    result = run(installed, binary)
    assert result.code == 126, result


def test_the_console_script(installed: Interpreter) -> None:
    result = Interpreter(installed.python.with_name("deepeyes-patch"), installed.environ).run("--version")
    assert result.printed().startswith("deepeyes-patch ")
