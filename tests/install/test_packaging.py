"""What is published: the same bytes wherever it is built, accepted by the checkers, nothing else in it."""

from __future__ import annotations

import configparser
import email
import os
import re
import shlex
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from deepeyes_patch.cli import project
from tests.install.conftest import SOURCES, build, copy_sources
from tests.interpreters import CHECKOUT, clean_environ

TOP = {"deepeyes_patch.pth", "deepeyes_patch.start"}


def files_of(root: Path, *names: str) -> set[str]:
    """The files that are, or lie below, these of ``root``, relative to it."""
    paths = [path for name in names for path in (root / name, *(root / name).rglob("*"))]
    return {str(path.relative_to(root)) for path in paths if path.is_file()}


# --- what is in it ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def contents(wheel: Path) -> dict[str, bytes]:
    """The wheel's files, without the version in the names of its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (info,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        return {name.replace(info, "dist-info"): archive.read(name) for name in archive.namelist()}


def test_the_wheels_files(wheel: Path, contents: dict[str, bytes], checkout: Path) -> None:
    package = files_of(checkout, "deepeyes_patch")
    assert "deepeyes_patch/py.typed" in package
    info = {f"dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    assert set(contents) == {*TOP, *package, *info, "dist-info/licenses/LICENSE"}
    for name in (*TOP, *package):
        assert contents[name] == (checkout / name).read_bytes(), name
    assert contents["dist-info/licenses/LICENSE"] == (checkout / "LICENSE").read_bytes()
    assert wheel.name.endswith("-py3-none-any.whl")


def test_the_wheels_entry_points(contents: dict[str, bytes]) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(contents["dist-info/entry_points.txt"].decode())
    assert {group: dict(parser[group]) for group in parser.sections()} == {
        "console_scripts": {"deepeyes-patch": "deepeyes_patch.cli.main:main"},
        "sglang.srt.plugins": {"deepeyes_patch": "deepeyes_patch.bootstrap:plugin"},
    }


def test_the_metadata(contents: dict[str, bytes]) -> None:
    metadata = email.message_from_bytes(contents["dist-info/METADATA"])
    required = metadata.get_all("Requires-Dist", [])
    # An installation must never move somebody's SGLang, torch or transformers.
    assert [value for value in required if "extra ==" not in value] == ["wrapt>=1.16"]
    assert [value for value in required if "extra ==" in value] == ["sglang>=0.5.3; extra == 'sglang'"]
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"] == project.AUTHOR
    urls = dict(entry.split(", ") for entry in metadata.get_all("Project-URL", []))
    assert urls["Homepage"] == project.ADDRESS
    assert urls["Issues"] == f"{project.ADDRESS}/issues"
    assert all(url.startswith(project.ADDRESS) for url in urls.values())


def test_the_long_description_on_an_index(contents: dict[str, bytes], tools: Path, tmp_path: Path) -> None:
    """Rendered as the index renders it: tables are tables, and no link needs a file beside the page."""
    metadata = email.message_from_bytes(contents["dist-info/METADATA"])
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload(decode=True)
    assert isinstance(text, bytes)
    (tmp_path / "README.md").write_bytes(text)
    program = (
        "import sys; from readme_renderer import markdown; print(markdown.render(open(sys.argv[1]).read()))"
    )
    code, page = run(tools / "python", "-W", "error", "-c", program, tmp_path / "README.md")
    assert code == 0, page
    assert page.count("<table>") == (CHECKOUT / "README.md").read_text().count("|---|\n")
    links = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert {link for link in links if not link.startswith(("https://", "#"))} == set()
    ours = {link.removeprefix(f"{project.ADDRESS}/") for link in links if link.startswith(project.ADDRESS)}
    assert len(ours) > 20
    for link in ours:
        kind, branch, path = link.split("/", 2)
        assert (CHECKOUT / path.partition("#")[0]).is_file(), link
        assert (kind, branch) == ("raw" if path.endswith(".svg") else "blob", "main"), link


def test_the_sdists_files(sdist: Path, checkout: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names == {*files_of(checkout, *SOURCES), "PKG-INFO"}


# --- the same bytes -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with other times, modes and a deeper place."""
    folder = tmp_path_factory.mktemp("elsewhere") / "a" / "clone of mine"
    folder.parent.mkdir()
    copy = copy_sources(folder)
    for number, path in enumerate(sorted(copy.rglob("*"), reverse=True)):
        os.utime(path, (10**9 + number, 10**9 + 7 * number))
        path.chmod(0o700 if path.is_dir() else 0o600)
    return copy


@pytest.fixture(scope="module")
def again(elsewhere: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both distributions, each made from the copy itself: the wheel does not pass through the sdist."""
    target = tmp_path_factory.mktemp("again")
    other = {"PYTHONHASHSEED": "7", "TZ": "Asia/Shanghai", "LC_ALL": "C"}
    return build(elsewhere, target, "--sdist", "--wheel", umask=0o077, **other)


def test_the_same_sdist(sdist: Path, again: Path) -> None:
    assert (again / sdist.name).read_bytes() == sdist.read_bytes()


def test_the_same_wheel_from_the_checkout_as_from_the_sdist(wheel: Path, again: Path) -> None:
    assert (again / wheel.name).read_bytes() == wheel.read_bytes()


def test_a_given_epoch_changes_times_alone(wheel: Path, elsewhere: Path, tmp_path: Path) -> None:
    """Which is why docs/en/releasing.md says to leave it unset."""
    build(elsewhere, tmp_path, "--wheel", SOURCE_DATE_EPOCH="1700000000")
    with zipfile.ZipFile(wheel) as usual, zipfile.ZipFile(tmp_path / wheel.name) as dated:
        for one, other in zip(usual.infolist(), dated.infolist(), strict=True):
            assert (one.filename, one.external_attr) == (other.filename, other.external_attr)
            assert usual.read(one) == dated.read(other)
            assert (one.date_time, other.date_time) == ((2020, 2, 2, 0, 0, 0), (2023, 11, 14, 22, 13, 20))


# --- the checkers -------------------------------------------------------------------------------------


def documented(program: str) -> list[str]:
    """The arguments that docs/en/releasing.md gives to ``program``, without the files."""
    lines = (CHECKOUT / "docs" / "en" / "releasing.md").read_text().splitlines()
    (line,) = (line.strip() for line in lines if line.startswith(f"       {program} "))
    return shlex.split(line)[1:-1]


def run(program: Path, *arguments: str | Path) -> tuple[int, str]:
    done = subprocess.run(
        [program, *arguments],
        env=clean_environ(COLUMNS="200"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def test_twine(tools: Path, wheel: Path, sdist: Path) -> None:
    arguments = documented("twine")
    assert arguments == ["check", "--strict"]
    code, said = run(tools / "twine", *arguments, wheel, sdist)
    assert (code, said.count("PASSED")) == (0, 2), said


def test_check_wheel_contents(tools: Path, wheel: Path) -> None:
    program, arguments = tools / "check-wheel-contents", documented("check-wheel-contents")
    assert run(program, *arguments, wheel) == (0, f"{wheel}: OK\n")
    # What is ignored is one remark, on the one file that the checker does not know.
    assert arguments[:2] == ["--ignore", "W003"]
    code, said = run(program, *arguments[2:], wheel)
    remark = "Wheel contains non-module at library toplevel"
    assert (code, said.split()) == (1, f"{wheel}: W003: {remark}: deepeyes_patch.start".split())
