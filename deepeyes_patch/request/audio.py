"""Check the audio of a pre-tokenized request, before SGLang loads anything (Qwen3-Omni)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.request import media, preprocessed


def count(audio_data: Any, audio_start: int | None, images: Sequence[Any], videos: Sequence[Any]) -> int:
    """The number of audios. Each must be a file, which SGLang decodes itself.

    Parameters
    ----------
    audio_start:
        The id of the token before an audio; ``None``: deepeyes-patch serves no audio of this model.
    images, videos:
        What else the request holds.

    Raises
    ------
    RefusedRequest
        The model takes no audio, an item is not a file, or the audio stands beside media with which SGLang
        would have to pair it.
    """
    if audio_start is None:
        media.refuse_modalities(audio=audio_data)
        return 0
    items = [] if audio_data is None else media.as_list(audio_data)
    for index, item in enumerate(items):
        if not isinstance(item, (str, bytes)):
            raise RefusedRequest(
                "unsupported",
                f"audio_data[{index}] is of type {type(item).__name__}; with input_ids, send a path, URL, "
                f"data URL or the bytes of a file",
            )
    if len(items) and (videos or any(map(preprocessed.is_preprocessed, images))):
        raise RefusedRequest(
            "unsupported",
            f"audio beside {'videos' if videos else 'preprocessed images'} with input_ids: deepeyes-patch "
            f"serves audio alone or beside raw images. Send the prompt as text",
        )
    return len(items)
