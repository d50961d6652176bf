"""Why requests are refused: a closed list of reasons, each raised by a real refusal and documented."""

from __future__ import annotations

import ast
import asyncio
import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from deepeyes_patch import RefusedRequest, errors
from deepeyes_patch.ids import video_times
from deepeyes_patch.ids.request import PretokenizedRequest
from deepeyes_patch.ids.tokens import VisionTokens
from deepeyes_patch.request import admit, grids, media
from deepeyes_patch.request.unserved import UnservedRequest
from deepeyes_patch.seams import families
from deepeyes_patch.seams.wrapping import Call
from tests.interpreters import CHECKOUT, clean_environ

PACKAGE = CHECKOUT / "deepeyes_patch"
P, VS, VE = 7, 8, 9
TOKENS = VisionTokens(P, VS, VE)


def request(ids: list[int], images: int) -> PretokenizedRequest:
    return PretokenizedRequest(ids, TOKENS, vocab_size=10, image_count=images)


def cut() -> None:
    """SGLang's tokenizer manager cuts the ids that came out of the processor."""
    model = SimpleNamespace(tokens=TOKENS)
    manager = SimpleNamespace(mm_processor=SimpleNamespace(**{families._MODEL: model}))
    sent = SimpleNamespace(
        input_ids=[1, VS, P, VE], image_data=["a.png"], text=None, contains_mm_input=lambda: True
    )
    positions = SimpleNamespace(shape=(3, 7))
    made = SimpleNamespace(input_ids=[1, VS, P, P], mm_inputs={"mrope_positions": positions})

    async def tokenize(obj: Any) -> Any:
        return made

    asyncio.run(admit.admit(Call(tokenize, manager, (sent,), {})))


REFUSALS: dict[str, Callable[[], object]] = {
    "token_ids": lambda: request([99], 0),
    "placeholders": lambda: request([P], 1),
    "count": lambda: request([VS, P, VE], 2),
    "length": lambda: request([VS, P, P, VE], 1).resolve([(1, 2, 2)], 2),
    "video": lambda: video_times.checked({}, 8),
    "media": lambda: grids.rows([[1, 0, 4]]),
    "unsupported": lambda: media.refuse_modalities(audio=["a.wav"]),
    "cut": cut,
    "inexact": lambda: UnservedRequest([1, P], P, "SomeProcessor").check_result([2, P], [(1, 1)]),
}


@pytest.mark.parametrize("reason", errors.REASONS)
def test_a_real_refusal_has_this_reason(reason: str) -> None:
    with pytest.raises(RefusedRequest) as refusal:
        REFUSALS[reason]()
    assert refusal.value.reason == reason
    assert isinstance(refusal.value, ValueError), "SGLang answers it with HTTP 400"
    assert len(str(refusal.value)) > 20


def test_every_refusal_in_the_sources_has_a_reason_of_the_list() -> None:
    """A reason outside the list has no count, so counting it would fail."""
    reasons = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("RefusedRequest"):
                assert isinstance(node.args[0], ast.Constant), ast.unparse(node)
                reasons.append(node.args[0].value)
    assert set(reasons) == set(errors.REASONS)


def test_the_road_of_a_request_raises_no_bare_value_error() -> None:
    """A ValueError that is no refusal leaves as a fault of ours, HTTP 500."""
    for layer in ("request", "ids"):
        for path in (PACKAGE / layer).glob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for attempt in [node for node in ast.walk(tree) if isinstance(node, ast.Try)]:
                # Raised and caught in one function: one `except` for what was found and for what was raised.
                attempt.body = []
            raised = [ast.unparse(n.exc) for n in ast.walk(tree) if isinstance(n, ast.Raise) and n.exc]
            assert [text for text in raised if text.startswith("ValueError")] == [], path


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_reason_is_documented(language: str) -> None:
    text = (CHECKOUT / "docs" / language / "cli.md").read_text(encoding="utf-8")
    for reason in errors.REASONS:
        assert f"| `{reason}` |" in text, reason


def test_a_pickled_refusal_is_a_plain_value_error_with_its_reason() -> None:
    """A Ray actor's exception travels to a driver that may not have this package."""
    refusal = RefusedRequest("length", "5 placeholders, and 4 are made")
    refusal.counted = True
    for copied in (pickle.loads(pickle.dumps(refusal)), copy.copy(refusal)):
        assert type(copied) is ValueError
        assert str(copied) == f"{errors.REFUSED}5 placeholders, and 4 are made"
        assert copied.reason == "length"
    program = "import pickle, sys; e = pickle.load(sys.stdin.buffer); print(type(e).__name__, e, e.reason)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        input=pickle.dumps(refusal),
        env=clean_environ(),
        capture_output=True,
        timeout=60,
    )
    assert done.stdout.decode() == f"ValueError {errors.REFUSED}5 placeholders, and 4 are made length\n", done
