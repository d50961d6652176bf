"""``python -m tests.matrix.served FILE``: does a patched server of this release start, and serve exactly?

Writes to FILE, as JSON, what is wrong; nothing, an empty text.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import torch

from tests.e2e import shapes
from tests.lab import models, server

ON = {**shapes.STOCK, "DEEPEYES_PATCH": "1"}
ASKED = ("text", "short, drifted", "expanded, drifted between")


def main(results: Path) -> None:
    torch.set_num_threads(1)  # the server needs the cores
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # told to end, we stop the server
    results.write_text(json.dumps(fault()))


def fault() -> str:
    folder = models.ensure("qwen3_vl")
    try:
        with server.serve(folder, env=ON) as running:
            for name in ASKED:
                sent = shapes.SHAPES[name](folder)
                verdict = shapes.judge(folder, sent, shapes.ask(running.url, sent))
                if not verdict.exact:
                    return f"{name}: {verdict}"
    except server.ServerFailed as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
