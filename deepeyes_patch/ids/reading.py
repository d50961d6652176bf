"""Read the caller's ids: into an array once, and into a list of our own."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence

import numpy

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids.spans import IdArray


def token_ids(ids: Sequence[int], vocab_size: int | None) -> tuple[IdArray, list[int]]:
    """The ids as int64 [T] and as our own list.

    Raises
    ------
    RefusedRequest
        An item is not a token id, or the model has no embedding for it.
    """
    if isinstance(ids, (bytes, bytearray, memoryview)):  # `array` would read eight bytes as one id
        raise RefusedRequest(
            "token_ids", f"input_ids must be a flat sequence of token ids: they are {type(ids).__name__}"
        )
    if vocab_size is None:
        vocab_size = numpy.iinfo(numpy.int64).max
    values: IdArray | None = None
    # No function of ours in here: a fault in it would look like a fault of the client. `array` refuses
    # fractions, which NumPy's own conversion would cut off.
    try:
        if type(ids) is list:  # only a list can surely be read twice
            # ``q`` parses each number as the argument of a function, and takes thrice as long as ``Q``, which
            # takes no negative number. So the largest number tells whether all are in the vocabulary.
            with contextlib.suppress(OverflowError):
                numbers = numpy.asarray(array("Q", ids))
                if not len(numbers) or int(numbers.max()) < vocab_size:
                    values = numbers.view(numpy.int64)
        are_inside = values is not None
        if values is None:
            values = numpy.asarray(array("q", ids))
    except (TypeError, ValueError, OverflowError) as error:
        raise RefusedRequest(
            "token_ids", f"input_ids must be a flat sequence of token ids: {error}"
        ) from error
    own = list(ids) if _are_ints(ids) else values.tolist()
    if not are_inside and len(outside := numpy.flatnonzero((values < 0) | (values >= vocab_size))):
        raise RefusedRequest(
            "token_ids",
            f"input_ids hold {values[outside[0]]} at position {outside[0]}, and the model has embeddings for "
            f"0 to {vocab_size - 1}",
        )
    return values, own


def _are_ints(ids: Sequence[int]) -> bool:
    """Whether ``ids`` is a list that holds only Python ints (or bools), found in one pass of C code.

    Any other type in the list changes the type of the sum, or makes ``sum`` raise.
    """
    try:
        return type(ids) is list and type(sum(ids)) is int
    except TypeError:
        return False
