"""With ``sampling``: no placeholder is sampled, so that the ids of the next turn are those of real images.

A policy can sample ``<|image_pad|>``. No image belongs to it, so the next turn with these ids is refused, and
the episode is lost. SGLang adds ``logit_bias`` to the logits before it samples and before it takes
log-probs; the log-probs that it returns are those of the distribution without these tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.seams.families import Model, model_of
from deepeyes_patch.seams.wrapping import Call

# Its exponential is 0 in float32, and float16 still holds it. Infinity would not be valid JSON where
# log-probs of such a token are asked for.
FORBIDDEN = -1e4


def forbid_placeholders(call: Call) -> Any:
    """``TokenizerManager._create_tokenized_object``: the request as the scheduler gets it."""
    tokenized = call.proceed()
    model = model_of(getattr(call.instance, "mm_processor", None))
    parameters = getattr(tokenized, "sampling_params", None)  # a request for an embedding has none
    if model is None or parameters is None or getattr(call.arguments["obj"], "input_ids", None) is None:
        return tokenized
    own = parameters.logit_bias or {}
    if not isinstance(own, Mapping):  # several releases take a list, and it ends their scheduler
        raise RefusedRequest(
            "unsupported", f"logit_bias is a {type(own).__name__}, and must map token ids to numbers"
        )
    forbidden = {str(token): FORBIDDEN for token in _forbidden(model)}
    parameters.logit_bias = {**own, **forbidden}
    return tokenized


def _forbidden(model: Model) -> list[int]:
    """All placeholders, and ``<|vision_start|>``: transformers 4 reads the id behind it, even at the end."""
    tokens = (*model.tokens.placeholders.values(), model.tokens.vision_start)
    # Beyond the vocabulary, the scheduler would run into an index error.
    return [token for token in tokens if model.vocab_size is None or token < model.vocab_size]
