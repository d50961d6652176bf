"""A real server that ``deepeyes-patch run`` has started, seen through ``status`` and Prometheus."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from tests.e2e import shapes
from tests.e2e.shapes import BAD, SHAPES
from tests.lab import client
from tests.lab.server import Server

CLI = Path(sys.executable).with_name("deepeyes-patch")
SECONDS = 60


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    # Not the checkout's folder, whose sources would hide the installed package.
    return subprocess.run(
        [CLI, *arguments],
        cwd=CLI.parent,
        env={name: value for name, value in os.environ.items() if name != "DEEPEYES_PATCH"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def status(pid: int) -> tuple[int, dict[str, Any]]:
    done = command("status", "--json", str(pid))
    return done.returncode, json.loads(done.stdout)


def totals(pid: int) -> dict[str, int]:
    """Over all processes of the server, in the labels of Prometheus."""
    _, found = status(pid)
    counts = {"restored": 0, "passed": 0}
    for process in found["processes"]:
        counts["restored"] += process["restored"]
        counts["passed"] += process["passed"]
        for reason, count in process["refused"].items():
            counts[f"refused:{reason}"] = counts.get(f"refused:{reason}", 0) + count
    return counts


def exported(url: str) -> dict[str, int]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/metrics", timeout=SECONDS) as answer:
        text = answer.read().decode()
    found = {}
    for line in text.splitlines():
        if line.startswith("deepeyes_patch_requests_total{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            name = labels["outcome"] + (f":{labels['reason']}" if labels["reason"] else "")
            found[name] = int(float(line.rpartition(" ")[2]))
    return found


def test_run_has_replaced_itself_by_a_patched_server(launched: Server, release: str) -> None:
    code, found = status(launched.pid)
    assert code == 0, found
    first = found["processes"][0]
    assert first["pid"] == launched.pid
    assert "sglang.launch_server" in first["name"] or "sglang" in first["name"]
    assert first["live"]
    assert first["sglang"] == release
    assert first["repairs"]["processor"].startswith("patched ("), first
    assert first["repairs"]["mrope"] == "off"
    # The schedulers, which were spawned, read the same switch.
    assert sum(process["live"] for process in found["processes"]) > 1, found


def test_each_request_is_counted_once(folder: Path, launched: Server) -> None:
    before = totals(launched.pid)
    shapes.assert_served(folder, launched, SHAPES["expanded"](folder))
    shapes.assert_served(folder, launched, SHAPES["expanded, drifted between"](folder))
    # The text prompt of this release's rope is not judged here.
    assert shapes.ask(launched.url, SHAPES["text"](folder)).status == 200
    assert client.generate(launched.url, "no media, no count").status == 200
    bad = {
        "a pad missing": "refused:length",
        "an image missing": "refused:count",
        "a stray pad": "refused:placeholders",
        "pads and no image at all": "refused:placeholders",
    }
    for name in bad:
        shapes.assert_refused(launched, BAD[name](folder))
    after = totals(launched.pid)
    gained = {name: count - before.get(name, 0) for name, count in after.items()}
    assert {name: count for name, count in gained.items() if count} == {
        "restored": 2,
        "passed": 1,
        "refused:length": 1,
        "refused:count": 1,
        "refused:placeholders": 2,
    }
    found = exported(launched.url)
    assert {name: count for name, count in found.items() if count} == {n: c for n, c in after.items() if c}
    assert "refused:inexact" in found, "a reason that has not occurred is exported as 0"


def test_status_for_people(launched: Server) -> None:
    done = command("status", str(launched.pid))
    assert done.returncode == 0, done
    assert "RESTORED" in done.stdout.splitlines()[0]
    assert "processor: patched" in done.stdout
    # Nothing that is normal looks like a fault.
    assert "not live" not in done.stdout
    counted = re.search(r"^(\d+) of (\d+) processes live, \d+ helpers?; SGLang", done.stdout, re.MULTILINE)
    assert counted, done.stdout
    assert counted[1] == counted[2]
    assert "refused: count 1" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines()), done.stdout
    assert "\x1b" not in done.stdout


def test_status_without_a_pid_finds_it(launched: Server) -> None:
    found = json.loads(command("status", "--json").stdout)
    assert launched.pid in [process["pid"] for process in found["processes"]]


def test_a_stock_server_is_not_live(stock: Server) -> None:
    done = command("status", str(stock.pid))
    assert done.returncode == 1, done
    assert f"not live in {stock.pid}" in done.stdout
    assert "doctor" in done.stdout
