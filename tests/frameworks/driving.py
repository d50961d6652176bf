"""Starts a child and reads its report."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from tests.e2e import shapes
from tests.frameworks import playing
from tests.lab import children, flags
from tests.lab.environments import CHECKOUT

SECONDS = 420  # a framework may start a server first
# No telemetry, and nothing of the network but the server.
ENVIRONMENT = {
    **shapes.STOCK,
    **flags.ENVIRONMENT,
    "PYTHONPATH": str(CHECKOUT),
    "OMP_NUM_THREADS": "1",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "disabled",
    "OTEL_SDK_DISABLED": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(frozen=True)
class Child:
    """A framework's child, ``tests.frameworks.NAME_child``; its interpreter, and a folder for its files."""

    framework: str
    folder: Path
    python: Path
    seconds: float = SECONDS

    def run(
        self,
        model: Path,
        url: str,
        pictures: Sequence[Image.Image],
        forbidden: Sequence[int] = (),
        env: dict[str, str | None] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Let the child play one episode; its report. ``more`` are ``Task.more``.

        Raises `children.ChildFailed` if the child ends with an error or says nothing in time.
        """
        files = [self.folder / f"picture{number}.png" for number in range(len(pictures))]
        for picture, file in zip(pictures, files, strict=True):
            picture.save(file)
        task = {
            "model": str(model),
            "url": url,
            "pictures": list(map(str, files)),
            "forbidden": list(forbidden),
            "more": more,
        }
        log = self.folder / "log"
        command = [self.python, "-m", f"tests.frameworks.{self.framework}_child", json.dumps(task)]
        # AReaL starts the `python3` of the path.
        path = f"{self.python.parent}:{os.environ['PATH']}"
        children.run(command, log, self.seconds, {**ENVIRONMENT, "PATH": path, **(env or {})}, quiet=True)
        lines = log.read_text(errors="replace").splitlines()
        (report,) = [line for line in lines if line.startswith(playing.REPORT)]
        return dict(json.loads(report.removeprefix(playing.REPORT)))
