"""What is asked of a release's own processor and rope, and whether what comes of it is right.

Every expected value comes from ``transformers`` or from the request itself, as in ``tests/sglang``.
"""

from __future__ import annotations

import importlib
import os
import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.lab import models, processors, reference
from tests.sglang import films, rollouts, test_mrope, test_preprocessed, ways
from tests.sglang.rollouts import Request, picture

PICTURES = [picture(*size) for size in rollouts.SIZES]
GRID_IMAGES = 20


@dataclass(frozen=True)
class Case:
    """A request, made from a model's folder. ``refused``: it cannot be served, and must be a ValueError."""

    make: Callable[[Path], Request]
    text: str | None = None
    refused: bool = False


def _expanded(folder: Path) -> Request:
    return rollouts.expanded(folder, PICTURES[:2])


def _short(folder: Path) -> Request:
    return rollouts.short(folder, PICTURES[:2])


def _drifted(make: Callable[[Path], Request], region: str) -> Callable[[Path], Request]:
    return lambda folder: rollouts.drifted(folder, make(folder), region)


def _preprocessed(folder: Path) -> Request:
    request = test_preprocessed.drifted(folder)
    return replace(request, images=[test_preprocessed.processor_output(folder, request.images)])


def _without_a_pad(folder: Path) -> Request:
    request = _expanded(folder)
    first = rollouts.spans(folder, request.ids)[0][0]
    return replace(request, ids=request.ids[:first] + request.ids[first + 1 :])


def _with_a_stray_pad(folder: Path) -> Request:
    request = _expanded(folder)
    return replace(request, ids=[*request.ids, rollouts.vision(folder).image])


def _without_an_image(folder: Path) -> Request:
    request = _expanded(folder)
    return replace(request, images=request.images[:1])


CASES: dict[str, Case] = {
    "text": Case(_expanded, text=rollouts.conversation(2)),
    "short": Case(_short),
    "short, drifted": Case(_drifted(_short, "between")),
    "expanded": Case(_expanded),
    "expanded, drifted before": Case(_drifted(_expanded, "before")),
    "expanded, drifted between": Case(_drifted(_expanded, "between")),
    "expanded, drifted after": Case(_drifted(_expanded, "after")),
    "history expanded, new turn short": Case(lambda f: rollouts.mixed(f, PICTURES[:3], {2})),
    "expanded, odd size": Case(lambda f: rollouts.expanded(f, [picture(300, 300)])),
    "preprocessed, drifted": Case(_preprocessed),
    "a placeholder missing": Case(_without_a_pad, refused=True),
    "a stray placeholder": Case(_with_a_stray_pad, refused=True),
    "an image missing": Case(_without_an_image, refused=True),
}


def fault(kind: models.Kind, processor: Any, case: Case) -> str:
    """What is wrong with what the processor makes of a case; empty if nothing is."""
    folder = models.ensure(kind)
    request = case.make(folder)
    try:
        outcome = rollouts.attempt(processor, request, case.text)
    except Exception as error:  # stock runs into whatever its code runs into
        outcome = error
    if case.refused:
        return "" if isinstance(outcome, ValueError) else f"not refused: {_in_words(outcome)}"
    if isinstance(outcome, Exception):
        return _in_words(outcome)
    # The grids are those of the pictures, also where a preprocessed item stands for them.
    pictures = [image for image in request.images if not isinstance(image, dict)]
    grids = rollouts.image_grids(folder, pictures or test_preprocessed.IMAGES)
    try:
        rollouts.assert_exact(folder, outcome, request, grids)
    except Exception as error:  # results that lack a part are as wrong as those that differ
        return f"served, and not true: {traceback.extract_tb(error.__traceback__)[-1].line}"
    return ""


# A clip whose groups of frames are a second apart, and one whose are 1.3 seconds.
VIDEOS = {
    f"{clip}, {shape}": (scene, films.SHAPES[shape])
    for clip, scene in (
        ("whole seconds", films.SCENES["videos among images"]),
        ("broken seconds", films.BROKEN_SECONDS["wide"]),
    )
    for shape in ("drifted", "short")
}


def videos(kind: models.Kind) -> dict[str, str]:
    """What becomes of requests with videos: ``exact``, ``refused``, or what is wrong."""
    folder, processor = models.ensure(kind), processors.build(kind)
    # Releases before 0.5.20 pin frames for a GPU even where there is none.
    with mock.patch.object(torch.Tensor, "pin_memory", lambda self, *args, **kwargs: self):
        return {name: _video(folder, processor, *asked) for name, asked in VIDEOS.items()}


def _video(folder: Path, processor: Any, scene: films.Scene, shape: Callable[..., films.Request]) -> str:
    request = shape(folder, films.of_server(folder, scene))
    outcome = films.attempt(processor, list(request.ids), scene)
    if isinstance(outcome, ValueError):
        return "refused"
    if isinstance(outcome, Exception):
        return _in_words(outcome)
    try:
        films.assert_exact(folder, outcome, request)
    except Exception as error:
        return f"served, and not true: {traceback.extract_tb(error.__traceback__)[-1].line}"
    return "exact"


def _in_words(outcome: Any) -> str:
    if isinstance(outcome, Exception):
        return f"{type(outcome).__name__}: {outcome}"[:200].rstrip(": ")
    return "served"


def faults(kind: models.Kind, chosen: Sequence[str]) -> dict[str, str]:
    """The first fault of each case over some of the processor's ways to work; empty if right in all."""
    faults = dict.fromkeys(CASES, "")
    for way in chosen:
        processor = ways.build(kind, way)
        with mock.patch.dict(os.environ, ways.variables(way)):
            for name, case in CASES.items():
                if not faults[name] and (wrong := fault(kind, processor, case)):
                    faults[name] = f"{way}: {wrong}"
    return faults


def grids_that_differ() -> int:
    """How many of `GRID_IMAGES` Qwen3-VL images, in text prompts, get another grid than HF's."""
    folder = models.ensure("qwen3_vl")
    processor = processors.build("qwen3_vl")
    choose = random.Random(28)
    text = rollouts.IMAGE + "What is it?"
    count = 0
    for seed in range(GRID_IMAGES):
        image = picture(choose.randint(200, 1600), choose.randint(200, 1600), seed)
        expected = reference.processor(folder).image_processor(images=[image], return_tensors="pt")
        got = processors.process(processor, text, [image])
        count += got.grids.tolist() != expected["image_grid_thw"].tolist()
    return count


def rope() -> dict[str, Any]:
    """The interleaved rope of this process beside ``transformers``' own, and what YaRN makes of it."""
    module = importlib.import_module(test_mrope.MODULE)
    interleaved = test_mrope.build(module, test_mrope.INTERLEAVED)
    error = test_mrope.error(interleaved, test_mrope.image_positions(), torch.float32)
    return {"native": test_mrope.native(module), "error": error, "right": error < 1e-3, "yarn": _yarn(module)}


def _yarn(module: Any) -> str:
    """``kept``, ``lost`` or ``refused``: the sections of a YaRN rope."""
    try:
        yarn = test_mrope.build(module, test_mrope.YARN)
    except ValueError:
        return "refused"
    return "kept" if getattr(yarn, "mrope_section", None) is not None else "lost"
