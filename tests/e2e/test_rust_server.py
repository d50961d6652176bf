"""SGLang's embedded Rust server (``SGLANG_RUST_SERVER=1``, 0.5.17 and later) is refused for Qwen-VL models.

It tokenizes and processes images in compiled code, past every wrapper, and answers expanded ids with HTTP 500
("prompt has 294 media placeholder(s) but 2 media item(s)").
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
def test_it_does_not_start_unrepaired(folder: Path) -> None:
    code, log = server.expect_failure(folder, env={**shapes.PATCHED, "SGLANG_RUST_SERVER": "1"})
    assert code != 0
    assert "would be served by SGLang's Rust server" in log
    assert "unset SGLANG_RUST_SERVER, or set DEEPEYES_PATCH=off" in log
