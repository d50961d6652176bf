"""Images by URL: what proves the request wrong is refused, and what may work the next time is not.

Only what the URL's own server calls wrong is a refusal.
"""

from __future__ import annotations

import base64
import io
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deepeyes_patch.errors import InternalError, RefusedRequest
from tests.lab import models, processors
from tests.sglang import rollouts
from tests.sglang.records import counts
from tests.sglang.rollouts import assert_exact, picture

IMAGE = picture(448, 224)
WAYS = ("default",)


class _Handler(BaseHTTPRequestHandler):
    """The path says how it answers: ``/503/a.png``."""

    def do_GET(self) -> None:
        status = int(self.path.split("/")[1])
        with io.BytesIO() as file:
            IMAGE.save(file, "PNG")
            body = file.getvalue() if status == 200 else b"<html>no image</html>"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def kind() -> models.Kind:
    return "qwen3_vl"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def ask(folder: Path, processor: Any, image: Any) -> Any:
    request = rollouts.expanded(folder, [IMAGE])
    try:
        return processors.process(processor, list(request.ids), [image])
    except Exception as error:
        return error


@pytest.mark.parametrize("form", ["url", "dict"])
def test_an_image_by_url_is_exact(form: str, folder: Path, processor: Any, url: str, patched: None) -> None:
    place = f"{url}/200/a.png"
    result = ask(folder, processor, place if form == "url" else {"url": place})
    assert not isinstance(result, Exception), result
    assert_exact(folder, result, rollouts.expanded(folder, [IMAGE]))


@pytest.mark.parametrize("status", [404, 403, 410])
def test_a_url_that_is_wrong_is_refused(
    status: int, folder: Path, processor: Any, url: str, patched: None
) -> None:
    outcome = ask(folder, processor, f"{url}/{status}/a.png")
    assert isinstance(outcome, RefusedRequest), outcome
    assert outcome.reason == "media"
    assert str(status) in str(outcome)
    assert "not_fetched" not in counts()


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_server_in_trouble_is_not_the_requests_fault(
    status: int, folder: Path, processor: Any, url: str, request: pytest.FixtureRequest
) -> None:
    stock = ask(folder, processor, f"{url}/{status}/a.png")
    request.getfixturevalue("patched")
    ours = ask(folder, processor, f"{url}/{status}/a.png")
    assert type(ours) is type(stock)
    assert not isinstance(ours, (RefusedRequest, InternalError))
    assert counts()["not_fetched"] == 1


def test_neither_is_a_connection_that_is_refused(folder: Path, processor: Any, patched: None) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        outcome = ask(folder, processor, f"http://127.0.0.1:{closed.getsockname()[1]}/a.png")
    assert isinstance(outcome, Exception)
    assert not isinstance(outcome, (RefusedRequest, InternalError)), outcome
    assert counts()["not_fetched"] == 1


def test_a_missing_file_is_refused(folder: Path, processor: Any, patched: None) -> None:
    outcome = ask(folder, processor, "/nowhere/a.png")
    assert isinstance(outcome, RefusedRequest), outcome
    assert "No such file" in str(outcome)


def test_bare_base64_of_a_jpeg_is_an_image(folder: Path, processor: Any, patched: None) -> None:
    """AReaL sends it. From 0.5.12.post1 on, stock takes it for the name of a file."""
    with io.BytesIO() as file:
        IMAGE.save(file, "JPEG", quality=95)
        text = base64.b64encode(file.getvalue()).decode()
    assert text.startswith("/9j/")
    result = ask(folder, processor, text)
    assert not isinstance(result, Exception), result
    assert_exact(folder, result, rollouts.expanded(folder, [IMAGE]))
