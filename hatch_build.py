"""Metadata that the build takes from `deepeyes_patch/cli/project.py` and the README.

A package index shows the README without the files beside it, so its links become absolute here.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# The target of a link or picture that is neither an address nor an anchor.
_RELATIVE = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s]+)")


class ProjectMetadata(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        project = runpy.run_path(str(root / "deepeyes_patch" / "cli" / "project.py"))
        address = project["ADDRESS"]
        metadata["authors"] = [{"name": project["AUTHOR"]}]
        metadata["urls"] = {
            "Homepage": address,
            "Documentation": f"{address}/blob/main/docs/en/index.md",
            "Issues": f"{address}/issues",
            "Changelog": f"{address}/blob/main/CHANGELOG.md",
        }
        text = (root / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, address)}


def absolute(text: str, address: str) -> str:
    """The text with absolute links: pages as the host shows them, pictures as files."""

    def link(match: re.Match[str]) -> str:
        path = match[2]
        place = "raw" if path.partition("#")[0].endswith((".svg", ".png")) else "blob"
        return f"{match[1]}{address}/{place}/main/{path}"

    return _RELATIVE.sub(link, text)
