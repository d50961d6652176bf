"""The slow image processor is told where an image has its channels.

The slow image processor of ``transformers`` 4 reads the place of the channels off the shape of an array, and
looks at the first size first. So it takes the height of a picture of 1 or 3 rows for its channels. With 1, it
raises; with 3, it makes patches of a turned picture. SGLang's pictures are Pillow's: their channels are last.
"""

from __future__ import annotations

import inspect

from PIL.Image import Image

from deepeyes_patch.seams.wrapping import Call

_MISTAKEN = (1, 3)
_ARGUMENT = "input_data_format"


def name_order(call: Call) -> None:
    """``process_mm_data``: add the argument if one of its images needs it, and the processor guesses."""
    images = call.arguments.get("images") or []
    if not any(isinstance(image, Image) and image.height in _MISTAKEN for image in images):
        return
    image_processor = getattr(call.instance._processor, "image_processor", None)
    inner = getattr(image_processor, "_preprocess", None)
    # The fast one turns a picture into a tensor first, and takes no such argument there.
    if inner is not None and _ARGUMENT in inspect.signature(inner).parameters:
        call.arguments["kwargs"] = {**call.arguments.get("kwargs", {}), _ARGUMENT: "channels_last"}
