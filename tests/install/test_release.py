"""A release has an address, and its pages say that an index has it. Until then there is a placeholder."""

from __future__ import annotations

import re

import deepeyes_patch
from deepeyes_patch.cli import project
from tests.interpreters import CHECKOUT


def unready(changelog: str, version: str, has_address: bool, on_an_index: bool) -> list[str]:
    """What stops a release; nothing if this version is not being released (docs/en/releasing.md, step 2)."""
    if not re.search(rf"^## \[{re.escape(version)}\]", changelog, re.MULTILINE):
        return []
    found = [] if has_address else ["deepeyes_patch/cli/project.py: ADDRESS is the placeholder"]
    return found if on_an_index else [*found, "deepeyes_patch/cli/project.py: ON_AN_INDEX is False"]


def test_a_release_has_an_address_and_is_on_an_index() -> None:
    changelog = (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8")
    version = deepeyes_patch.__version__
    assert unready(changelog, version, project.has_address(), project.ON_AN_INDEX) == []


def test_a_release_with_the_placeholder_is_refused() -> None:
    released = "## [Unreleased]\n\n## [1.2.3] - 2027-01-01\n"
    assert len(unready(released, "1.2.3", False, False)) == 2
    assert unready(released, "1.2.3", True, True) == []
    assert unready(released, "1.2.4", False, False) == [], "still to come"


def test_the_address_stands_in_one_place() -> None:
    """Pages link to each other without it; the build and the command line read it."""
    host = project.ADDRESS.partition("//")[2]
    here = {"deepeyes_patch/cli/project.py", "tests/unit/test_cli.py"}
    for path in sorted(CHECKOUT.rglob("*")):
        name = path.relative_to(CHECKOUT).as_posix()
        if name.startswith((".git/", ".lab/", ".site/")) or "cache" in name or name in here:
            continue
        if path.suffix in (".py", ".md", ".toml", ".yml", ".cff") and path.is_file():
            assert host not in path.read_text(encoding="utf-8"), name
