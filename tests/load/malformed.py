"""Malformed requests: good ones, changed at random, with what is due to each by the contract.

Some changes leave a legal request (an edit in the text, a grid of the same size); what is due is decided by
the definition of a span (`tests.fuzz.oracle`), not by the change's name.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image

from deepeyes_patch.verification import tiny
from tests.e2e.shapes import Sent
from tests.fuzz.oracle import Grid, Words, due
from tests.fuzz.requests import edits
from tests.lab import models
from tests.load.good import Good, batch, encoded, single
from tests.sglang import rollouts

NEW_TOKENS = 2
WORDS = "bm90IGFuIGltYWdl"  # base64 of words

# A broken image is upstream's own affair where the prompt is text.
UPSTREAMS = "text with a broken image"


@dataclass(frozen=True)
class Malformed:
    """Refused, with a message that matches one of ``problems``; or, with ``rows``, served after all."""

    kind: str
    body: dict[str, Any]
    problems: tuple[str, ...]
    rows: tuple[Sent, ...] = ()


def draw(folder: Path, pool: list[Good], number: int, start: int) -> list[Malformed]:
    """At least ``number`` of them, equally many of each change; always the same ones for a seed ``start``."""
    of_each = -(-number // len(CHANGES))
    return [one for change in CHANGES for one in _draw(requests(folder, pool, change), of_each, start)]


def _draw(strategy: st.SearchStrategy[Malformed], number: int, start: int) -> list[Malformed]:
    found: list[Malformed] = []

    @seed(start)
    @settings(
        max_examples=2 * number,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(one: Malformed) -> None:
        found.append(one)

    collect()
    # The first ones that hypothesis draws are small and much alike.
    return found[-number:]


@cache
def words_of(folder: Path) -> Words:
    vision = rollouts.vision(folder)
    vocabulary = json.loads((folder / "config.json").read_text())["text_config"]["vocab_size"]
    return Words(vision.start, vision.image, vision.end, vision.video, vocabulary, models.MERGE_SIZE)


@cache
def _grid(folder: Path, size: tuple[int, int]) -> Grid:
    ((t, h, w),) = rollouts.image_grids(folder, [rollouts.picture(*size)]).tolist()
    return t, h, w


@st.composite
def requests(draw: st.DrawFn, folder: Path, pool: list[Good], change: Change) -> Malformed:
    good = [one.rows[0] for one in pool if isinstance(one.rows[0].prompt, list) and one.rows[0].images]
    row = draw(st.sampled_from(good))
    changed = change(draw, words_of(folder), folder, row)
    if changed.kind == UPSTREAMS:
        return changed
    if draw(st.integers(0, 3)) == 3:
        return replace(changed, kind=f"{changed.kind}, stream", body={**changed.body, "stream": True})
    return changed


def _judged(
    kind: str, folder: Path, words: Words, row: Sent, ids: list[Any], images: list[Image.Image]
) -> Malformed:
    """A request whose ids or images were changed; what is due follows from both."""
    body = single(Sent(ids, images, ids), NEW_TOKENS)
    wanted = due(ids, [_grid(folder, image.size) for image in images], words)
    if not images and wanted.problems:
        # Without any image the message counts the placeholders and names the first.
        pads = [(i, name) for i, token in enumerate(ids) for name in _pad_name(token, words)]
        problems = tuple(
            rf"hold \d+ {name} placeholder\(s\).*first at position {i}\b.*no {name} came" for i, name in pads
        )
        if not problems:
            return Malformed(kind, body, ("",), ())
        return Malformed(kind, body, problems)
    if wanted.problems:
        # Upstream looks for this first.
        return Malformed(kind, body, (*wanted.problems, *(["cannot be empty"] if not ids else [])))
    return Malformed(f"{kind}, legal", body, (), (Sent(ids, images, wanted.ids),))


def _pad_name(token: Any, words: Words) -> list[str]:
    return {words.image: ["image"], words.video: ["video"]}.get(token, [])


# --- the changes --------------------------------------------------------------------------------------

Change = Callable[[st.DrawFn, Words, Path, Sent], Malformed]


def _edited(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    ids: list[Any] = list(row.prompt)
    for _ in range(draw(st.integers(1, 3))):
        ids = draw(edits(ids, words))
    return _judged("edited ids", folder, words, row, ids, row.images)


def _run_length(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    ids = list(row.prompt)
    first, last = draw(st.sampled_from(rollouts.spans(folder, ids)))
    how = draw(st.sampled_from(["one less", "one more", "double", "merged"]))
    if how == "one less":
        del ids[first]
    elif how == "one more":
        ids.insert(first, words.image)
    elif how == "double":
        ids[first:first] = ids[first : last + 1]
    else:  # two images' placeholders in one run
        ids[first : last + 1] = [words.image] * (2 * (last - first + 1))
        row = Sent(ids, [*row.images, row.images[0]], ids)
    return _judged("run length", folder, words, row, ids, row.images)


def _marker_order(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    ids = list(row.prompt)
    first, last = draw(st.sampled_from(rollouts.spans(folder, ids)))
    how = draw(st.sampled_from(["exchanged", "no start", "no end", "both starts", "text inside"]))
    if how == "exchanged":
        ids[first - 1], ids[last + 1] = words.end, words.start
    elif how == "no start":
        del ids[first - 1]
    elif how == "no end":
        del ids[last + 1]
    elif how == "both starts":
        ids[last + 1] = words.start
    else:
        ids.insert(draw(st.integers(first, last + 1)), 5)
    return _judged("marker order", folder, words, row, ids, row.images)


def _other_images(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    how = draw(st.sampled_from(["one less", "one more", "none", "the other way round"]))
    images = {
        "one less": row.images[:-1],
        "one more": [*row.images, row.images[0]],
        "none": [],
        "the other way round": row.images[::-1],
    }[how]
    return _judged("other images", folder, words, row, list(row.prompt), images)


def _image_without_pad(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    ids = draw(st.lists(st.integers(0, words.start - 1), max_size=20))
    return _judged("image without pad", folder, words, row, ids, row.images)


def _video_pad(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    ids = [words.video if token == words.image else token for token in row.prompt]
    if draw(st.booleans()):
        ids = list(row.prompt)
        ids.insert(draw(st.integers(0, len(ids))), words.video)
    images = draw(st.sampled_from([row.images, []]))
    return _judged("video pad", folder, words, row, ids, images)


def _no_ids(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    ids: list[Any] = list(row.prompt)
    at = draw(st.integers(0, len(ids) - 1))
    ids[at] = draw(st.sampled_from([1.5, None, "a", [5], {}, 2**70, [[1, 2]]]))
    body = single(Sent(list(row.prompt), row.images, []), NEW_TOKENS)
    return Malformed("no ids", {**body, "input_ids": draw(st.sampled_from([ids, "ids", 7, {"a": 1}]))}, ("",))


def _outside(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    ids = list(row.prompt)
    at = draw(st.integers(0, len(ids) - 1))
    ids[at] = draw(st.sampled_from([-1, -(2**31), words.vocabulary, words.vocabulary + 1, 10**7, 2**40]))
    return _judged("outside the vocabulary", folder, words, row, ids, row.images)


def _broken(draw: st.DrawFn, image: Image.Image) -> Any:
    """A string that is no image, or is half of one."""
    half = base64.b64decode(encoded([image])[0])
    half = half[: draw(st.integers(9, len(half) // 2))]
    noise = draw(st.binary(min_size=20, max_size=60))
    return draw(st.sampled_from([WORDS, base64.b64encode(half).decode(), base64.b64encode(noise).decode()]))


def _undecodable(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    body = single(row, NEW_TOKENS)
    at = draw(st.integers(0, len(row.images) - 1))
    data = list(body["image_data"])
    data[at] = _broken(draw, row.images[at])
    return Malformed("undecodable image", {**body, "image_data": data}, ("image",))


def _no_image(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    body = single(row, NEW_TOKENS)
    at = draw(st.integers(0, len(row.images) - 1))
    data: list[Any] = list(body["image_data"])
    data[at] = draw(st.sampled_from([None, 17, True, [], [data[at]], [[data[at]]], {}, {"format": "x"}, ""]))
    return Malformed("no image", {**body, "image_data": data}, ("",))


def _shape(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    """Lists of images that do not fit one request, or a batch."""
    body = single(row, NEW_TOKENS)
    data = body["image_data"]
    if draw(st.booleans()):
        return Malformed("image list nested", {**body, "image_data": [[data]]}, ("",))
    # A flat list gives each row one image; these rows have two.
    rows = [row, row] if len(row.images) > 1 else [row, row, row]
    wrong = [data[0]] * 2 if len(row.images) > 1 else [data] * draw(st.sampled_from([1, 2, 4]))
    return Malformed("image list of a batch", {**batch(rows, NEW_TOKENS), "image_data": wrong}, ("",))


def _bad_row(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    bad = _run_length(draw, words, folder, row)
    if bad.rows:
        return bad
    rows = [row, Sent(bad.body["input_ids"], [], []), row]
    body = batch(rows, NEW_TOKENS)
    body["image_data"][1] = bad.body["image_data"]
    return Malformed("a bad row in a batch", body, bad.problems)


def _too_long(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    ids = [*row.prompt, *[draw(st.integers(0, 99))] * (tiny.CONTEXT + draw(st.integers(0, 50)))]
    return Malformed("too long", single(Sent(ids, row.images, []), NEW_TOKENS), ("long|exceed",))


def _empty(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    body = single(row, NEW_TOKENS)
    return Malformed("empty ids", {**body, "input_ids": []}, ("",))


def _text_too(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    return Malformed("text beside ids", {**single(row, NEW_TOKENS), "text": "Look."}, ("",))


def _other_media(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    field = draw(st.sampled_from(["audio_data", "video_data"]))
    return Malformed(field, {**single(row, NEW_TOKENS), field: [WORDS]}, ("audio|video",))


def _text_with_broken_image(draw: st.DrawFn, words: Words, folder: Path, row: Sent) -> Malformed:
    text = rollouts.conversation(1)
    body = single(Sent(text, row.images[:1], []), NEW_TOKENS)
    return Malformed(UPSTREAMS, {**body, "image_data": [_broken(draw, row.images[0])]}, ("",))


CHANGES: tuple[Change, ...] = (
    *(_edited, _edited, _edited, _run_length, _run_length, _marker_order, _other_images),
    *(_image_without_pad, _video_pad, _no_ids, _outside, _undecodable, _no_image, _shape, _bad_row),
    *(_too_long, _empty, _text_too, _other_media, _text_with_broken_image),
)
