"""``python -m tests.e2e.engined WAY...``: asks an `sglang.Engine` that lives in this process.

Each answer is printed as one line of JSON: the way, and the answer or the class and the words of the error.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from tests.e2e import shapes
from tests.lab import client, flags, models


def sent(folder: Path) -> shapes.Sent:
    """What every way sends."""
    return shapes.SHAPES["expanded, drifted between"](folder)


def _bytes(image: Image.Image, folder: Path) -> bytes:
    image.save(buffer := io.BytesIO(), "PNG")
    return buffer.getvalue()


def _path(image: Image.Image, folder: Path) -> str:
    image.save(file := folder / f"{image.width}x{image.height}.png")
    return str(file)


FORMS: dict[str, Callable[[Image.Image, Path], Any]] = {
    "PIL": lambda image, folder: image,
    "bytes": _bytes,
    "path": _path,
    "data URL": lambda image, folder: f"data:image/png;base64,{client.as_base64(image)}",
}
# and one request that is refused
WAYS = [f"{how}, {form}" for how in ("generate", "async_generate") for form in FORMS] + ["refused"]


def ask(engine: Any, way: str, folder: Path, files: Path) -> Any:
    request = sent(folder)
    how, _, form = way.partition(", ")
    fields = {
        "input_ids": request.prompt,
        "image_data": [FORMS[form or "PIL"](image, files) for image in request.images],
        "sampling_params": {"temperature": 0, "max_new_tokens": shapes.NEW_TOKENS, "ignore_eos": True},
        "return_logprob": True,
    }
    if how == "async_generate":
        return engine.loop.run_until_complete(
            asyncio.wait_for(engine.async_generate(**fields), shapes.ANSWER_SECONDS)
        )
    if how == "refused":
        fields["image_data"] = fields["image_data"][:1]
    return engine.generate(**fields)


def main(ways: list[str]) -> None:
    import sglang

    folder = models.ensure("qwen3_vl")
    with (
        tempfile.TemporaryDirectory() as files,
        sglang.Engine(model_path=str(folder), log_level="error", **flags.server_args()) as engine,
    ):
        for way in ways:
            try:
                told: dict[str, Any] = {"answer": ask(engine, way, folder, Path(files))}
            except Exception as error:
                is_a = [cls.__name__ for cls in type(error).__mro__]
                told = {"error": is_a[0], "is_a": is_a, "message": str(error)}
            print(json.dumps({"way": way, **told}), flush=True)


# An Engine starts its children with spawn, which import this module again.
if __name__ == "__main__":
    main(sys.argv[1:])
