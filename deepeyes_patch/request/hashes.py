"""The hash of an image depends on its grid, too.

SGLang hashes the patches of an image or video. Two pictures of one colour have the same patches if they have
as many, whatever their width and height. With the same hash, the second one gets the keys and values that the
prefix cache keeps of the first one, at other positions.
"""

from __future__ import annotations

import hashlib
from typing import Any

from deepeyes_patch.seams.wrapping import Call

# What M-RoPE positions follow from, beside the ids.
_PLACES = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")


def set_pad_value(call: Call) -> Any:
    """``MultimodalDataItem.set_pad_value``: SGLang hashes an item, and pads its placeholders by the hash."""
    item = call.instance
    # A known one is the client's, or that of the process which had the item before.
    is_known = getattr(item, "hash", None) is not None
    result = call.proceed()
    places = [repr(_plain(value)) for name in _PLACES if (value := getattr(item, name, None)) is not None]
    if places and not is_known:
        digest = hashlib.sha256("|".join([str(item.hash), *places]).encode()).digest()
        item.hash = int.from_bytes(digest[:8], "big")
        item.pad_value = None
        return call.proceed()
    return result


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
