"""What the security page says about our sources and their hashes."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepeyes_patch.seams import table
from deepeyes_patch.startup import integrity
from tests.docs import pages
from tests.docs.conftest import Shell
from tests.docs.pages import CHECKOUT, LANGUAGES
from tests.interpreters import write_sglang

PAGE = pages.page("security")
PACKAGE = CHECKOUT / "deepeyes_patch"

# What runs in SGLang's processes: start-up, and what the hooks import.
MODULES = [
    *("", "bootstrap", "settings", "errors", *integrity.MODULES),
    *(f"{room}.{name}" for room, names in integrity.MODULES.items() for name in names),
]

NETWORK_AND_PROGRAMS = {
    "socket", "ssl", "http", "urllib", "ftplib", "smtplib", "requests", "httpx", "aiohttp", "subprocess",
    "multiprocessing", "pty", "ctypes", "webbrowser", "asyncio",
}  # fmt: skip
FILES_AND_CODE = {
    "open", "fdopen", "eval", "exec", "compile", "system", "popen", "fork", "execv", "execve", "posix_spawn",
    "write_text", "write_bytes", "mkdir", "makedirs", "unlink", "rmtree", "rename", "touch",
}  # fmt: skip


def source(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split(".")) if module else PACKAGE
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def called(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            yield getattr(function, "id", None) or getattr(function, "attr", None) or ""


@pytest.mark.parametrize("module", MODULES)
def test_what_is_never_done(module: str) -> None:
    tree = ast.parse(source(module).read_text(encoding="utf-8"))
    # Before a server with HTTP workers starts, this Python asks another one whether it reads our line.
    exempt = {"subprocess"} if module == "startup.stops" else set()
    names = set(imported(tree)) - {"urllib.parse"}  # takes addresses apart, and opens none
    assert (NETWORK_AND_PROGRAMS - exempt).isdisjoint(name.partition(".")[0] for name in names)
    assert FILES_AND_CODE.isdisjoint(called(tree))


def test_imports_by_name_come_from_our_sources() -> None:
    """The calls that take a name at run time take it from our sources."""
    found = {}
    for module in MODULES:
        names = set(called(ast.parse(source(module).read_text(encoding="utf-8"))))
        if used := names & {"import_module", "__import__", "find_spec"}:
            found[module] = used
    # The package asks the other finders about sglang, and hands over to `bootstrap`, which hands over to
    # `startup.activation`; `integrity` imports the wrappers that the table of seams names; `stops` looks for
    # the modules of that table, and imports SGLang's reader of configurations.
    assert found == {
        "": {"find_spec", "import_module"},
        "bootstrap": {"import_module"},
        "startup.integrity": {"import_module"},
        "startup.stops": {"find_spec", "import_module"},
    }


@pytest.mark.parametrize(
    ("library", "module"), [("prometheus_client", "observe.counters"), ("triton", "mrope.kernel")]
)
def test_who_calls_the_libraries_that_do_more(library: str, module: str) -> None:
    found = {
        name
        for name in MODULES
        if library in {i.partition(".")[0] for i in imported(ast.parse(source(name).read_text("utf-8")))}
    }
    assert found == {module}
    for language in LANGUAGES:
        assert f"`{module.replace('.', '/')}.py`" in pages.page("security", language).path.read_text("utf-8")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_function_that_is_wrapped_is_named(language: str) -> None:
    """By the table of seams: which of our files wraps which functions of SGLang's."""
    text = pages.page("security", language).path.read_text(encoding="utf-8")
    step = text.partition("\n6. ")[2].partition("\n7. ")[0]
    assert "`startup/hooks.py`" in step
    assert "(seams.md)" in step
    found = {}
    for entry in step.split("\n   - ")[1:]:
        file, *functions = re.findall(r"`([^`]+)`", entry)
        found[file] = set(functions)
    expected: dict[str, set[str]] = {}
    for row in table.SEAMS:
        for reference in filter(None, (row.wrapper, row.door)):
            file = reference.partition(":")[0].replace(".", "/") + ".py"
            expected.setdefault(file, set()).add(row.name)
    assert found == expected


def test_who_puts_wrappers_on() -> None:
    """One module changes SGLang's classes, and one calls it."""
    callers = {
        name
        for name in MODULES
        if {"wrap", "wrap_traceably", "setattr", "delattr"}
        & set(called(ast.parse(source(name).read_text("utf-8"))))
    }
    # They note something on an instance: a processor, a result, the frames of a video, a request, a batch.
    noting = {
        *("seams.families", "request.scope", "request.frames", "request.prompt_logprobs"),
        *("request.over_grpc", "mrope.deepstack"),
        "request.sessions",
    }
    assert callers == {"seams.wrapping", "startup.hooks", *noting}


@pytest.mark.parametrize("name", ["deepeyes_patch.pth", "deepeyes_patch.start"])
def test_the_page_shows_the_file(name: str) -> None:
    assert PAGE.block(name) == (CHECKOUT / name).read_text()


def test_the_line_is_explained_in_full() -> None:
    parts = [row[0].strip("`") for row in PAGE.tables[1][1:]]
    line = (CHECKOUT / "deepeyes_patch.pth").read_text()
    assert "".join(parts).replace(" ", "") == "".join(line.split())


@pytest.fixture(scope="module")
def installed(shell: Shell) -> Iterator[None]:
    quickstart = pages.page("quickstart")
    shell(quickstart.block("install"))
    yield
    shell(quickstart.block("uninstall"))


@contextlib.contextmanager
def replaced(file: Path, content: bytes | None) -> Iterator[None]:
    """While ``file`` holds other bytes, or is not there."""
    original = file.read_bytes()
    try:
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        yield
    finally:
        file.write_bytes(original)


@pytest.mark.usefixtures("installed")
def test_where_the_files_are(shell: Shell, site_packages: Path) -> None:
    (line,) = shell(PAGE.block("find-site")).splitlines()
    assert Path(line).resolve() == site_packages.resolve()


@pytest.mark.usefixtures("installed")
def test_the_byte_code_goes(shell: Shell, site_packages: Path) -> None:
    package = site_packages / "deepeyes_patch"
    shell("python -m compileall -q " + str(package))
    assert list(package.rglob("*.pyc"))
    shell(PAGE.block("find-site") + PAGE.block("delete-byte-code"))
    assert not list(package.rglob("__pycache__"))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["check-hashes", "check-wheel"])
def test_the_hashes(name: str, shell: Shell, site_packages: Path) -> None:
    package = site_packages / "deepeyes_patch"
    blocks = PAGE.block("find-site") + PAGE.block("delete-byte-code") + PAGE.block(name)

    def verdicts() -> dict[str, str]:
        printed = shell(blocks).splitlines()
        lines = [
            line.split() for line in printed if line.startswith(("ok ", "CHANGED ", "MISSING ", "EXTRA "))
        ]
        return {file: verdict for verdict, file in lines}

    found = verdicts()
    assert set(found.values()) == {"ok"}
    assert {"deepeyes_patch.pth", "deepeyes_patch.start", "deepeyes_patch/bootstrap.py"} <= set(found)
    script = {file for file in found if file.endswith("bin/deepeyes-patch")}
    assert len(script) == (name == "check-hashes")  # pip makes it; no wheel holds it

    pth = site_packages / "deepeyes_patch.pth"
    spans, mrope = package / "ids" / "spans.py", package / "mrope"
    extra, link = mrope / "extra.py", package / "elsewhere"
    with replaced(pth, pth.read_bytes() + b"import this\n"), replaced(spans, None):
        try:
            extra.touch()
            link.symlink_to(mrope)  # a folder that imports like one of ours
            wrong = {file: verdict for file, verdict in verdicts().items() if verdict != "ok"}
        finally:
            extra.unlink(missing_ok=True)
            link.unlink(missing_ok=True)
    assert wrong == {
        "deepeyes_patch.pth": "CHANGED",
        "deepeyes_patch/ids/spans.py": "MISSING",
        "deepeyes_patch/mrope/extra.py": "EXTRA",
        "deepeyes_patch/elsewhere": "EXTRA",
    }
    assert set(verdicts().values()) == {"ok"}


@pytest.mark.usefixtures("installed")
def test_no_single_folder(shell: Shell, tmp_path: Path) -> None:
    said = shell(f"(SITE={tmp_path}\n{PAGE.block('check-hashes')}) 2>&1 || echo ended with $?")
    assert said == f"{tmp_path} holds 0 RECORDs of deepeyes-patch: set SITE yourself\nended with 1\n"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("fault", ["missing", "empty", "cut", "cut to a shorter start"])
def test_what_start_cannot_notice(fault: str, shell: Shell, site_packages: Path) -> None:
    """`deepeyes_patch/__init__.py` itself: Python speaks, or nobody, and ``import sglang`` is not stopped."""
    init = site_packages / "deepeyes_patch" / "__init__.py"
    original = init.read_bytes()
    cut = original.index(b"    if not finder.is_done")
    contents = {
        "missing": None,
        "empty": b"",
        "cut": original[: cut + len(b"    if ")],
        "cut to a shorter start": original[:cut],
    }
    program = (
        "import sys; print([type(f).__name__ for f in sys.meta_path if 'deepeyes' in type(f).__module__])"
    )
    with replaced(init, contents[fault]):
        said = shell(f'export DEEPEYES_PATCH=1 PYTHONDONTWRITEBYTECODE=1; python -c "{program}" 2>&1')
    assert said.splitlines()[-1] == "[]"
    complaint = "Error processing line 1 of " in said and "deepeyes_patch.pth:" in said
    assert complaint == (fault != "cut to a shorter start")


@pytest.mark.usefixtures("installed")
def test_what_start_notices(shell: Shell, site_packages: Path, tmp_path: Path) -> None:
    """Any other file of ours: nothing is printed, and ``import sglang`` is stopped."""
    on = f"DEEPEYES_PATCH=1 PYTHONPATH={write_sglang(tmp_path)}"
    with replaced(site_packages / "deepeyes_patch" / "bootstrap.py", b"def"):
        said = shell(f"{on} python -c 'print(0)' 2>&1")
        stopped = shell(f"{on} python -c 'import sglang' 2>&1 || true")
    assert said == "0\n"
    assert "deepeyes-patch is switched on and cannot be loaded" in stopped
