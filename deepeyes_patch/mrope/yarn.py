"""YaRN with sections, for releases whose YaRN rope ignores ``mrope_section`` (before 0.5.9).

Such a release builds a YaRN rope with the right rows of cos and sin (`YaRN <https://arxiv.org/abs/2309.00071>`_,
section 3), and a rope with sections without YaRN. The second one rotates by the rows of the first one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from deepeyes_patch.errors import UnsupportedConfigError

# What ``transformers`` reads of a YaRN config and these releases do not.
_UNREAD = ("attention_factor", "mscale", "mscale_all_dim")


def has_rows(rope: Any) -> bool:
    """Whether this is a YaRN rope whose rows can be taken."""
    return all(hasattr(rope, name) for name in ("mscale", "scaling_factor", "_compute_inv_freq"))


def without_yarn(scaling: Mapping[str, Any]) -> dict[str, Any]:
    """The same config for a rope with sections. It keeps the other keys, and so its own place in caches.

    Raises
    ------
    UnsupportedConfigError
        The config has a key that only ``transformers`` reads, so the rows would differ.
    """
    unread = [name for name in _UNREAD if scaling.get(name) is not None]
    if scaling.get("truncate") is False:
        unread.append("truncate")
    if unread:
        raise UnsupportedConfigError(
            f"deepeyes-patch: this config's YaRN has {', '.join(unread)}, which this SGLang does not read, "
            f"so its rope would not be that of transformers; use SGLang 0.5.9 or newer, or leave it out"
        )
    return {**scaling, "rope_type": "default"}


def give_rows(rope: Any, yarn: Any) -> None:
    """Let ``rope`` rotate by the rows of ``yarn``: [max_position, rotary_dim], cos and then sin."""
    rope.register_buffer("cos_sin_cache", yarn.cos_sin_cache, persistent=False)
    if hasattr(rope, "_ensure_cos_sin_cache_length"):
        # From 0.5.6 on, SGLang adds rows for long contexts, and would compute them without YaRN.
        rope._ensure_cos_sin_cache_length = functools.partial(_lengthen, rope, yarn)


def _lengthen(rope: Any, yarn: Any, needed_max_pos: int) -> None:
    rows = rope.cos_sin_cache
    if needed_max_pos < len(rows):
        return
    frequencies = yarn._compute_inv_freq(yarn.scaling_factor).to(rows.device)
    places = torch.arange(len(rows), needed_max_pos + 1, dtype=torch.float32, device=rows.device)
    angles = places[:, None] * frequencies
    more = torch.cat((angles.cos(), angles.sin()), dim=-1) * yarn.mscale
    rope.register_buffer("cos_sin_cache", torch.cat((rows, more.to(rows.dtype))), persistent=False)
