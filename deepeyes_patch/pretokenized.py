"""One pre-tokenized request: the caller's ids, and what they become beside the images' grids.

Pure logic, free of torch and SGLang.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deepeyes_patch import spans
from deepeyes_patch.spans import Span, VisionTokens

GridTHW = tuple[int, int, int]


@dataclass(frozen=True)
class Resolution:
    """What the model must see.

    ``ids``: the caller's ids, single placeholders expanded. ``offsets``: (first, last) position of
    each image in ``ids``, both inclusive. ``grids``: (t, h, w) of each image, in patches.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]
    grids: list[GridTHW]


class PretokenizedRequest:
    """The ids of a request and its image spans.

    Parameters
    ----------
    ids:
        The caller's token ids; copied.
    tokens:
        The ids with a meaning, from the processor's configuration.
    vocab_size:
        How many rows the model's embedding has. SGLang clamps ids beyond it to the nearest row.
    image_count:
        How many images came along; ``None`` when only the grids will tell (preprocessed items).
    expanded_only:
        The images came preprocessed, which by SGLang's contract means that every span is expanded
        already: a single placeholder is not read as short for many.

    Raises
    ------
    ValueError
        Something that is no token id, a placeholder outside a span, or another number of spans than of
        images.
    """

    def __init__(
        self,
        ids: Sequence[int],
        tokens: VisionTokens,
        *,
        vocab_size: int,
        image_count: int | None,
        expanded_only: bool = False,
    ) -> None:
        self.ids = _token_ids(ids, vocab_size)
        self.spans: list[Span] = spans.find_spans(self.ids, tokens)
        self.expanded_only = expanded_only
        if image_count is not None:
            self._check_count(image_count)

    def collapsed(self) -> list[int]:
        """The caller's ids with one placeholder per image: upstream's own convention."""
        return spans.collapse(self.ids, self.spans)

    def resolve(
        self,
        grids: Sequence[Sequence[int]],
        spatial_merge_size: int,
        pixel_bounds: Callable[[], str] = str,
    ) -> Resolution:
        """Match every span with its image's grid.

        Parameters
        ----------
        grids:
            (t, h, w) in patches for each image, in order, as the server's processor made them.
        spatial_merge_size:
            Patches per side that become one token; image i takes t*h*w / spatial_merge_size**2.
        pixel_bounds:
            Describes the server's effective pixel bounds, for the message; called on refusal only.

        Raises
        ------
        ValueError
            Another number of spans than of grids, or a span whose length is neither that of its
            image nor, for a raw image, one.
        """
        rows: list[GridTHW] = [(int(t), int(h), int(w)) for t, h, w in grids]
        self._check_count(len(rows))
        counts = [t * h * w // spatial_merge_size**2 for t, h, w in rows]
        for index, (span, count) in enumerate(zip(self.spans, counts, strict=True)):
            if span.length == count or (span.length == 1 and not self.expanded_only):
                continue
            t, h, w = rows[index]
            grid = f"grid_thw {t}x{h}x{w}, spatial_merge_size {spatial_merge_size}"
            found = (
                f"image {index} of {len(counts)}: input_ids hold {span.length} image placeholders for it "
                f"from position {span.start} on"
            )
            if self.expanded_only:
                raise ValueError(f"{found}, and the image_grid_thw that came with it makes {count} ({grid})")
            raise ValueError(
                f"{found}, and the server's image processor makes {count} ({grid}"
                f"{_prefixed(pixel_bounds())}). Send {count} or a single one, with the image sized as the "
                f"server sizes it"
            )
        return Resolution(
            ids=spans.expand(self.ids, self.spans, counts),
            offsets=spans.offsets(self.spans, counts),
            grids=rows,
        )

    def _check_count(self, image_count: int) -> None:
        if len(self.spans) != image_count:
            raise ValueError(
                f"input_ids hold {len(self.spans)} image span(s) (vision_start, placeholders, "
                f"vision_end), and {image_count} image(s) came with them"
            )


def _token_ids(ids: Sequence[int], vocab_size: int) -> list[int]:
    """A list of plain ints that the model has embeddings for."""
    try:
        plain = array("q", ids).tolist()
    except (TypeError, OverflowError) as error:
        raise ValueError(f"input_ids must be a flat sequence of token ids: {error}") from error
    if plain and not (min(plain) >= 0 and max(plain) < vocab_size):
        position = next(i for i, token in enumerate(plain) if not 0 <= token < vocab_size)
        raise ValueError(
            f"input_ids hold {plain[position]} at position {position}, and the model has embeddings for "
            f"0 to {vocab_size - 1}"
        )
    return plain


def _prefixed(text: str) -> str:
    return f", {text}" if text else ""
