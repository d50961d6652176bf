"""Several HTTP workers (``--tokenizer-worker-num``), each with a tokenizer manager and a pool of processors.

They are new interpreters, which SGLang's plugin entry point does not reach: where that is the only road to
the repair, the server must not start.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import inspect
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e import interpreters, shapes
from tests.e2e.shapes import BAD, NEW_TOKENS, PICTURES, SHAPES, Sent
from tests.lab import client, server
from tests.lab.client import Answer
from tests.lab.server import Server
from tests.sglang import rollouts

WORKERS = 2
ARGS = ["--tokenizer-worker-num", str(WORKERS)]
# A worker that takes longer than ten seconds to import SGLang is otherwise killed, and started again.
PATIENT = {"SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "300"}
BOTH_UP_SECONDS = 300
ROUNDS = 5
# Without the third: with it alone, transformers in bf16 is 0.006 off from float32, more than may pass here.
ALONE = [PICTURES[0], PICTURES[1], PICTURES[3]]


def has_pool() -> bool:
    from sglang.srt.server_args import ServerArgs

    return "mm_processor_worker_num" in inspect.signature(ServerArgs).parameters


@contextlib.contextmanager
def serving(folder: Path, switch: Mapping[str, str | None]) -> Iterator[Server]:
    """All workers are up."""
    pool = ["--mm-processor-worker-num", "2"] if has_pool() else []
    with server.serve(folder, env={**switch, **PATIENT}, args=[*ARGS, *pool]) as started:
        # The first worker is enough to be healthy.
        deadline = time.monotonic() + BOTH_UP_SECONDS
        while started.log_text().count("Application startup complete") < WORKERS:
            assert time.monotonic() < deadline, started.log_text()[-server.TAIL :]
            time.sleep(0.3)
        yield started


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Server]:
    with serving(folder, shapes.PATCHED) as started:
        yield started


def workers_of(running: Server) -> set[int]:
    pids = re.findall(r"Start multi-tokenizer worker process (\d+)", running.log_text())
    return {int(pid) for pid in pids}


def ask_one(running: Server, sent: Sent, together: threading.Barrier) -> tuple[int, Answer]:
    """(which process answered, what it said). All connect before any of them asks."""
    address = urlsplit(running.url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=shapes.ANSWER_SECONDS)
    try:
        connection.connect()
        pid = owner(running, connection.sock.getsockname()[1])
        together.wait(shapes.ANSWER_SECONDS)
        body = {
            "input_ids": sent.prompt,
            "image_data": [client.as_base64(image) for image in sent.images],
            "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True},
            "return_logprob": True,
        }
        connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    return pid, client.read(response.status, json.loads(text) if response.status == 200 else text)


def owner(running: Server, port: int) -> int:
    """The process of the server that has accepted the connection from this port.

    Asked before the request is: with an HTTP 500 the server closes the connection.
    """
    server_port = urlsplit(running.url).port
    assert server_port is not None
    deadline = time.monotonic() + shapes.ANSWER_SECONDS
    while time.monotonic() < deadline:
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, _, _, _, _, _, _, inode, *_ = line.split()
            if (int(local.partition(":")[2], 16), int(remote.partition(":")[2], 16)) != (server_port, port):
                continue
            for pid in workers_of(running):
                if f"socket:[{inode}]" in sockets(pid):
                    return pid
        time.sleep(0.01)
    raise AssertionError(f"none of {workers_of(running)} has accepted the connection from {port}")


def sockets(pid: int) -> set[str]:
    links = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            links.add(os.readlink(link))
    return links


def ask_all(running: Server, sent: Sequence[Sent]) -> Iterator[tuple[Sent, int, Answer]]:
    """(what was sent, which process answered, what it said), until every worker has answered."""
    workers = workers_of(running)
    assert len(workers) == WORKERS, workers
    seen: set[int] = set()
    together = threading.Barrier(len(sent))
    for _ in range(ROUNDS):
        with ThreadPoolExecutor(len(sent)) as pool:
            answers = list(pool.map(lambda one: ask_one(running, one, together), sent))
        for one, (pid, answer) in zip(sent, answers, strict=True):
            yield one, pid, answer
            seen.add(pid)
        if seen == workers:
            break
    assert seen == workers, "requests reach both workers"


def test_stock_workers_die_of_expanded_ids(folder: Path) -> None:
    """Each of them, and serves one placeholder per image."""
    expanded, short = SHAPES["expanded"](folder), SHAPES["short"](folder)
    with serving(folder, shapes.STOCK) as stock:
        for _, pid, answer in ask_all(stock, [expanded] * 4):
            assert answer.status == 500, (pid, answer.body)
        for sent, pid, answer in ask_all(stock, [short] * 4):
            verdict = shapes.judge(folder, sent, answer, shapes.BATCHED_NOISE)
            assert verdict.exact, (pid, verdict)
        assert not shapes.announcements(stock)


def test_every_worker_is_patched_and_exact(folder: Path, running: Server) -> None:
    """Concurrent requests, each with other images and other ids, over all workers and their pools."""
    sent = [
        SHAPES["expanded"](folder),
        SHAPES["expanded, drifted between"](folder),
        SHAPES["short, drifted"](folder),
        SHAPES["history expanded, new turn short"](folder),
        *(
            Sent(made.ids, made.images, made.expected_ids)
            for picture in ALONE
            for made in [rollouts.expanded(folder, [picture])]
        ),
    ]
    for one, pid, answer in ask_all(running, sent):
        assert answer.status == 200, answer.body
        verdict = shapes.judge(folder, one, answer)
        assert verdict.exact, (pid, verdict)


def test_every_worker_refuses(folder: Path, running: Server) -> None:
    for _ in range(2 * WORKERS):
        shapes.assert_refused(running, BAD["a pad missing"](folder))
        shapes.assert_refused(running, BAD["pads and no image at all"](folder))


def test_every_worker_says_so(running: Server) -> None:
    states = {
        int(match[1]): match[2]
        for line in shapes.announcements(running)
        if (match := re.search(r", pid (\d+): processor: ([^;]+);", line))
    }
    assert workers_of(running) <= set(states), states
    assert all(re.fullmatch(r"patched \(Qwen\w*VL\w+\)", state) for state in states.values()), states


@pytest.mark.skipif(
    importlib.util.find_spec("sglang.srt.plugins") is None, reason="this release loads no plugins"
)
def test_with_the_plugin_alone_it_does_not_start(folder: Path, tmp_path: Path) -> None:
    """Its workers would be stock (HTTP 500 for expanded ids) beside a model process that says *patched*."""
    python = interpreters.build(tmp_path / "venv", interpreters.layers(), with_our_package=False)
    target = tmp_path / "target"
    target.mkdir()
    for entry in interpreters.ours():
        (target / entry.name).symlink_to(entry)
    env = {**shapes.PATCHED, **PATIENT, "PYTHONPATH": str(target)}
    code, log = server.expect_failure(folder, env=env, args=ARGS, python=python)
    assert code != 0
    assert re.search(r"the HTTP workers of this server .* this qwen3_vl model unrepaired", log), log[-3000:]
    assert "install deepeyes-patch into site-packages" in log
    assert "or use one tokenizer worker" in log
    assert "DEEPEYES_PATCH=off" in log
