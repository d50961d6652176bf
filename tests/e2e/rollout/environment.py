"""A small world to look at: coloured shapes on a textured background, one question, one tool.

Pictures are drawn when they are needed, from a seed, so boxes are known and nothing is downloaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from PIL import Image, ImageDraw

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels of the whole picture

COLOURS = {"red": (214, 40, 40), "green": (30, 150, 70), "blue": (40, 80, 210), "yellow": (235, 200, 30)}
SHAPES = ("circle", "square", "triangle")
# No multiples of a patch, and both ways round: SGLang and transformers have to resize them alike.
SIZES = ((400, 300), (300, 410), (512, 288))

MAX_TURNS = 4


@dataclass(frozen=True)
class Task:
    """A picture, what is asked about it, and where the answer is."""

    picture: Image.Image
    question: str
    box: Box


@dataclass(frozen=True)
class Action:
    """A box to look at closely, or, if it is ``final``, the answer."""

    box: Box
    final: bool


def draw(seed: int) -> Task:
    """Three unlike shapes, one of which is asked for."""
    rng = numpy.random.default_rng(seed)
    width, height = SIZES[seed % len(SIZES)]
    picture = Image.fromarray(_texture(rng, width, height))
    canvas = ImageDraw.Draw(picture)
    kinds = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    found = []
    # Each in a third of its own, so that none hides another.
    for third, kind in enumerate(rng.permutation(len(kinds))[:3]):
        colour, shape = kinds[kind]
        side = float(rng.uniform(0.12, 0.22) * min(width, height))
        left = width * third / 3 + float(rng.uniform(0, width / 3 - side))
        top = float(rng.uniform(0, height - side))
        box = (left, top, left + side, top + side)
        _paint(canvas, shape, COLOURS[colour], box)
        found.append((f"Where is the {colour} {shape}?", box))
    question, box = found[int(rng.integers(3))]
    return Task(picture, question, box)


def zoom(task: Task, box: Box) -> Image.Image:
    """The tool: a box of the picture, enlarged to the picture's size."""
    return task.picture.resize(task.picture.size, Image.Resampling.BICUBIC, box=box)


def read_action(task: Task, answer: Sequence[int]) -> Action | None:
    """What the sampled ids ask for; None if they ask for nothing.

    A trained model writes its call as JSON and this function parses it. A random one never does, so three
    of its ids stand for the numbers: where the box is, how large, and one answer in eight is the last.
    """
    if len(answer) < 3:
        return None
    width, height = task.picture.size
    share = 1 / (2 + answer[2] % 3)
    left = (answer[0] % 16) / 15 * (1 - share) * width
    top = (answer[1] % 16) / 15 * (1 - share) * height
    return Action((left, top, left + share * width, top + share * height), final=answer[2] % 8 == 0)


def reward(task: Task, last: Action | None) -> float:
    """How well the last box fits: generalized intersection over union, -1 to 1, and -1 without a box."""
    if last is None:
        return -1.0
    ours, truth = last.box, task.box
    inner = [max(ours[i], truth[i]) for i in (0, 1)] + [min(ours[i], truth[i]) for i in (2, 3)]
    outer = [min(ours[i], truth[i]) for i in (0, 1)] + [max(ours[i], truth[i]) for i in (2, 3)]
    shared = _area(inner)
    union = _area(ours) + _area(truth) - shared
    return shared / union - (_area(outer) - union) / _area(outer)


def _area(box: Sequence[float]) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def _texture(rng: numpy.random.Generator, width: int, height: int) -> numpy.ndarray:
    """uint8 [height, width, 3]: waves in three directions and noise, so that no two patches are alike."""
    rows, columns = numpy.mgrid[0:height, 0:width]
    ground = numpy.full((height, width, 3), 128.0)
    for channel in range(3):
        angle, length = rng.uniform(0, math.pi), rng.uniform(15, 60)
        along = columns * math.cos(angle) + rows * math.sin(angle)
        ground[..., channel] += 40 * numpy.sin(2 * math.pi * along / length)
    return (ground + rng.normal(0, 12, ground.shape)).clip(0, 255).astype(numpy.uint8)


def _paint(canvas: ImageDraw.ImageDraw, shape: str, colour: tuple[int, int, int], box: Box) -> None:
    left, top, right, bottom = box
    if shape == "circle":
        canvas.ellipse(box, fill=colour)
    elif shape == "square":
        canvas.rectangle(box, fill=colour)
    else:
        canvas.polygon([((left + right) / 2, top), (right, bottom), (left, bottom)], fill=colour)
