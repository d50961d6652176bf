"""What the security page says about our sources and their hashes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepeyes_patch import installer
from tests.docs import pages
from tests.docs.conftest import Shell
from tests.docs.pages import CHECKOUT

PAGE = pages.page("security")
PACKAGE = CHECKOUT / "deepeyes_patch"

# What runs in SGLang's processes: start-up, and what the hooks import.
STARTED = [
    *("", "bootstrap", "settings", "errors", "installer", "compat", "wrapping"),
    *("counters", "record", "seams"),
]
MODULES = [*STARTED, *installer._OWN_MODULES]

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
    exempt = {"subprocess"} if module == "workers" else set()
    assert (NETWORK_AND_PROGRAMS - exempt).isdisjoint(name.partition(".")[0] for name in imported(tree))
    assert FILES_AND_CODE.isdisjoint(called(tree))


def test_imports_by_name_come_from_our_sources() -> None:
    """The calls that take a name at run time take it from our sources."""
    found = {}
    for module in MODULES:
        names = set(called(ast.parse(source(module).read_text(encoding="utf-8"))))
        if used := names & {"import_module", "__import__", "find_spec"}:
            found[module] = used
    # `bootstrap` asks the other finders about sglang; `installer` looks for our own modules; `workers`
    # imports SGLang's reader of configurations.
    assert found == {
        "": {"import_module"},
        "bootstrap": {"find_spec"},
        "installer": {"find_spec"},
        "workers": {"import_module"},
    }


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


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["check-hashes", "check-wheel"])
def test_the_hashes(name: str, shell: Shell, site_packages: Path) -> None:
    def verdicts() -> dict[str, str]:
        printed = shell(PAGE.block(name)).splitlines()
        lines = [line.split() for line in printed if line.startswith(("ok ", "CHANGED "))]
        return {file: verdict for verdict, file in lines}

    found = verdicts()
    assert set(found.values()) == {"ok"}
    assert {"deepeyes_patch.pth", "deepeyes_patch.start", "deepeyes_patch/bootstrap.py"} <= set(found)
    pth = site_packages / "deepeyes_patch.pth"
    original = pth.read_text()
    try:
        pth.write_text(original + "import this\n")
        assert {file for file, verdict in verdicts().items() if verdict == "CHANGED"} == {pth.name}
    finally:
        pth.write_text(original)
