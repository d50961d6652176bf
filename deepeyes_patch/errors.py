"""What the package raises: errors that stop SGLang, refused requests, and faults of its own."""

from __future__ import annotations

from typing import Any

# Why a request can be refused. A closed list: each reason is a label in Prometheus and a count in the record
# of a process, which keeps this order.
REASONS = (
    "token_ids",  # something that is no id of the model's vocabulary
    "placeholders",  # a placeholder that belongs to no image or video
    "count",  # another number of spans than of images or videos
    "length",  # a span that is as long as no image
    "video",  # a video whose ids, frames or times do not fit
    "media",  # an image, video or grid that cannot be used
    "unsupported",  # a kind of request that is not served
    "cut",  # ids that SGLang cut to the context length
    "inexact",  # a result that does not follow from the ids
)


class DeepEyesPatchError(RuntimeError):
    """The package was switched on and cannot do its work; SGLang must not go on without it."""


class SettingsError(DeepEyesPatchError):
    """An environment variable of ours holds a value that means nothing, or was set too late."""


class IncompatibleSGLangError(DeepEyesPatchError):
    """The installed SGLang does not have the functions that a repair wraps, or has them in another shape."""


class UnsupportedConfigError(DeepEyesPatchError, ValueError):
    """The model's configuration asks for rotary embeddings that this SGLang cannot build right."""


class InternalError(DeepEyesPatchError):
    """A fault of deepeyes-patch's own code while it handled a request: HTTP 500, with its traceback."""


class RefusedRequest(ValueError):
    """A request that cannot be served exactly. SGLang answers it with HTTP 400 and the message.

    Parameters
    ----------
    reason:
        One of `REASONS`.
    message:
        What was found, what was expected, and in which image, video or position.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.counted = False

    def __reduce__(self) -> tuple[Any, ...]:
        # A Ray actor sends its exceptions to a driver that may not have this package.
        return ValueError, self.args, {"reason": self.reason}
