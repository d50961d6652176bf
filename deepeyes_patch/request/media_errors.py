"""Whose fault an exception is that SGLang raises while it loads images and videos.

SGLang's loaders turn every such exception into a RuntimeError. But some images are decoded later, and some
paths have no such loader. There, Pillow raises OSError, SyntaxError or struct.error, and base64 raises
binascii.Error. An exception that was a RuntimeError from the start has another cause (CUDA, for example),
unless a decoder of videos or audio raised it.

Only what proves that the request itself is wrong is the client's fault: data that cannot be decoded, a
missing file, a URL that answers 404. A server that answers 503, or does not answer, may have the image the
next time.
"""

from __future__ import annotations

import binascii
import errno
import re
import struct
import traceback
from collections.abc import Iterator

from deepeyes_patch.errors import InternalError

# The packages that SGLang decodes videos and audio with.
_DECODERS = {"decord", "soundfile", "torchcodec"}
# The packages that fetch URLs. Up to Python 3.10, asyncio has a TimeoutError of its own.
_FETCHERS = {"aiohttp", "asyncio", "httpcore", "httpx", "requests", "socket", "ssl", "urllib", "urllib3"}
# Answers of the 400 kind that say nothing about the URL: too slow, too early, too many requests.
_PASSING = (408, 425, 429)

_UNREADABLE = (OSError, SyntaxError, struct.error, binascii.Error)
# The name of the file is wrong. Other numbers are faults of the machine or of its storage. Pillow sets none.
_WRONG_FILE = (
    *(None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES),
    *(errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG),
)

_SHOWN = 500  # characters of a message
_ENCODED = r"[A-Za-z0-9+/=_-]{80,}"  # base64 and paths that nobody reads


def is_about_media(error: BaseException) -> bool:
    """Whether the first cause of an exception says that media cannot be read."""
    chain = list(causes(error))
    first = chain[-1]
    if any(isinstance(link, InternalError) for link in chain):
        return False
    if is_about_fetching(error):
        return _is_wrong_url(chain)
    if isinstance(first, OSError) and first.errno not in _WRONG_FILE:
        return False
    if _from_a_decoder(first):
        return True
    if isinstance(first, _UNREADABLE):
        return True
    by_loader = any(isinstance(link, RuntimeError) and "load" in str(link) for link in chain[:-1])
    return by_loader and not isinstance(first, (RuntimeError, MemoryError))


def is_about_fetching(error: BaseException) -> bool:
    """Whether an exception comes from fetching a URL."""
    return any(
        isinstance(link, (ConnectionError, TimeoutError))
        or not _FETCHERS.isdisjoint(cls.__module__.partition(".")[0] for cls in type(link).__mro__)
        for link in causes(error)
    )


def _is_wrong_url(chain: list[BaseException]) -> bool:
    """Whether the URL is no URL, or its server has said that it is wrong."""
    for link in chain:
        status = _status(link)
        if status is not None:
            return 400 <= status < 500 and status not in _PASSING
    # requests raises what is an error of both kinds for a URL that is none.
    return any(isinstance(link, ValueError) and isinstance(link, OSError) for link in chain)


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error of a package that fetches URLs holds."""
    response = getattr(error, "response", None)
    for holder, name in ((response, "status_code"), (error, "status"), (error, "code")):
        status = getattr(holder, name, None)
        if isinstance(status, int):
            return status
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, its cause, the cause of its cause, and so on; each once, even if they form a circle."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def shortened(error: BaseException) -> str:
    """The first cause of an exception, and its message without encoded data.

    SGLang's own message repeats the data, megabytes of base64.
    """
    first = list(causes(error))[-1]
    text = re.sub(_ENCODED, lambda found: f"{found[0][:20]}...", str(first))
    home = type(first).__module__
    name = type(first).__name__ if home == "builtins" else f"{home}.{type(first).__name__}"
    return f"{name}: {text if len(text) <= _SHOWN else f'{text[:_SHOWN]} ...'}"


def _from_a_decoder(error: BaseException) -> bool:
    """Whether a decoder raised the error. Decoders raise RuntimeErrors over unreadable videos and audio."""
    frames = traceback.walk_tb(error.__traceback__)
    modules = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in frames}
    # torch raises the subclasses of RuntimeError: no memory left, a device that failed. They do not count.
    plain = type(error) is RuntimeError or type(error).__module__.partition(".")[0] in _DECODERS
    return plain and not modules.isdisjoint(_DECODERS) and "CUDA" not in str(error)
