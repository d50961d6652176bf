"""What a user of miles writes: ``--custom-generate-function-path`` and ``--custom-rm-path``.

miles' own multi-turn function (``miles.rollout.generate_hub.multi_turn``) takes no images. This one makes its
requests and its records with the functions that miles has for such rollouts.
"""

from __future__ import annotations

from typing import Any

from miles.rollout.base_types import GenerateFnInput, GenerateFnOutput
from miles.rollout.generate_utils.generate_endpoint_utils import (
    compute_prompt_ids_from_sample,
    compute_request_payload,
    update_sample_from_response,
)
from miles.utils.http_utils import post
from miles.utils.types import Sample

from tests.frameworks import playing

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
PROMPT = f"<|im_start|>user\n{IMAGE}{playing.QUESTION}<|im_end|>\n<|im_start|>assistant\n"


async def generate(input: GenerateFnInput) -> GenerateFnOutput:
    args, sample = input.args, input.sample
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    # miles has no option for it. A function of one's own can add what SGLang takes.
    sampling = {**input.sampling_params, "logit_bias": sample.metadata["logit_bias"]}
    sample.tokens = list(compute_prompt_ids_from_sample(input.state, sample))
    for observation in [*sample.metadata["observations"], None]:
        payload, halted = compute_request_payload(args, sample.tokens, sampling, sample.multimodal_inputs)
        assert payload is not None, halted
        output = await post(url, payload)
        await update_sample_from_response(args, sample, payload, output, update_loss_mask=True)
        if observation is not None:
            see(input.state.processor, sample, *observation)
    return GenerateFnOutput(samples=sample)


def see(processor: Any, sample: Sample, words: str, image: Any) -> None:
    """Append an observation: its text alone is tokenized, and its image expanded."""
    text = f"<|im_end|>\n<|im_start|>user\n{IMAGE if image else ''}{words}<|im_end|>\n<|im_start|>assistant\n"
    ids = [int(i) for i in processor(text=[text], images=[image] if image else None)["input_ids"][0]]
    sample.tokens = sample.tokens + ids
    sample.response_length += len(ids)
    sample.loss_mask = [*(sample.loss_mask or []), *[0] * len(ids)]
    sample.rollout_log_probs = [*(sample.rollout_log_probs or []), *[0.0] * len(ids)]
    if image:
        sample.multimodal_inputs["images"].append(image)


async def reward(args: Any, sample: Sample, **_: Any) -> float:
    return 0.0
