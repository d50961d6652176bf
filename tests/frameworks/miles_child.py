"""miles: its rollout functions play on a server, or on an engine that miles starts itself.

``Task.more`` has ``how``, which is one of `WAYS`. It may have ``prefill``, to compute the log-probs again
after the episode, and ``engine``, fields of SGLang's ``ServerArgs``.
"""

from __future__ import annotations

import asyncio
import os
import signal
from argparse import Namespace
from typing import Any
from urllib.parse import urlsplit

from miles.rollout import sglang_rollout
from miles.rollout.generate_utils.prefill_logprobs import recompute_samples_rollout_logprobs_via_prefill
from miles.rollout.inference_rollout import inference_rollout_common
from miles.utils import http_utils
from miles.utils.types import Sample

from tests.frameworks import miles_rollout, playing
from tests.frameworks.playing import Task


def arguments(task: Task) -> Namespace:
    """What miles reads of its command line here; its own parser asks for Megatron's arguments too."""
    server = urlsplit(task.url)
    return Namespace(
        hf_checkpoint=task.model,
        chat_template_path=None,
        ci_test=False,
        custom_generate_function_path=f"{miles_rollout.__name__}.generate",
        custom_rm_path=f"{miles_rollout.__name__}.reward",
        group_rm=False,
        mask_offpolicy_in_partial_rollout=False,
        miles_router_middleware_paths=[],
        partial_rollout=False,
        recompute_logprobs_via_prefill=task.more.get("prefill", False),
        rollout_max_context_len=None,
        rollout_max_response_len=playing.ANSWER_TOKENS,
        rollout_num_gpus=1,
        rollout_num_gpus_per_engine=1,
        rollout_skip_special_tokens=False,
        rollout_stop=None,
        rollout_stop_token_ids=task.more.get("stop_token_ids"),
        rollout_temperature=1.0,
        rollout_top_k=-1,
        rollout_top_p=1.0,
        sglang_dp_size=1,
        sglang_router_ip=server.hostname,
        sglang_router_policy=None,
        sglang_router_port=server.port,
        sglang_server_concurrency=1,
        sglang_speculative_algorithm=None,
        use_distributed_post=False,
        use_miles_router=False,
        use_rollout_routing_replay=False,
    )


async def three_turns(args: Namespace, task: Task) -> Sample:
    """``inference_rollout``, with a rollout function as a user writes it for several turns."""
    state = inference_rollout_common.GenerateState(args)
    first, second = task.images
    sample = Sample(
        prompt=miles_rollout.PROMPT,
        multimodal_inputs={"images": [first]},
        metadata={
            "observations": [(playing.ZOOMED, second), (playing.CLOSING, None)],
            "logit_bias": task.more.get("logit_bias", task.logit_bias),
        },
    )
    sample = await inference_rollout_common.generate_and_rm(state, sample, state.sampling_params)
    url = f"{task.url}/generate"
    await recompute_samples_rollout_logprobs_via_prefill(args, [sample], url=url, sampling_params={})
    return sample


async def resumed(args: Namespace, task: Task) -> Sample:
    """``sglang_rollout``, whose own generate function resumes an aborted sample with its ids."""
    args.custom_generate_function_path = None
    state = sglang_rollout.GenerateState(args)
    sample = Sample(prompt=miles_rollout.PROMPT, multimodal_inputs={"images": task.images[:1]})
    for turn in (1, 2, 3):
        # Nothing is aborted here, so each turn is cut at its longest instead.
        sampling = {**state.sampling_params, "max_new_tokens": turn * playing.ANSWER_TOKENS}
        sample.status, sample.reward = Sample.Status.ABORTED, None
        sample = await sglang_rollout.generate_and_rm(
            args, sample, {**sampling, "logit_bias": task.logit_bias}
        )
    sample.loss_mask = [1] * sample.response_length
    return sample


WAYS = {"three turns": three_turns, "resumed": resumed}


def play(task: Task) -> None:
    args = arguments(task)
    http_utils.init_http_client(args)
    playing.hurry()
    try:
        sample = asyncio.run(WAYS[task.more["how"]](args, task))
    except Exception as error:
        playing.tell_error(error)
        return
    sample.validate()
    prompt = [0] * (len(sample.tokens) - sample.response_length)
    playing.tell_episode(
        sample.tokens,
        prompt + list(sample.loss_mask or []),
        [*map(float, prompt), *(sample.rollout_log_probs or [])],
        prompt_tokens=sample.prefix_cache_info.total_prompt_tokens,
    )


def main() -> None:
    task = playing.task()
    fields: dict[str, Any] | None = task.more.get("engine")
    if fields is None:
        play(task)
        return
    from miles.backends.sglang_utils import sglang_engine
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.utils import kill_process_tree

    # However this process is told to end, its engine ends with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sglang_engine.launch_server_process(ServerArgs(**fields))
        play(task)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
