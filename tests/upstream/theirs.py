"""``make upstream-tests``: SGLang's own tests with our switch off and on; each must come out the same.

A wheel of SGLang's brings some of its tests: those of ``sglang.test``, and from 0.5.10 on the unit tests of
its diffusion half. Tests that need a GPU fail in both runs; what counts is that our package changes nothing.
A test that comes out in two ways is run again in both, because some of theirs depend on time or on chance.

``python -m tests.upstream.theirs`` runs in the environment of a release. Ends with 1 if a test differs again.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from tests.lab import environments, flags
from tests.lab.installed import sources
from tests.upstream import outcomes

SECONDS = 2400  # for one run of a release's tests, on a busy machine
# Folders of the sglang package, where a release has them. Its other tests start servers, or compile for CUDA.
FOLDERS = ("test", "multimodal_gen/test/unit")
# What the diffusion half imports, of its extra. Few files need more than these.
DIFFUSION = ("addict", "cache-dit", "diffusers", "imageio", "imageio-ffmpeg", "opencv-python-headless")
DIFFUSION += ("remote-pdb", "trimesh")
SWITCHES = ("off", "1")


def files(package: Path) -> list[Path]:
    """The files of tests that a release brings."""
    return sorted(file for folder in FOLDERS for file in (package / folder).rglob("test_*.py"))


def layer() -> Path:
    """The folder with these packages, in the versions of the installed release."""
    pinned = (
        one.partition(";")[0].strip() for one in metadata.requires("sglang") or () if "diffusion" in one
    )
    wanted = [one for one in pinned if re.split("[=<>~]", one)[0] in DIFFUSION]
    return environments.packages_layer("diffusion", *wanted, "tabulate==0.9.0")


def run(tests: Sequence[Path], package: Path, folder: Path, switch: str) -> dict[str, str]:
    """Test -> outcome, with our switch at ``switch``."""
    env = {
        **flags.ENVIRONMENT,
        "DEEPEYES_PATCH": switch,
        "RELAX_DEEPEYES_QWEN_VL_PATCH": None,
        "PYTHONPATH": str(layer()),
        "HF_HUB_OFFLINE": "1",  # a test that would load a model from the hub fails at once
    }
    began = time.monotonic()
    found = outcomes.of(sys.executable, tests, package, folder, env, SECONDS)
    say(f"DEEPEYES_PATCH={switch}: {outcomes.counted(found)} in {time.monotonic() - began:.0f} s")
    return found


def dotted(file: Path, package: Path) -> str:
    """How the report names the tests of a file."""
    return ".".join(file.relative_to(package).with_suffix("").parts)


def main() -> int:
    package = sources("sglang")[0].parent
    tests = files(package)
    say(f"SGLang {metadata.version('sglang')}: {len(tests)} files of tests")
    with tempfile.TemporaryDirectory(prefix="theirs-") as name:
        folder = Path(name)
        off, on = (run(tests, package, folder, switch) for switch in SWITCHES)
        differing = outcomes.differing(off, on)
        if differing:
            again = [file for file in tests if any(dotted(file, package) in test for test in differing)]
            say(f"{len(differing)} differ; again: {', '.join(file.name for file in again)}")
            second = outcomes.differing(*(run(again, package, folder, switch) for switch in SWITCHES))
            differing = {test: pair for test, pair in second.items() if test in differing}
    for test, (stock, patched) in differing.items():
        say(f"DIFFERS: {test}: off {stock}, on {patched}")
    ran = outcomes.PASSED in off.values()
    if not ran:
        say("NOT RIGHT: no test passed")
    elif not differing:
        say("every test comes out the same")
    return 1 if differing or not ran else 0


def say(what: str) -> None:
    print(f"theirs: {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
