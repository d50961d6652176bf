"""Which SGLang is imported, as messages say it."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from deepeyes_patch.observe import release


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Pretend that an SGLang of some version from some distribution is imported.

    The package keeps its answer for each place; each test has a place of its own.
    """

    def pretend(version: str | None, distribution: str | None, distribution_version: str = "0.0") -> None:
        module = types.ModuleType("sglang")
        module.__file__ = str(tmp_path / "sglang" / "__init__.py")
        if version is not None:
            module.__version__ = version  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "sglang", module)
        monkeypatch.setattr(sys, "path", [str(tmp_path)])  # no other distribution in sight
        if distribution is not None:
            info = tmp_path / f"{distribution.replace('-', '_')}-{distribution_version}.dist-info"
            info.mkdir()
            text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {distribution_version}\n"
            (info / "METADATA").write_text(text)
            (info / "top_level.txt").write_text("sglang\n")

    return pretend


def test_a_distribution_under_another_name(sglang: Callable[..., None]) -> None:
    sglang("0.5.12.post1", "sglang-router-fork", "7.1")
    assert "SGLang 0.5.12.post1" in release.description()
    assert "sglang-router-fork 7.1" in release.description()


@pytest.mark.parametrize("own", ["0.0.0.dev0", None])
def test_a_version_that_only_the_distribution_knows(own: str | None, sglang: Callable[..., None]) -> None:
    """SGLang asks for a distribution called ``sglang``; that of a rebuild has another name."""
    sglang(own, "sglang-kt", "0.7.2")
    assert release.version() == "0.7.2"
    assert release.description().startswith("SGLang 0.7.2 (distribution sglang-kt 0.7.2, ")


def test_the_modules_own_version_comes_first(sglang: Callable[..., None]) -> None:
    """The metadata of a release stays behind when another tree is put before it on the path."""
    sglang("0.5.16", "sglang", "0.5.9")
    assert release.version() == "0.5.16"


def test_two_distributions_that_both_hold_sglang(sglang: Callable[..., None]) -> None:
    sglang("0.0.0.dev0", "sglang", "0.5.9")
    sglang("0.0.0.dev0", "sglang-kt", "0.7.2")
    assert release.version() == "0.0.0.dev0"
    assert "(distribution sglang 0.5.9, distribution sglang-kt 0.7.2, " in release.description()


def test_a_source_tree_without_a_distribution(sglang: Callable[..., None], tmp_path: Path) -> None:
    sglang("0.0.0.dev0", None)
    assert "SGLang 0.0.0.dev0 (no distribution: a source tree" in release.description()
    assert str(tmp_path) in release.description()


def test_a_version_that_the_module_does_not_tell(sglang: Callable[..., None]) -> None:
    sglang(None, None)
    assert "of unknown version" in release.description()


def test_no_sglang_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    assert "an unknown place" in release.description()


def test_the_distributions_are_read_once(
    sglang: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request that is refused as ``inexact`` names the version; reading takes tens of milliseconds."""
    sglang("0.0.0.dev0", "sglang-kt", "0.7.2")
    reads = []
    original = release.distributions
    monkeypatch.setattr(release, "distributions", lambda *where: reads.append(where) or original(*where))
    assert [release.version() for _ in range(3)] == ["0.7.2"] * 3
    assert len(reads) == 1
