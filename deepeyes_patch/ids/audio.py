"""Audio in the ids: spans of the audio placeholder between ``audio_start`` and ``audio_end`` (Qwen3-Omni)."""

from __future__ import annotations

from collections.abc import Sequence

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids.spans import Span


def check_count(found: Sequence[Span], count: int) -> None:
    """Refuse ids whose number of audio spans is not the number of audios.

    Raises
    ------
    RefusedRequest
        The numbers differ.
    """
    if len(found) != count:
        raise RefusedRequest(
            "count",
            f"input_ids hold {len(found)} audio span(s) (audio_start, placeholders, audio_end), and {count} "
            f"audio(s) came with them",
        )


def check_lengths(found: Sequence[Span], lengths: Sequence[int]) -> None:
    """Refuse spans that are neither as long as their audio nor one placeholder.

    Parameters
    ----------
    lengths:
        How many tokens the server's processor makes of each audio.

    Raises
    ------
    RefusedRequest
        A span has another length, or the server made another number of audios.
    """
    if len(lengths) != len(found):
        raise RefusedRequest(
            "inexact",
            f"{len(found)} audio(s) came with input_ids, and the ids that SGLang's processor made of "
            f"{len(lengths)} passed through deepeyes-patch; please report it",
        )
    for index, (span, length) in enumerate(zip(found, lengths, strict=True)):
        if span.length not in (1, length):
            raise RefusedRequest(
                "length",
                f"audio {index} of {len(found)}: input_ids hold {span.length} audio placeholders for it from "
                f"position {span.start} on, and the server's processor makes {length}. Send {length} or a "
                f"single one, of the same samples at the server's rate",
            )


def joined(
    images: Sequence[Span], counts: Sequence[int], found: Sequence[Span], lengths: Sequence[int]
) -> tuple[Sequence[Span], Sequence[int]]:
    """The spans of images and audio in the order of the ids, and how long each should be."""
    if not found:
        return images, counts
    both = sorted([*zip(images, counts, strict=True), *zip(found, lengths, strict=True)])
    return [span for span, _ in both], [length for _, length in both]
