"""Short video clips, written here byte by byte: an AVI file of JPEG frames needs no encoder but Pillow's.

Standard library, NumPy and Pillow only; FFmpeg, and with it decord, reads the result.
"""

from __future__ import annotations

import io
import struct
import tempfile
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

_HAS_INDEX = 0x10
_KEYFRAME = 0x10


@dataclass(frozen=True)
class Clip:
    """``frames`` pictures of ``width`` x ``height`` pixels, ``fps`` of them a second."""

    frames: int
    width: int
    height: int
    fps: int
    seed: int = 0

    @property
    def data(self) -> bytes:
        """The file."""
        return _file(self)

    def decoded(self) -> numpy.ndarray[Any, Any]:
        """All frames as decord reads them, uint8 [frames, height, width, 3]."""
        return _decoded(self)


# Sides that no family resizes to another grid by rounding alone, and sides that each of them rounds; whole
# and broken seconds; an odd number of frames.
SQUARE = Clip(16, 224, 224, 4)
WIDE = Clip(39, 320, 180, 10, seed=1)
LONG = Clip(60, 128, 96, 30, seed=2)
SLOW = Clip(12, 224, 448, 2, seed=3)
CLIPS = {"square": SQUARE, "wide": WIDE, "long": LONG, "slow": SLOW}


@cache
def _file(clip: Clip) -> bytes:
    """RIFF AVI with one stream of independent JPEG pictures (Microsoft's AVI RIFF file reference)."""
    pictures = [_jpeg(clip, number) for number in range(clip.frames)]
    size = clip.width * clip.height * 3
    main = struct.pack(
        "<14I",
        *(round(1e6 / clip.fps), size * clip.fps, 0, _HAS_INDEX, clip.frames, 0, 1, size),
        *(clip.width, clip.height, 0, 0, 0, 0),
    )
    stream = struct.pack(
        "<4s4sIHHIIIIIIIIhhhh",
        *(b"vids", b"MJPG", 0, 0, 0, 0, 1, clip.fps, 0, clip.frames, size, 10000, 0),
        *(0, 0, clip.width, clip.height),
    )
    bitmap = struct.pack("<IiiHH4sIiiII", 40, clip.width, clip.height, 1, 24, b"MJPG", size, 0, 0, 0, 0)
    headers = _list(
        b"hdrl",
        _chunk(b"avih", main) + _list(b"strl", _chunk(b"strh", stream) + _chunk(b"strf", bitmap)),
    )
    movie, index = b"", b""
    for picture in pictures:
        index += struct.pack("<4sIII", b"00dc", _KEYFRAME, 4 + len(movie), len(picture))
        movie += _chunk(b"00dc", picture)
    body = headers + _list(b"movi", movie) + _chunk(b"idx1", index)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"AVI " + body


@cache
def _decoded(clip: Clip) -> numpy.ndarray[Any, Any]:
    from decord import VideoReader

    with tempfile.NamedTemporaryFile(suffix=".avi") as file:
        file.write(clip.data)
        file.flush()
        reader = VideoReader(file.name)
        return reader.get_batch(range(len(reader))).asnumpy()


def _jpeg(clip: Clip, number: int) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(_frame(clip, number)).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def _frame(clip: Clip, number: int) -> numpy.ndarray[Any, Any]:
    """A gradient that moves, with coarse noise: no two frames and no two patches are alike."""
    import numpy

    random = numpy.random.default_rng((clip.seed, number))
    noise = random.integers(0, 96, (-(-clip.height // 8), -(-clip.width // 8), 3), dtype=numpy.uint8)
    noise = noise.repeat(8, axis=0).repeat(8, axis=1)[: clip.height, : clip.width]
    ramp = (numpy.arange(clip.width) * 159 // clip.width + 11 * number) % 160
    return noise + ramp.astype(numpy.uint8)[None, :, None]


def _chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def _list(name: bytes, data: bytes) -> bytes:
    return _chunk(b"LIST", name + data)
