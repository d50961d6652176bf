"""``install()`` while a module of SGLang's is half imported: it is patched as soon as it is complete.

Before the rebuild the hook ran at once, over half of a module. It found no functions, so the repair failed
for good: every processor that was constructed later raised ``IncompatibleSGLangError``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deepeyes_patch.seams import table, table_server
from tests import made_up
from tests.interpreters import Interpreter, Result

FACTORY, QWEN_VL = table_server.FACTORY, table.QWEN_VL

REPORT = """
import sys
import deepeyes_patch
from deepeyes_patch.seams import wrapping
def report(module, *path):
    found = sys.modules.get(module)
    for name in path:
        found = getattr(found, name)
    print(isinstance(found, wrapping.SeamWrapper), type(sys.modules[module].__spec__).__name__)
"""


Run = Callable[..., Result]


@pytest.fixture
def run(patched: Interpreter, tmp_path: Path) -> Run:
    """Run a program beside a made-up SGLang whose modules begin with a text."""

    def inside(program: str, *names: str, before: str = "") -> Result:
        made_up.write(tmp_path, *names, before=before)
        program = program.replace("INSTALL", "deepeyes_patch.install(['processor'])")
        return Interpreter(patched.python).run(REPORT + program, environ={"PYTHONPATH": str(tmp_path)})

    return inside


IMPORT = f"import {FACTORY}\nreport({FACTORY!r}, 'get_mm_processor')\n"


def test_from_inside_the_module(run: Run) -> None:
    before = "import deepeyes_patch; deepeyes_patch.install(['processor'])\n"
    result = run(IMPORT + "print(deepeyes_patch.status()['processor'])", FACTORY, before=before)
    assert result.printed().splitlines() == ["True ModuleSpec", "waiting"]


def test_from_a_module_that_it_imports(run: Run, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("import deepeyes_patch; deepeyes_patch.install(['processor'])\n")
    assert run(IMPORT, FACTORY, before="import helper\n").printed() == "True ModuleSpec"


def test_twice_from_inside(run: Run) -> None:
    before = "import deepeyes_patch\nfor _ in 1, 2: deepeyes_patch.install(['processor'])\n"
    program = IMPORT + f"print(type(sys.modules[{FACTORY!r}].get_mm_processor.__wrapped__).__name__)"
    assert run(program, FACTORY, before=before).printed().splitlines() == ["True ModuleSpec", "function"]


def test_with_the_switch_on_too(patched: Interpreter, tmp_path: Path) -> None:
    made_up.write(tmp_path, FACTORY, before="import deepeyes_patch; deepeyes_patch.install(['processor'])\n")
    environ = {"PYTHONPATH": str(tmp_path), "DEEPEYES_PATCH": "1"}
    assert Interpreter(patched.python).run(REPORT + IMPORT, environ=environ).printed() == "True ModuleSpec"


def test_two_repairs_of_one_module(run: Run) -> None:
    """``processor`` and ``video`` both wait for ``qwen_vl``; each has its turn.

    This environment has no NumPy, so ``processor`` fails. It has to say so: were it left at *waiting*, the
    processor would be constructed unrepaired.
    """
    before = "import deepeyes_patch; deepeyes_patch.install(['processor', 'video'])\n"
    result = run(f"import {QWEN_VL}\nprint(deepeyes_patch.status())\n", QWEN_VL, before=before)
    assert result.printed() == (
        "{'processor': \"failed (No module named 'numpy')\", 'mrope': 'off', "
        "'video': 'patched (preprocess_video)', 'sampling': 'off', 'deepstack': 'off'}"
    )


ANOTHER_THREAD = f"""
import threading
inside, go = threading.Event(), threading.Event()
def importing():
    import {FACTORY}
thread = threading.Thread(target=importing)
thread.start()
assert inside.wait(30)
INSTALL
report({FACTORY!r})
print(deepeyes_patch.status()['processor'])
go.set()
thread.join(30)
report({FACTORY!r}, 'get_mm_processor')
"""
WAITING = "import __main__\n__main__.inside.set()\n__main__.go.wait(30)\n"


def test_from_another_thread(run: Run) -> None:
    result = run(ANOTHER_THREAD, FACTORY, before=WAITING)
    assert result.printed().splitlines() == ["False Noticing", "waiting", "True ModuleSpec"]


def test_while_many_threads_import_and_install(run: Run) -> None:
    program = f"""
import threading
sys.setswitchinterval(1e-5)
barrier, problems = threading.Barrier(8), []
def work(number):
    barrier.wait()
    try:
        if number % 2:
            import {FACTORY}
        else:
            INSTALL
    except BaseException as error:
        problems.append(error)
threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join(30)
assert not any(thread.is_alive() for thread in threads), "deadlock"
assert not problems, problems
report({FACTORY!r}, 'get_mm_processor')
"""
    for _ in range(3):
        assert run(program, FACTORY, before="import time; time.sleep(0.01)\n").printed() == "True ModuleSpec"


FAILS_ONCE = """
import __main__
if not hasattr(__main__, "tried"):
    __main__.tried = True
    import deepeyes_patch
    deepeyes_patch.install(['processor'])
    raise ImportError("not yet")
"""


@pytest.mark.parametrize("again", ["", "INSTALL\n"])
def test_an_import_that_fails_and_then_succeeds(run: Run, again: str) -> None:
    """The module that succeeds is another object than the one that was half imported at ``install``."""
    program = f"try:\n    import {FACTORY}\nexcept ImportError as error:\n    print(error)\n{again}"
    printed = run(program + IMPORT, FACTORY, before=FAILS_ONCE).printed()
    assert printed.splitlines() == ["not yet", "True ModuleSpec"]


def test_a_module_that_takes_another_ones_place(run: Run) -> None:
    """What stands in ``sys.modules`` when the import is done is the module."""
    before = f"""
import deepeyes_patch, sys, types
deepeyes_patch.install(['processor'])
other = types.ModuleType({FACTORY!r})
def get_mm_processor(hf_config): ...
get_mm_processor.__module__ = {FACTORY!r}
other.get_mm_processor = get_mm_processor
other.__spec__ = __spec__
sys.modules[__name__] = other
"""
    assert run(IMPORT, FACTORY, before=before).printed() == "True ModuleSpec"
