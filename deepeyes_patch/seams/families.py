"""The model types that are served, and what is read from a processor and its model's configuration.

To add a model family whose processor is SGLang's Qwen-VL class, add its prefix to `SERVED_TYPES` and its tiny
model to ``tests/lab``.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from deepeyes_patch.ids.tokens import VisionTokens
from deepeyes_patch.seams import wrapping

# Prefixes of the model types whose requests must run through our wrappers. A class that SGLang derives from
# its Qwen-VL processor for any other type may override the outermost method, or lack a token id that we need.
SERVED_TYPES = (
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "qwen3_omni_moe", "qwen4_exp"),
    *("intern_s2_preview", "interns2_mobius", "cosmos3_omni"),
)

# Attribute of a processor: its `Model`, or None if it is not served. Set once, at construction. Looking at
# the class later is not enough: another package may have put a wrapper around ours that hides it.
_MODEL = "_deepeyes_patch_model"


# The token ids of a configuration, without the end of their names.
_TOKENS = ("image", "video", "audio", "vision_start", "vision_end")

# Methods of the Qwen-VL processor that classes which derive from it for other models inherit.
_INHERITED = ("process_mm_data_async", "load_mm_data", "process_and_combine_mm_data")


@dataclass(frozen=True)
class Model:
    """What the repairs read of a processor.

    ``vocab_size`` is ``None`` if the configuration does not say it. ``temporal_patch_size`` and
    ``tokens_per_second`` are ``None`` for models that have none. ``side_factor`` is patch_size *
    spatial_merge_size. ``patch_width`` is how many numbers the HF processor makes of one patch: channels *
    temporal_patch_size * patch_size**2. Both are ``None`` if the configuration does not say it.
    """

    model_type: str
    tokens: VisionTokens
    vocab_size: int | None
    spatial_merge_size: int
    temporal_patch_size: int | None
    tokens_per_second: float | None
    side_factor: int | None
    patch_width: int | None


def served_type(hf_config: Any) -> str | None:
    """The model type, if its requests must run through our wrappers."""
    model_type = getattr(hf_config, "model_type", None)
    return model_type if isinstance(model_type, str) and model_type.startswith(SERVED_TYPES) else None


def model_of(processor: Any) -> Model | None:
    """The `Model` of a processor that is served; ``None`` for any other processor."""
    try:
        model: Model | None = getattr(processor, _MODEL)
    except AttributeError:  # constructed before the repairs were installed, or without our wrapper
        model = None if processor is None else _read_late(processor)
        if model is not None:
            keep_model(processor, model)
    return model


def _read_late(processor: Any) -> Model | None:
    if not runs_through_ours(processor):
        return None
    try:
        return read_model(processor)
    except (AttributeError, TypeError, ValueError):
        # SGLang's own tests make a processor without a constructor, and give it few attributes.
        if served_type(getattr(processor, "hf_config", None)) is not None:
            raise
        return None


def keep_model(processor: Any, model: Model | None) -> None:
    """Keep the `Model` of a processor; ``None``: the processor is not served."""
    setattr(processor, _MODEL, model)


def formats_matter() -> bool:
    """Whether this SGLang goes by the ``format`` of a preprocessed item. Earlier releases take any dict."""
    return hasattr(sys.modules.get("sglang.srt.managers.schedule_batch"), "MultimodalInputFormat")


def runs_through_ours(processor: Any) -> bool:
    """Whether the outermost method of its class is our wrapper, directly or below wrappers of others."""
    return _is_ours(processor, "process_mm_data_async")


def _is_ours(processor: Any, method: str) -> bool:
    function = inspect.getattr_static(type(processor), method, None)
    return any(isinstance(layer, wrapping.SeamWrapper) for layer in wrapping.unwrapped(function))


def inherits_ours(processor: Any) -> bool:
    """Whether its class is, or derives from, the class whose methods we have wrapped."""
    return any(_is_ours(processor, name) for name in _INHERITED)


def read_model(processor: Any) -> Model:
    """Read the configuration of a processor.

    Raises
    ------
    AttributeError, TypeError, ValueError
        The configuration lacks something that serving requests needs.
    """
    config = processor.hf_config
    vision = config.vision_config
    ids = {
        "image": processor.mm_tokens.image_token_id,
        "vision_start": processor.vision_start_token_id,
        "vision_end": processor.vision_end_token_id,
    }
    for name, token in ids.items():
        if not isinstance(token, int):
            raise TypeError(f"its {name} token id is {token!r}")
    if not isinstance(processor.mm_tokens.image_token, str):
        raise TypeError(f"its image token is {processor.mm_tokens.image_token!r}")
    foreign = {
        modality: token
        for modality in ("video", "audio")
        if isinstance(token := getattr(processor.mm_tokens, f"{modality}_token_id", None), int)
    }
    merge = int(vision.spatial_merge_size)
    patch, temporal = (getattr(vision, name, None) for name in ("patch_size", "temporal_patch_size"))
    channels = getattr(vision, "in_channels", getattr(vision, "in_chans", None))
    return Model(
        model_type=str(getattr(config, "model_type", "unknown")),
        tokens=VisionTokens(**ids, foreign=foreign, **_audio_tokens(config, foreign)),
        vocab_size=_vocab_size(config),
        spatial_merge_size=merge,
        temporal_patch_size=temporal,
        tokens_per_second=getattr(vision, "tokens_per_second", None),
        side_factor=None if patch is None else int(patch) * merge,
        patch_width=channels * temporal * patch**2 if patch and temporal and channels else None,
    )


def read_config(hf_config: Any) -> Model:
    """Read a configuration where there is no processor, as SGLang's Qwen-VL processor reads it.

    Raises
    ------
    AttributeError, TypeError, ValueError
        The configuration lacks something that serving requests needs.
    """
    config = getattr(hf_config, "thinker_config", hf_config)  # Qwen3-Omni
    ids = {name: getattr(config, f"{name}_token_id", None) for name in _TOKENS}
    tokens = SimpleNamespace(
        image_token="", **{f"{name}_token_id": ids[name] for name in ("image", "video", "audio")}
    )
    return read_model(
        SimpleNamespace(
            hf_config=config,
            mm_tokens=tokens,
            vision_start_token_id=ids["vision_start"],
            vision_end_token_id=ids["vision_end"],
        )
    )


def _audio_tokens(config: Any, foreign: dict[str, int]) -> dict[str, int]:
    """The tokens around an audio, if the model takes audio and its configuration names both."""
    found = {name: getattr(config, f"{name}_token_id", None) for name in ("audio_start", "audio_end")}
    ids = {name: token for name, token in found.items() if isinstance(token, int)}
    return ids if "audio" in foreign and len(ids) == len(found) else {}


def _vocab_size(config: Any) -> int | None:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    size = getattr(text, "vocab_size", None)
    return None if size is None else int(size)


def pixel_bounds(processor: Any) -> str:
    """The pixel bounds that the server's image processor really uses, for messages."""
    image_processor = getattr(processor._processor, "image_processor", None)
    # --mm-process-config, which SGLang hands to the image processor with every call
    config = dict(getattr(processor, "image_config", None) or {})
    sizes = [config.pop("size", None), getattr(image_processor, "size", None)]

    def bound(edge: str, name: str) -> Any:
        values = [size.get(edge) for size in sizes if size is not None]
        return next((pixels for pixels in values if pixels), getattr(image_processor, name, None))

    bounds = {
        "min_pixels": bound("shortest_edge", "min_pixels"),
        "max_pixels": bound("longest_edge", "max_pixels"),
        **config,
    }
    return ", ".join(f"{name} {value}" for name, value in bounds.items())
