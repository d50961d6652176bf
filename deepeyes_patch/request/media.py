"""Check the images and videos of a pre-tokenized request, before SGLang loads anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.request import item_checks
from deepeyes_patch.request.item_checks import Limits
from deepeyes_patch.request.preprocessed import IMAGES, VIDEOS, is_preprocessed

# How base64 of an image file begins, and its media type.
_BASE64 = {"/9j/": "jpeg", "iVBORw0KGgo": "png", "R0lGOD": "gif", "UklGR": "webp"}
_LONGEST_PATH = 4096  # bytes, on Linux. Asking for a longer one copies it first.
_NO_IMAGE = (list, tuple, int, float)


def checked_images(image_data: Sequence[Any], limits: Limits) -> list[Any]:
    """The request's images in a new list, preprocessed items as `item_checks.checked` makes them.

    A dict with a ``url`` is that URL there, and bare base64 of an image is a data URL.

    Raises
    ------
    RefusedRequest
        An item is not an image, or contradicts itself.
    """
    images = list(image_data)
    for index, image in enumerate(images):
        if image is None or isinstance(image, _NO_IMAGE):
            raise RefusedRequest("media", f"image_data[{index}] is {image!s:.100}, which is no image")
        if is_preprocessed(image):
            images[index] = item_checks.checked(IMAGES, index, image, limits)
        else:
            images[index] = _spelled(image)
    return images


def checked_videos(video_data: Sequence[Any], limits: Limits) -> list[Any]:
    """The request's videos in a new list, preprocessed items as `item_checks.checked` makes them.

    Raises
    ------
    RefusedRequest
        An item is neither a clip that SGLang decodes nor preprocessed, or it contradicts itself.
    """
    videos = list(video_data)
    for index, video in enumerate(videos):
        if is_preprocessed(video):
            videos[index] = item_checks.checked(VIDEOS, index, video, limits)
        elif video is None or isinstance(video, (*_NO_IMAGE, dict)) or hasattr(video, "shape"):
            raise RefusedRequest(
                "unsupported",
                f"video_data[{index}] is of type {type(video).__name__}, and no clip whose frames have known "
                f"times; with input_ids, send a path, URL or data URL, or output of the HF processor",
            )
    return videos


def refuse_mixed_embeddings(images: Sequence[Any], videos: Sequence[Any]) -> None:
    """Refuse embeddings beside raw images or videos. Output of the HF processor can stand beside them.

    Raises
    ------
    RefusedRequest
        The request holds both.
    """
    items = [*images, *videos]
    embedded = [
        item for item in items if is_preprocessed(item) and not {IMAGES.pixels, VIDEOS.pixels} & item.keys()
    ]
    raw = sum(not is_preprocessed(item) for item in items)
    if embedded and raw:
        raise RefusedRequest(
            "unsupported",
            f"the request holds {len(embedded)} item(s) with embeddings beside {raw} raw image(s) or "
            f"video(s); with input_ids, send one kind",
        )


def _spelled(image: Any) -> Any:
    """An image in a form that every release takes.

    Some releases take no dict with a ``url``. From 0.5.12.post1 on, SGLang takes base64 of a JPEG file for
    the name of a file, because it begins with a slash.
    """
    if isinstance(image, dict):
        return image["url"] if isinstance(image["url"], str) else image
    if isinstance(image, str):
        for begin, kind in _BASE64.items():
            if image.startswith(begin) and (len(image) > _LONGEST_PATH or not os.path.exists(image)):
                return f"data:image/{kind};base64,{image}"
    return image


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
