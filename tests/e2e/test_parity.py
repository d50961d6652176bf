"""``deepeyes-patch parity`` as a user runs it, against a patched server and a stock one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.e2e import shapes
from tests.lab import flags
from tests.lab.server import Server

CLI = Path(sys.executable).with_name("deepeyes-patch")
SECONDS = 300


def parity(url: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    # Not the checkout's folder, whose sources would hide the installed package.
    return subprocess.run(
        [CLI, "parity", url, "--model", folder, "--new-tokens", "6", *options],
        cwd=CLI.parent,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def requests(url: str, folder: Path) -> tuple[int, dict[str, Any]]:
    done = parity(url, folder, "--json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_patched_is_exact(folder: Path, patched: Server) -> None:
    code, found = requests(patched.url, folder)
    assert code == 0, found
    assert [(r["turn"], r["form"]) for r in found["requests"]] == [
        *((turn, "text only") for turn in (1, 2, 3)),
        *((turn, form) for turn in (1, 2, 3) for form in ("expanded", "one placeholder")),
    ]
    for request in found["requests"]:
        assert request["verdict"] == "exact"
        assert request["used"] == request["expected"]
        assert request["largest"] < shapes.BATCHED_NOISE
        assert (request["sent"] < request["expected"]) == (request["form"] == "one placeholder")
    assert found["served"] == str(folder)


def test_stock_drifts_or_fails(folder: Path, stock: Server) -> None:
    code, found = requests(stock.url, folder)
    assert code == 1
    verdicts = {(r["turn"], r["form"]): r["verdict"] for r in found["requests"]}
    assert {verdicts[turn, "text only"] for turn in (1, 2, 3)} == {"exact"}
    # 0.5.3 takes them, and gives images the wrong positions.
    expanded = {verdicts[turn, "expanded"] for turn in (1, 2, 3)}
    assert expanded == ({"HTTP 500"} if flags.interleaves() else {"other log-probs", "other ids"})


def test_the_table(folder: Path, patched: Server) -> None:
    done = parity(patched.url, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "6 of 6 requests with images are exact"
    assert sum(line.endswith(" exact") for line in lines) == 9 + 1
    assert all(len(line) <= 80 for line in lines if not line.startswith(("http", "transformers")))


def test_other_weights_are_seen_without_any_image(folder: Path, patched: Server, tmp_path: Path) -> None:
    """The trainer's checkpoint is not the server's: its logits are ten times as large."""
    shutil.copytree(folder, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"] * 10
    save_file(weights, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    code, found = requests(patched.url, tmp_path / "model")
    assert code == 1
    assert {r["verdict"] for r in found["requests"] if r["form"] == "text only"} == {"other log-probs"}


@pytest.mark.parametrize(
    ("url", "model", "words"),
    [
        ("http://127.0.0.1:9", None, "cannot be reached"),
        ("nonsense", None, "is no address of a server"),
        ("http://127.0.0.1:9", "/nowhere", "holds no config.json"),
    ],
)
def test_mistakes(url: str, model: str | None, words: str, folder: Path) -> None:
    done = parity(url, Path(model) if model else folder)
    assert done.returncode in (2, 3)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("device", "words"), [("nonsense", "torch has no device"), ("cuda:99", "cannot load")]
)
def test_no_such_device(device: str, words: str, folder: Path, patched: Server) -> None:
    done = parity(patched.url, folder, "--device", device)
    assert done.returncode in (2, 3)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
