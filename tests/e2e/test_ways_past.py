"""Ways of serving that no wrapper stands in: with ``processor`` on, a Qwen-VL model does not start on them.

SGLang's embedded Rust server (``SGLANG_RUST_SERVER=1``, 0.5.17 and later) tokenizes and processes images in
compiled code, and answers expanded ids with HTTP 500 ("prompt has 294 media placeholder(s) but 2 media
item(s)"). Its gRPC server takes preprocessed requests, and gives their images text positions.
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


def test_the_grpc_server(folder: Path) -> None:
    """Refused before the package that it needs is looked for, which is what stock fails over."""
    code, log = server.expect_failure(folder, env=shapes.PATCHED, args=["--grpc-mode"])
    assert code != 0
    assert "model type qwen3_vl would be served over gRPC (--grpc-mode, --smg-grpc-mode)" in log
    assert "serve it over HTTP, or set DEEPEYES_PATCH=off" in log


def test_stock_looks_for_the_package_that_its_grpc_server_needs(folder: Path) -> None:
    code, log = server.expect_failure(folder, env=shapes.STOCK, args=["--grpc-mode"])
    assert code != 0
    assert "requires the smg-grpc-servicer package" in log
    assert "DEEPEYES_PATCH" not in log
