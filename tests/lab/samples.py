"""Prompts and pictures for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

# One image in a prompt, not yet expanded.
SPAN = "<|vision_start|><|image_pad|><|vision_end|>"

# Sides that neither family resizes, and that 0.5.3 to 0.5.5.post1 leave alone too: multiples of
# both 28 and 32.
EVEN_SIZES = ((448, 224), (672, 224))


def picture(width: int, height: int, seed: int = 0) -> Image:
    """RGB noise: every patch differs, so a feature in the wrong place shows."""
    import numpy
    from PIL import Image

    noise = numpy.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=numpy.uint8)
    return Image.fromarray(noise)


def pictures(*sizes: tuple[int, int]) -> list[Image]:
    """Different pictures of the given (width, height); without sizes, the even ones."""
    chosen = sizes or EVEN_SIZES
    return [picture(width, height, seed) for seed, (width, height) in enumerate(chosen)]


def conversation(user: str) -> str:
    """One turn in Qwen's chat format, ready for the answer."""
    return f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"


def prompt(images: int = 2) -> str:
    """A turn about some images."""
    spans = " and ".join([SPAN] * images)
    return conversation(f"Look at {spans}. What is in them?" if images else "Say something.")
