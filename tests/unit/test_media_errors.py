"""Whether an exception of SGLang's goes back to an image or video that cannot be read."""

from __future__ import annotations

import binascii
import errno
import itertools
import os
import socket
import struct

import pytest
import requests
import urllib3

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


ENCODED = "/9j/4AAQ" + "x" * 10_000


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("as it is"), "ValueError: as it is"),
        (
            chain(
                OSError(errno.ENAMETOOLONG, "File name too long", ENCODED),
                RuntimeError(f"{LOADER} {ENCODED}"),
            ),
            "OSError: [Errno 36] File name too long: '/9j/4AAQxxxxxxxxxxxx...'",
        ),
        (
            chain(binascii.Error("Incorrect padding"), RuntimeError(f"while loading data:,{ENCODED}")),
            "binascii.Error: Incorrect padding",
        ),
    ],
)
def test_a_message_keeps_its_reason_and_no_encoded_data(error: BaseException, shown: str) -> None:
    assert media_errors.shortened(error) == shown


def test_a_long_message_is_cut() -> None:
    assert len(media_errors.shortened(ValueError("a word " * 1000))) < 600


# --- fetching ---------------------------------------------------------------------------------------------


def answered(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(f"{status} Error for url", response=response)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_a_url_that_its_server_calls_wrong(status: int) -> None:
    error = chain(answered(status), RuntimeError(LOADER))
    assert media_errors.is_about_media(error)


@pytest.mark.parametrize(
    "first",
    [
        *map(answered, (408, 425, 429, 500, 502, 503, 504)),
        requests.ConnectionError("refused"),
        requests.ReadTimeout("too slow"),
        urllib3.exceptions.ProtocolError("broken off"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        TimeoutError("no answer"),
    ],
    ids=repr,
)
def test_a_server_that_may_answer_the_next_time(first: Exception) -> None:
    error = chain(first, RuntimeError(LOADER))
    assert not media_errors.is_about_media(error)
    assert media_errors.is_about_fetching(error)


def test_requests_own_chain_of_a_refused_connection() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/a.png"
    with pytest.raises(requests.ConnectionError) as raised:
        requests.get(url, timeout=5, proxies={"http": ""})
    assert not media_errors.is_about_media(chain(raised.value, RuntimeError(LOADER)))


@pytest.mark.parametrize("url", ["http://", "http://[::1", "nothing://a.png"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(requests.RequestException) as raised:
        requests.get(url, timeout=5)
    assert media_errors.is_about_media(chain(raised.value, RuntimeError(LOADER)))


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_storage_that_fails_is_no_fault_of_the_request(number: int) -> None:
    error = chain(OSError(number, os.strerror(number)), RuntimeError(LOADER))
    assert not media_errors.is_about_media(error)
    assert not media_errors.is_about_fetching(error)
