"""strands-sglang: ``strands.Agent`` plays, with ``SGLangModel`` and ``SGLangClient`` for its model.

The agent's event loop runs the turns: two tool calls, each with a result, then an answer. What is ours is
what a user writes: the tool, the parser of tool calls, and the options.
"""

from __future__ import annotations

from typing import Any

from strands import Agent, tool
from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.tool_parsers.base import ToolParser, ToolParseResult
from transformers import AutoTokenizer

from tests.frameworks import playing

# strands raises if an answer is cut at its longest. Random weights end no answer by themselves.
LONGEST, ENDING = 200, 16
CALLS = 2


class EveryAnswerCalls(ToolParser):
    """Random weights write no tool call, so this parser sees one in each answer, ``CALLS`` times."""

    def __init__(self) -> None:
        super().__init__()
        self._left = CALLS

    def parse(self, text: str) -> list[ToolParseResult]:
        if not self._left:
            return []
        self._left -= 1
        return [ToolParseResult(id=f"call{self._left}", name="zoom", input={})]


def main() -> None:
    task = playing.task()
    pictures = iter(task.files)

    def image() -> dict[str, Any]:
        return {"image": {"format": "png", "source": {"bytes": next(pictures)}}}

    results = iter([[image, playing.ZOOMED], [None, playing.CLOSING]])

    @tool
    def zoom() -> dict[str, Any]:
        """Enlarge the middle."""
        picture, words = next(results)
        content = [{"text": words}]
        return {"status": "success", "content": [picture(), *content] if picture else content}

    tokenizer = AutoTokenizer.from_pretrained(task.model)
    sampling: dict[str, Any] = {
        **playing.SAMPLING,
        "max_new_tokens": LONGEST,
        "stop_token_ids": list(range(0, len(tokenizer), ENDING)),
        "logit_bias": task.logit_bias,
        **task.more.get("sampling", {}),
    }
    playing.hurry()
    client = SGLangClient(base_url=task.url)
    model = SGLangModel(
        client=client, tokenizer=tokenizer, tool_parser=EveryAnswerCalls(), sampling_params=sampling
    )
    agent = Agent(model=model, tools=[zoom], callback_handler=None)
    try:
        agent([image(), {"text": playing.QUESTION}])
    except Exception as error:
        playing.tell_error(error)
    else:
        rollout = model.rollout
        playing.tell_episode(rollout.token_ids, rollout.loss_mask, rollout.logprobs)


if __name__ == "__main__":
    main()
