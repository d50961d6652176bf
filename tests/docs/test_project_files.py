"""What a host looks for at the top of a repository, and that it says what the rest of the project says."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

import deepeyes_patch
from deepeyes_patch.cli import project
from tests.docs.pages import CHECKOUT
from tests.unit.test_cli import cli

GITHUB = CHECKOUT / ".github"


def read(name: str) -> Any:
    return yaml.safe_load((CHECKOUT / name).read_text(encoding="utf-8"))


def test_the_citation() -> None:
    citation = read("CITATION.cff")
    assert citation["version"] == deepeyes_patch.__version__
    assert citation["authors"] == [{"name": project.AUTHOR}]
    assert citation["license"] == "Apache-2.0"
    assert citation.get("repository-code") == (project.ADDRESS if project.has_address() else None)


@pytest.mark.skipif(not GITHUB.is_dir(), reason="the sdist has no files for the host")
class TestHost:
    def test_ci_runs_targets_of_the_makefile(self) -> None:
        """Those that need no server. The only commands are the Makefile's."""
        workflow = read(".github/workflows/ci.yml")
        (job,) = workflow["jobs"].values()
        commands = [step["run"] for step in job["steps"] if "run" in step]
        assert commands == ["make ${{ matrix.target }}"]
        makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
        suites = re.search(r"^TEST_SUITES := (.*)$", makefile, re.MULTILINE)
        assert suites
        without_a_server = {name for name in suites[1].split() if not re.match(r"e2e-|\$\(", name)}
        assert set(job["strategy"]["matrix"]["target"]) == without_a_server
        assert workflow["permissions"] == {"contents": "read"}
        assert job["timeout-minutes"] <= 60

    def test_an_issue_asks_for_the_report(self) -> None:
        form = read(".github/ISSUE_TEMPLATE/fault.yml")
        first = form["body"][0]
        assert first["validations"]["required"]
        commands = re.findall(r"`deepeyes-patch (\w+) (--\w+)`", first["attributes"]["description"])
        assert commands == [("doctor", "--report"), ("doctor", "--json")]
        for command, option in commands:
            assert option in cli(command, "--help").stdout


def test_the_policy_names_no_address_of_its_own() -> None:
    assert "http" not in (CHECKOUT / "SECURITY.md").read_text(encoding="utf-8")
    assert "[Security](docs/en/security.md)" in (CHECKOUT / "SECURITY.md").read_text(encoding="utf-8")
