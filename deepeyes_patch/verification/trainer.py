"""The trainer's side of a visual episode: its ids, and the log-probs that ``transformers`` gives to them.

Nothing here imports SGLang. All ids are lists of int, all log-probs natural logarithms.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
END = "<|im_end|>"


class Trainer:
    """A checkpoint in ``transformers``.

    ``device``: a torch device. ``dtype``: the name of a torch dtype. ``forbidden``: tokens that a policy
    must not sample (placeholders); they are taken out of every distribution.
    """

    def __init__(self, folder: Path, device: str, dtype: str) -> None:
        import torch
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self._processor = AutoProcessor.from_pretrained(folder)
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=getattr(torch, dtype))
        self._model = model.to(device).eval()
        self._vocab_size = int(model.config.get_text_config().vocab_size)
        self.device = device
        self._pad = self._id_of("<|image_pad|>")
        names = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>")
        known = self._processor.tokenizer.get_vocab()
        self.forbidden = [known[name] for name in names if name in known]

    def turn(self, text: str, images: Sequence[Image], after: Sequence[int] = ()) -> list[int]:
        """The ids of a user's turn, its images expanded, after the ids of an answer."""
        before = "" if not after else "\n" if after[-1] == self._id_of(END) else f"{END}\n"
        words = f"{before}<|im_start|>user\n{IMAGE * len(images)}{text}{END}\n<|im_start|>assistant\n"
        made = self._processor(text=[words], images=list(images) or None)["input_ids"][0]
        return [int(token) for token in made]

    def short(self, ids: Sequence[int]) -> list[int]:
        """The ids with one placeholder for each image."""
        pairs = zip([None, *ids], ids, strict=False)
        return [token for before, token in pairs if not before == token == self._pad]

    def respell(self, ids: Sequence[int]) -> list[int]:
        """The ids of an answer, as no tokenizer makes them of its text.

        If decoding and encoding gives the same ids, one token becomes the two that spell it.
        """
        tokenizer = self._processor.tokenizer
        if tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) != list(ids):
            return list(ids)
        for place, token in enumerate(ids):
            text = tokenizer.decode([token])
            for cut in range(1, len(text)):
                parts = [tokenizer.encode(p, add_special_tokens=False) for p in (text[:cut], text[cut:])]
                if all(len(part) == 1 for part in parts):
                    return [*ids[:place], *parts[0], *parts[1], *ids[place + 1 :]]
        return list(ids)

    def can_sample(self, token: int) -> bool:
        """Whether the model has the token, and a policy may sample it."""
        return 0 <= token < self._vocab_size and token not in self.forbidden

    def scores(self, ids: Sequence[int], images: Sequence[Image], answer: Sequence[int]) -> list[float]:
        """The log-prob of each id of ``answer``, given ``ids`` and those before it."""
        rows = self._distributions([*ids, *answer[:-1]], images)[len(ids) - 1 :]
        return [float(row[token]) for row, token in zip(rows, answer, strict=True)]

    def sample(self, ids: Sequence[int], images: Sequence[Image], count: int, seed: int) -> list[int]:
        """Sample ``count`` ids at temperature 1."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        answer: list[int] = []
        for _ in range(count):
            row = self._distributions([*ids, *answer], images)[-1]
            answer.append(int(torch.multinomial(row.exp(), 1, generator=generator)))
        return answer

    def _distributions(self, ids: Sequence[int], images: Sequence[Image]) -> torch.Tensor:
        """Log-probs float32 [T, vocabulary] of what follows each id, on the CPU."""
        import torch

        fed = torch.tensor([list(ids)], device=self.device)
        media: dict[str, Any] = {}
        if images:
            made = self._processor.image_processor(images=list(images), return_tensors="pt")
            media = {name: made[name].to(self.device) for name in ("pixel_values", "image_grid_thw")}
        if "mm_token_type_ids" in inspect.signature(self._model.forward).parameters:  # transformers 5
            media["mm_token_type_ids"] = (fed == self._pad).int()
        with torch.inference_mode():
            logits = self._model(
                input_ids=fed, attention_mask=torch.ones_like(fed), use_cache=False, **media
            ).logits[0]
        forbidden = torch.tensor(self.forbidden, device=self.device)
        return logits.float().index_fill(-1, forbidden, -torch.inf).log_softmax(dim=-1).cpu()

    def _id_of(self, token: str) -> int:
        return int(self._processor.tokenizer.convert_tokens_to_ids(token))
