"""Images as callers really send them: any size, any format, broken ones."""

from __future__ import annotations

import base64
import contextlib
import errno
import inspect
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageOps

from deepeyes_patch.errors import RefusedRequest
from tests.lab import models, processors, reference
from tests.sglang import rollouts
from tests.sglang.rollouts import Request, assert_exact, picture

WAYS = ("default", "pool")


def sizes(count: int) -> list[tuple[int, int]]:
    choose = random.Random(20251129)
    return [(choose.randint(64, 900), choose.randint(64, 900)) for _ in range(count)]


FLAT = [(1, 1), (199, 1), (100, 3)]  # a slow image processor takes these heights for channels


@pytest.mark.parametrize("size", FLAT, ids=str)
def test_flat_pictures(size: tuple[int, int], patched: None) -> None:
    """Beside ``transformers`` that is told the order of the channels, where it guesses it otherwise.

    Qwen2.5-VL's pictures are resized by 0.5.3 first.
    """
    folder = models.ensure("qwen3_vl")
    processor = processors.build(folder)
    image = picture(*size)
    order = {"input_data_format": "channels_last"} if guesses(processor) else {}
    done = reference.processor(folder)(text=[rollouts.IMAGE], images=[image], return_tensors="pt", **order)
    ids = done["input_ids"][0].tolist()
    result = processors.process(processor, ids, [image])
    assert_exact(folder, result, Request(ids, [image], ids), done["image_grid_thw"])
    if order:  # elsewhere SGLang's processor and that of the test may run on other devices
        assert torch.equal(result.mm_items[0].feature, done["pixel_values"])


def test_transformers_guesses() -> None:
    folder = models.ensure("qwen3_vl")
    if not guesses(processors.build(folder)):
        pytest.skip("the lab runs this release with the fast image processor")
    make = reference.processor(folder)
    with pytest.raises(ValueError, match="mean must have 1 elements"):
        make(text=[rollouts.IMAGE], images=[picture(199, 1)], return_tensors="pt")
    turned = make(text=[rollouts.IMAGE], images=[picture(100, 3)], return_tensors="pt")
    _, height, width = turned["image_grid_thw"][0].tolist()
    assert height > width  # the picture is 100 wide and 3 high


def guesses(processor: Any) -> bool:
    """Whether its image processor reads the place of the channels off the shape."""
    inner = processor._processor.image_processor._preprocess
    return "input_data_format" in inspect.signature(inner).parameters


@pytest.mark.parametrize("image_count", [1, 2, 3, 4])
def test_random_sizes(image_count: int, kind: models.Kind, folder: Path, patched: None) -> None:
    processor = processors.build(kind)
    many = sizes(30)
    for first in range(0, len(many) - image_count + 1, image_count):
        images = [picture(*size) for size in many[first : first + image_count]]
        request = rollouts.expanded(folder, images)
        assert_exact(folder, processors.process(processor, request.ids, images), request)


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


BASE = picture(448, 448)
FORMATS: dict[str, bytes] = {
    "PNG": _saved(BASE, "PNG"),
    "JPEG": _saved(BASE, "JPEG"),
    "CMYK JPEG": _saved(BASE.convert("CMYK"), "JPEG"),
    "grey JPEG": _saved(BASE.convert("L"), "JPEG"),
    "palette PNG": _saved(BASE.convert("P"), "PNG"),
    "GIF": _saved(BASE, "GIF"),
    "RGBA PNG": _saved(BASE.convert("RGBA"), "PNG"),
    "LA PNG": _saved(BASE.convert("LA"), "PNG"),
    "WebP": _saved(BASE, "WEBP"),
    "BMP": _saved(BASE, "BMP"),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("form", ["bytes", "base64", "data URL"])
def test_formats_that_hf_accepts(
    name: str, form: str, kind: models.Kind, folder: Path, patched: None
) -> None:
    data = FORMATS[name]
    text = base64.b64encode(data).decode()
    sent = {"bytes": data, "base64": text, "data URL": f"data:image/x;base64,{text}"}[form]
    request = rollouts.expanded(folder, [Image.open(io.BytesIO(data)).convert("RGB")])
    processor = processors.build(kind)
    assert_exact(folder, processors.process(processor, request.ids, [sent]), request)


def test_stock_takes_base64_of_a_jpeg_for_a_path(kind: models.Kind, folder: Path) -> None:
    """Base64 that begins with ``/`` is opened as a file, from 0.5.12.post1 on, for text prompts, too."""
    from sglang.srt.utils import common

    text = base64.b64encode(FORMATS["JPEG"]).decode()
    takes_for_a_path = '("file://", "/")' in inspect.getsource(common.get_image_bytes)
    with pytest.raises((OSError, RuntimeError)) if takes_for_a_path else contextlib.nullcontext():
        processors.process(processors.build(kind), rollouts.conversation(1), [text])


@pytest.mark.parametrize("size", [(332, 27), (28, 27), (1, 1), (1000, 4)])
def test_odd_sizes_follow_hf(size: tuple[int, int], kind: models.Kind, folder: Path, patched: None) -> None:
    """Served with HF's grid where HF accepts the image, refused where it does not."""
    image = picture(*size)
    processor = processors.build(kind)
    try:
        request = rollouts.expanded(folder, [image])
    except ValueError:
        tokens = rollouts.vision(folder)
        ids = [tokens.start, tokens.image, tokens.end]
        outcome = rollouts.attempt(processor, rollouts.Request(ids, [image], ids))
        # Releases that enlarge the image first make something of it that HF accepts.
        enlarges = hasattr(inspect.getmodule(processors.processor_class()), "resize_image_async")
        assert isinstance(outcome, ValueError) or (enlarges and kind == "qwen2_5_vl")
        return
    assert_exact(folder, processors.process(processor, request.ids, [image]), request)


BROKEN: dict[str, Callable[[], Any]] = {
    "truncated JPEG": lambda: FORMATS["JPEG"][: len(FORMATS["JPEG"]) // 2],
    "truncated PNG": lambda: FORMATS["PNG"][: len(FORMATS["PNG"]) // 2],
    "a header and nothing more": lambda: FORMATS["PNG"][:20],
    "random bytes": lambda: random.Random(1).randbytes(4096),
    "no bytes": lambda: b"",
    "empty string": lambda: "",
    "not base64": lambda: "these are words, not an image",
    "base64 of random bytes": lambda: base64.b64encode(random.Random(2).randbytes(999)).decode(),
    "a file that is not there": lambda: "/nowhere/at/all.png",
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_images_are_refused_and_the_next_request_is_right(
    name: str, folder: Path, processor: Any, patched: None
) -> None:
    request = rollouts.expanded(folder, [BASE, picture(448, 224)])
    with pytest.raises(RefusedRequest, match=r"\w") as caught:
        processors.process(processor, request.ids, [BROKEN[name](), picture(448, 224)])
    assert len(str(caught.value)) < 2000
    assert_exact(folder, processors.process(processor, request.ids, request.images), request)


def test_a_url_in_a_dict(folder: Path, processor: Any, patched: None) -> None:
    """Some releases take no dict with a text prompt; 0.5.3 takes any dict for embeddings."""
    image = {"url": "data:image/png;base64," + base64.b64encode(FORMATS["PNG"]).decode()}
    request = rollouts.expanded(folder, [BASE])
    of_ids = rollouts.attempt(processor, rollouts.Request(request.ids, [image], request.ids))
    assert_exact(folder, of_ids, request)


@pytest.mark.parametrize("item", [None, 17, [BASE], (BASE,)])
def test_what_is_no_image(item: Any, folder: Path, processor: Any, patched: None) -> None:
    request = rollouts.expanded(folder, [BASE, BASE])
    with pytest.raises(RefusedRequest, match=r"image_data\[1\] is .*no image"):
        processors.process(processor, request.ids, [BASE, item])


def test_the_machines_troubles_are_not_the_callers(
    folder: Path, processor: Any, patched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    request = rollouts.expanded(folder, [BASE])
    monkeypatch.setattr(type(processor._processor.image_processor), "__call__", full)
    with pytest.raises(OSError, match="No space left"):
        processors.process(processor, request.ids, request.images)


def test_exif_orientation_is_the_servers(kind: models.Kind, folder: Path, patched: None) -> None:
    """A JPEG that says 'turn me' has the same token count both ways; positions follow the real grid."""
    upright = picture(448, 224)
    exif = Image.Exif()
    exif[0x0112] = 6
    data = _saved(upright, "JPEG", exif=exif)
    stored = Image.open(io.BytesIO(data))
    turned = ImageOps.exif_transpose(stored)
    assert turned.size == stored.size[::-1]
    request = rollouts.expanded(folder, [stored.convert("RGB")])
    result = processors.process(processors.build(kind), request.ids, [data])
    seen = rollouts.image_grids(folder, [stored.convert("RGB")])
    if result.grids.tolist() != seen.tolist():
        seen = rollouts.image_grids(folder, [turned.convert("RGB")])
    assert_exact(folder, result, request, grids=seen)
