"""Turns of a rollout a second, patched against the best that stock can do: ``python -m tests.bench.rollout``.

Run in the environment of one release (``.lab/<release>/bin/python``). Two servers run at once and take turns,
each first in every other pair, so that load on the machine falls on both alike. The patched one gets the ids
of a trainer: images expanded, sampled ids as they are. Stock cannot serve these. It gets one placeholder an
image, and its history is tokenized again after each answer, so that it is canonical. The clock runs from a
request to its answer; what a client does to make its ids is not counted. A ratio is the median of those of
neighbours, above 1 where patched is faster; the middle half of them says how far to trust it.

``--concurrency 64`` plays so many episodes at once, all on one server; the servers take turns, one wave of
episodes at a time. It prints turns a second and the latencies of turns. Then the client's own work counts in
turns a second: stock's client decodes and tokenizes its whole history after each answer.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.e2e import shapes
from tests.e2e.rollout.agent import SAMPLING
from tests.lab import client, flags, models, reference, server
from tests.sglang import rollouts

PATIENCE = 600.0  # seconds; of 64 requests at once, the last waits for minutes on a CPU
WARM_UP = 1  # episodes that pay for what happens once
NAMES = ("stock", "patched")


class History(Protocol):
    """The ids of an episode so far, as one side sends them."""

    ids: list[int]

    def see(self, text: str, image: Any) -> None: ...

    def say(self, sampled: Sequence[int]) -> None: ...


@dataclass
class Exact:
    """Expanded by the HF processor, and what was sampled as it was."""

    folder: Path
    ids: list[int] = field(default_factory=list)

    def see(self, text: str, image: Any) -> None:
        self.ids += reference.expand(self.folder, text, [image]).input_ids

    def say(self, sampled: Sequence[int]) -> None:
        self.ids += sampled


@dataclass
class Canonical:
    """One placeholder an image; the text is tokenized again when there is more of it.

    ``changed`` counts the answers whose ids that has changed.
    """

    folder: Path
    ids: list[int] = field(default_factory=list)
    changed: int = 0

    def see(self, text: str, image: Any) -> None:
        self.ids += rollouts.tokenize(self.folder, text)

    def say(self, sampled: Sequence[int]) -> None:
        exact = [*self.ids, *sampled]
        text = reference.processor(self.folder).tokenizer.decode(
            exact, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        self.ids = rollouts.tokenize(self.folder, text)
        self.changed += self.ids != exact


@dataclass(frozen=True)
class Turn:
    """One request: seconds until its answer, and the tokens of its prompt, of which some were cached."""

    seconds: float
    tokens: int
    cached: int


def ask(url: str, history: History, images: Sequence[str], sampling: dict[str, Any]) -> Turn:
    """Ask for the next answer and append it. Raises `RuntimeError` if there is none."""
    request = {
        "input_ids": history.ids,
        "image_data": list(images),
        "sampling_params": sampling,
        "return_logprob": True,
    }
    start = time.perf_counter()
    answer = client.ask(url, request, PATIENCE)
    seconds = time.perf_counter() - start
    if answer.status != 200:
        raise RuntimeError(f"HTTP {answer.status}: {answer.body}")
    history.say(answer.output_ids)
    return Turn(seconds, answer.prompt_tokens, answer.body["meta_info"]["cached_tokens"])


def play(
    urls: Sequence[str],
    histories: Sequence[History],
    episode: int,
    turns: int,
    sampling: dict[str, Any],
) -> list[tuple[Turn, Turn]]:
    """One episode on both sides, turn by turn: (stock, patched)."""
    images: list[str] = []
    pairs = []
    for turn in range(turns):
        image = rollouts.picture(448, 448, seed=episode * turns + turn)
        images.append(client.as_base64(image))
        text = words(episode, turn)
        done: dict[int, Turn] = {}
        for side in (0, 1) if (episode + turn) % 2 else (1, 0):
            histories[side].see(text, image)
            done[side] = ask(urls[side], histories[side], images, sampling)
        pairs.append((done[0], done[1]))
    return pairs


def episode_of(
    url: str, history: History, texts: Sequence[tuple[str, Any, str]], sampling: dict[str, Any]
) -> list[float]:
    """One episode on one side: seconds of each turn. ``texts``: (text, image, the image in base64)."""
    seconds, images = [], []
    for text, image, encoded in texts:
        images.append(encoded)
        history.see(text, image)
        seconds.append(ask(url, history, images, sampling).seconds)
    return seconds


def play_together(
    urls: Sequence[str],
    folder: Path,
    concurrency: int,
    waves: int,
    turns: int,
    sampling: dict[str, Any],
) -> dict[str, tuple[list[float], float]]:
    """{side: (seconds of each turn, seconds of all waves)}. Each wave is as many episodes at once."""
    taken: dict[str, list[float]] = {name: [] for name in NAMES}
    walls = dict.fromkeys(NAMES, 0.0)
    makers: tuple[Callable[[Path], History], ...] = (Canonical, Exact)
    with ThreadPoolExecutor(concurrency) as pool:
        for wave in range(WARM_UP + waves):
            episodes = [
                [
                    (
                        text,
                        image := rollouts.picture(448, 448, seed=number * turns + turn),
                        client.as_base64(image),
                    )
                    for turn in range(turns)
                    for text in [words(number, turn)]
                ]
                for number in range(wave * concurrency, (wave + 1) * concurrency)
            ]
            for side in (0, 1) if wave % 2 else (1, 0):
                start = time.perf_counter()
                played = [
                    pool.submit(episode_of, urls[side], makers[side](folder), texts, sampling)
                    for texts in episodes
                ]
                done = [seconds for episode in played for seconds in episode.result()]
                if wave >= WARM_UP:
                    walls[NAMES[side]] += time.perf_counter() - start
                    taken[NAMES[side]] += done
    return {name: (taken[name], walls[name]) for name in NAMES}


def print_together(played: dict[str, tuple[list[float], float]]) -> None:
    print(f"{'':8} {'turns':>6} {'turns/s':>8} {'p50 s':>8} {'p99 s':>8} {'longest':>8}")
    for name, (taken, wall) in played.items():
        ordered = sorted(taken)
        late = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        print(
            f"{name:8} {len(taken):6} {len(taken) / wall:8.2f} {statistics.median(taken):8.2f} "
            f"{late:8.2f} {ordered[-1]:8.2f}"
        )


def words(episode: int, turn: int) -> str:
    """A turn of the user. Its first words are in no other episode, so that none finds another's prompt."""
    head = f"Episode {episode}.\n" if turn == 0 else "<|im_end|>\n"
    return f"{head}<|im_start|>user\n{rollouts.IMAGE}Zoom in.<|im_end|>\n<|im_start|>assistant\n"


def row(name: str, pairs: Sequence[tuple[Turn, Turn]]) -> str:
    cells = []
    for side in (0, 1):
        own = [pair[side] for pair in pairs]
        rate = len(own) / sum(turn.seconds for turn in own)
        tokens = sum(turn.tokens for turn in own)
        cells.append(f"{rate:8.2f} {tokens:8} {sum(turn.cached for turn in own) / tokens:8.1%}")
    ratios = [stock.seconds / patched.seconds for stock, patched in pairs]
    low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{name:8} {'   '.join(cells)} {ratio:8.2f}   {low:.2f} - {high:.2f}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--kind", choices=models.KINDS, default="qwen3_vl")
    arguments.add_argument("--episodes", type=int, default=10)
    arguments.add_argument("--turns", type=int, default=6)
    arguments.add_argument("--tokens", type=int, default=32, help="of each answer")
    arguments.add_argument("--concurrency", type=int, default=1, help="episodes at once")
    arguments.add_argument("--waves", type=int, default=4, help="of --concurrency episodes, on each side")
    chosen = arguments.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # told to end, we stop the servers
    folder = models.ensure(chosen.kind, vocabulary="qwen")
    vision = rollouts.vision(folder)
    sampling = {
        **SAMPLING,
        "max_new_tokens": chosen.tokens,
        "ignore_eos": True,
        # A sampled placeholder would end an episode.
        "logit_bias": {str(token): -100.0 for token in (vision.image, vision.video)},
    }
    if chosen.concurrency > 1:
        # Room for all prompts at once, on both sides.
        room = ("--max-total-tokens", str(chosen.concurrency * chosen.turns * 512))
        with (
            server.serve(folder, env=shapes.STOCK, args=room) as stock,
            server.serve(folder, env=shapes.PATCHED, args=room) as patched,
        ):
            urls = (stock.url, patched.url)
            played = play_together(urls, folder, chosen.concurrency, chosen.waves, chosen.turns, sampling)
        print(f"SGLang {flags.installed().version}, {chosen.kind}, {chosen.concurrency} episodes at once")
        print_together(played)
        return
    pairs: list[list[tuple[Turn, Turn]]] = []
    changed = 0
    with server.serve(folder, env=shapes.STOCK) as stock, server.serve(folder, env=shapes.PATCHED) as patched:
        for episode in range(WARM_UP + chosen.episodes):
            canonical = Canonical(folder)
            histories = (canonical, Exact(folder))
            pairs.append(play((stock.url, patched.url), histories, episode, chosen.turns, sampling))
            changed += canonical.changed if episode >= WARM_UP else 0
    pairs = pairs[WARM_UP:]
    print(f"SGLang {flags.installed().version}, {chosen.kind}, {chosen.episodes} episodes")
    print(f"an image of 448 x 448 px in each turn, {chosen.tokens} tokens an answer")
    print(f"{'':8} " + "   ".join(f"{name:26}" for name in NAMES))
    columns = f"{'turns/s':>8} {'tokens':>8} {'cached':>8}"
    print(f"{'turn':8} {columns}   {columns} {'ratio':>8}   middle half")
    for turn in range(chosen.turns):
        print(row(str(turn + 1), [episode[turn] for episode in pairs]))
    print(row("all", [pair for episode in pairs for pair in episode]))
    answers = chosen.episodes * chosen.turns
    print(f"answers whose ids changed when their text was tokenized again (stock): {changed} of {answers}")


if __name__ == "__main__":
    main()
