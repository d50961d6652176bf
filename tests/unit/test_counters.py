"""What is counted, and the record that others read it from."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deepeyes_patch import RefusedRequest
from deepeyes_patch.cli import processes
from deepeyes_patch.observe import counters, record
from tests.interpreters import CHECKOUT, clean_environ, held

STATES = {
    "processor": "patched (C)",
    "mrope": "native",
    "video": "off",
    "sampling": "off",
    "deepstack": "off",
}


@pytest.fixture
def published() -> Iterator[None]:
    record.publish("1.2", STATES, counters.NAMES)
    yield
    record.withdraw()


def own_record() -> dict[str, Any] | None:
    return processes.look_at(os.getpid(), os.getppid()).record


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- counting -----------------------------------------------------------------------------------------


def test_a_refusal_is_counted_once(published: None) -> None:
    refusal = RefusedRequest("media", "no image")
    for _ in range(2):  # it passes several of our wrappers
        counters.count_refusal(refusal)
    counters.count_refusal(RefusedRequest("media", "no image"))
    kept = own_record()
    assert kept is not None
    assert {name: count for name, count in kept["counts"].items() if count} == {"refused:media": 2}


def test_counting_while_the_record_is_taken_away(published: None) -> None:
    """As `uninstall` does on another thread, after a request was served right.

    Before the rebuild, counting read the memory that `withdraw` had released: the client got ``ValueError:
    operation forbidden on released memoryview object`` in place of its result.
    """
    record._counts.release()  # where `withdraw` stands between two instructions
    try:
        counters.count(counters.RESTORED)
        counters.count_refusal(RefusedRequest("media", "no image"))
    finally:
        record.withdraw()
    counters.count(counters.RESTORED)


def test_many_threads_count_while_records_come_and_go() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    done, problems = threading.Event(), []

    def work() -> None:
        try:
            while not done.is_set():
                counters.count(counters.PASSED)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(300):
            record.publish("1.2", STATES, counters.NAMES)
            record.withdraw()
    finally:
        done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
        record.withdraw()
    assert problems == []


def test_prometheus_that_fails_does_not_fail_a_request(
    published: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are mapped into memory. A forked child makes its own when it counts; the disk is full."""

    class Full:
        def inc(self) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(counters, "_exported", dict.fromkeys(counters.NAMES, Full()))
    counters.count(counters.RESTORED)
    kept = own_record()
    assert kept is not None
    assert kept["counts"]["restored"] == 1


def test_counting_imports_no_prometheus() -> None:
    program = "import sys; from deepeyes_patch.observe import counters; counters.count('passed')\n"
    program += "print('prometheus_client' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, env=clean_environ(), capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


# --- the record ---------------------------------------------------------------------------------------


def test_a_record_says_what_was_published(published: None) -> None:
    counters.count(counters.RESTORED)
    kept = own_record()
    assert kept is not None
    assert (kept["version"], kept["repairs"], kept["pid"]) == ("1.2", STATES, os.getpid())
    assert kept["counts"] == {name: int(name == "restored") for name in counters.NAMES}


def test_a_record_is_withdrawn_and_made_anew(published: None) -> None:
    counters.count(counters.RESTORED)
    before = descriptors()
    record.withdraw()
    assert own_record() is None
    assert descriptors() == before - 1
    counters.count(counters.RESTORED)  # after uninstall, in a request that was under way
    record.publish("1.2", STATES, counters.NAMES)
    kept = own_record()
    assert kept is not None
    assert kept["counts"]["restored"] == 0
    assert descriptors() == before


def test_publishing_again_keeps_counts_and_descriptor(published: None) -> None:
    counters.count(counters.PASSED)
    before = descriptors()
    record.publish("1.2", {**STATES, "mrope": "failed (" + "x" * 5000}, counters.NAMES)
    kept = own_record()
    assert kept is not None
    assert kept["counts"]["passed"] == 1
    assert kept["repairs"]["mrope"].startswith("failed (xxx")
    assert len(kept["repairs"]["mrope"]) == 300
    assert descriptors() == before


def test_a_forked_child_has_a_record_of_its_own(published: None) -> None:
    counters.count(counters.RESTORED)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        counters.count(counters.PASSED)
        kept = own_record() or {}
        told = f"{kept.get('pid') == os.getpid()} {kept['counts']['restored']} {kept['counts']['passed']}"
        os.write(writer, told.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100).decode() == "True 0 1"
    os.close(reader)
    os.close(writer)
    kept = own_record()
    assert kept is not None
    assert (kept["counts"]["restored"], kept["counts"]["passed"]) == (1, 0)


def test_a_new_program_does_not_inherit_it(published: None) -> None:
    program = "import os; print(*[os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')"
    program += " if os.path.islink(f'/proc/self/fd/{fd}')])"
    done = subprocess.run([sys.executable, "-c", program], close_fds=False, capture_output=True, text=True)
    assert "deepeyes" not in done.stdout
    assert done.returncode == 0, done


def test_a_record_that_was_handed_over_is_not_the_receivers(published: None) -> None:
    (number,) = (
        fd
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
        and "memfd:deepeyes_patch" in os.readlink(f"/proc/self/fd/{fd}")
    )
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], pass_fds=[int(number)], stdin=subprocess.PIPE, text=True
    )
    assert processes.look_at(child.pid, os.getpid()).record is None
    child.communicate("\n", timeout=60)


@pytest.mark.parametrize("how", ["no memfd", "no descriptor left"])
def test_counting_works_where_there_is_no_memfd(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise OSError(24, "Too many open files")

    if how == "no memfd":
        monkeypatch.delattr(os, "memfd_create")
    else:
        monkeypatch.setattr(os, "memfd_create", refuse)
    record.publish("1.2", STATES, counters.NAMES)
    try:
        counters.count(counters.RESTORED)
        assert own_record() is None
        kept = record.read(bytes(record._memory))
        assert kept is not None
        assert kept["counts"]["restored"] == 1
    finally:
        record.withdraw()


@pytest.mark.parametrize("damage", ["text", "magic", "short"])
def test_a_half_written_record_is_none(damage: str, published: None) -> None:
    content = bytearray(bytes(record._memory[: record.SIZE]))
    assert record.read(bytes(content)) is not None
    if damage == "short":
        content = content[:100]
    else:
        content[record.TEXT_AT + 5 if damage == "text" else 0] ^= 1
    assert record.read(bytes(content)) is None


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[1]",
        "{}",
        '{"pid": 1, "version": "1", "repairs": {}, "counts": 3}',
        '{"pid": 1, "version": "1", "repairs": {"processor": 5}, "counts": []}',
        '{"pid": "1", "version": "1", "repairs": {}, "counts": []}',
        '{"pid": 1, "repairs": {}, "counts": []}',
        '{"pid": 1, "version": "1", "sglang": 5, "repairs": {}, "counts": []}',
        json.dumps({"pid": 1, "version": "1", "repairs": {}, "counts": ["a"] * 65}),
    ],
)
def test_what_another_program_calls_by_our_name_is_none(text: str, published: None) -> None:
    content = bytearray(record.SIZE)

    def holding(words: str) -> bytes:
        raw = words.encode()
        content[record.TEXT_AT : record.TEXT_AT + len(raw)] = raw
        content[:16] = struct.pack("<8sII", record.MAGIC, len(raw), zlib.crc32(raw))
        return bytes(content)

    assert record.read(holding('{"pid": 1, "version": "1", "sglang": null, "repairs": {}, "counts": []}'))
    assert record.read(holding(text)) is None


def test_there_is_room_for_all_counts() -> None:
    assert len(counters.NAMES) <= record.COUNTS
    assert record.COUNTS_AT + 8 * record.COUNTS <= record.TEXT_AT


def test_a_process_that_has_ended_leaves_nothing() -> None:
    with held("from deepeyes_patch.observe import record; record.publish('1', {}, [])") as pid:
        assert processes.look_at(pid, os.getpid()).record is not None
    assert pid not in processes.running()
    assert not [p for p in Path("/dev/shm").iterdir() if "deepeyes_patch" in p.name]
