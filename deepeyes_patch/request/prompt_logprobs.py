"""Log-probs of the prompt (``logprob_start_len``): of the ids that the model was given, images included.

SGLang replaces the placeholders of an image by a number made of its hash, far beyond the vocabulary, and
takes the log-probs of the prompt from these numbers. It returns id 0 there, and the log-prob of the last id
of the vocabulary; releases that do not clamp the numbers read beyond the logits.

`choose_ids` puts the placeholders in before the log-probs are taken, `return_ids` when they are returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepeyes_patch.seams.families import served_type
from deepeyes_patch.seams.wrapping import Call

# Attribute of a request of the scheduler: whether all its log-probs were taken of its own ids.
_CHOSEN = "_deepeyes_patch_prompt_ids"
# Attributes of a batch. The ids, one after the other; and for each request: how many of its ids are cached,
# how many are computed, and at how many of these no log-prob is asked for.
_READ = ("extend_input_logprob_token_ids", "prefix_lens", "extend_lens", "extend_logprob_start_lens")


def choose_ids(call: Call) -> Any:
    """``ScheduleBatch.prepare_for_extend``: which ids the log-probs of the prompt are taken of."""
    result = call.proceed()
    batch = call.instance
    if getattr(batch, "return_logprob", False) and served_type(batch.model_config.hf_config) is not None:
        _choose(batch)
    return result


def return_ids(call: Call) -> Any:
    """The scheduler adds the log-probs of a chunk of the prompt to its request, with the ids at the end."""
    request = call.arguments["req"]
    if not getattr(request, _CHOSEN, False):
        return call.proceed()
    padded = request.origin_input_ids
    request.origin_input_ids = request.origin_input_ids_unpadded
    try:
        return call.proceed()
    finally:
        request.origin_input_ids = padded


def _choose(batch: Any) -> None:
    """Each request has one entry for each of its logits that are kept: the id that follows there."""
    entries, prefixes, lengths, skips = (getattr(batch, name, None) for name in _READ)
    if entries is None or prefixes is None or lengths is None or skips is None:
        return  # SGLang's own answer stays, with id 0 where it is wrong
    begin = 0
    for request, prefix, extend, skipped in zip(batch.reqs, prefixes, lengths, skips, strict=True):
        end = begin + extend - skipped
        if _has_padded_ids(request):
            own = entries[begin:end]
            chosen = _replace(own, request, prefix + skipped + 1, batch.model_config.vocab_size)
            setattr(request, _CHOSEN, chosen and getattr(request, _CHOSEN, True))
        begin = end


def _has_padded_ids(request: Any) -> bool:
    ids, padded = request.origin_input_ids_unpadded, request.origin_input_ids
    return request.multimodal_inputs is not None and ids is not padded and len(ids) == len(padded)


def _replace(entries: Any, request: Any, first: int, vocab_size: int) -> bool:
    """Replace the padded ids from position ``first`` on; False if ``entries`` [N] holds something else."""
    import torch

    def from_first(ids: Sequence[int]) -> Any:
        return torch.tensor(list(ids[first : first + len(entries)]), dtype=entries.dtype)

    padded, ids = from_first(request.origin_input_ids), from_first(request.origin_input_ids_unpadded)
    there = entries[: len(ids)]
    if not torch.equal(there.clamp(0, vocab_size - 1), padded.clamp(0, vocab_size - 1)):
        return False
    there.copy_(ids)
    return True
