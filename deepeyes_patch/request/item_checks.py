"""Check what images and videos that came preprocessed hold, before SGLang sees them."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from deepeyes_patch.errors import RefusedRequest
from deepeyes_patch.ids.spans import Span, offsets, token_count
from deepeyes_patch.request.preprocessed import IMAGES, SECONDS, VIDEOS, Kind, is_preprocessed, rows_of

_FORMATS = ("processor_output", "precomputed_embedding")


class Limits(NamedTuple):
    """What items are checked against.

    ``formats_matter``: this SGLang goes by the ``format`` of an item; earlier releases (to 0.5.4 at least)
    take any dict for output of the HF processor. ``patch_width``: how many numbers the HF processor makes of
    one patch; ``None``: not known. ``timed``: the positions of videos depend on seconds (Qwen2.5-VL).
    """

    spatial_merge_size: int
    formats_matter: bool = True
    patch_width: int | None = None
    timed: bool = False


def checked(kind: Kind, index: int, item: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """A copy of a preprocessed item, with its grid as a tensor and its format in lower case.

    Raises
    ------
    RefusedRequest
        SGLang would fail on its keys or shapes, or they contradict each other.
    """
    rows = rows_of(kind, index, item)
    patches = sum(t * h * w for t, h, w in rows)
    tokens = sum(token_count(row, limits.spatial_merge_size) for row in rows)
    for name, demanded in zip(kind.features, (patches, tokens, tokens), strict=True):
        if item.get(name) is None:
            continue
        shape = getattr(item[name], "shape", None)
        if shape is None or not _is_float(item[name]):
            raise RefusedRequest(
                "media",
                f"preprocessed item {index} of {kind.data} holds {name} of type {type(item[name]).__name__}, "
                f"and it must be a tensor or an array of floating-point numbers",
            )
        if len(shape) != 2 or shape[0] != demanded:
            raise RefusedRequest(
                "media",
                f"a preprocessed item of {kind.data} holds {name} of shape {list(shape)}, and its "
                f"{kind.grid} demands {demanded} rows",
            )
        if name == kind.pixels and limits.patch_width is not None and shape[1] != limits.patch_width:
            raise RefusedRequest(
                "media",
                f"preprocessed item {index} of {kind.data} holds {name} of shape {list(shape)}, and "
                f"this model's patches have {limits.patch_width} values each",
            )
    form = _word(item.get("format"))
    _require_features(kind, index, item, form, limits.formats_matter)
    _refuse_odd_metadata(kind, index, item, len(rows), limits.formats_matter)
    own = {**item, kind.grid: torch.tensor(rows)}
    if kind is VIDEOS and limits.timed:
        own[SECONDS] = _seconds(index, item.get(SECONDS), len(rows))
    else:
        own.pop(SECONDS, None)  # get_rope_index would look for the seconds of each group of frames
    # A member of SGLang's enumeration and its name mean the same, but only newer releases know both.
    return {**own, "format": form} if limits.formats_matter else own


def _seconds(index: int, given: Any, count: int) -> torch.Tensor:
    try:
        values = [float(second) for second in torch.as_tensor(given).flatten().tolist()]
        if len(values) != count or not all(0 < second < math.inf for second in values):
            raise ValueError("it must be one positive number for each video")
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise RefusedRequest(
            "media",
            f"preprocessed item {index} of video_data holds {SECONDS} {given!s:.100}, so the M-RoPE "
            f"positions of its {count} video(s) are unknown: {error}",
        ) from error
    return torch.tensor(values)


def _is_float(features: Any) -> bool:
    """Whether a tensor or an array holds floating-point numbers, as features of a model do."""
    if isinstance(features, torch.Tensor):
        return bool(features.is_floating_point())
    return bool(getattr(getattr(features, "dtype", None), "kind", None) == "f")


def _require_features(kind: Kind, index: int, item: dict[str, Any], form: str, formats_matter: bool) -> None:
    if formats_matter and form not in _FORMATS:
        raise RefusedRequest(
            "media",
            f"preprocessed item {index} of {kind.data} is of format {form or 'unknown'}, and SGLang knows "
            f"{' and '.join(_FORMATS)}",
        )
    embedded = formats_matter and form == "precomputed_embedding"
    needed = ("feature",) if embedded else (kind.pixels, "precomputed_embeddings")
    if not any(item.get(name) is not None for name in needed):
        raise RefusedRequest(
            "media",
            f"preprocessed item {index} of {kind.data}, of format {form or 'unknown'}, holds no "
            f"{' or '.join(needed)}; its keys are {sorted(map(str, item))!s:.200}",
        )


def _word(form: Any) -> str:
    word = getattr(form, "name", form)
    return "" if word is None else f"{word!s:.50}".lower()


def _refuse_odd_metadata(
    kind: Kind, index: int, item: dict[str, Any], count: int, formats_matter: bool
) -> None:
    """Check ``offsets``, ``hash``, ``pad_value`` and ``modality``, which SGLang uses as they are."""
    problems = []
    if item.get("offsets") is not None:
        try:
            pairs = torch.as_tensor(item["offsets"])
            whole = pairs.dtype in (torch.int64, torch.int32) and pairs.ndim == 2 and pairs.shape[1] == 2
            # A video can have several spans.
            if not whole or (kind is IMAGES and len(pairs) != count):
                problems.append(f"offsets of shape {list(pairs.shape)}")
        except (TypeError, ValueError, RuntimeError, OverflowError):
            problems.append("offsets that are no pairs")
    for name in ("hash", "pad_value"):
        try:
            operator.index(0 if item.get(name) is None else item[name])
        except (TypeError, ValueError, RuntimeError):
            problems.append(f"{name} of type {type(item[name]).__name__}")
    modality = _word(item.get("modality"))
    if modality not in ("", kind.name) and (formats_matter or modality != f"multi_{kind.name}s"):
        problems.append(f"modality {modality}")
    problems += [f"{name!s:.50}" for name in item if str(name).startswith(kind.foreign)]
    if kind is VIDEOS and item.get(IMAGES.pixels) is not None:
        problems.append(IMAGES.pixels)
    if problems:
        raise RefusedRequest(
            "media", f"preprocessed item {index} of {kind.data} holds {', '.join(problems)}; leave them out"
        )


def refuse_other_offsets(kind: Kind, items: Sequence[Any], spans: Sequence[Span]) -> None:
    """Refuse ``offsets`` of preprocessed items that are not those of the ids' spans.

    SGLang 0.5.23 uses them as they are, and fills as much memory as they ask for.

    Raises
    ------
    RefusedRequest
        An item holds other offsets.
    """
    if not any(map(is_preprocessed, items)):
        return
    right = iter(offsets(spans, [span.length for span in spans]))
    for index, item in enumerate(items):
        if not is_preprocessed(item):
            next(right, None)
            continue
        given = item.get("offsets")
        count = len(item[kind.grid]) if kind is IMAGES or given is None else len(given)
        own = list(itertools.islice(right, count))
        if given is not None and [(int(a), int(b)) for a, b in given] != own:
            raise RefusedRequest(
                "media",
                f"preprocessed item {index} of {kind.data} holds offsets that are not those of the "
                f"placeholders in input_ids, {own!s:.100}; leave them out",
            )
