"""Which axis of a (t, h, w) position each rotary lane turns by. Plain Python.

A *lane* is one frequency: lane j turns elements j and j + rotary_dim/2 (neox) or 2j and 2j + 1 of a head.
``mrope_section`` gives the number of lanes for t, h and w; it sums to rotary_dim/2.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepeyes_patch.errors import UnsupportedConfigError

T, H, W = 0, 1, 2


def interleaved_axes(mrope_section: Sequence[int]) -> tuple[int, ...]:
    """The axis (0 t, 1 h, 2 w) of each lane in the interleaved layout, THWTHW...TT.

    Lane j is h's if j % 3 == 1 and j < 3*section[1], w's if j % 3 == 2 and j < 3*section[2], else t's.
    Source: ``Qwen3VLTextRotaryEmbedding.apply_interleaved_mrope`` in ``transformers``.

    >>> interleaved_axes([4, 2, 2])
    (0, 1, 2, 0, 1, 2, 0, 0)
    """
    _, h, w = mrope_section
    axes = [T] * sum(mrope_section)
    axes[H : 3 * h : 3] = [H] * len(axes[H : 3 * h : 3])
    axes[W : 3 * w : 3] = [W] * len(axes[W : 3 * w : 3])
    return tuple(axes)


def check_section(mrope_section: Sequence[int], rotary_dim: int) -> None:
    """Refuse sections that are not three sizes which cover the rotary dimension exactly.

    SGLang rescales such sections without an error, which moves every lane.

    Raises
    ------
    UnsupportedConfigError
        The sections are not three sizes of at least 0, or their sum is not ``rotary_dim // 2``.
    """
    if len(mrope_section) != 3 or min(mrope_section) < 0:
        raise UnsupportedConfigError(
            f"mrope_section must be three sizes (t, h, w), and is {list(mrope_section)}"
        )
    if sum(mrope_section) != rotary_dim // 2:
        raise UnsupportedConfigError(
            f"mrope_section {list(mrope_section)} sums to {sum(mrope_section)}, and an interleaved "
            f"rope over rotary_dim {rotary_dim} needs {rotary_dim // 2}"
        )
