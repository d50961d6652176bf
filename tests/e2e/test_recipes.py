"""The recipes on the real SGLang: `tests.e2e.recipes` says what is put in their place.

What a file prints is judged here, with ``transformers`` and the ids that the HF processor makes, not by the
functions on the page.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.e2e import interpreters, recipes, shapes
from tests.e2e.rollout.trainer import Trainer
from tests.e2e.test_smoke import ROUNDING
from tests.lab import children, client, environments, reference
from tests.lab.server import Server
from tests.sglang import rollouts

TRIES = 5  # one answer in sixty holds a pad, and ends the episode early


@pytest.fixture(scope="module")
def in_float32(folder: Path) -> Any:
    """The model of ``transformers``."""
    return Trainer(folder, learning_rate=0.0).model


# --- over HTTP ----------------------------------------------------------------------------------------


@pytest.fixture
def to_patched(folder: Path, patched: Server, tmp_path: Path) -> Path:
    recipes.write(tmp_path, folder, {recipes.ADDRESS: patched.url})
    return tmp_path


def test_client(folder: Path, patched: Server, to_patched: Path) -> None:
    for _ in range(TRIES):
        ((episode, _),) = recipes.episodes(recipes.run(to_patched, "client.py"))
        recipes.assert_right(folder, episode)
        if len(episode.spans) == 2:
            break
    assert len(episode.spans) == 2
    difference = recipes.off(folder, reference.model(folder), episode)
    assert float(difference.max()) < shapes.NOISE, difference
    # The server's own count, without the recipe: of all that was seen before the last answer.
    seen, _ = episode.spans[-1]
    again = client.generate(patched.url, episode.ids[:seen], recipes.images(2), max_new_tokens=1)
    assert again.prompt_tokens == seen


def test_parity(to_patched: Path) -> None:
    printed = recipes.run(to_patched, "parity.py")
    (line,) = re.findall(r"^largest (\S+), mean (\S+)$", printed, re.MULTILINE)
    largest, mean = map(float, line)
    assert 0 < mean <= largest < shapes.NOISE, printed


def test_client_on_stock(folder: Path, stock: Server, tmp_path: Path) -> None:
    recipes.write(tmp_path, folder, {recipes.ADDRESS: stock.url})
    with pytest.raises(children.ChildFailed, match="RuntimeError: HTTP 500"):
        recipes.run(tmp_path, "client.py")


# --- in this process ----------------------------------------------------------------------------------


def test_engine(folder: Path, tmp_path: Path, in_float32: Any) -> None:
    """`install()` is what switches it on; the environment does not."""
    recipes.write(tmp_path, folder, recipes.engine())
    ((episode, _),) = recipes.episodes(recipes.run(tmp_path, "engine.py"))
    recipes.assert_right(folder, episode)
    difference = recipes.off(folder, in_float32, episode)
    assert float(difference.max()) < ROUNDING, difference


# --- Ray ----------------------------------------------------------------------------------------------


def test_actors(folder: Path, tmp_path: Path, in_float32: Any) -> None:
    """An Engine in one actor and a trainer in another; new weights sample the second episode."""
    program, checkpoints = tmp_path / "program", tmp_path / "checkpoints"
    program.mkdir()
    layers = [environments.ray_layer(), *interpreters.layers()]
    python = interpreters.build(tmp_path / "venv", layers, with_our_package=True)
    # Not in `tmp_path`, which is too long a name for sockets.
    with tempfile.TemporaryDirectory(prefix="ray-") as sockets:
        small = f"num_cpus=2, include_dashboard=False, object_store_memory={100 * 2**20}"
        changes = {
            **recipes.engine(),
            "num_gpus=1": "num_gpus=0",
            "ray.init(": f"ray.init({small}, _temp_dir={sockets!r}, ",
            "/shared/checkpoints": str(checkpoints),
            "lr=1e-6": "lr=5e-3",
        }
        recipes.write(program, folder, changes)
        told = list(recipes.episodes(recipes.run(program, "train.py", python)))
    assert len(told) == 2
    weights = [in_float32, Trainer(checkpoints / "0", learning_rate=0.0).model]
    for (episode, ((largest, _),)), model in zip(told, weights, strict=True):
        recipes.assert_right(folder, episode)
        difference = recipes.off(folder, model, episode)
        assert float(difference.max()) < ROUNDING, difference
        assert abs(largest - float(difference.max())) < ROUNDING, "the page's own check says the same"
    old = recipes.off(folder, in_float32, told[1][0])
    assert float(old.max()) > shapes.WRONG, "the step has moved the weights"


# --- ids ----------------------------------------------------------------------------------------------

QUESTION, SAID, AGAIN = (
    "What is in the middle?",
    "The object is near the corner, so I will zoom.",
    "Enlarged.",
)


@pytest.fixture
def page(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``episode.py`` of the page."""
    recipes.write(tmp_path, folder)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("episode", "rule"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("episode")


def answer(prompt_tokens: int, ids: list[int]) -> dict[str, Any]:
    """What SGLang returns, as far as it is read."""
    scored = [(-1.0 - token, token, None) for token in ids]
    return {"meta_info": {"prompt_tokens": prompt_tokens, "output_token_logprobs": scored}}


@pytest.mark.parametrize("ended", [True, False], ids=["ended by the model", "cut"])
def test_pieces_are_the_whole_conversation(folder: Path, page: ModuleType, ended: bool) -> None:
    """As the chat template and the HF processor make it, when what was sampled is canonical."""
    processor = reference.processor(folder)
    said = processor.tokenizer.encode(SAID) + ([page.END] if ended else [])
    images = recipes.images(2)
    episode = page.Episode()
    episode.see(page.user_turn(page.IMAGE + QUESTION), images[:1])
    seen = len(episode.ids)
    assert list(episode.say(answer(seen, said))) == said
    episode.see(page.observation(page.IMAGE + AGAIN, said), images[1:])
    messages = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]},
        {"role": "assistant", "content": SAID},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": AGAIN}]},
    ]
    text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    whole = reference.expand(folder, text, images)
    assert episode.ids == whole.input_ids
    assert episode.images == images
    after = len(episode.ids) - seen - len(said)
    assert episode.loss_mask == [0] * seen + [1] * len(said) + [0] * after
    assert episode.logprobs == [0.0] * seen + [-1.0 - token for token in said] + [0.0] * after


def test_other_ids_than_were_sent_are_noticed(page: ModuleType) -> None:
    episode = page.Episode()
    episode.see(page.user_turn(QUESTION), [])
    sent = len(episode.ids)
    with pytest.raises(RuntimeError, match=f"{sent} ids sent, the model saw {sent - 1}"):
        episode.say(answer(sent - 1, [5]))
    assert len(episode.ids) == sent


def test_the_rule_by_hand(folder: Path, page: ModuleType) -> None:
    rule = importlib.import_module("rule")
    images = [rollouts.picture(*size) for size in ((448, 224), (400, 300), (300, 410), (70, 900))]
    text = page.user_turn(f"{page.IMAGE} and {page.IMAGE * 2}, or {page.IMAGE}")
    short = page.processor.tokenizer.encode(text)
    assert short.count(page.PAD) == len(images)
    assert rule.expand(short, images) == reference.expand(folder, text, images).input_ids


def test_a_marker_in_a_text_becomes_the_token(page: ModuleType) -> None:
    assert page.PAD in page.processor.tokenizer.encode("a page that says <|image_pad|> somewhere")
