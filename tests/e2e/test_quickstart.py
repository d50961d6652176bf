"""The blocks of the quick start that need a server, on the real one.

Three things are put in their place: the model, the address, and the flags that a CPU needs.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.docs import pages
from tests.e2e import shapes
from tests.lab import flags
from tests.lab.server import Server

PAGE = pages.page("quickstart")
MODEL = "Qwen/Qwen3-VL-8B-Instruct"
ADDRESS = "http://127.0.0.1:30000"
SECONDS = 300


def run(block: str, folder: Path, server: Server) -> subprocess.CompletedProcess[str]:
    assert MODEL in block
    assert ADDRESS in block
    program = block.replace(MODEL, str(folder)).replace(ADDRESS, server.url)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_the_command_is_the_one_that_the_lab_starts(folder: Path, patched: Server) -> None:
    words = shlex.split(PAGE.block("serve"))
    environ = dict(word.split("=", 1) for word in words if "=" in word)
    assert environ == {name: value for name, value in shapes.PATCHED.items() if value is not None}
    command = [word for word in words if "=" not in word]
    running = Path(f"/proc/{patched.pid}/cmdline").read_text().split("\0")
    expected = [sys.executable if word == "python" else word for word in command]
    assert running[: len(command)] == [str(folder) if word == MODEL else word for word in expected]


def test_the_log_line(patched: Server) -> None:
    shown = PAGE.block("log-line").strip()
    pattern = re.escape(shown)
    for value in ("0\\.5\\.12\\.post1", "4242"):
        pattern = pattern.replace(value, "[\\w.]+")
    if not flags.interleaves():
        pattern = pattern.replace("mrope:\\ native", "mrope:\\ patched.*")
    assert re.search(pattern, patched.log_text())


def test_what_a_trainer_has_is_served(folder: Path, stock: Server, patched: Server) -> None:
    done = run(PAGE.block("ask"), folder, patched)
    assert done.stdout == "200 True\n", done.stderr
    without = run(PAGE.block("ask"), folder, stock)
    assert "200" not in without.stdout
    assert without.returncode != 0


def test_what_does_not_fit_is_refused(folder: Path, patched: Server) -> None:
    done = run(PAGE.block("ask") + PAGE.block("refused"), folder, patched)
    # The tiny model's vocabulary splits the words before the image in another way.
    shown = " ".join(PAGE.block("refused-output").split())
    said, expected = (
        re.sub(r"from position \d+", "from position N", text)
        for text in (done.stdout, f"200 True\n{shown}\n")
    )
    assert said == expected, done.stderr
