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
import yaml

from tests.docs import pages
from tests.docs.conftest import Shell
from tests.docs.pages import CHECKOUT

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
    "slime": "slime does not run without GPUs",
    "relax": "Relax does not run without GPUs",
    "verl": "verl does not run without GPUs",
    "verl-job": "verl does not run without GPUs",
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
    (command,) = re.findall(r"^RUN (.*)$", text, re.MULTILINE)
    shell(command)
    shell(PAGE.block("uninstall"))
    assert "ENV DEEPEYES_PATCH=1" in text.splitlines()


def test_ray_gets_the_variable() -> None:
    (call,) = (node for node in ast.walk(ast.parse(PAGE.block("ray"))) if isinstance(node, ast.Call))
    (keyword,) = call.keywords
    assert keyword.arg == "runtime_env"
    assert ast.literal_eval(keyword.value) == {"env_vars": {"DEEPEYES_PATCH": "1"}}
    for name in ("ray-job", "slime", "relax"):
        found = re.search(r"'(\{.*\})'", PAGE.block(name), re.DOTALL)
        assert found, name
        assert json.loads(found[1])["env_vars"]["DEEPEYES_PATCH"] == "1", name
    assert yaml.safe_load(PAGE.block("verl"))["env_vars"] == {"DEEPEYES_PATCH": "1"}


def test_the_line_to_delete_is_a_copy_over_sglang() -> None:
    command, source, target = shlex.split(PAGE.block("copy-line"))
    assert (command, source) == ("cp", "qwen_vl.py")
    assert target.endswith("sglang/srt/multimodal/processors/qwen_vl.py")
