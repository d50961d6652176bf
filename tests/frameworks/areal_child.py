"""AReaL: its workflow and its clients play on a server, through ``RemoteSGLangEngine``.

``Task.more`` has ``how``, which is one of `WAYS`. It may have ``engine``, the arguments of a server that
AReaL starts first, and ``said``, ids that take the place of an answer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from typing import Any
from urllib.parse import urlsplit

from areal import workflow_context
from areal.api import ModelRequest
from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig
from areal.engine.sglang_remote import RemoteSGLangEngine, SGLangBackend
from areal.experimental.openai import ArealOpenAI
from areal.utils.image import image2base64
from areal.workflow.vision_rlvr import VisionRLVRWorkflow
from sglang.srt.utils import kill_process_tree
from transformers import AutoProcessor

from tests.frameworks import playing
from tests.frameworks.playing import Task

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
PROMPT = f"<|im_start|>user\n{IMAGE}{playing.QUESTION}<|im_end|>\n<|im_start|>assistant\n"
OBSERVATION = "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def reward(*_: Any, **__: Any) -> float:
    return 0.0


def options(task: Task) -> GenerationHyperparameters:
    return GenerationHyperparameters(
        max_new_tokens=playing.ANSWER_TOKENS,
        temperature=1.0,
        stop_token_ids=task.more.get("stop_token_ids", []),
        skip_special_tokens=False,
    )


async def rlvr(engine: RemoteSGLangEngine, processor: Any, task: Task) -> None:
    """AReaL's own workflow for images, which has one turn."""
    workflow = VisionRLVRWorkflow(reward, options(task), processor.tokenizer, processor, False)
    data = {"messages": PROMPT, "images": task.images[:1]}
    made = await workflow.arun_episode(engine, data)
    playing.tell_episode(*(made[name][0].tolist() for name in ("input_ids", "loss_mask", "logprobs")))


async def turns(engine: RemoteSGLangEngine, processor: Any, task: Task) -> None:
    """As `VisionRLVRWorkflow` makes its request, in a loop: what a user's workflow of several turns does."""
    first, second = task.images
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    images: list[Any] = []
    rid = uuid.uuid4().hex
    for text, image in (
        (PROMPT, first),
        (OBSERVATION.format(IMAGE + playing.ZOOMED), second),
        (OBSERVATION.format(playing.CLOSING), None),
    ):
        seen = processor(text=[text], images=[image] if image else None)["input_ids"][0]
        images += [image] if image else []
        ids, mask, logprobs = [*ids, *seen], [*mask, *[0] * len(seen)], [*logprobs, *[0.0] * len(seen)]
        request = ModelRequest(
            rid=rid,
            input_ids=ids,
            image_data=image2base64(images),
            gconfig=options(task),
            tokenizer=processor.tokenizer,
            processor=processor,
        )
        answer = await engine.agenerate(request)
        said = task.more.get("said", answer.output_tokens)
        ids, logprobs = [*ids, *said], [*logprobs, *answer.output_logprobs]
        mask += [1] * len(said)
    playing.tell_episode(ids, mask, logprobs)


async def openai(engine: RemoteSGLangEngine, processor: Any, task: Task) -> None:
    """The client for agents that speak OpenAI's protocol; ``concat`` keeps the ids of earlier turns."""
    client = ArealOpenAI(engine=engine, tokenizer=processor.tokenizer, chat_template_type="concat")
    messages: list[Any] = []
    urls = iter(f"data:image/png;base64,{encoded}" for encoded in image2base64(task.images))
    for words, with_image in ((playing.QUESTION, True), (playing.ZOOMED, True), (playing.CLOSING, False)):
        content: list[Any] = [{"type": "image_url", "image_url": {"url": next(urls)}}] if with_image else []
        content.append({"type": "text", "text": words})
        messages.append({"role": "user", "content": content})
        answer = await client.chat.completions.create(
            messages=messages, temperature=1.0, max_completion_tokens=playing.ANSWER_TOKENS
        )
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
    client.set_last_reward(0.0)
    (whole,) = client.export_interactions(style="concat").values()
    made = whole.to_tensor_dict()
    playing.tell_episode(*(made[name][0].tolist() for name in ("input_ids", "loss_mask", "logprobs")))


WAYS = {"rlvr": rlvr, "turns": turns, "openai": openai}


async def play(engine: RemoteSGLangEngine, task: Task) -> None:
    playing.hurry()
    try:
        await WAYS[task.more["how"]](engine, AutoProcessor.from_pretrained(task.model), task)
    except Exception as error:
        playing.tell_error(error)
    finally:
        await (await workflow_context.get_aiohttp_session()).close()


def main() -> None:
    task = playing.task()
    # The executor that AReaL starts along with the engine gets no episodes: they are run here.
    engine = RemoteSGLangEngine(
        InferenceEngineConfig(backend="sglang:d1", max_concurrent_rollouts=1, consumer_batch_size=1)
    )
    # However this process is told to end, a server that it has started ends with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if fields := task.more.get("engine"):
            SGLangBackend().launch_server(fields)
        engine.initialize(addr=urlsplit(task.url).netloc)
        asyncio.run(play(engine, task))
    finally:
        engine.destroy()
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
