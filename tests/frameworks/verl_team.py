"""What a team writes for verl: a tool, the parser of its calls, and an agent loop with other options."""

from __future__ import annotations

from typing import Any

from PIL import Image
from verl.experimental.agent_loop import SingleTurnAgentLoop, ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

from tests.frameworks import playing

ENDING = 12


@ToolParser.register("every")
class EveryAnswerCalls(ToolParser):
    """Random weights write no tool call, so this parser sees one in each answer.

    They end no answer by themselves either: any of many ids ends one, as the end of a call does.
    """

    @property
    def stop_token_ids(self) -> list[int]:
        return list(range(0, len(self.tokenizer), ENDING))

    async def extract_tool_calls(
        self, responses_ids: list[int], tools: Any = None
    ) -> tuple[str, list[FunctionCall]]:
        return self.tokenizer.decode(responses_ids), [FunctionCall(name="zoom", arguments="{}")]


class Zoom(BaseTool):
    """The second picture, once; after it, words alone."""

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        if len(kwargs["agent_data"].image_data) > 1:
            return ToolResponse(text=playing.CLOSING), 0.0, {}
        picture = Image.open(self.config["picture"]).convert("RGB")
        return ToolResponse(text=playing.ZOOMED, image=[picture]), 0.0, {}


class _Pads:
    """Its model samples ``<|image_pad|>`` alone: a request's ``logit_bias`` counts before the engine's."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        pad = self.tokenizer.convert_tokens_to_ids("<|image_pad|>")
        forced = {"logit_bias": {str(pad): 100.0}, "stop_token_ids": [pad]}
        return await super().run({**sampling_params, **forced}, **kwargs)


class PadLoop(_Pads, ToolAgentLoop):
    """The second request holds what was sampled in the first."""


class LonePadLoop(_Pads, SingleTurnAgentLoop):
    """Nothing is sent after it."""
