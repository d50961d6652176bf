"""(t, h, w) of images and videos, read from tensors, arrays and nested lists."""

from __future__ import annotations

from typing import Any

import torch

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids.spans import GridTHW

# A float32 holds every whole number below. torch reads a list with one float in it as float32.
_LIMIT = 2**24
_NOT_A_GRID = (TypeError, ValueError, RuntimeError, IndexError, OverflowError)


def rows(grids: Any, name: str = "image_grid_thw") -> list[GridTHW]:
    """Rows of (t, h, w), in patches.

    Parameters
    ----------
    grids:
        A tensor, an array or nested lists of shape [N, 3] or [3], or a list of such tensors; ``None``: no
        rows.
    name:
        What they are called, for the message.

    Raises
    ------
    RefusedRequest
        The shape is another one, or the sizes are not whole, positive and below 2**24.
    """
    if grids is None:
        return []
    try:
        if isinstance(grids, (list, tuple)) and len(grids) and isinstance(grids[0], torch.Tensor):
            grids = torch.stack(list(grids))
        table = torch.as_tensor(grids)
        if table.numel() == 0:
            return []
        if table.ndim > 2 or table.shape[-1] != 3:
            raise ValueError(f"shape {list(table.shape)}")
        sizes = table.flatten().tolist()
        whole = list(map(int, sizes))  # raises for inf and nan
        if whole != sizes or not 0 < min(whole) <= max(whole) < _LIMIT:
            raise ValueError(f"sizes that are not whole, positive and below {_LIMIT}")
    except _NOT_A_GRID as error:
        raise RefusedRequest(
            "media",
            f"{name} must be (t, h, w) for each image or video, of shape [N, 3] or [3], and is "
            f"{grids!s:.200}: {error}",
        ) from error
    return list(zip(whole[0::3], whole[1::3], whole[2::3], strict=True))
