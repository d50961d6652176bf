"""Whether an exception of SGLang's goes back to an image or video that cannot be read."""

from __future__ import annotations

import binascii
import errno
import itertools
import struct

import pytest

from deepeyes_patch.errors import InternalError
from deepeyes_patch.request import media_errors


def chain(*links: BaseException) -> BaseException:
    """The last one, caused by the one before it, and so on."""
    for cause, error in itertools.pairwise(links):
        error.__cause__ = cause
    return links[-1]


LOADER = "Error while loading data a.png: ..."


@pytest.mark.parametrize(
    "error",
    [
        OSError("cannot identify image file"),
        SyntaxError("broken PNG file"),
        struct.error("unpack requires a buffer of 4 bytes"),
        binascii.Error("Incorrect padding"),
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        chain(ValueError("no image"), RuntimeError(LOADER)),
        chain(KeyError("image"), RuntimeError("while loading"), RuntimeError(LOADER)),
        chain(OSError("truncated"), RuntimeError(LOADER)),
    ],
    ids=str,
)
def test_about_media(error: BaseException) -> None:
    assert media_errors.is_about_media(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        ValueError("upstream's own"),
        TimeoutError("no answer"),
        chain(TimeoutError("no answer"), RuntimeError("another message")),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EMFILE, "Too many open files"),
        chain(OSError(errno.ENOMEM, "Cannot allocate memory"), RuntimeError(LOADER)),
        chain(MemoryError(), RuntimeError(LOADER)),
        chain(RuntimeError("CUDA out of memory"), RuntimeError(LOADER)),
        chain(OSError("cannot identify image file"), InternalError("deepeyes-patch failed")),
        InternalError("deepeyes-patch failed in its wrapper of load_mm_data"),
        chain(ValueError("ours"), InternalError("deepeyes-patch failed"), RuntimeError(LOADER)),
    ],
    ids=str,
)
def test_not_about_media(error: BaseException) -> None:
    """Also a fault of our own that SGLang's loader has dressed up: it is not the client's."""
    assert not media_errors.is_about_media(error)


def test_causes_are_followed_in_order() -> None:
    first, second, third = OSError("first"), ValueError("second"), RuntimeError("third")
    second.__context__ = first
    third.__cause__ = second
    assert list(media_errors.causes(third)) == [third, second, first]


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_a_circle_of_causes_ends(length: int, link: str) -> None:
    """Before the rebuild the causes were followed for ever: the event loop of the server stood still.

    Python breaks circles where it sets ``__context__`` itself; whoever sets the attributes can close one.
    """
    errors = [ValueError(str(number)) for number in range(length)]
    for number, error in enumerate(errors):
        setattr(error, link, errors[(number + 1) % length])
    found = list(itertools.islice(media_errors.causes(errors[0]), 10))
    assert found == errors
    assert not media_errors.is_about_media(errors[0])


def test_a_circle_behind_a_chain_ends() -> None:
    first, second = OSError("first"), RuntimeError("second")
    first.__cause__, second.__cause__ = second, first
    outer = chain(first, RuntimeError(LOADER))
    assert list(itertools.islice(media_errors.causes(outer), 10)) == [outer, first, second]


def test_a_long_message_loses_its_middle() -> None:
    text = "begin" + "x" * 10_000 + "end"
    short = media_errors.shortened(ValueError(text))
    assert short.startswith("beginxxx")
    assert short.endswith("xxxend")
    assert len(short) < 600
    assert media_errors.shortened(ValueError("as it is")) == "as it is"
