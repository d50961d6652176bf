"""Environments beside the release's own: with other layers, or with our package on another road."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from tests.lab import coverage_hook

BUILD_SECONDS = 120


def site_packages() -> Path:
    """Where this environment has our package, and the list of its layers."""
    return Path(sysconfig.get_path("purelib"))


def layers() -> list[Path]:
    """The stand-ins, the release and the base, as the lab put them on the path."""
    return [Path(line) for line in (site_packages() / "lab.pth").read_text().splitlines()]


def release_layer() -> Path:
    """The folder in which pip installed this release."""
    (found,) = (layer for layer in layers() if (layer / "sglang").is_dir())
    return found


def build(folder: Path, path: Sequence[Path], with_our_package: bool) -> Path:
    """A virtual environment in ``folder`` with these layers; its interpreter."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True, timeout=BUILD_SECONDS)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = folder / "lib" / version / "site-packages"
    coverage_hook.enable(packages)
    (packages / "lab.pth").write_text("".join(f"{layer}\n" for layer in path))
    if with_our_package:
        for entry in ours():
            (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def ours() -> list[Path]:
    """What pip installed of our package: code, metadata, ``.pth`` and ``.start`` file."""
    found = sorted(site_packages().glob("deepeyes_patch*"))
    assert any(entry.suffix == ".dist-info" for entry in found), f"no deepeyes-patch in {site_packages()}"
    return found
