"""Images and videos that came preprocessed: output of the HF processor, or embeddings.

Such an item is a dict. It has a grid, (t, h, w) in patches, for each of its images or videos. Output of the
HF processor can hold both; then `parted` makes two items of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids.spans import GridTHW
from deepeyes_patch.request import grids

SECONDS = "second_per_grid_ts"
# Keys that count for one item, or for the whole prompt.
_ALONE = frozenset(("hash", "pad_value", "offsets", "mrope_positions"))


@dataclass(frozen=True)
class Kind:
    """Images or videos: what a request calls them, and the keys of their items.

    ``foreign``: keys, or their beginnings, that make SGLang take an item for another medium as well.
    """

    name: str
    data: str
    grid: str
    pixels: str
    foreign: tuple[str, ...]

    @property
    def features(self) -> tuple[str, str, str]:
        """The keys that can hold the features."""
        return self.pixels, "feature", "precomputed_embeddings"


_OF_SOUND = ("audio_", "input_features", "feature_att")
_OF_VIDEOS = ("pixel_values_videos", "video_", "second_per_grid")
IMAGES = Kind("image", "image_data", "image_grid_thw", "pixel_values", (*_OF_VIDEOS, *_OF_SOUND))
VIDEOS = Kind("video", "video_data", "video_grid_thw", "pixel_values_videos", ("image_", *_OF_SOUND))


def is_preprocessed(item: Any) -> bool:
    """Whether an item is output of the HF processor, or embeddings. A dict with a ``url`` is a raw image."""
    return isinstance(item, dict) and "url" not in item


def parted(image_data: Sequence[Any], video_data: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Images and videos in lists of their own, in SGLang's order: what is in ``image_data`` comes first."""
    images: list[Any] = []
    videos: list[Any] = []
    for own, others, data in ((images, videos, image_data), (videos, images, video_data)):
        is_image = own is images
        for item in data:
            if not is_preprocessed(item) or item.get(VIDEOS.grid if is_image else IMAGES.grid) is None:
                own.append(item)
            elif item.get(IMAGES.grid if is_image else VIDEOS.grid) is None:
                others.append(item)
            else:
                of_video = {key for key in item if str(key).startswith(_OF_VIDEOS)}
                of_image = {key for key in item if str(key).startswith("image_")} | {IMAGES.pixels}
                images.append({key: value for key, value in item.items() if key not in of_video})
                videos.append({key: value for key, value in item.items() if key not in of_image})
    return images, videos


def rows_of(kind: Kind, index: int, item: dict[str, Any]) -> list[GridTHW]:
    """(t, h, w) of each image or video in an item, which is the one of this ``index``.

    Raises
    ------
    RefusedRequest
        It holds no grids.
    """
    rows = grids.rows(item.get(kind.grid), kind.grid)
    if not rows:
        raise RefusedRequest(
            "media",
            f"preprocessed item {index} of {kind.data} holds no {kind.grid}, so the M-RoPE "
            f"positions of its {kind.name} are unknown; its keys are {sorted(map(str, item))!s:.200}",
        )
    return rows


def grids_of(kind: Kind, items: Sequence[Any]) -> list[GridTHW | None]:
    """(t, h, w) of all images or videos, in order; ``None`` for a raw one, whose grid SGLang makes."""
    found: list[GridTHW | None] = []
    for index, item in enumerate(items):
        found += rows_of(kind, index, item) if is_preprocessed(item) else [None]
    return found


def seconds_of(videos: Sequence[Any]) -> list[float | None]:
    """The seconds between the groups of frames of all videos; ``None`` for a raw one, or if not given."""
    found: list[float | None] = []
    for item in videos:
        if is_preprocessed(item):
            given = item.get(SECONDS)
            found += [None] * len(item[VIDEOS.grid]) if given is None else given.tolist()
        else:
            found.append(None)
    return found


def joined(kind: Kind, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All items in one, as SGLang wants it, if they say no more than their features, grids and seconds."""
    names = [[name for name in kind.features if item.get(name) is not None] for item in items]
    forms = [item.get("format") for item in items]
    if len(items) < 2 or len(names[0]) != 1 or any(own != names[0] for own in names):
        return list(items)
    if any(form != forms[0] for form in forms) or not all(map(_ALONE.isdisjoint, items)):
        return list(items)
    values, rows = merged(kind, items, None, None, names[0][0])
    times = [item[SECONDS] for item in items if SECONDS in item]
    seconds = {SECONDS: torch.cat(times)} if times else {}
    return [{**items[0], names[0][0]: values, kind.grid: rows, **seconds}]


def merged(
    kind: Kind,
    items: Sequence[Any],
    values: torch.Tensor | None,
    rows: torch.Tensor | None,
    feature: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The features and grids of all images or videos, in order.

    Parameters
    ----------
    items:
        Preprocessed items, and anything else for each raw image or video.
    values, rows:
        What the HF processor made of the raw ones; ``None``: there are none.
    feature:
        The key of the features; ``None``: that of the HF processor's output.
    """
    remaining: Iterator[tuple[torch.Tensor, torch.Tensor]] = iter(())
    if values is not None and rows is not None:
        pieces = values.split(rows.prod(dim=1).tolist())
        remaining = iter(zip(pieces, rows[:, None], strict=True))
    found = []
    for item in items:
        if is_preprocessed(item):
            own = torch.as_tensor(item[feature or kind.pixels])
            own = own if values is None else own.to(values)
            found.append((own, item[kind.grid] if rows is None else item[kind.grid].to(rows)))
        else:
            found.append(next(remaining))
    own_values, own_rows = zip(*found, strict=True)
    return torch.cat(own_values), torch.cat(own_rows)
