"""SGLangs that are not quite a release, and are served exactly.

What decides is what the files hold, not the version that they call themselves.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import interpreters, shapes
from tests.lab import altered
from tests.lab.altered import replacing
from tests.lab.environments import CHECKOUT

QWEN = "srt/multimodal/processors/qwen_vl.py"
BASE = "srt/multimodal/processors/base_processor.py"


def serve(path: Path, python: str = sys.executable) -> dict[str, Any]:
    """What `tests.e2e.served` says about the SGLang in ``path``."""
    done = shapes.run_on(path, "tests.e2e.served", python=python)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["processor"] == str(path / "sglang" / QWEN)
    assert not Path(found["package"]).is_relative_to(CHECKOUT / "deepeyes_patch"), "not the installed package"
    assert re.fullmatch(r"patched \(Qwen\w*VLImageProcessor\)", found["state"])
    assert found["served"] == 14
    return found


def test_a_file_edited_in_place(tmp_path: Path, release: str) -> None:
    """As in the DeepEyes image: the legacy loader is called, and the version says nothing of it."""
    if "def legacy_load_mm_data(" not in (interpreters.release_layer() / "sglang" / BASE).read_text():
        pytest.skip("this release has one loader")
    calls_legacy = replacing("self.load_mm_data(", "self.legacy_load_mm_data(")
    found = serve(altered.copy(tmp_path, {QWEN: calls_legacy, BASE: without_the_usual_loader}))
    assert found["version"] == release


def without_the_usual_loader(source: str) -> str:
    """Should a request reach it all the same, the test fails."""
    before, definition, rest = source.partition("def load_mm_data(")
    signature, end, body = rest.partition("-> BaseMultiModalProcessorOutput:\n")
    assert body, "load_mm_data is not written as it was"
    return f"{before}{definition}{signature}{end}        raise AssertionError('the usual loader')\n{body}"


def test_a_source_tree(tmp_path: Path, release: str) -> None:
    """On PYTHONPATH, under a development version, and no distribution knows of it."""
    version = f"{release}.dev42+g0123abc"
    layer = interpreters.release_layer()
    file = "_version.py" if (layer / "sglang/_version.py").exists() else "version.py"
    tree = altered.copy(tmp_path / "tree", {file: replacing(release, version)})
    # The release's layer without SGLang itself: code and metadata.
    rest = tmp_path / "rest"
    rest.mkdir()
    for entry in layer.iterdir():
        if entry.name != "sglang" and not entry.name.startswith("sglang-"):
            (rest / entry.name).symlink_to(entry)
    path = [rest if folder == layer else folder for folder in interpreters.layers()]
    python = interpreters.build(tmp_path / "venv", path, with_our_package=True)
    found = serve(tree, str(python))
    assert found["version"] == version
    assert found["distributions"] is None
