"""Which distributions brought an SGLang: for messages of an imported one, and for ``doctor``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from deepeyes_patch.cli import installation
from deepeyes_patch.observe import release

Site = Path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site directory, the only one on the path."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])
    return folder


def package(folder: Path) -> Path:
    (folder / "sglang").mkdir(parents=True)
    (folder / "sglang" / "__init__.py").touch()
    return folder / "sglang"


def distribution(site: Site, name: str, version: str, **files: str) -> None:
    """Write its metadata; ``files``: others beside METADATA, ``_`` standing for a dot."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file, text in files.items():
        (info / file.replace("_json", ".json")).write_text(text)


RECORD = "another/__init__.py,sha256=AA,0\nsglang/__init__.py,sha256=AA,0\n"


def names(folder: Path) -> list[str]:
    return list(dict.fromkeys(one.metadata["Name"] for one in release.distributions("sglang", folder)))


@pytest.mark.parametrize("name", ["sglang", "sglang-kt", "another-name"])
def test_what_lies_beside_the_package(name: str, site: Site) -> None:
    folder = package(site)
    distribution(site, name, "0.7.2", RECORD=RECORD)
    distribution(site, "torch", "2.0", RECORD="torch/__init__.py,sha256=AA,0\nx/sglang/__init__.py,,\n")
    assert names(folder) == [name]
    found = installation.package("sglang")
    assert (found.distribution, found.version, found.path) == (name, "0.7.2", str(folder))


def test_the_one_of_the_packages_own_name_comes_first(site: Site) -> None:
    folder = package(site)
    distribution(site, "a-rebuild", "0.7.2", RECORD=RECORD)
    distribution(site, "sglang", "0.5.9", RECORD=RECORD)
    assert names(folder) == ["sglang", "a-rebuild"]
    assert installation.package("sglang").version == "0.5.9"


def test_a_source_tree_before_an_installed_release(site: Site, tmp_path: Path) -> None:
    """The metadata that stay behind it are not those of what is imported."""
    package(site)
    distribution(site, "sglang", "0.5.9", RECORD=RECORD)
    folder = package(tmp_path / "tree")
    sys.path.insert(0, str(tmp_path / "tree"))
    assert names(folder) == []
    assert installation.package("sglang") == installation.Package(None, None, str(folder))


@pytest.mark.parametrize("name", ["sglang", "sglang-kt"])
def test_an_editable_installation(name: str, site: Site, tmp_path: Path) -> None:
    tree = tmp_path / "a clone" / "python"
    folder = package(tree)
    origin = {"url": tree.as_uri(), "dir_info": {"editable": True}}
    distribution(site, name, "0.5.24.dev1", direct_url_json=json.dumps(origin))
    sys.path.append(str(tree))
    assert names(folder) == [name]
    # Another tree, in front of the editable one.
    other = package(tmp_path / "other")
    assert names(other) == []
    assert installation.overlaid(installation.package("sglang"), [folder / "__init__.py"]) is None


def test_an_installation_from_a_folder_is_not_editable(site: Site, tmp_path: Path) -> None:
    tree = tmp_path / "clone"
    folder = package(tree)
    origin = {"url": tree.as_uri(), "dir_info": {}}
    distribution(site, "sglang", "0.5.23", direct_url_json=json.dumps(origin), RECORD=RECORD)
    assert names(folder) == []
    assert names(package(site)) == ["sglang"]
