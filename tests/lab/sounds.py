"""Sounds for tests: seeded sine waves, as WAV files in memory and as their samples."""

from __future__ import annotations

import io
import wave
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

# The rate that SGLang and Qwen3-Omni's processor work at, so that nothing is resampled.
RATE = 16000


@dataclass(frozen=True)
class Sound:
    """``data``: a WAV file, mono, 16 bits. ``samples``: float32 [samples], between -1 and 1."""

    data: bytes
    samples: NDArray[numpy.float32]


def sine(seconds: float, hertz: int) -> Sound:
    time = numpy.arange(int(seconds * RATE)) / RATE
    whole = (numpy.sin(2 * numpy.pi * hertz * time) * 12000).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
        writer.writeframes(whole.tobytes())
    return Sound(file.getvalue(), (whole / 32768).astype(numpy.float32))
