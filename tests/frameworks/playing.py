"""What all children share. It runs in the child, beside the framework.

An episode has three turns: an image in the first, a new one in the second, none in the third. So the last
request holds two images, and ids that were sampled in two turns.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

REPORT = "FRAMEWORK-REPORT "
ANSWER_TOKENS = 12
SAMPLING: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": ANSWER_TOKENS}
QUESTION, ZOOMED, CLOSING = "What is in the middle?", "The middle, enlarged.", "Answer now."


@dataclass(frozen=True)
class Task:
    """What a test asks of a child, as the JSON of its first argument has it.

    ``model`` is the folder of the checkpoint, ``url`` the server's address. ``pictures`` are PNG files.
    ``forbidden`` are ids that must not be sampled; ``more`` is what only one framework reads.
    """

    model: str
    url: str
    pictures: list[str]
    forbidden: list[int]
    more: dict[str, Any]

    @property
    def images(self) -> list[Image.Image]:
        return [Image.open(path).convert("RGB") for path in self.pictures]

    @property
    def files(self) -> list[bytes]:
        return [Path(path).read_bytes() for path in self.pictures]

    @property
    def logit_bias(self) -> dict[str, float]:
        """SGLang's ``logit_bias``: what stands here is never sampled."""
        return {str(token): -100.0 for token in self.forbidden}


def task() -> Task:
    return Task(**json.loads(sys.argv[1]))


def tell(**facts: Any) -> None:
    """Report to the test, in one line."""
    print(REPORT + json.dumps(facts), flush=True)


def tell_episode(ids: list[int], mask: list[int], logprobs: list[float], **more: Any) -> None:
    """``ids``, ``mask`` and ``logprobs`` [T], as the framework has recorded them for its trainer.

    ``mask`` is 1 where the id was sampled; elsewhere the log-prob means nothing.
    """
    tell(
        ids=[int(token) for token in ids],
        mask=[int(bit) for bit in mask],
        logprobs=[float(score or 0.0) for score in logprobs],
        **more,
    )


def tell_error(error: BaseException) -> None:
    """What the framework raises out of the function that its user calls, and what that was raised from."""
    chain, seen = [], error
    while seen is not None:
        chain.append([type(seen).__name__, str(seen)])
        seen = seen.__cause__ or seen.__context__  # type: ignore[assignment]
    tell(raised=chain)


def hurry() -> None:
    """Sleeps between attempts pass at once. The number of attempts stays the framework's own."""
    sleep = asyncio.sleep

    async def short(delay: float, result: Any = None) -> Any:
        return await sleep(min(delay, 0.001), result)

    asyncio.sleep = short  # type: ignore[assignment]
