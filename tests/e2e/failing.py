"""``python -m tests.e2e.failing WAY``: start SGLang as others do, and report how that ended.

``spawn`` and ``fork``: ``launch_server`` as the target of a child of multiprocessing, as slime, miles and
Relax do. ``engine``: an ``Engine`` in such a child. Prints one line of JSON: the exit code of the child, and
what it has left running.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time

import psutil

from tests.lab import flags, models, server

SECONDS = 150  # to import SGLang twice, and to end


def launch(way: str) -> None:
    os.environ.update(flags.ENVIRONMENT)
    fields = flags.server_args(model_path=str(models.ensure("qwen3_vl")), host="127.0.0.1")
    if way == "engine":
        from sglang.srt.entrypoints.engine import Engine

        Engine(**{name: value for name, value in fields.items() if name != "host"})
        return
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import ServerArgs

    launch_server(ServerArgs(port=server.free_port(), **fields))


def main(way: str) -> None:
    method = "fork" if way == "fork" else "spawn"
    process = multiprocessing.get_context(method).Process(target=launch, args=(way,))
    begin = time.monotonic()
    process.start()
    family: dict[int, psutil.Process] = {}
    while process.exitcode is None and time.monotonic() - begin < SECONDS:
        process.join(0.2)
        for child in psutil.Process(process.pid).children(recursive=True) if process.exitcode is None else []:
            family[child.pid] = child
    left = [child for child in family.values() if child.is_running() and child.status() != "zombie"]
    print(json.dumps({"code": process.exitcode, "started": len(family), "left": len(left)}), flush=True)
    for child in left:
        child.kill()
    if process.exitcode is None:
        process.kill()


if __name__ == "__main__":
    main(sys.argv[1])
