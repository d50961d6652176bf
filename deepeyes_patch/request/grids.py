"""(t, h, w) of images and videos, read from tensors, arrays and nested lists."""

from __future__ import annotations

from typing import Any

import torch

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids.spans import GridTHW

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
        The shape is another one, or the sizes are not whole, positive and finite.
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
        if whole != sizes or min(whole) < 1:
            raise ValueError("sizes that are not whole and positive")
    except _NOT_A_GRID as error:
        raise RefusedRequest(
            "media",
            f"{name} must be (t, h, w) for each image or video, of shape [N, 3] or [3], and is "
            f"{grids!s:.200}: {error}",
        ) from error
    return list(zip(whole[0::3], whole[1::3], whole[2::3], strict=True))
