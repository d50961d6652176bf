"""Ways of serving that no wrapper stands in: with ``processor`` on, a Qwen-VL model does not start on them.

SGLang's embedded Rust server (``SGLANG_RUST_SERVER=1``, 0.5.17 and later) tokenizes and processes images in
compiled code, and answers expanded ids with HTTP 500 ("prompt has 294 media placeholder(s) but 2 media
item(s)").
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.e2e import shapes
from tests.lab import server


@pytest.mark.skipif(
    importlib.util.find_spec("sglang.srt.rust_extensions") is None,
    reason="this release has no Rust server",
)
def test_the_rust_server(folder: Path) -> None:
    code, log = server.expect_failure(folder, env={**shapes.PATCHED, "SGLANG_RUST_SERVER": "1"})
    assert code != 0
    assert "would be served by SGLang's Rust server" in log
    assert "unset SGLANG_RUST_SERVER, or set DEEPEYES_PATCH=off" in log


@pytest.mark.parametrize("switch", ["stock", "patched"])
def test_the_grpc_server_without_the_package_that_it_needs(folder: Path, switch: str) -> None:
    """SGLang's own words; with the package, see test_over_grpc.py."""
    env = shapes.STOCK if switch == "stock" else shapes.PATCHED
    code, log = server.expect_failure(folder, env=env, args=["--grpc-mode"])
    assert code != 0
    assert "requires the smg-grpc-servicer package" in log
    assert "DEEPEYES_PATCH" not in log
