"""``deepeyes-patch parity`` without SGLang and transformers: strange addresses and strange answers."""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from deepeyes_patch.cli import parity
from deepeyes_patch.cli.terminal import CommandError
from deepeyes_patch.verification import episode
from deepeyes_patch.verification.trainer import Trainer
from tests.unit.test_cli import cli

PAD, VOCABULARY = 7, 100


class FakeTrainer:
    """Every token has the log-prob -1; the pad is forbidden."""

    forbidden = (PAD,)

    def can_sample(self, token: int) -> bool:
        return 0 <= token < VOCABULARY and token not in self.forbidden

    def turn(self, text: str, images: Any, after: Any = ()) -> list[int]:
        return [1, PAD, 2] if images else [1, 2]

    def short(self, ids: list[int]) -> list[int]:
        return ids

    def respell(self, ids: list[int]) -> list[int]:
        return ids

    def scores(self, ids: list[int], images: Any, answer: list[int]) -> list[float]:
        assert all(self.can_sample(token) for token in answer), "transformers cannot score these"
        return [-1.0] * len(answer)

    def sample(self, ids: Any, images: Any, count: int, seed: int) -> list[int]:
        return [3] * count


@contextlib.contextmanager
def answering(pairs: Any, text_off: float = 0.0) -> Iterator[episode.Server]:
    """A server whose answers to /generate hold these log-probs and ids; with ``str``, just that text."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            off = 0.0 if request["image_data"] else text_off
            found = (
                [[logprob + off, token, None] for logprob, token in pairs]
                if isinstance(pairs, list)
                else None
            )
            meta = {"prompt_tokens": len(request["input_ids"]), "output_token_logprobs": found}
            body = (pairs if isinstance(pairs, str) else json.dumps({"meta_info": meta})).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield episode.Server(f"http://127.0.0.1:{server.server_port}", 10)
        finally:
            server.shutdown()


def played(server: episode.Server, turns: int = 2) -> list[tuple[episode.Row, str]]:
    trainer = cast(Trainer, FakeTrainer())
    rows = list(episode.play(trainer, server, episode.drawn(turns), 2))
    limits = episode.Limits.of(rows)
    return [(row, limits.verdict(row)) for row in rows]


def test_a_right_server_is_exact() -> None:
    with answering([(-1.0, 5), (-1.0, 6)]) as server:
        assert {word for _, word in played(server)} == {"exact"}


@pytest.mark.parametrize(
    "body", ["<html>", "[]", "{}", "null", '{"meta_info": {}}', '{"meta_info": []}', None, []]
)
def test_an_answer_of_something_else(body: Any) -> None:
    """Another service behind that address, or a router's own words with HTTP 200."""
    with (
        answering(body) as server,
        pytest.raises(episode.Unreachable, match="does not answer as SGLang does"),
    ):
        played(server)


@pytest.mark.parametrize("token", [PAD, VOCABULARY, -1])
def test_a_token_that_cannot_be_sampled(token: int) -> None:
    """A server that ignores ``logit_bias``, or one of another model."""
    with answering([(-1.0, 5), (-1.0, token)]) as server:
        found = played(server)
    assert len(found) == 2 + 4, "the next turns are asked all the same"
    assert {word for _, word in found} == {"other log-probs"}
    for row, word in found:
        assert row.largest == math.inf
        assert "Infinity" not in json.dumps(parity._as_dict(row, word))


def test_wrong_text_does_not_excuse_images() -> None:
    """With other weights, everything is far off; three times as far is not exact."""
    with answering([(-1.5, 5), (-1.5, 6)]) as server:
        assert {word for _, word in played(server)} == {"other log-probs"}


@pytest.mark.parametrize("url", ["nonsense", "http://", "http://[::1", "http://127.0.0.1:abc", "ftp://x"])
def test_no_address(url: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vision_config": {}}')
    done = cli("parity", url, "--model", str(tmp_path))
    assert done.returncode == 2
    assert "is no address of a server" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_names_a_download_with_weights(tmp_path: Path) -> None:
    """`verify` needs none, and its command leaves them out."""
    pytest.importorskip("huggingface_hub")
    for command, wanted in (("verify", False), ("parity", True)):
        url = ["http://127.0.0.1:9"] if wanted else []
        done = cli(command, *url, "--model", "Qwen/Nowhere", HF_HOME=str(tmp_path))
        assert done.returncode == 2
        assert "snapshot_download" in done.stderr
        assert ("allow_patterns" not in done.stderr) == wanted, done.stderr


@pytest.mark.parametrize("dtype", ["float31", "int8", "bool", "Tensor", "complex64"])
def test_a_dtype_that_no_model_has(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(CommandError, match=f"no floating-point dtype '{dtype}'") as caught:
        parity._chosen(argparse.Namespace(device="cpu", dtype=dtype), torch)
    assert caught.value.code == 2


def test_a_server_that_does_not_say_what_it_serves(capsys: pytest.CaptureFixture[str]) -> None:
    class Silent:
        def get(self, path: str) -> dict[str, str]:
            return {}

    served = parity._served(Silent())
    assert served is None
    about = dict.fromkeys(("transformers", "dtype", "device", "model"), "x")
    parity._print_head({**about, "url": "URL", "served": served})
    assert capsys.readouterr().out.startswith("URL, serving what it does not say\n")


def test_a_checkpoint_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files that are incomplete raise many kinds of errors."""

    def raising(*arguments: object) -> None:
        raise KeyError("architectures")

    monkeypatch.setattr("deepeyes_patch.verification.trainer.Trainer", raising)
    with pytest.raises(CommandError, match=r"cannot load .* on cpu: KeyError: 'architectures'"):
        parity._trainer(tmp_path, "cpu", "float32")
