"""A proxy that stands between a framework and a server, and records both sides. Standard library only."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWER_SECONDS = 240  # a framework's own patience is longer


@dataclass(frozen=True)
class Exchange:
    """A request and its answer; ``sent`` and ``answer`` are parsed JSON, or None."""

    path: str
    sent: Any
    status: int
    answer: Any

    @property
    def input_ids(self) -> list[int]:
        return list(self.sent["input_ids"])

    @property
    def images(self) -> list[Any]:
        return self.sent.get("image_data") or []

    @property
    def prompt_tokens(self) -> int:
        """How many ids the model has seen."""
        return int(self.answer["meta_info"]["prompt_tokens"])

    @property
    def output_ids(self) -> list[int]:
        return [int(token) for _, token, *_ in self.answer["meta_info"]["output_token_logprobs"]]

    @property
    def logprobs(self) -> list[float]:
        return [float(score) for score, *_ in self.answer["meta_info"]["output_token_logprobs"]]


@dataclass
class Wire:
    """``url`` is what the framework is given for the server's address."""

    url: str
    exchanges: list[Exchange] = field(default_factory=list)

    def take(self) -> list[Exchange]:
        """The requests for ``/generate`` since the last call, in their order."""
        taken, self.exchanges = self.exchanges, []
        return [exchange for exchange in taken if exchange.path == "/generate"]


@contextlib.contextmanager
def between(server_url: str) -> Iterator[Wire]:
    """A proxy of a server, on a free port of 127.0.0.1, until the end of the block."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # clients keep their connections

        def do_GET(self) -> None:
            self._forward(None)

        def do_POST(self) -> None:
            self._forward(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        do_PUT = do_POST

        def _forward(self, body: bytes | None) -> None:
            headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
            request = urllib.request.Request(f"{server_url}{self.path}", body, headers, method=self.command)
            try:
                with direct.open(request, timeout=ANSWER_SECONDS) as answer:
                    status, kind, content = answer.status, answer.headers["Content-Type"], answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    status, kind, content = error.code, error.headers["Content-Type"], error.read()
            except urllib.error.URLError as error:  # the server is still starting
                status, kind, content = 502, "text/plain", str(error).encode()
            wire.exchanges.append(Exchange(self.path, _parsed(body), status, _parsed(content)))
            self.send_response(status)
            self.send_header("Content-Type", kind or "text/plain")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.daemon_threads = True
    wire = Wire(f"http://127.0.0.1:{proxy.server_address[1]}")
    thread = threading.Thread(target=proxy.serve_forever, name="wire", daemon=True)
    thread.start()
    try:
        yield wire
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()


def _parsed(content: bytes | None) -> Any:
    try:
        return json.loads(content) if content else None
    except ValueError:
        return content.decode(errors="replace") if content else None
