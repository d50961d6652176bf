"""Servers that must not start, and say why in the last thing they log.

Each works on a copy of the installed release in which something is altered, under the release's own
version: as when upstream changes, or a file is edited in place. tests/sglang has the messages of every
release; that a server ends with one is shown on both for a renamed seam, else on one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from deepeyes_patch.seams.examine import TESTED
from tests.e2e import shapes, spared
from tests.lab import altered, client, models, reference, server
from tests.lab.altered import replacing

BASE = "srt/multimodal/processors/base_processor.py"
MANAGER = "srt/managers/tokenizer_manager.py"
LAUNCHER = "launch_server.py"

# Stands for Relax's run-time patch, which replaces the whole method when it is imported.
RELAX_LIKE = """
from sglang.srt.multimodal.processors import qwen_vl

(processor,) = (
    cls
    for name, cls in vars(qwen_vl).items()
    if name in ("QwenVLImageProcessor", "Qwen2_5VLImageProcessor")
)


async def patched_process_mm_data_async(self, image_data, input_text, request_obj, *args, **kwargs):
    raise AssertionError("a request was served")


processor.process_mm_data_async = patched_process_mm_data_async
"""


@pytest.fixture(scope="module")
def altered_sglangs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    line = '\nif __name__ == "__main__":\n'
    edits = {
        "renamed seam": {BASE: replacing("_process_and_collect_mm_items", "_collect_mm_items")},
        "renamed intake": {MANAGER: replacing("_tokenize_one_request", "_tokenize_request")},
        "another patch": {LAUNCHER: replacing(line, f"\nimport relax_like_patch\n{line}")},
    }
    copies = {
        name: altered.copy(tmp_path_factory.mktemp(name.replace(" ", "-")), edit)
        for name, edit in edits.items()
    }
    (copies["another patch"] / "relax_like_patch.py").write_text(RELAX_LIKE)
    return copies


def refusal(folder: Path, **env: str) -> str:
    """The last traceback in the log of a server that ends by itself, without having been healthy.

    One server after the other: where cores are few, another release's run has the next one busy.
    """
    code, log = server.expect_failure(folder, env={**shapes.PATCHED, **env})
    assert code != 0
    assert "Traceback (most recent call last)" in log, log[-2000:]
    return log.rpartition("Traceback (most recent call last)")[2]


def assert_complete(message: str, release: str) -> None:
    """Which SGLang was found, what was tested, and the two ways out."""
    assert "IncompatibleSGLangError" in message
    assert re.search(rf"SGLang {re.escape(release)} \(distribution sglang {re.escape(release)}, /", message)
    assert f"tested with SGLang {TESTED}" in message
    assert "DEEPEYES_PATCH=off" in message
    assert "please report this message in full" in message


def test_a_renamed_seam(altered_sglangs: dict[str, Path], folder: Path, release: str) -> None:
    message = refusal(folder, PYTHONPATH=str(altered_sglangs["renamed seam"]))
    assert_complete(message, release)
    assert "_process_and_collect_mm_items(input_text, images): found nothing: missing" in message
    assert str(altered_sglangs["renamed seam"]) in message, "where the altered SGLang is"
    found = "looked for process_mm_data_async(image_data, input_text, request_obj): found sglang."
    assert found in message, "the seams that are right belong into a report too"


@spared.on("0.5.12.post1", "0.5.23 runs it")
def test_the_tokenizer_manager_without_its_seam(
    altered_sglangs: dict[str, Path], folder: Path, release: str
) -> None:
    message = refusal(folder, PYTHONPATH=str(altered_sglangs["renamed intake"]))
    assert_complete(message, release)
    assert "_tokenize_one_request(obj): found nothing: missing" in message


@spared.on("0.5.23", "0.5.12.post1 runs it: the release for which there is such a patch")
def test_another_patch_that_came_after_ours(
    altered_sglangs: dict[str, Path], folder: Path, release: str
) -> None:
    message = refusal(folder, PYTHONPATH=str(altered_sglangs["another patch"]))
    assert_complete(message, release)
    assert re.search(r"Qwen\w*VLImageProcessor\.process_mm_data_async", message)
    assert "relax_like_patch.patched_process_mm_data_async" in message
    assert "switch that package's patch off" in message
    assert "unset RELAX_DEEPEYES_QWEN_VL_PATCH and set DEEPEYES_PATCH=processor" in message
    assert "or set DEEPEYES_PATCH=off" in message


def test_a_misspelt_switch(folder: Path) -> None:
    message = refusal(folder, DEEPEYES_PATCH="procesor")
    assert "SettingsError" in message
    assert "DEEPEYES_PATCH='procesor'" in message
    for valid in ("1, true, on or all", "processor", "mrope", "0, false, off or empty"):
        assert valid in message


@spared.on("0.5.12.post1", "0.5.23 runs it")
def test_a_text_only_model_serves_all_the_same(altered_sglangs: dict[str, Path]) -> None:
    """It constructs no Qwen-VL processor, so nothing of it is unsafe."""
    folder = models.ensure("qwen3")
    ids = reference.processor(folder).encode("The server of a text-only model", add_special_tokens=False)
    env = {**shapes.PATCHED, "PYTHONPATH": str(altered_sglangs["renamed seam"])}
    with server.serve(folder, env=env) as running:
        answer = client.generate(running.url, ids, max_new_tokens=shapes.NEW_TOKENS)
    assert answer.status == 200, answer.body
    assert answer.prompt_tokens == len(ids)
    scores = text_scores(folder, [*ids, *answer.output_ids])[len(ids) - 1 : -1]
    expected = scores.gather(1, torch.tensor(answer.output_ids)[:, None])[:, 0]
    assert len(expected) == shapes.NEW_TOKENS
    assert float((expected - torch.tensor(answer.logprobs)).abs().max()) < shapes.NOISE


def text_scores(folder: Path, ids: list[int]) -> torch.Tensor:
    """float32 [T, vocabulary], from ``transformers``."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].float().log_softmax(dim=-1)
