"""Start-up, in interpreters that really start: from the ``.pth`` line to the hooks, or to a clear stop."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from deepeyes_patch import settings
from deepeyes_patch.seams.table import QWEN_VL
from tests import made_up
from tests.interpreters import (
    HOOKS_LIVE,
    OFF,
    ON,
    UNKNOWN,
    Interpreter,
    Result,
    clean_environ,
    copy_package,
    create,
)
from tests.lab import coverage_hook

RELAX_ON = {"RELAX_DEEPEYES_QWEN_VL_PATCH": "1"}
STATUS = "import deepeyes_patch; print(deepeyes_patch.status())\n"
LOADED = """
import sys
print(*sorted(name for name in sys.modules if name.split(".")[0] in ("deepeyes_patch", "wrapt", "torch")))
"""
FINDERS = "import sys; print(*(type(f).__name__ for f in sys.meta_path if not isinstance(f, type)))\n"


def states(**repairs: str) -> str:
    """What `STATUS` prints where the other repairs are off."""
    return str({**dict.fromkeys(settings.REPAIRS, "off"), **repairs})


def stopped(result: Result, *words: str) -> None:
    """The child ended with our message as the last traceback, and printed nothing before."""
    assert result.code != 0, result
    assert result.out == "", result
    last = result.err[result.err.rindex("\n  File ") :] if "\n  File " in result.err else result.err
    for word in words:
        assert word in last, result


# --- what a process pays ----------------------------------------------------------------------------


@pytest.mark.parametrize("environ", [OFF, ON, RELAX_ON, UNKNOWN, {"DEEPEYES_PATCH": "off"}])
def test_an_interpreter_that_never_imports_sglang_notices_nothing(
    patched: Interpreter, environ: dict[str, str]
) -> None:
    assert patched.run("pass", environ=environ).silent()


@pytest.mark.parametrize("environ", [OFF, {"DEEPEYES_PATCH": "off"}, {"DEEPEYES_PATCH": "off", **RELAX_ON}])
def test_off_imports_nothing_of_ours_not_even_with_sglang(
    patched: Interpreter, environ: dict[str, str]
) -> None:
    assert patched.run(LOADED, environ=environ).printed() == ""
    assert patched.run(HOOKS_LIVE + LOADED, environ=environ).printed() == "False"


@pytest.mark.parametrize("value", ["", "0", "OFF", " off ", "false"])
def test_a_value_that_means_off_imports_the_module_that_reads_it(patched: Interpreter, value: str) -> None:
    assert patched.run(LOADED, environ={"DEEPEYES_PATCH": value}).printed() == "deepeyes_patch"


@pytest.mark.parametrize("environ", [ON, RELAX_ON, UNKNOWN])
def test_on_imports_one_module_until_sglang_comes(patched: Interpreter, environ: dict[str, str]) -> None:
    program = "import json, logging, email.message\n" + LOADED
    assert patched.run(program, environ=environ).printed() == "deepeyes_patch"


def test_wrapt_comes_with_sglang_and_neither_torch_nor_numpy_does(patched: Interpreter) -> None:
    # A finder that sees whoever looks for torch or NumPy, whether they are installed or not.
    program = """
import sys, types
class Heavy:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "numpy"):
            raise SystemExit(f"{name} was looked for")
sys.meta_path.insert(0, Heavy())
import sglang
"""
    loaded = patched.run(program + LOADED, environ=ON).printed().split()
    assert "wrapt" in loaded
    assert "deepeyes_patch.startup.installer" in loaded
    assert "deepeyes_patch.request.begin" not in loaded


@pytest.mark.parametrize("environ", [ON, RELAX_ON, {"DEEPEYES_PATCH": "processor,mrope"}])
def test_the_hooks_are_live(patched: Interpreter, environ: dict[str, str]) -> None:
    assert patched.run(HOOKS_LIVE, environ=environ).printed() == "True"


def test_a_repair_that_is_not_selected_is_left_out(patched: Interpreter) -> None:
    assert patched.run(HOOKS_LIVE, environ={"DEEPEYES_PATCH": "mrope"}).printed() == "False"


def test_the_interpreter_flags_that_skip_the_pth(patched: Interpreter, sglang_path: Path) -> None:
    program = f"import sys; sys.path.append({str(sglang_path)!r})\n" + HOOKS_LIVE
    assert patched.run(program, environ=ON, flags=["-I"]).printed() == "True"
    assert patched.run(program, environ=ON, flags=["-S"]).printed() == "False"


# --- the finder among others ------------------------------------------------------------------------


def test_one_finder_that_goes_away(patched: Interpreter) -> None:
    assert patched.run(FINDERS, environ=ON).printed() == "SGLangFinder"
    after = patched.run("import sglang\n" + FINDERS, environ=ON).printed()
    assert after == "ImportHookFinder"


def test_the_list_that_python_started_with_stays_without_our_finder(patched: Interpreter) -> None:
    """Python keeps that list to its very end, and with a finder of ours its module, and `os`."""
    first = patched.site_packages / "a_first.pth"
    first.write_text("import sys; sys.started_with = getattr(sys, 'started_with', sys.meta_path)\n")
    program = "import sys; sys.meta_path = sys.started_with\n"
    try:
        assert patched.run(FINDERS + program + FINDERS, environ=ON).printed() == "SGLangFinder"
    finally:
        first.unlink()


def test_a_pth_that_is_read_twice_registers_once(patched: Interpreter) -> None:
    program = "import site, sys; site.addsitedir(sys.argv[1]); exec(open(sys.argv[2]).read())\n"
    pth = patched.site_packages / "deepeyes_patch.pth"
    result = patched.run("-c", program + FINDERS, patched.site_packages, pth, environ=ON)
    assert result.printed() == "SGLangFinder"
    # Neither before nor after: the finder does not come back.
    program = "import sglang, sys; exec(open(sys.argv[1]).read())\n"
    result = patched.run("-c", program + FINDERS, pth, environ=ON)
    assert result.printed() == "ImportHookFinder"


def test_two_pth_files_in_two_site_directories(
    patched: Interpreter, tmp_path: Path, sglang_path: Path
) -> None:
    # A copy in the user's site directory beside the one of the environment.
    (tmp_path / "deepeyes_patch.pth").write_bytes((patched.site_packages / "deepeyes_patch.pth").read_bytes())
    program = f"import site; site.addsitedir({str(tmp_path)!r})\n" + HOOKS_LIVE + STATUS
    live, status = patched.run(program, environ=ON).printed().splitlines()
    assert live == "True"
    assert status == states(processor="waiting", mrope="waiting")


RECORDER = """
import sys
class Recorder:
    def __init__(self, name):
        self.name, self.asked = name, []
    def find_spec(self, name, path=None, target=None):
        self.asked.append(name)
"""


@pytest.mark.parametrize("with_wrapt", [False, True])
def test_no_other_finder_is_passed_over(patched: Interpreter, with_wrapt: bool) -> None:
    # One finder right before ours and one right behind it, where taking ours out in place would tell;
    # with and without a wrapt finder whose insertion would make up for it.
    program = RECORDER + (
        "import wrapt; wrapt.register_post_import_hook(print, 'never')" if with_wrapt else ""
    )
    program += """
(at,) = (i for i, f in enumerate(sys.meta_path) if type(f).__name__ == "SGLangFinder")
before, behind, last = Recorder("before"), Recorder("behind"), Recorder("last")
class Legacy:  # may stand here to Python 3.11, and is ignored from 3.12 on
    def find_module(self, name, path=None): pass
sys.meta_path[at:at + 1] = [before, sys.meta_path[at], behind, Legacy()]
sys.meta_path.append(last)
import sglang
print("sglang" in before.asked, "sglang" in behind.asked)
import sglang.srt
print("sglang.srt" in before.asked, "sglang.srt" in behind.asked)
try:
    import absent
except ImportError:
    print("absent" in before.asked, "absent" in behind.asked, "absent" in last.asked)
"""
    assert patched.run(program, environ=ON).printed().split() == ["True"] * 7


@pytest.mark.parametrize("with_wrapt", [False, True])
def test_no_finder_is_passed_over_on_another_thread(patched: Interpreter, with_wrapt: bool) -> None:
    # The other thread stands between a finder behind ours and the next one, which knows its module, when
    # ours goes. It is stopped by a trace function: inside a finder it would hold the global import lock.
    program = RECORDER + (
        "import wrapt; wrapt.register_post_import_hook(print, 'never')" if with_wrapt else ""
    )
    program += """
import threading
from importlib.machinery import ModuleSpec
reached, gone = threading.Event(), threading.Event()
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "elsewhere":
            sys.settrace(between)
def between(frame, event, argument):
    if frame.f_code.co_name == "__exit__" and "ImportLock" in str(frame.f_locals["self"]):
        if event == "return":
            sys.settrace(None)
            reached.set()
            gone.wait(30)
        return between
class Loader:
    def create_module(self, spec): return None
    def exec_module(self, module): module.value = 42
class Elsewhere:
    def find_spec(self, name, path=None, target=None):
        if name == "elsewhere":
            return ModuleSpec(name, Loader())
(at,) = (i for i, f in enumerate(sys.meta_path) if type(f).__name__ == "SGLangFinder")
sys.meta_path[at + 1:at + 1] = [Slow(), Elsewhere()]
def other():
    try:
        import elsewhere
        print(elsewhere.value)
    except ImportError as error:
        print(error)
thread = threading.Thread(target=other)
thread.start()
assert reached.wait(30)
import sglang
gone.set()
thread.join()
"""
    value, finders = patched.run(program + FINDERS, environ=ON).printed().splitlines()
    assert value == "42"
    assert sorted(finders.split()) == ["Elsewhere", "ImportHookFinder", "Slow"]


@pytest.mark.parametrize("module", ["wrapt", "logging", "deepeyes_patch.settings", "inspect"])
def test_a_thread_halfway_through_an_import_that_we_need(patched: Interpreter, module: str) -> None:
    # It holds the lock of its module and will need the global import lock, which a finder holds.
    program = """
import faulthandler, importlib, sys, threading
inside, go = threading.Event(), threading.Event()
def stop(frame, event, argument):
    if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == sys.argv[1]:
        sys.settrace(None)
        inside.set()
        go.wait(30)
def other():
    sys.settrace(stop)
    importlib.import_module(sys.argv[1])
assert sys.argv[1] not in sys.modules
thread = threading.Thread(target=other, daemon=True)
thread.start()
assert inside.wait(30)
threading.Timer(0.3, go.set).start()
faulthandler.dump_traceback_later(20, exit=True)
import sglang
thread.join()
"""
    environ = {**ON, **coverage_hook.UNMEASURED}
    assert patched.run("-c", program + HOOKS_LIVE, module, environ=environ).printed() == "True"


def test_many_threads_import_at_once(patched: Interpreter) -> None:
    program = """
import sys, threading
sys.setswitchinterval(1e-5)
barrier = threading.Barrier(8)
problems = []
def work(number):
    barrier.wait()
    try:
        if number % 2:
            import sglang.srt.managers.multimodal_processor
        else:
            import sglang
    except BaseException as error:
        problems.append(error)
threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join(30)
assert not any(thread.is_alive() for thread in threads), "deadlock"
assert not problems, problems
"""
    out = patched.run(program + HOOKS_LIVE + FINDERS, environ=ON).printed()
    assert out == "True\nAgainFinder ImportHookFinder"


@pytest.mark.parametrize("order", ["before", "after"])
def test_another_tools_wrapt_hook_on_sglang_fires_once(patched: Interpreter, order: str) -> None:
    # wrapt's finder is there already, before or behind ours, with a hook on the very module we wait for.
    program = """
import sys, wrapt
wrapt.register_post_import_hook(lambda module: print("hooked", module.__version__), "sglang")
finder = next(f for f in sys.meta_path if type(f).__name__ == "ImportHookFinder")
sys.meta_path.remove(finder)
(at,) = (i for i, f in enumerate(sys.meta_path) if type(f).__name__ == "SGLangFinder")
sys.meta_path.insert(at + (sys.argv[1] == "after"), finder)
"""
    result = patched.run("-c", program + HOOKS_LIVE, order, environ=ON)
    assert result.printed() == "hooked 0.0.0+made.up\nTrue"
    stopped(patched.run("-c", program + HOOKS_LIVE, order, environ=UNKNOWN), "SettingsError", "'maybe'")


def test_a_finder_that_provides_sglang_itself(patched: Interpreter) -> None:
    # Editable installs of SGLang come through a finder of their own, before or behind ours.
    program = """
import sys
from importlib.machinery import PathFinder
class Editable:
    def find_spec(self, name, path=None, target=None):
        if name == "sglang":
            return PathFinder.find_spec(name, [sys.argv[1]], target)
sys.meta_path.insert(int(sys.argv[2]), Editable())
"""
    bare = Interpreter(patched.python)
    folder = patched.environ["PYTHONPATH"]
    assert bare.run("-c", program + HOOKS_LIVE, folder, "1", environ=ON).printed() == "True"
    stopped(bare.run("-c", program + HOOKS_LIVE, folder, "1", environ=UNKNOWN), "'maybe'")
    # Before ours, it keeps `sglang` from us; the first module below it is early enough.
    assert bare.run("-c", program + HOOKS_LIVE, folder, "0", environ=ON).printed() == "True"
    stopped(bare.run("-c", program + HOOKS_LIVE, folder, "0", environ=UNKNOWN), "'maybe'")


def test_sglang_that_is_imported_already_is_patched_at_once(patched: Interpreter) -> None:
    program = """
from sglang.srt.managers import multimodal_processor
before = multimodal_processor.get_mm_processor
import os
import deepeyes_patch
deepeyes_patch.install()
"""
    assert patched.run(program + HOOKS_LIVE).printed() == "True"


def test_modules_that_imported_the_function_before(patched: Interpreter, tmp_path: Path) -> None:
    """They hold the original. Before the rebuild it stayed with them: *patched*, said `status`, and was not.

    So does a module of anybody else's, under whatever name it has taken the function.
    """
    (tmp_path / "mine.py").write_text(
        "from sglang.srt.managers.multimodal_processor import get_mm_processor as make\n"
    )
    program = f"""
import sys
sys.path.append({str(tmp_path)!r})
import mine, types
from sglang.srt.managers import multimodal_processor
engine = types.ModuleType("sglang.srt.engine")
engine.get_mm_processor = multimodal_processor.get_mm_processor
sys.modules["sglang.srt.engine"] = engine
original = multimodal_processor.get_mm_processor
import deepeyes_patch
def kinds():
    functions = multimodal_processor.get_mm_processor, engine.get_mm_processor, mine.make
    return [type(function).__name__ for function in functions]
deepeyes_patch.install()
print(*kinds())
deepeyes_patch.install()
print(type(engine.get_mm_processor.__wrapped__).__name__)
deepeyes_patch.uninstall()
print(*kinds(), engine.get_mm_processor is original)
"""
    assert patched.run(program).printed().splitlines() == [
        "SeamWrapper SeamWrapper SeamWrapper",
        "function",
        "function function function True",
    ]


def test_names_that_only_begin_alike_are_not_ours(patched: Interpreter, tmp_path: Path) -> None:
    (tmp_path / "sglang_router.py").write_text("")
    path = f"{tmp_path}:{patched.environ['PYTHONPATH']}"
    program = "import sglang_router\n" + LOADED
    for environ in (ON, UNKNOWN):
        out = patched.run(program, environ={**environ, "PYTHONPATH": path}).printed()
        assert out == "deepeyes_patch"


# --- where it must stop -----------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["DEEPEYES_PATCH", "RELAX_DEEPEYES_QWEN_VL_PATCH"])
@pytest.mark.parametrize("module", ["sglang", "sglang.srt.managers.multimodal_processor"])
def test_an_unknown_value_stops_sglang(patched: Interpreter, variable: str, module: str) -> None:
    result = patched.run(f"import {module}", environ={variable: "maybe"})
    stopped(result, "SettingsError", f"{variable}='maybe'", "Valid:")


def test_an_unknown_value_stops_a_module_run_with_m(patched: Interpreter) -> None:
    result = patched.run("-m", "sglang.srt.managers.multimodal_processor", environ=UNKNOWN)
    stopped(result, "SettingsError", "'maybe'")


def test_the_second_try_says_the_same(patched: Interpreter) -> None:
    program = """
import sys
messages = []
for module in ("sglang", "sglang", "sglang.srt", "sglang"):
    try:
        __import__(module)
    except RuntimeError as error:
        messages.append(f"{type(error).__name__} {error}")
print(len(messages), len(set(messages)), messages[0].split(":")[0], "sglang" in sys.modules)
"""
    assert patched.run(program, environ=UNKNOWN).printed() == (
        "4 1 SettingsError DEEPEYES_PATCH='maybe' is not understood False"
    )


def test_import_error_handlers_do_not_swallow_it(patched: Interpreter, without_wrapt: Interpreter) -> None:
    program = "try:\n    import sglang\nexcept ImportError:\n    print('swallowed')\n"
    stopped(patched.run(program, environ=UNKNOWN), "SettingsError")
    stopped(without_wrapt.run(program, environ=ON), "DeepEyesPatchError")


def test_asking_where_sglang_is_gets_the_plain_answer(patched: Interpreter) -> None:
    program = """
import importlib.util, os
spec = importlib.util.find_spec("sglang")
print(os.path.basename(os.path.dirname(spec.origin)), len(spec.submodule_search_locations))
print(spec.loader.is_package("sglang"), "made.up" in spec.loader.get_source("sglang"))
"""
    answer = "sglang 1\nTrue True"
    for environ in (OFF, ON, UNKNOWN):
        assert patched.run(program, environ=environ).printed() == answer
    # Asking is not importing: it costs no wrapt, and the import afterwards is stopped or hooked.
    assert "wrapt" not in patched.run(program + LOADED, environ=ON).printed()
    assert patched.run(program + HOOKS_LIVE, environ=ON).printed() == answer + "\nTrue"
    assert "SettingsError" in patched.run(program + "import sglang", environ=UNKNOWN).err


def test_no_loader_of_ours_is_left_on_sglang(patched: Interpreter) -> None:
    program = """
import importlib, importlib.resources, sglang
print(type(sglang.__loader__).__name__, sglang.__spec__.loader is sglang.__loader__)
print(importlib.resources.files(sglang).joinpath("work.py").is_file())
importlib.reload(sglang)
"""
    assert patched.run(program, environ=ON).printed() == "SourceFileLoader True\nTrue"


def test_two_finders_that_ask_all_others(patched: Interpreter) -> None:
    # Another tool's finder that works as ours does, without a guard against being asked back.
    program = """
import sys
class Asking:
    def find_spec(self, name, path=None, target=None):
        if name == "sglang":
            for finder in sys.meta_path:
                if finder is not self and (spec := finder.find_spec(name, path, target)):
                    return spec
sys.meta_path.insert(int(sys.argv[1]), Asking())
"""
    for position in ("0", "1", "9"):
        result = patched.run("-c", program + HOOKS_LIVE, position, environ=ON)
        assert result.printed() == "True", position


@pytest.mark.parametrize("environ", [OFF, ON, UNKNOWN])
def test_where_there_is_no_sglang_that_is_all_that_is_said(
    patched: Interpreter, without_wrapt: Interpreter, environ: dict[str, str]
) -> None:
    # A value meant for another machine must not make a package seem to exist, nor hide its absence.
    program = """
import importlib.util
print(importlib.util.find_spec("sglang"))
try:
    import sglang
except ModuleNotFoundError as error:
    print(error)
"""
    for interpreter in (patched, without_wrapt):
        result = Interpreter(interpreter.python).run(program, environ=environ)
        assert result.printed() == "None\nNo module named 'sglang'"


def test_missing_wrapt_stops_sglang_only(without_wrapt: Interpreter) -> None:
    for environ in (OFF, ON, UNKNOWN):
        assert without_wrapt.run("pass", environ=environ).silent()
    assert without_wrapt.run(HOOKS_LIVE).printed() == "False"
    result = without_wrapt.run("import sglang", environ=ON)
    stopped(result, "DeepEyesPatchError", "No module named 'wrapt'", "pip install", "DEEPEYES_PATCH=off")


def test_half_a_wrapt_stops_sglang_with_the_same_message(without_wrapt: Interpreter, tmp_path: Path) -> None:
    # What an interrupted uninstall leaves: a folder without modules is a namespace package.
    (tmp_path / "wrapt" / "__pycache__").mkdir(parents=True)
    path = f"{tmp_path}:{without_wrapt.environ['PYTHONPATH']}"
    result = without_wrapt.run("import sglang", environ={**ON, "PYTHONPATH": path})
    stopped(result, "DeepEyesPatchError", "wrapt", "pip install", "DEEPEYES_PATCH=off")


@pytest.mark.parametrize("version", ["1.15.0", "1.9", "0.1.0"])
def test_an_old_wrapt_stops_sglang(patched: Interpreter, version: str) -> None:
    program = f"import wrapt; wrapt.__version__ = {version!r}\nimport sglang\n"
    stopped(patched.run(program, environ=ON), "DeepEyesPatchError", f"found {version}", "wrapt>=1.16")


@pytest.mark.parametrize("version", ["1.16.0", "1.17.3", "2.0.0", "10.0.dev1"])
def test_newer_wrapts_pass(patched: Interpreter, version: str) -> None:
    program = f"import wrapt; wrapt.__version__ = {version!r}\n"
    assert patched.run(program + HOOKS_LIVE, environ=ON).printed() == "True"


SGLANGS_PLUGIN_LOADER = """
from deepeyes_patch.bootstrap import plugin
try:
    plugin()
except Exception:
    print("swallowed")
"""


def test_the_plugin_entry_point(patched: Interpreter) -> None:
    # In an environment whose .pth is not read.
    for environ, live in (
        (ON, "True"),
        (OFF, "False"),
        (RELAX_ON, "True"),
        ({"DEEPEYES_PATCH": "off"}, "False"),
    ):
        program = f"import sys; sys.path[:0] = {[str(patched.site_packages)]!r}\n" + SGLANGS_PLUGIN_LOADER
        assert patched.run(program + HOOKS_LIVE, environ=environ, flags=["-S"]).printed() == live
    # Beside the .pth, before sglang is imported and after.
    assert patched.run(SGLANGS_PLUGIN_LOADER + HOOKS_LIVE, environ=ON).printed() == "True"
    assert patched.run(HOOKS_LIVE + SGLANGS_PLUGIN_LOADER + HOOKS_LIVE, environ=ON).printed() == "True\nTrue"


def test_a_plugin_whose_package_is_damaged(patched: Interpreter) -> None:
    init = patched.site_packages / "deepeyes_patch" / "__init__.py"
    whole = init.read_bytes()
    init.write_bytes(b"")
    program = f"import sys; sys.path[:0] = {[str(patched.site_packages)]!r}\n" + SGLANGS_PLUGIN_LOADER
    try:
        result = patched.run(program, environ=ON, flags=["-S"])
        assert (result.code, result.out) == (1, "")
        assert "deepeyes-patch is switched on and cannot be loaded" in result.err
        assert patched.run(program, flags=["-S"]).silent(), "with no switch set it is no matter"
    finally:
        init.write_bytes(whole)


def test_what_stops_a_plugin_is_not_swallowed(patched: Interpreter, without_wrapt: Interpreter) -> None:
    result = patched.run(SGLANGS_PLUGIN_LOADER, environ=UNKNOWN)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("deepeyes-patch: DEEPEYES_PATCH='maybe'")
    result = without_wrapt.run(SGLANGS_PLUGIN_LOADER, environ=ON)
    assert (result.code, result.out) == (1, "")
    assert "No module named 'wrapt'" in result.err


# --- hooked modules ---------------------------------------------------------------------------------


def test_a_hooked_module_run_with_m(patched: Interpreter) -> None:
    result = patched.run("-m", "sglang.srt.managers.multimodal_processor", environ=ON)
    assert result.printed() == "ran as __main__"


def test_the_source_of_a_hooked_module(patched: Interpreter, sglang_path: Path) -> None:
    program = """
import inspect
from sglang.srt.managers import multimodal_processor as module
print(type(module.get_mm_processor).__name__)
print(inspect.getsource(module) == open(module.__file__).read())
print(inspect.getsource(module.get_mm_processor).splitlines()[0])
print(module.get_mm_processor.__doc__)
print(module.get_mm_processor(type("Config", (), {"model_type": "llava"}), None, None, None))
"""
    assert patched.run(program, environ=ON).printed().splitlines() == [
        "SeamWrapper",
        "True",
        "def get_mm_processor(hf_config, server_args, processor, transport_mode):",
        "Return what a real one would construct.",
        "constructed",
    ]


NEIGHBOUR_FIRST = """
import importlib
# As SGLang does: whatever a processor module raises is logged, and the next one imported.
for name in ("paddleocr_vlm", "qwen_vl"):
    try:
        importlib.import_module(f"sglang.srt.multimodal.processors.{name}")
    except Exception as error:
        print("Ignore import error when loading", name, error)
from sglang.srt.multimodal.processors.qwen_vl import QwenVLImageProcessor
"""


def said_beside_the_log(result: Result) -> str:
    """What a child printed that ended well, and has written why SGLang must not start into the log."""
    assert result.code == 0, result
    assert result.err.startswith("deepeyes-patch cannot apply its 'processor' repair"), result
    return result.out.rstrip("\n")


def test_a_hook_never_raises_and_the_constructor_refuses(patched: Interpreter) -> None:
    # The made-up class lacks most of the functions that the processor repair wraps.
    failed = patched.run(NEIGHBOUR_FIRST + STATUS, environ=ON).printed()
    assert "{'processor': \"failed (deepeyes-patch cannot apply its 'processor' repair to SGLang" in failed
    program = (
        NEIGHBOUR_FIRST
        + """
for attempt in 1, 2:
    try:
        QwenVLImageProcessor(None, None, None)
    except RuntimeError as error:
        print([line for line in str(error).splitlines() if "problem: load_mm_data" in line])
"""
    )
    printed = said_beside_the_log(patched.run(program, environ=ON)).splitlines()
    problem = (
        "  problem: load_mm_data(prompt, image_data, video_data, multimodal_tokens): found nothing: missing"
    )
    assert printed == [str([problem])] * 2
    assert patched.run(NEIGHBOUR_FIRST + "QwenVLImageProcessor(None, None, None)").silent()


CONSTRUCT = f"""
import sys
from {QWEN_VL} import QwenVLImageProcessor
import deepeyes_patch
print(deepeyes_patch.status()["processor"])
for attempt in 1, 2:
    try:
        QwenVLImageProcessor(None, None, None)
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.fixture
def fitting(patched: Interpreter, tmp_path: Path) -> Interpreter:
    """The environment beside a made-up SGLang that has every function which the table of seams wants."""
    path = made_up.write(tmp_path, QWEN_VL)
    return Interpreter(patched.python, {"PYTHONPATH": str(path)})


def test_a_library_that_our_wrappers_need_is_missing(fitting: Interpreter) -> None:
    """There is neither NumPy nor torch here, so that our wrappers cannot be loaded."""
    assert said_beside_the_log(fitting.run(CONSTRUCT, environ=ON)).splitlines() == [
        "failed (No module named 'numpy')",
        *[
            "DeepEyesPatchError deepeyes-patch cannot apply its 'processor' repair, ModuleNotFoundError: No "
            "module named 'numpy'. Fix that, or set DEEPEYES_PATCH=off to serve unrepaired"
        ]
        * 2,
    ]


@pytest.mark.parametrize("message", ["", "\n", "first\nsecond"])
def test_a_hook_that_fails_without_a_message(fitting: Interpreter, message: str) -> None:
    """Before the rebuild the hook itself raised: ``IndexError: list index out of range``.

    wrapt fires a hook that raises only once. So whoever imported the module next got it unpatched.
    """
    program = f"""
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            raise AssertionError({message!r})
sys.meta_path.insert(0, Broken())
"""
    printed = said_beside_the_log(fitting.run(program + CONSTRUCT, environ=ON))
    first = {"": "AssertionError", "\n": "AssertionError", "first\nsecond": "first"}[message]
    assert printed.splitlines()[0] == f"failed ({first})"
    refusal = (
        f"DeepEyesPatchError deepeyes-patch cannot apply its 'processor' repair, AssertionError: {message}."
    )
    assert printed.count(refusal) == 2, "the constructor refuses, and refuses again"


# --- install, uninstall, status ---------------------------------------------------------------------


def test_status_before_and_after(patched: Interpreter) -> None:
    waiting = states(processor="waiting", mrope="waiting")
    off = states()
    assert patched.run(STATUS, environ=ON).printed() == waiting
    assert patched.run("import sglang\n" + STATUS, environ=ON).printed() == waiting
    assert patched.run(STATUS).printed() == off
    assert patched.run("import sglang\n" + STATUS).printed() == off
    assert patched.run(STATUS, environ=RELAX_ON).printed() == states(processor="waiting")
    result = patched.run(STATUS, environ=UNKNOWN)
    assert result.code == 1
    assert "SettingsError: DEEPEYES_PATCH='maybe'" in result.err


INSTALL = "import deepeyes_patch; deepeyes_patch.install()\n"
UNINSTALL = "import deepeyes_patch; deepeyes_patch.uninstall()\n"


@pytest.mark.parametrize("environ", [OFF, ON])
@pytest.mark.parametrize("times", [1, 2])
def test_install_before_and_after_the_import(
    patched: Interpreter, environ: dict[str, str], times: int
) -> None:
    assert patched.run(INSTALL * times + HOOKS_LIVE, environ=environ).printed() == "True"
    assert patched.run("import sglang\n" + INSTALL * times + HOOKS_LIVE, environ=environ).printed() == "True"
    program = HOOKS_LIVE + INSTALL * times + HOOKS_LIVE
    assert patched.run(program, environ=environ).printed().splitlines()[1] == "True"


def test_every_road_together_wraps_once(patched: Interpreter) -> None:
    program = (
        "import sys; exec(open(sys.argv[1]).read())\n"
        + SGLANGS_PLUGIN_LOADER
        + INSTALL
        + HOOKS_LIVE
        + "deepeyes_patch.start()\n"
        + SGLANGS_PLUGIN_LOADER
        + INSTALL
        + "wrapped = multimodal_processor.get_mm_processor.__wrapped__; print(type(wrapped).__name__)"
    )
    pth = patched.site_packages / "deepeyes_patch.pth"
    assert patched.run("-c", program, pth, environ=ON).printed() == "True\nfunction"


def test_install_follows_the_environment_unless_told(patched: Interpreter) -> None:
    assert patched.run(INSTALL + HOOKS_LIVE, environ={"DEEPEYES_PATCH": "off"}).printed() == "False"
    assert patched.run(INSTALL + HOOKS_LIVE, environ={"DEEPEYES_PATCH": "mrope"}).printed() == "False"
    named = "import deepeyes_patch; deepeyes_patch.install(['processor'])\n"
    assert patched.run(named + HOOKS_LIVE, environ={"DEEPEYES_PATCH": "off"}).printed() == "True"
    assert patched.run(named + STATUS).printed() == states(processor="waiting")
    result = patched.run("import deepeyes_patch; deepeyes_patch.install(['rope'])")
    assert "SettingsError: unknown repairs ['rope']; there are processor, mrope, video" in result.err
    assert result.code == 1


@pytest.mark.parametrize("environ", [OFF, ON])
def test_uninstall_puts_the_original_back(patched: Interpreter, environ: dict[str, str]) -> None:
    program = """
import ast, inspect
from sglang.srt.managers import multimodal_processor
print(type(multimodal_processor.get_mm_processor).__name__)
"""
    out = patched.run(INSTALL + program + UNINSTALL + program + STATUS, environ=environ).printed()
    assert out.splitlines() == [
        "SeamWrapper",
        "function",
        states(),
    ]


@pytest.mark.parametrize("environ", [OFF, ON])
def test_uninstall_before_the_import(patched: Interpreter, environ: dict[str, str]) -> None:
    assert patched.run(UNINSTALL + HOOKS_LIVE, environ=environ).printed() == "False"
    assert patched.run(INSTALL + UNINSTALL + HOOKS_LIVE, environ=environ).printed() == "False"
    assert patched.run(UNINSTALL + STATUS, environ=environ).printed() == states()


def test_install_after_uninstall(patched: Interpreter) -> None:
    named = "import deepeyes_patch; deepeyes_patch.install(['processor'])\n"
    program = HOOKS_LIVE + UNINSTALL + HOOKS_LIVE + named + HOOKS_LIVE
    assert patched.run(program, environ=ON).printed().split() == ["True", "False", "True"]


# --- parents and children ---------------------------------------------------------------------------

# Where a child of multiprocessing comes upon sglang: while the parent's script is imported for it, while
# its target is unpickled, or when its target runs.
CHILDREN = {
    "script": "import sglang\nfrom sglang.work import report",
    "unpickled": "if __name__ == '__main__':\n    from sglang.work import report",
    "target": "def report():\n    from sglang.work import report\n    report()",
}
PARENT = """
{first}
{child}
if __name__ == "__main__":
    import multiprocessing
    codes = []
    for method in ("spawn", "fork", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=report)
        try:
            process.start()
            process.join()
            codes.append(process.exitcode)
        except OSError:  # the fork server itself was stopped
            codes.append("stopped")
    report()
    print(*codes)
"""


def run_parent(interpreter: Interpreter, folder: Path, child: str, first: str, **environ: str) -> Result:
    """A script that starts a child in each of the three ways; each prints whether the hooks are live."""
    script = folder / "script.py"
    script.write_text(PARENT.format(first=first, child=CHILDREN[child]))
    return interpreter.run(script, environ=environ)


@pytest.mark.parametrize("child", CHILDREN)
def test_a_variable_set_before_python_starts_reaches_parent_and_children(
    patched: Interpreter, tmp_path: Path, child: str
) -> None:
    result = run_parent(patched, tmp_path, child, "", DEEPEYES_PATCH="1")
    assert result.printed().splitlines() == ["True"] * 4 + ["0 0 0"]


@pytest.mark.parametrize("child", CHILDREN)
def test_an_explicit_install_reaches_parent_and_children(
    patched: Interpreter, tmp_path: Path, child: str
) -> None:
    # In the parent alone: the children have it from their environment.
    first = "if __name__ == '__main__':\n    import deepeyes_patch; deepeyes_patch.install()"
    result = run_parent(patched, tmp_path, child, first)
    assert result.printed().splitlines() == ["True"] * 4 + ["0 0 0"]


def test_after_uninstall_children_are_off_too(patched: Interpreter, tmp_path: Path) -> None:
    first = "if __name__ == '__main__':\n    import deepeyes_patch; deepeyes_patch.uninstall()"
    result = run_parent(patched, tmp_path, "target", first, DEEPEYES_PATCH="1")
    assert result.printed().splitlines() == ["False"] * 4 + ["0 0 0"]


@pytest.mark.parametrize("child", CHILDREN)
def test_a_variable_set_by_a_script_is_too_late_and_never_half_on(
    patched: Interpreter, tmp_path: Path, child: str
) -> None:
    first = "import os; os.environ['DEEPEYES_PATCH'] = '1'"
    result = run_parent(patched, tmp_path, child, first)
    # The forked child shares its parent's fate, off; the children that would be on refuse.
    *live, codes = result.out.splitlines()
    assert live == ["False", "False"], result
    spawned, forked, served = codes.split()
    assert (spawned, forked) == ("1", "0")
    assert served in ("1", "stopped", "255")
    refusal = "SettingsError: DEEPEYES_PATCH was set after the parent of this process"
    assert result.err.count(refusal) == 2, result
    assert "deepeyes_patch.install()" in result.err


def test_a_forked_child_of_a_forked_child(patched: Interpreter) -> None:
    program = f"""
import multiprocessing
context = multiprocessing.get_context("fork")
def inner():
    exec({HOOKS_LIVE!r})
def outer():
    process = context.Process(target=inner)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
process = context.Process(target=outer)
process.start()
process.join()
raise SystemExit(process.exitcode)
"""
    assert patched.run(program, environ=ON).printed() == "True"


def test_a_variable_set_for_a_child_process_only(patched: Interpreter) -> None:
    # As Ray's runtime_env does: the worker's interpreter starts with it.
    program = f"""
import os, subprocess, sys
environ = dict(os.environ, DEEPEYES_PATCH="1")
print(subprocess.run([sys.executable, "-c", {HOOKS_LIVE!r}], env=environ, capture_output=True, text=True))
"""
    assert "stdout='True\\n', stderr=''" in patched.run(program).printed()


# --- broken installations ---------------------------------------------------------------------------

# Loaded before the hooks: without one of these SGLang must stop. The others come with a hook, whose
# failure comes out of the processor's constructor.
AT_ONCE = ["bootstrap", "seams/examine", "errors", "startup/installer", "settings", "seams/wrapping"]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, sglang_path: Path) -> Interpreter:
    created = create(tmp_path_factory.mktemp("broken"))
    copy_package(created)
    return Interpreter(created.python, {"PYTHONPATH": str(sglang_path), "PYTHONDONTWRITEBYTECODE": "1"})


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, "missing") for name in AT_ONCE),
        ("bootstrap", "cut"),
        ("settings", "cut"),
        ("startup/installer", "cut"),
    ],
)
def test_a_module_missing_or_half_written(broken: Interpreter, name: str, damage: str) -> None:
    module = broken.site_packages / "deepeyes_patch" / f"{name}.py"
    text = module.read_text()
    try:
        if damage == "missing":
            module.unlink()
        else:
            module.write_text(text[: len(text) // 2] + "\n(")
        assert broken.run("pass", environ=ON).silent()
        result = broken.run("try:\n    import sglang\nexcept ImportError:\n    pass\n", environ=ON)
        stopped(
            result, "deepeyes-patch is switched on and cannot be loaded", "pip install", "DEEPEYES_PATCH=off"
        )
    finally:
        module.write_text(text)


def test_pip_is_not_needed_for_any_of_this(patched: Interpreter) -> None:
    # The interpreters of this module are bare; a pip among them would hide what an import pulls in.
    command = [patched.python, "-m", "pip", "--version"]
    assert subprocess.run(command, env=clean_environ(), capture_output=True).returncode != 0
