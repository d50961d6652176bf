"""The blocks of the quick start do what the page says.

Those for a server run in ``tests/e2e/test_quickstart.py``. The rest that cannot run here is named, with the
reason, and its form is checked.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.docs import pages
from tests.docs.conftest import Shell
from tests.docs.pages import CHECKOUT
from tests.lab import environments

PAGE = pages.page("quickstart")
RUN_HERE = {"install", "status", "status-output", "uninstall"}
RUN_ON_A_SERVER = {"serve", "log-line", "ask", "refused", "refused-output"}
ONLY_CHECKED = {
    "dockerfile": "no Docker and no GPU image here; its RUN line is run",
    "docker": "no Docker and no GPU here",
    "copy-line": "the line to delete; nobody should run it",
    "restore-wheel": "would install SGLang anew",
    "restore-tree": "needs SGLang's source tree",
    "ray": "needs a Ray cluster",
    "ray-job": "needs a Ray cluster",
}
HADOLINT = CHECKOUT / ".lab" / "docs" / "bin" / "hadolint"


def test_every_block_is_accounted_for() -> None:
    names = [block.name for block in PAGE.blocks]
    assert sorted(map(str, names)) == sorted([*RUN_HERE, *RUN_ON_A_SERVER, *ONLY_CHECKED])


def test_install_look_and_remove(shell: Shell) -> None:
    shell(PAGE.block("install"))
    try:
        assert shell(PAGE.block("status")) == PAGE.block("status-output")
    finally:
        shell(PAGE.block("uninstall"))
    program = "import importlib.util; print(importlib.util.find_spec('deepeyes_patch'))"
    assert shell(f'python -c "{program}"') == "None\n"


@pytest.mark.parametrize("name", [b.name for b in PAGE.blocks if b.language == "sh"])
def test_shell_blocks_parse(name: str) -> None:
    subprocess.run(["bash", "-n", "-c", PAGE.block(name)], check=True, timeout=60)


def test_the_dockerfile(shell: Shell, tmp_path: Path) -> None:
    text = PAGE.block("dockerfile")
    file = tmp_path / "Dockerfile"
    file.write_text(text)
    # DL3013: which version is the reader's choice.
    lint = [HADOLINT, "--ignore", "DL3013", "--no-color", file]
    done = subprocess.run(lint, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    comments, _, rest = (CHECKOUT / "docker" / "Dockerfile").read_text().partition("ARG ")
    assert f"ARG {rest}" == text
    assert all(line.startswith("#") for line in comments.splitlines())
    install, check = re.findall(r"^RUN (.*)$", text, re.MULTILINE)
    assert text.index("ENV DEEPEYES_PATCH=1\n") < text.index(check), "the check needs the switch"
    shell(install.replace("/opt/", "./"))
    # This environment has no SGLang, so the build would stop; tests/install/test_doctor.py has one.
    said = shell(f"DEEPEYES_PATCH=1 {check} || echo ended with $?")
    assert "[sglang-missing]" in said
    assert said.splitlines()[-2:] == ["1 error", "ended with 1"]
    shell(PAGE.block("uninstall"))


def test_the_image_gets_what_the_wheel_is_made_of() -> None:
    """``.dockerignore`` leaves out all else: an environment of the lab has gigabytes."""
    lines = (CHECKOUT / ".dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    wheel = {path.relative_to(CHECKOUT).parts[0] for path in environments._sources()}
    assert kept == {name for name in wheel if not name.startswith("README.zh")}
    assert lines[0] == "*"


def test_pip_brings_wrapt_and_nothing_else(shell: Shell) -> None:
    shell("pip uninstall -qy wrapt deepeyes-patch")
    before = json.loads(shell("pip list --format=json"))
    shell(PAGE.block("install"))
    try:
        after = json.loads(shell("pip list --format=json"))
    finally:
        shell(PAGE.block("uninstall"))
    names = [{package["name"].replace("_", "-") for package in packages} for packages in (before, after)]
    assert names[1] - names[0] == {"deepeyes-patch", "wrapt"}


def test_ray_gets_the_variable() -> None:
    (call,) = (node for node in ast.walk(ast.parse(PAGE.block("ray"))) if isinstance(node, ast.Call))
    (keyword,) = call.keywords
    assert keyword.arg == "runtime_env"
    assert ast.literal_eval(keyword.value) == {"env_vars": {"DEEPEYES_PATCH": "1"}}
    found = re.search(r"'(\{.*\})'", PAGE.block("ray-job"), re.DOTALL)
    assert found
    assert json.loads(found[1])["env_vars"]["DEEPEYES_PATCH"] == "1"


def test_the_line_to_delete_is_a_copy_over_sglang() -> None:
    command, source, target = shlex.split(PAGE.block("copy-line"))
    assert (command, source) == ("cp", "qwen_vl.py")
    assert target.endswith("sglang/srt/multimodal/processors/qwen_vl.py")
