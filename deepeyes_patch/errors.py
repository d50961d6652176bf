"""The exceptions of this package: errors that stop SGLang, refused requests, and faults in our own code."""

from __future__ import annotations

from typing import Any

# The reasons for a refusal. The list is fixed: each reason is a label in Prometheus, and a count in the
# record of a process. The counts have this order.
REASONS = (
    "token_ids",  # an item that is not an id of the model's vocabulary
    "placeholders",  # a placeholder that belongs to no image or video
    "count",  # the number of spans differs from the number of images or videos
    "length",  # a span whose length is not that of its image
    "video",  # a video whose ids, frames or times do not fit
    "media",  # an image, video or grid that cannot be used
    "unsupported",  # a kind of request that is not served
    "cut",  # ids that SGLang cut to the context length
    "inexact",  # a result that does not follow from the ids
)


# Every refusal begins with this: trainers retry what fails, one of them sixty times.
REFUSED = "deepeyes-patch refuses this request, and sending it again cannot help: "


class DeepEyesPatchError(RuntimeError):
    """The package was switched on and cannot do its work; SGLang must not go on without it.

    ``heard``: the message is in the log already.
    """

    heard = False


class SettingsError(DeepEyesPatchError):
    """One of our environment variables holds an unknown value, or was set too late."""


class IncompatibleSGLangError(DeepEyesPatchError):
    """The installed SGLang does not have the functions that a repair wraps, or has them in another shape."""


class UnsupportedConfigError(DeepEyesPatchError, ValueError):
    """The model's configuration asks for rotary embeddings that this SGLang cannot build right."""


class InternalError(DeepEyesPatchError):
    """Our own code failed while it handled a request: the server answers HTTP 500 and logs the traceback."""


class RefusedRequest(ValueError):
    """A request that cannot be served exactly. SGLang answers it with HTTP 400 and the message.

    Pickled or copied it is a plain ``ValueError`` with the same message and ``reason``.

    Parameters
    ----------
    reason:
        One of `REASONS`.
    message:
        What was found, what was expected, and in which image, video or position. `REFUSED` comes before it.

    Raises
    ------
    LookupError
        The reason is none of `REASONS`.
    """

    def __init__(self, reason: str, message: str) -> None:
        if reason not in REASONS:
            raise LookupError(f"{reason!r} is no reason for a refusal")
        super().__init__(f"{REFUSED}{message}")
        self.reason = reason
        self.counted = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled as a plain ValueError: a Ray actor sends its exceptions to a driver process, which may not
        # have this package.
        return ValueError, self.args, {"reason": self.reason}
