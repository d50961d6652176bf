"""A process's record: a memfd named ``deepeyes_patch``. Other processes read it through ``/proc/PID/fd``.

A memfd is memory with a file descriptor. It ends with the process, so nothing has to be cleaned up and
nothing can be stale. No folder has to be writable. Only the same user and root can read it. A new program
does not inherit it, and a forked child gets its own. If the system has no memfd, the record is plain
memory that nobody else reads.

Layout, little-endian: 8 bytes of magic; a u32, the length of the text; a u32, the CRC-32 of the text; from
byte 64 on int64 counts; from byte 1024 on the text, which is JSON and names the counts.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

NAME = "deepeyes_patch"
MAGIC = b"DEEPEYE1"
SIZE = 8192
COUNTS_AT, COUNTS, TEXT_AT = 64, 64, 1024
_HEADER = struct.Struct("<8sII")
_STATE_LENGTH = 300  # of one repair, in characters; a failure's message can be long

_memory: mmap.mmap | bytearray = bytearray(SIZE)
_counts: memoryview = memoryview(_memory)[COUNTS_AT : COUNTS_AT + 8 * COUNTS].cast("q")

_published: dict[str, Any] = {}


def publish(version: str, repairs: Mapping[str, str], count_names: Sequence[str]) -> None:
    """Write the state of each repair; the first call makes the record.

    Parameters
    ----------
    version:
        The version of this package.
    repairs:
        The state of each repair, in a few words.
    count_names:
        The name of each int64 count, in order.
    """
    if not _published:
        _open()
    _published.update(
        version=version,
        sglang=getattr(sys.modules.get("sglang"), "__version__", None),
        repairs={name: state[:_STATE_LENGTH] for name, state in repairs.items()},
        counts=list(count_names),
    )
    _write()


def add(slot: int, amount: int) -> None:
    """Add to one of the counts. Does nothing while another thread removes the record."""
    with contextlib.suppress(ValueError):  # the memory was released between two instructions
        _counts[slot] += amount


def withdraw() -> None:
    """Remove the record; the next `publish` makes a new one, with all counts at 0."""
    _published.clear()
    _replace(bytearray(SIZE))


def _open() -> None:
    # This fails outside Linux, on an old kernel, in a sandbox, or without a free descriptor. Then there is no
    # record, and the repairs work.
    with contextlib.suppress(AttributeError, OSError):
        descriptor = os.memfd_create(NAME)
        try:
            os.ftruncate(descriptor, SIZE)
            _replace(mmap.mmap(descriptor, SIZE))  # keeps a descriptor of its own
        finally:
            os.close(descriptor)


def _replace(memory: mmap.mmap | bytearray) -> None:
    global _memory, _counts
    _counts.release()
    if isinstance(_memory, mmap.mmap):
        _memory.close()
    _memory = memory
    _counts = memoryview(memory)[COUNTS_AT : COUNTS_AT + 8 * COUNTS].cast("q")


def _renew() -> None:
    """Give a forked child its own record: the memory and descriptor that it inherits are its parent's."""
    if _published:
        _replace(bytearray(SIZE))
        _open()
        _write()


def _write() -> None:
    text = json.dumps({**_published, "pid": os.getpid()}).encode()
    _memory[TEXT_AT : TEXT_AT + len(text)] = text
    _memory[: _HEADER.size] = _HEADER.pack(MAGIC, len(text), zlib.crc32(text))


def read(content: bytes) -> dict[str, Any] | None:
    """The text of a record, as `publish` got it, with ``pid``, and with ``counts`` as ``{name: count}``.

    ``None`` if the layout is another one, or the record is half written; the caller then reads it again. Any
    process may hold a memfd of this name, so everything is checked.
    """
    if len(content) < SIZE:
        return None
    magic, length, checksum = _HEADER.unpack_from(content)
    text = content[TEXT_AT : TEXT_AT + length]
    if magic != MAGIC or zlib.crc32(text) != checksum:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not _is_well_formed(found):
        return None
    values = struct.unpack_from(f"<{len(found['counts'])}q", content, COUNTS_AT)
    return {**found, "counts": dict(zip(found["counts"], values, strict=True))}


def _is_well_formed(found: Any) -> bool:
    if not isinstance(found, dict) or not isinstance(found.get("pid"), int):
        return False
    repairs, names = found.get("repairs"), found.get("counts")
    if not isinstance(repairs, dict) or not isinstance(names, list) or len(names) > COUNTS:
        return False
    words = [found.get("version"), *repairs.values(), *names]
    sglang = found.get("sglang")
    return all(isinstance(word, str) for word in words) and (sglang is None or isinstance(sglang, str))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
