"""Real servers of one release, asked through HTTP.

Run inside a release's environment (``.lab/0.5.23/bin/python -m pytest tests/e2e``); without SGLang these
tests fail, they are not skipped.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from tests.lab import altered

# A test run that is told to end (a CI's time limit) stops its servers, as on Ctrl-C.
signal.signal(signal.SIGTERM, signal.default_int_handler)
# The server has its own threads; two sets that wait for each other on few cores cost more than they give.
torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.e2e.fixtures")


def pytest_report_header() -> str:
    import sglang

    return f"sglang {sglang.__version__}"


@pytest.fixture(scope="module")
def renamed_seam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the installed SGLang without a function that the processor repair needs."""
    edit = altered.replacing("_process_and_collect_mm_items", "_collect_mm_items")
    folder = tmp_path_factory.mktemp("renamed-seam")
    return altered.copy(folder, {"srt/multimodal/processors/base_processor.py": edit})
