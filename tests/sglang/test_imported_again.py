"""SGLang taken out of ``sys.modules`` and imported again, as test runners and plugin managers do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.lab import children

PATCHED = {"processor": True, "factory": True, "rope": True, "says": "patched"}
STOCK = {"processor": False, "factory": False, "rope": False, "says": "off"}


def test_what_is_loaded_now_is_patched(tmp_path: Path) -> None:
    """Exact requests included (`again_child`). wrapt's hooks run once: without ours, all of it was stock."""
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "tests.sglang.again_child", str(file)]
    children.run(command, tmp_path / "log", seconds=300, env={"DEEPEYES_PATCH": None}, quiet=True)
    assert json.loads(file.read_text()) == {
        "first": PATCHED,
        "again": PATCHED,
        "another class": True,
        "reloaded": PATCHED,
        "uninstalled": STOCK,
    }
