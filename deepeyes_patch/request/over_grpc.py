"""Requests that SGLang's gRPC server takes, in ``smg_grpc_servicer.sglang.servicer``.

They arrive as token ids, with images that the client has preprocessed: pixels and grids, and where the
placeholders are. They bypass SGLang's processor, and the message has no field for M-RoPE positions. The
scheduler would compute them from ids in which the images are padded already, and so find no image. So the
positions are computed here, where ids and grids meet, and go to the scheduler with the request.

A refusal is a ``ValueError``. The servicer answers it with ``INVALID_ARGUMENT`` and the message.
"""

from __future__ import annotations

from typing import Any

import torch

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids.positions import position_delta, positions
from deepeyes_patch.ids.request import PretokenizedRequest
from deepeyes_patch.observe import counters
from deepeyes_patch.request import item_checks, media
from deepeyes_patch.request.admit import inputs_of, refuse_placeholders
from deepeyes_patch.request.preprocessed import IMAGES, rows_of
from deepeyes_patch.request.verify import part, pictures
from deepeyes_patch.seams.families import Model, model_of
from deepeyes_patch.seams.wrapping import Call

# The fields of the message that the servicer reads of preprocessed images, and one that says what they are.
_READ = {"pixel_values", "model_specific_tensors", "im_token_id", "mm_placeholders", "modalities"}


def convert(call: Call) -> Any:
    """``_convert_generate_request`` and ``_convert_embed_request``: a message becomes SGLang's request."""
    model = model_of(call.instance)
    tokenized = call.proceed()
    if model is None:
        return tokenized
    inputs, message = inputs_of(tokenized), getattr(call.arguments["grpc_req"], "mm_inputs", None)
    sent = set() if message is None else {field.name for field, _ in message.ListFields()}
    if unread := sorted(sent if inputs is None else sent - _READ):
        raise RefusedRequest(
            "unsupported",
            f"mm_inputs hold {', '.join(unread)}: over gRPC, deepeyes-patch serves images as pixel_values "
            f"with image_grid_thw and mm_placeholders, in requests that generate",
        )
    if inputs is None:
        refuse_placeholders(tokenized.input_ids, model.tokens)
        counters.count(counters.PASSED)
        return tokenized
    _complete(model, tokenized.input_ids, inputs)
    counters.count(counters.RESTORED)
    return tokenized


def _complete(model: Model, ids: Any, inputs: Any) -> None:
    """Check ids and images against each other, and add what the message does not carry.

    Raises
    ------
    RefusedRequest
        Ids, grids, pixels and offsets contradict each other.
    """
    items = part(inputs, "mm_items")
    images = media.checked_images(
        [
            {
                **item.model_specific_data,
                "format": "processor_output",
                "pixel_values": item.feature,
                "modality": item.modality,
            }
            for item in items
        ],
        item_checks.Limits(model.spatial_merge_size, patch_width=model.patch_width),
    )
    grids = [row for index, item in enumerate(images) for row in rows_of(IMAGES, index, item)]
    request = PretokenizedRequest(
        ids,
        model.tokens,
        vocab_size=model.vocab_size,
        image_count=len(grids),
        expanded=range(len(grids)),
    )
    resolution = request.resolve(grids, model.spatial_merge_size)
    told = [tuple(pair) for item in items for pair in item.offsets or ()]
    if told and told != resolution.offsets:
        raise RefusedRequest(
            "media",
            f"mm_placeholders are at (first, last) {told!s:.100}, and the placeholders in input_ids at "
            f"{resolution.offsets!s:.100}; send the latter, or no mm_placeholders",
        )
    remaining = iter(resolution.offsets)
    for item, image in zip(items, images, strict=True):
        rows = image[IMAGES.grid]  # int64 [N, 3], whatever the client sent
        item.model_specific_data[IMAGES.grid] = rows
        item.offsets = [next(remaining) for _ in rows]
    found = positions(len(request.ids), pictures(resolution), model.spatial_merge_size)
    _put(inputs, "im_token_id", model.tokens.image)
    _put(inputs, "mrope_positions", torch.from_numpy(found))
    _put(inputs, "mrope_position_delta", torch.tensor([[position_delta(found)]]))


def _put(inputs: Any, name: str, value: Any) -> None:
    """Set a part of what the scheduler gets: a dict for the first servicers, a typed object since."""
    if isinstance(inputs, dict):
        inputs[name] = value
    else:
        setattr(inputs, name, value)
