"""Whether an image or video that cannot be read caused an exception of SGLang.

SGLang's loaders turn every such exception into a RuntimeError. But some images are decoded later, and some
paths have no such loader. There, Pillow raises OSError, SyntaxError or struct.error, and base64 raises
binascii.Error. An exception that was a RuntimeError from the start has another cause (CUDA, for example),
unless a video decoder raised it.
"""

from __future__ import annotations

import binascii
import errno
import struct
import traceback
from collections.abc import Iterator

from deepeyes_patch.errors import InternalError

# The packages that SGLang decodes videos with.
_VIDEO_DECODERS = {"decord", "torchcodec"}

_UNREADABLE = (OSError, SyntaxError, struct.error, binascii.Error)

# Faults of the machine, not of the image.
_RESOURCES = (errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM)

_SHOWN = 500  # characters of SGLang's message, which repeats the data: megabytes of base64


def is_about_media(error: BaseException) -> bool:
    """Whether the first cause of an exception says that image or video data cannot be read."""
    chain = list(causes(error))
    first = chain[-1]
    if any(isinstance(link, InternalError) for link in chain):
        return False
    if isinstance(first, OSError) and first.errno in _RESOURCES:
        return False
    if _from_a_video_decoder(first):
        return True
    if isinstance(first, _UNREADABLE) and not isinstance(first, TimeoutError):
        return True
    by_loader = any(isinstance(link, RuntimeError) and "load" in str(link) for link in chain[:-1])
    return by_loader and not isinstance(first, (RuntimeError, MemoryError))


def causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, its cause, the cause of its cause, and so on; each once, even if they form a circle."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def shortened(error: BaseException) -> str:
    """The message of an exception, without the middle of a long one."""
    text = str(error)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} ... {text[-_SHOWN // 2 :]}"


def _from_a_video_decoder(error: BaseException) -> bool:
    """Whether a video decoder raised the error. Decoders raise plain RuntimeErrors over unreadable data."""
    frames = traceback.walk_tb(error.__traceback__)
    modules = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in frames}
    # torch raises the subclasses of RuntimeError: no memory left, a device that failed. They do not count.
    plain = type(error) is RuntimeError or type(error).__module__.partition(".")[0] in _VIDEO_DECODERS
    return plain and not modules.isdisjoint(_VIDEO_DECODERS) and "CUDA" not in str(error)
