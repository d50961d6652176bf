"""Check the images and videos of a pre-tokenized request, before SGLang loads anything."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Sequence
from typing import Any

import torch

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids.spans import GridTHW, Span, offsets, token_count
from deepeyes_patch.request import grids

# The keys of a preprocessed item that can hold its features.
_FEATURES = ("pixel_values", "feature", "precomputed_embeddings")
_FORMATS = ("processor_output", "precomputed_embedding")
# Keys, or their beginnings, that make SGLang take an item for a video or a sound as well.
_OF_OTHER_MEDIA = (
    "pixel_values_videos",
    "video_",
    "second_per_grid",
    "audio_",
    "input_features",
    "feature_att",
)
# How base64 of an image file begins, and its media type.
_BASE64 = {"/9j/": "jpeg", "iVBORw0KGgo": "png", "R0lGOD": "gif", "UklGR": "webp"}
_NO_IMAGE = (list, tuple, int, float)


def is_preprocessed(image: Any) -> bool:
    """Whether an image is output of the HF processor, or embeddings. A dict with a ``url`` is a raw image."""
    return isinstance(image, dict) and "url" not in image


def checked_images(
    image_data: Any, spatial_merge_size: int, formats_matter: bool = True, patch_width: int | None = None
) -> tuple[list[Any], bool]:
    """The request's images in a new list, and whether they are preprocessed items.

    In the new list, the grids of preprocessed items are tensors, and their formats are names in lower case. A
    dict with a ``url`` is that URL there, and bare base64 of an image is a data URL.

    Parameters
    ----------
    formats_matter:
        This SGLang goes by the ``format`` of an item. Earlier releases (to 0.5.4 at least) take any dict for
        output of the HF processor.
    patch_width:
        How many numbers the HF processor makes of one patch; ``None``: not known.

    Raises
    ------
    RefusedRequest
        An item is not an image; preprocessed items stand beside raw images; or an item contradicts itself.
    """
    images = [] if image_data is None else list(image_data)
    preprocessed = 0
    for index, image in enumerate(images):
        if image is None or isinstance(image, _NO_IMAGE):
            raise RefusedRequest("media", f"image_data[{index}] is {image!s:.100}, which is no image")
        if not is_preprocessed(image):
            images[index] = _spelled(image)
        else:
            preprocessed += 1
            images[index] = _checked_item(index, image, spatial_merge_size, formats_matter, patch_width)
    if preprocessed not in (0, len(images)):
        raise RefusedRequest(
            "unsupported",
            f"image_data mixes {preprocessed} preprocessed item(s) (dict) with "
            f"{len(images) - preprocessed} raw image(s); with input_ids, send one kind",
        )
    return images, preprocessed > 0


def _spelled(image: Any) -> Any:
    """An image in a form that every release takes.

    Some releases take no dict with a ``url``. From 0.5.12.post1 on, SGLang takes base64 of a JPEG file for
    the name of a file, because it begins with a slash.
    """
    if isinstance(image, dict):
        return image["url"] if isinstance(image["url"], str) else image
    if isinstance(image, str):
        for begin, kind in _BASE64.items():
            if image.startswith(begin) and not os.path.exists(image):
                return f"data:image/{kind};base64,{image}"
    return image


def item_grids(items: Sequence[dict[str, Any]]) -> list[GridTHW]:
    """(t, h, w) of all images in preprocessed items, in order.

    Raises
    ------
    RefusedRequest
        An item holds no grids.
    """
    return [row for index, item in enumerate(items) for row in _item_grids(index, item)]


def _item_grids(index: int, item: dict[str, Any]) -> list[GridTHW]:
    rows = grids.rows(item.get("image_grid_thw"))
    if not rows:
        raise RefusedRequest(
            "media",
            f"preprocessed item {index} of image_data holds no image_grid_thw, so the M-RoPE "
            f"positions of its image are unknown; its keys are {sorted(map(str, item))!s:.200}",
        )
    return rows


def _checked_item(
    index: int,
    item: dict[str, Any],
    spatial_merge_size: int,
    formats_matter: bool,
    patch_width: int | None,
) -> dict[str, Any]:
    """A copy of a preprocessed item. Refuses keys and shapes that SGLang would fail on."""
    rows = _item_grids(index, item)
    patches = sum(t * h * w for t, h, w in rows)
    tokens = sum(token_count(row, spatial_merge_size) for row in rows)
    for name, demanded in zip(_FEATURES, (patches, tokens, tokens), strict=True):
        if item.get(name) is None:
            continue
        shape = getattr(item[name], "shape", None)
        if shape is None or not _is_float(item[name]):
            raise RefusedRequest(
                "media",
                f"preprocessed item {index} of image_data holds {name} of type {type(item[name]).__name__}, "
                f"and it must be a tensor or an array of floating-point numbers",
            )
        if len(shape) != 2 or shape[0] != demanded:
            raise RefusedRequest(
                "media",
                f"a preprocessed item of image_data holds {name} of shape {list(shape)}, and its "
                f"image_grid_thw demands {demanded} rows",
            )
        if name == "pixel_values" and patch_width is not None and shape[1] != patch_width:
            raise RefusedRequest(
                "media",
                f"preprocessed item {index} of image_data holds pixel_values of shape {list(shape)}, and "
                f"this model's patches have {patch_width} values each",
            )
    form = _word(item.get("format"))
    _require_features(index, item, form, formats_matter)
    _refuse_odd_metadata(index, item, len(rows), formats_matter)
    checked = {**item, "image_grid_thw": torch.tensor(rows)}
    # A member of SGLang's enumeration and its name mean the same, but only newer releases know both.
    return {**checked, "format": form} if formats_matter else checked


def _is_float(features: Any) -> bool:
    """Whether a tensor or an array holds floating-point numbers, as features of a model do."""
    if isinstance(features, torch.Tensor):
        return bool(features.is_floating_point())
    return bool(getattr(getattr(features, "dtype", None), "kind", None) == "f")


def _require_features(index: int, item: dict[str, Any], form: str, formats_matter: bool) -> None:
    if formats_matter and form not in _FORMATS:
        raise RefusedRequest(
            "media",
            f"preprocessed item {index} of image_data is of format {form or 'unknown'}, and SGLang knows "
            f"{' and '.join(_FORMATS)}",
        )
    embedded = formats_matter and form == "precomputed_embedding"
    needed = ("feature",) if embedded else ("pixel_values", "precomputed_embeddings")
    if not any(item.get(name) is not None for name in needed):
        raise RefusedRequest(
            "media",
            f"preprocessed item {index} of image_data, of format {form or 'unknown'}, holds no "
            f"{' or '.join(needed)}; its keys are {sorted(map(str, item))!s:.200}",
        )


def _word(form: Any) -> str:
    word = getattr(form, "name", form)
    return "" if word is None else f"{word!s:.50}".lower()


def _refuse_odd_metadata(index: int, item: dict[str, Any], image_count: int, formats_matter: bool) -> None:
    """Check ``offsets``, ``hash``, ``pad_value`` and ``modality``, which SGLang uses as they are."""
    problems = []
    if item.get("offsets") is not None:
        try:
            pairs = torch.as_tensor(item["offsets"])
            whole = pairs.dtype in (torch.int64, torch.int32)
            if tuple(pairs.shape) != (image_count, 2) or not whole:
                problems.append(f"offsets of shape {list(pairs.shape)}")
        except (TypeError, ValueError, RuntimeError, OverflowError):
            problems.append("offsets that are no pairs")
    for name in ("hash", "pad_value"):
        try:
            operator.index(0 if item.get(name) is None else item[name])
        except (TypeError, ValueError, RuntimeError):
            problems.append(f"{name} of type {type(item[name]).__name__}")
    modality = _word(item.get("modality"))
    if modality not in ("", "image") and (formats_matter or modality != "multi_images"):
        problems.append(f"modality {modality}")
    problems += [f"{name!s:.50}" for name in item if str(name).startswith(_OF_OTHER_MEDIA)]
    if problems:
        raise RefusedRequest(
            "media", f"preprocessed item {index} of image_data holds {', '.join(problems)}; leave them out"
        )


def refuse_other_offsets(items: Sequence[dict[str, Any]], spans: Sequence[Span]) -> None:
    """Refuse ``offsets`` of preprocessed items that are not those of the ids' spans.

    SGLang 0.5.23 uses them as they are, and fills as much memory as they ask for.

    Raises
    ------
    RefusedRequest
        An item holds other offsets.
    """
    right = iter(offsets(spans, [span.length for span in spans]))
    for index, item in enumerate(items):
        own = list(itertools.islice(right, len(item["image_grid_thw"])))
        if item.get("offsets") is not None and [(int(a), int(b)) for a, b in item["offsets"]] != own:
            raise RefusedRequest(
                "media",
                f"preprocessed item {index} of image_data holds offsets that are not those of the "
                f"placeholders in input_ids, {own!s:.100}; leave them out",
            )


def count_videos(video_data: Any, preprocessed_images: bool) -> int:
    """The number of videos. Each must be a clip that SGLang decodes itself.

    Raises
    ------
    RefusedRequest
        A video is not a clip, or the images are preprocessed.
    """
    items = [] if video_data is None else as_list(video_data)
    for index, video in enumerate(items):
        if isinstance(video, dict):
            raise RefusedRequest(
                "unsupported",
                f"video_data[{index}] is a preprocessed item; with input_ids, send the clip itself (a path, "
                f"URL or data URL)",
            )
        if video is None or isinstance(video, _NO_IMAGE) or hasattr(video, "shape"):
            raise RefusedRequest(
                "unsupported",
                f"video_data[{index}] is of type {type(video).__name__}, and no clip whose frames have known "
                f"times; with input_ids, send a path, URL or data URL",
            )
    if len(items) and preprocessed_images:
        raise RefusedRequest(
            "unsupported",
            f"image_data holds preprocessed items (dict) beside {len(items)} video(s); with input_ids, send "
            f"raw images beside videos",
        )
    return len(items)


def refuse_modalities(**media: Any) -> None:
    """Refuse data of modalities that are not served in pre-tokenized requests, by name.

    Raises
    ------
    RefusedRequest
        The request holds such data.
    """
    for modality, data in media.items():
        if data is not None and any(item is not None for item in as_list(data)):
            raise RefusedRequest(
                "unsupported",
                f"{modality} data with input_ids: deepeyes-patch does not serve it here in "
                f"pre-tokenized requests. Send the prompt as text",
            )


def as_list(data: Any) -> Sequence[Any]:
    """A request's media as a sequence; SGLang also takes a single item."""
    return data if isinstance(data, (list, tuple)) or hasattr(data, "shape") else [data]
