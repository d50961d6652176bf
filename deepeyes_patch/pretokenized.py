"""One pre-tokenized request: the caller's ids, and what they become beside the images' grids.

Pure logic, free of torch and SGLang.
"""

from __future__ import annotations

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
    image_count:
        How many images came along; ``None`` when only the grids will tell (preprocessed items).
    expanded_only:
        The images came preprocessed, which by SGLang's contract means that every span is expanded
        already: a single placeholder is not read as short for many.

    Raises
    ------
    ValueError
        A placeholder outside a span, or another number of spans than of images.
    """

    def __init__(
        self,
        ids: Sequence[int],
        tokens: VisionTokens,
        *,
        image_count: int | None,
        expanded_only: bool = False,
    ) -> None:
        self.ids = list(ids)
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
            raise ValueError(
                f"image {index} of {len(counts)}: input_ids hold {span.length} image placeholders "
                f"for it from position {span.start} on, and the server's image processor makes "
                f"{count} (grid_thw {t}x{h}x{w}, spatial_merge_size {spatial_merge_size}"
                f"{_prefixed(pixel_bounds())}). Send {count}"
                f"{'' if self.expanded_only else ' or a single one'}, with the image sized as the "
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


def _prefixed(text: str) -> str:
    return f", {text}" if text else ""
