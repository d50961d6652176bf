"""Pre-tokenized requests to a class that handles ids by itself.

Two kinds of classes that derive from SGLang's Qwen-VL processor run SGLang's code alone. The first kind
overrides the outermost method (InternS1, POINTS). For the second kind, the model's configuration lacks a
token id that the repair needs. SGLang's code takes one placeholder per image. It explodes on expanded images,
and it makes other ids if decoding and tokenizing do not give the caller's ids back. Exact results pass, all
others are refused. This module imports neither torch nor SGLang.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids import spans

_REMEDY = (
    "deepeyes-patch does not serve this class, and SGLang's own code takes one placeholder per image there. "
    "Send the prompt as text, or the ids that its tokenizer makes of it, with one placeholder per image"
)


def unserved_request(processor: Any, ids: Sequence[int]) -> UnservedRequest:
    """The request of a processor that we do not serve."""
    return UnservedRequest(ids, processor.mm_tokens.image_token_id, type(processor).__name__)


class UnservedRequest:
    """The ids of a request to a class that we do not serve.

    Parameters
    ----------
    ids:
        The caller's token ids; copied.
    image_token:
        The image placeholder.
    owner:
        The class, for messages.
    """

    def __init__(self, ids: Sequence[int], image_token: int, owner: str) -> None:
        self._ids = list(ids)
        self._token = image_token
        self._owner = owner
        self._runs = spans.find_runs(self._ids, image_token)

    def check_placeholders(self, image_count: int) -> None:
        """Refuse ids on which SGLang would explode. It takes one placeholder for each image.

        Raises
        ------
        RefusedRequest
            There is a run of several placeholders, or the number of runs is not ``image_count``.
        """
        for run in self._runs:
            if run.length > 1:
                raise RefusedRequest(
                    "placeholders",
                    f"input_ids hold {run.length} image placeholders (token {self._token}) from position "
                    f"{run.start} on, and {self._owner} takes one for each image: {_REMEDY}",
                )
        if len(self._runs) != image_count:
            raise RefusedRequest(
                "placeholders",
                f"input_ids hold {len(self._runs)} image placeholder(s) (token {self._token}), and "
                f"{image_count} image(s) came with them ({self._owner})",
            )

    def check_result(self, ids: Sequence[int], offsets: Sequence[tuple[int, int]]) -> None:
        """Refuse ids other than the caller's (expanded), and offsets at which no image stands.

        Parameters
        ----------
        ids:
            What SGLang made of the caller's ids.
        offsets:
            (first, last) of each image in ``ids``, both inclusive, in any order.

        Raises
        ------
        RefusedRequest
            Ids or offsets do not follow from the caller's ids.
        """
        used = list(ids)
        runs = spans.find_runs(used, self._token)
        lengths = [run.length for run in runs]
        grown = len(runs) == len(self._runs) and all(
            sent.length in (1, length) for sent, length in zip(self._runs, lengths, strict=True)
        )
        if not grown or spans.expand(self._ids, self._runs, lengths) != used:
            raise RefusedRequest(
                "inexact",
                f"{self._owner} turned {len(self._ids)} input_ids into {len(used)} that are not the caller's "
                f"(other tokens, or other placeholders than for {len(self._runs)} image(s)): {_REMEDY}",
            )
        if sorted(offsets) != spans.offsets(runs, lengths):
            raise RefusedRequest(
                "inexact",
                f"{self._owner} placed images at {sorted(offsets)!s:.200}, and input_ids hold their "
                f"placeholders elsewhere, at {spans.offsets(runs, lengths)!s:.200}: {_REMEDY}",
            )
