"""Python interpreters for the start-up tests, and a made-up ``sglang`` for them to import.

Start-up can only be tested in a process that starts: ``site`` has read the ``.pth`` files of this one
already. A made-up package is enough there, because nothing is asserted about SGLang itself; every test
of a repair runs the real releases (``tests/sglang``, ``tests/e2e``).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab import coverage_hook

CHECKOUT = Path(__file__).resolve().parent.parent
SECONDS = 60  # bound on any one child; a deadlock must fail, not hang

ON = {"DEEPEYES_PATCH": "1"}
OFF: dict[str, str] = {}
UNKNOWN = {"DEEPEYES_PATCH": "maybe"}

# A child prints True when the one hook that needs neither torch nor a real SGLang has done its work.
HOOKS_LIVE = """
from sglang.srt.managers import multimodal_processor
print(type(multimodal_processor.get_mm_processor).__name__ == "SeamWrapper")
"""

_FACTORY = '''
def get_mm_processor(hf_config, server_args, processor, transport_mode):
    """Return what a real one would construct."""
    return "constructed"

if __name__ == "__main__":
    print("ran as", __name__)
'''

_QWEN_VL = """
class QwenVLImageProcessor:
    def __init__(self, hf_config, server_args, _processor):
        pass

    async def process_mm_data_async(self, image_data, input_text, request_obj):
        pass
"""

# Sorts before qwen_vl, and imports it first; SGLang turns what that raises into a warning.
_NEIGHBOUR = """
from sglang.srt.multimodal.processors.qwen_vl import QwenVLImageProcessor
"""

_MADE_UP_SGLANG = {
    "sglang/__init__.py": '__version__ = "0.0.0+made.up"\n',
    "sglang/work.py": f"def report():\n{'    '.join(HOOKS_LIVE.splitlines(keepends=True))}",
    "sglang/srt/__init__.py": "",
    "sglang/srt/managers/__init__.py": "",
    "sglang/srt/managers/multimodal_processor.py": _FACTORY,
    "sglang/srt/multimodal/__init__.py": "",
    "sglang/srt/multimodal/processors/__init__.py": "",
    "sglang/srt/multimodal/processors/paddleocr_vlm.py": _NEIGHBOUR,
    "sglang/srt/multimodal/processors/qwen_vl.py": _QWEN_VL,
}


def write_sglang(folder: Path) -> Path:
    """Write the made-up package below ``folder``; return ``folder``."""
    for name, text in _MADE_UP_SGLANG.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def clean_environ(**extra: str) -> dict[str, str]:
    """This process's variables without those that act on Python, pip's target or our package."""
    prefixes = ("PYTHON", "DEEPEYES", "_DEEPEYES", "RELAX", "VIRTUAL_ENV", "COV_", "WRAPT_", "PIP_REQUIRE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, **extra}


@dataclass(frozen=True)
class Result:
    """How a child ended."""

    code: int
    out: str
    err: str

    def silent(self) -> bool:
        return (self.code, self.out, self.err) == (0, "", "")

    def printed(self) -> str:
        """What the child printed, without the last newline; it must have ended well and said no more."""
        assert (self.code, self.err) == (0, ""), self
        return self.out.rstrip("\n")


@dataclass(frozen=True)
class Interpreter:
    """A virtual environment of its own, without pip."""

    python: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def site_packages(self) -> Path:
        (folder,) = (self.python.parent.parent / "lib").glob("python3.*/site-packages")
        return folder

    def run(
        self,
        *arguments: str | Path,
        environ: Mapping[str, str] = OFF,
        flags: Sequence[str] = (),
        cwd: Path | None = None,
    ) -> Result:
        """Run with command-line arguments; text with a blank or a newline in it is a program for ``-c``."""
        if len(arguments) == 1 and isinstance(arguments[0], str) and not arguments[0].startswith("-"):
            arguments = ("-c", arguments[0])
        child = subprocess.run(
            [self.python, *flags, *arguments],
            env=clean_environ(**{**self.environ, **environ}),
            cwd=cwd or self.python.parent,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        return Result(child.returncode, child.stdout, child.stderr)


def create(
    folder: Path, base: str | Path = sys.executable, *, system_site_packages: bool = False
) -> Interpreter:
    """A fresh environment on the interpreter ``base``."""
    options = ["--system-site-packages"] if system_site_packages else []
    subprocess.run(
        [base, "-m", "venv", "--without-pip", *options, folder],
        env=clean_environ(),
        check=True,
        timeout=SECONDS,
    )
    created = Interpreter(folder / "bin" / "python")
    coverage_hook.enable(created.site_packages)
    return created


def copy_package(interpreter: Interpreter, dependencies: Iterable[str] = ("wrapt",)) -> None:
    """Put the checkout's package, its start-up files and copies of the dependencies in ``site-packages``."""
    target = interpreter.site_packages
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CHECKOUT / "deepeyes_patch", target / "deepeyes_patch", ignore=ignore)
    for name in ("deepeyes_patch.pth", "deepeyes_patch.start"):
        shutil.copy(CHECKOUT / name, target)
    for name in dependencies:
        spec = importlib.util.find_spec(name)
        assert spec is not None, f"the tests need {name}"
        assert spec.submodule_search_locations
        shutil.copytree(spec.submodule_search_locations[0], target / name, ignore=ignore)


@contextlib.contextmanager
def held(program: str, *arguments: str) -> Iterator[int]:
    """The pid of a child that has run ``program`` and waits; it ends with the block."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"{program}\nprint('up', flush=True); input()", *arguments],
        cwd=CHECKOUT,
        env=clean_environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        yield child.pid
    finally:
        child.communicate("\n", timeout=60)
