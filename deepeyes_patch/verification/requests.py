"""The requests for SGLang's processor, and the right results, from ``transformers`` and the caller's ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepeyes_patch.ids import spans
from deepeyes_patch.verification import expected

TEXT, IDS, REFUSED = "text", "ids", "refused"

# Multiples of 28 and of 32, because 0.5.3 - 0.5.5.post1 resize other sizes twice. At least 65536 pixels: this
# is the real lower bound of Qwen3-VL, and the slow image processor of 0.5.3 does not know it.
SIZES = ((448, 224), (448, 448))

_SPLITS = 4  # a drifted request replaces this many tokens by two others each


def pictures(folder: Path) -> list[str]:
    """Made-up images in ``folder``: seeded noise, so that no two patches are alike."""
    import numpy
    from PIL import Image

    names = []
    for seed, (width, height) in enumerate(SIZES):
        noise = numpy.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=numpy.uint8)
        names.append(str(folder / f"{seed}.png"))
        Image.fromarray(noise).save(names[-1])
    return names


def plan(model: Path, images: Sequence[str], slow: bool) -> list[dict[str, Any]]:
    """The requests for a model's folder and these image files, each with the result that it must have.

    Parameters
    ----------
    model:
        A folder with a config and a processor; weights are not read.
    images:
        Paths.
    slow:
        Whether SGLang uses the slow image processor here. Up to 0.5.7 it must do so on a CPU.
    """
    return _Planner(model, images, slow).cases()


class _Planner:
    def __init__(self, model: Path, images: Sequence[str], slow: bool) -> None:
        from PIL import Image
        from transformers import AutoProcessor

        self._core = expected.rope_owner(model)
        self._processor = AutoProcessor.from_pretrained(model, **({"use_fast": False} if slow else {}))
        self._tokenizer = self._processor.tokenizer
        config = self._core.config
        self._image_token = int(config.image_token_id)
        markers = [config.vision_start_token_id, config.image_token_id, config.vision_end_token_id]
        self._span = "".join(self._tokenizer.convert_ids_to_tokens(markers))
        # One turn for each image. A single image is used in two turns, as a crop would be.
        self._files = [
            str(Path(image).resolve()) for image in (images if len(images) > 1 else [*images, *images])
        ]
        self._images = [Image.open(file).convert("RGB") for file in self._files]
        turns = [
            f"<|im_start|>user\n{self._span}Where is the object number {turn} in this picture?<|im_end|>\n"
            f"<|im_start|>assistant\nThe object is near the corner, so I will zoom in again.<|im_end|>\n"
            for turn in range(len(self._images))
        ]
        self._text = "".join(turns) + "<|im_start|>assistant\n"
        features = self._processor(text=[self._text], images=self._images, return_tensors="pt")
        self._ids: list[int] = features["input_ids"][0].tolist()
        self._grids = features["image_grid_thw"]
        self._short: list[int] = self._tokenizer.encode(self._text, add_special_tokens=False)
        self._runs = spans.find_runs(self._ids, self._image_token)

    def cases(self) -> list[dict[str, Any]]:
        first, last = self._runs[0], self._runs[-1]
        between = (first.start + first.length + 1, last.start - 1)
        after = (last.start + last.length + 1, len(self._ids))
        drifted, drifted_after = (self._drifted(self._ids, *where) for where in (between, after))
        # The images of the history are expanded. The image of the last turn is one placeholder.
        mixed = self._ids[: last.start + 1] + self._ids[last.start + last.length :]
        stray = [*self._ids, self._image_token]
        missing = self._ids[: first.start] + self._ids[first.start + 1 :]
        return [
            self._case("text prompt", TEXT, self._text, self._ids),
            self._case("one placeholder per image", IDS, self._short, self._ids),
            self._case("every image expanded", IDS, self._ids, self._ids),
            self._case("expanded, other tokens between", IDS, drifted, drifted),
            self._case("expanded, other tokens after", IDS, drifted_after, drifted_after),
            self._case("history expanded, last image one", IDS, mixed, self._ids),
            self._case("a placeholder missing", REFUSED, missing, None),
            self._case("a stray placeholder", REFUSED, stray, None),
            self._case("an image missing", REFUSED, self._ids, None, images=self._files[:-1]),
        ]

    def _case(
        self,
        name: str,
        kind: str,
        prompt: str | list[int],
        ids: list[int] | None,
        images: list[str] | None = None,
    ) -> dict[str, Any]:
        return {
            "name": name,
            "kind": kind,
            "prompt": prompt,
            "images": self._files if images is None else images,
            "expected": None if ids is None else self._expected(ids),
        }

    def _expected(self, ids: list[int]) -> dict[str, Any]:
        runs = spans.find_runs(ids, self._image_token)
        positions, delta = expected.positions(self._core, ids, self._grids)
        return {
            "input_ids": ids,
            "offsets": [[run.start, run.start + run.length - 1] for run in runs],
            "grids": self._grids.tolist(),
            "mrope_positions": positions.tolist(),
            "mrope_position_delta": delta,
        }

    def _drifted(self, ids: list[int], low: int, high: int) -> list[int]:
        """The same text in other tokens, as a model may sample it: a few of ids[low:high] become two."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        special = {*self._tokenizer.all_special_ids, *self._tokenizer.added_tokens_decoder}
        drifted, splits_left = ids[:low], _SPLITS
        for token in ids[low:high]:
            pair = self._halves(token, vocabulary) if splits_left and token not in special else None
            splits_left -= pair is not None
            drifted += pair or [token]
        return drifted + ids[high:]

    def _halves(self, token: int, vocabulary: dict[str, int]) -> list[int] | None:
        piece: str = self._tokenizer.convert_ids_to_tokens(token)
        for cut in range(1, len(piece)):
            if piece[:cut] in vocabulary and piece[cut:] in vocabulary:
                return [vocabulary[piece[:cut]], vocabulary[piece[cut:]]]
        return None
