"""The table of seams: one row for each SGLang function that a repair wraps, overrides or relies on.

The hooks, the check at start, the wrapping, ``doctor``, ``doctor --deep``, its search for overwritten files,
the matrix and the tables in the documents read it. To add a seam, add its row, its wrapper and its test.
"""

from __future__ import annotations

from functools import partial

from deepeyes_patch.seams.facts import makes_artifacts
from deepeyes_patch.seams.rows import Seam, having, named, nowhere
from deepeyes_patch.seams.table_deepstack import DEEPSTACK
from deepeyes_patch.seams.table_mrope import MROPE
from deepeyes_patch.seams.table_server import AROUND_THE_PROCESSOR, SAMPLING_BATCH, TOKENIZER_MANAGER
from deepeyes_patch.settings import RELAX_MARK

QWEN_VL = "sglang.srt.multimodal.processors.qwen_vl"

_in_processor = partial(Seam, "processor", QWEN_VL, having("process_mm_data_async"))
_in_qwen_vl = partial(Seam, "processor", QWEN_VL, None)

_PROCESSOR = (
    _in_processor(
        "__init__(hf_config, server_args, _processor)",
        "startup.stops:construct_processor",
        "0.5.3 -",
        "stop SGLang where a repair could not be applied",
        door="startup.stops:construct_processor",
    ),
    _in_processor(
        "async process_mm_data_async(image_data, input_text, request_obj)",
        "request.begin:process_request",
        "0.5.3 -",
        "open the request's scope, refuse what cannot be served; the last look at the result",
        reported=True,
        mark=RELAX_MARK,
    ),
    _in_processor(
        "get_mm_data(prompt, embeddings)",
        "request.begin:process_embeddings",
        "0.5.7 -",
        "the same where an encoder has made the embeddings (encoder disaggregation)",
        required=nowhere,
    ),
    _in_processor(
        "async? load_mm_data(prompt, image_data, video_data, multimodal_tokens)",
        "request.load:load_media",
        "0.5.3 -",
        "hand the loader one placeholder per image and video in place of the ids",
    ),
    _in_processor(
        "async? fast_load_mm_data(prompt, image_data, video_data, multimodal_tokens)",
        "request.load:load_media",
        "0.5.8 -",
        "the same",
        required=nowhere,
    ),
    _in_processor(
        "async? legacy_load_mm_data(prompt, image_data, video_data, multimodal_tokens)",
        "request.load:load_media",
        "0.5.8 -",
        "the same; some images of 0.5.12.post1 call it directly",
        required=nowhere,
    ),
    _in_qwen_vl(
        "async preprocess_video(vr)",
        "request.load:sample_video",
        "0.5.3 -",
        "keep the times of a video's frames with the frames; with `video`, let the HF processor choose them",
    ),
    _in_qwen_vl(
        "async resize_image_async(image)",
        "request.load:resize_image",
        "0.5.3 - 0.5.5.post1",
        "leave this step out where the HF processor has another factor than 28",
        required=nowhere,
    ),
    _in_processor(
        "process_and_combine_mm_data(base_output, mm_tokens)",
        "request.combine:combine",
        "0.5.3 -",
        "enter the scope again, on a worker thread from 0.5.17 on; ids of preprocessed items",
    ),
    _in_processor(
        "_process_and_collect_mm_items(input_text, images)",
        "request.combine:collect_items",
        "0.5.3 -",
        "re-tokenized ids are born here: return the caller's",
    ),
    _in_processor(
        "process_mm_data(input_text, videos, kwargs)",
        "request.combine:call_hf_processor",
        "0.5.3 -",
        "hand the times of a video's frames to the HF processor",
    ),
    _in_processor(
        "get_mm_items_offset(input_ids, mm_token_id)",
        "request.combine:find_offsets",
        "0.5.3 -",
        "find the offsets of preprocessed items in the caller's ids",
    ),
    _in_processor(
        "build_input_ids(prompt, img_grid_thw)",
        "request.combine:build_ids",
        "0.5.7 -",
        "artifact path (0.5.20 -) and encoder disaggregation: give it one placeholder per image",
        required=makes_artifacts,
    ),
    _in_processor(
        "build_input_ids_with_timestamps(prompt, img_grid_thw, video_grid_thw)",
        "request.encoded:build_timed_ids",
        "0.5.10 -",
        "the same with videos, for models with times in the ids; return the caller's ids",
        required=nowhere,
    ),
    Seam(
        *("processor", QWEN_VL, named("MRotaryEmbedding")),
        "get_rope_index(input_ids, vision_start_token_id, video_token_id, video_grid_thw)",
        "request.combine:compute_positions",
        "0.5.3 -",
        "keep it from reading past ids that end in vision_start; give it a grid for each group of frames",
    ),
)

# The wrapper `sample_video` in a `processor` row does the work.
_VIDEO = (
    Seam(
        *("video", QWEN_VL, None),
        "async preprocess_video(vr)",
        None,
        "0.5.3 -",
        "let the HF processor choose the frames of a video",
        reported=True,
    ),
)

_SAMPLING = (
    Seam(
        *("sampling", TOKENIZER_MANAGER, named("TokenizerManager")),
        "_create_tokenized_object(obj)",
        "request.sampling:forbid_placeholders",
        "0.5.3 -",
        "add a `logit_bias` that no placeholder survives",
        reported=True,
    ),
    Seam(
        *("sampling", SAMPLING_BATCH, named("SamplingBatchInfo")),
        "apply_logits_bias(logits)",
        None,
        "0.5.3 -",
        "SGLang adds the bias to the logits, before it samples and before it takes log-probs",
    ),
)

SEAMS: tuple[Seam, ...] = (*_PROCESSOR, *AROUND_THE_PROCESSOR, *_VIDEO, *_SAMPLING, *MROPE, *DEEPSTACK)


def modules(repair: str) -> tuple[str, ...]:
    """The modules that the rows of a repair name, each once, in order."""
    return tuple(dict.fromkeys(seam.module for seam in SEAMS if seam.repair == repair))


def rows(repair: str, module: str) -> tuple[Seam, ...]:
    """The rows of a repair in one module."""
    return tuple(seam for seam in SEAMS if seam.repair == repair and seam.module == module)
