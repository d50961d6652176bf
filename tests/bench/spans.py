"""How the work on token ids alone grows with their number: ``python -m tests.bench.spans``.

Reading and checking the ids, finding the spans, collapsing and expanding them, the offsets: all that
`deepeyes_patch.ids.request` does for a request with ten images of 196 tokens. CPU time, the best of fifteen.
Needs no SGLang.
"""

from __future__ import annotations

import random
import time
import timeit

from deepeyes_patch.ids.request import PretokenizedRequest
from deepeyes_patch.ids.spans import VisionTokens

TOKENS = VisionTokens(image=151655, vision_start=151652, vision_end=151653, foreign={"video": 151656})
VOCABULARY = 151936
IMAGES, GRID = 10, (1, 28, 28)  # 196 tokens each
LENGTHS = [2**power * 1024 for power in range(9)]


def ids(length: int) -> list[int]:
    """Random text with the images spread over it."""
    choose = random.Random(length)
    image = [TOKENS.vision_start, *[TOKENS.image] * 196, TOKENS.vision_end]
    images = min(IMAGES, length // (2 * len(image)))
    text = (length - images * len(image)) // images
    made: list[int] = []
    for _ in range(images):
        made += [choose.randrange(150000) for _ in range(text)] + image
    return made


def request(prompt: list[int], images: int) -> None:
    made = PretokenizedRequest(prompt, TOKENS, vocab_size=VOCABULARY, image_count=images)
    made.collapsed()
    made.resolve([GRID] * images, 2)


def main() -> None:
    print(f"{'ids':>8} {'ms':>8} {'ns an id':>9}")
    for length in LENGTHS:
        prompt = ids(length)
        calls = max(1, 2**18 // length)
        images = prompt.count(TOKENS.vision_start)
        timed = timeit.repeat(
            lambda p=prompt, n=images: request(p, n), timer=time.process_time, number=calls, repeat=15
        )
        best = min(timed) / calls
        print(f"{len(prompt):8} {best * 1e3:8.2f} {best / len(prompt) * 1e9:9.1f}", flush=True)


if __name__ == "__main__":
    main()
