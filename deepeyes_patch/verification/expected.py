"""The expected values, computed by the installed ``transformers`` from a model's folder, without SGLang."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    import torch


def rope_owner(folder: Path) -> Any:
    """The model whose ``get_rope_index`` is the reference, built on no device: only the config matters."""
    import torch
    import transformers

    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    # By name, because SGLang registers its own configurations under some of transformers' model types.
    if hasattr(transformers, thinker := architecture.replace("ForCond", "ThinkerForCond")):
        architecture = thinker
    cls = getattr(transformers, architecture)
    with torch.device("meta"):
        model = cls(cls.config_class.from_pretrained(folder))
    return model if hasattr(model, "get_rope_index") else model.model


def positions(
    core: Any,
    input_ids: Sequence[int],
    grids: torch.Tensor | None = None,
    video_grids: torch.Tensor | None = None,
    **more: Any,
) -> tuple[torch.Tensor, int]:
    """M-RoPE positions int64 [3, T] (t, h, w) of a `rope_owner`, and the delta for the generated tokens.

    ``grids``, ``video_grids``: int64 [images, 3] and [videos, 3], in patches.
    """
    import torch

    ids = torch.tensor([list(input_ids)])
    if grids is None and video_grids is None:
        return torch.arange(ids.shape[1]).expand(3, -1).clone(), 0
    if "mm_token_type_ids" in inspect.signature(core.get_rope_index).parameters:
        # transformers 5 reads the modality of each token from here and not from the ids.
        config = core.config
        kinds = (ids == config.image_token_id).int() + 2 * (ids == config.video_token_id).int()
        more["mm_token_type_ids"] = kinds
    # transformers 5.3.0, which SGLang 0.5.10 pins, multiplies the position at which an image of Qwen2.5-VL
    # starts by tokens_per_second, which should change videos only. 5.6.0 says "fixes #45325".
    vision = vars(core.config.vision_config)
    still = {"tokens_per_second": 1} if "tokens_per_second" in vision and video_grids is None else {}
    with mock.patch.dict(vision, still):
        positions, delta = core.get_rope_index(
            input_ids=ids,
            image_grid_thw=grids,
            video_grid_thw=video_grids,
            attention_mask=torch.ones_like(ids),
            **more,
        )
    return positions[:, 0].long(), int(delta.flatten()[0])
