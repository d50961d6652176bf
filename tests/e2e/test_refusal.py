"""Servers that must not start, and say why in the last thing they log.

Each works on a copy of the installed release in which something is altered, under the release's own
version: as when upstream changes, or a file is edited in place. tests/sglang has the messages of every
release. That a server ends with such a message is shown for a renamed seam. Others are refused at the same
place, where the processor is constructed: for these a child constructs it, without a server.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from deepeyes_patch.observe.release import TESTED
from tests.e2e import shapes
from tests.lab import altered, client, models, reference, server
from tests.lab.altered import replacing

MANAGER = "srt/managers/tokenizer_manager.py"
TRACEBACK = "Traceback (most recent call last)"

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


def refusal(folder: Path, **env: str) -> str:
    """The last traceback in the log of a server that ends by itself, without having been healthy."""
    code, log = server.expect_failure(folder, env={**shapes.PATCHED, **env})
    assert code != 0
    return last_traceback(log)


def refused_construction(path: Path, *modules: str) -> str:
    """The last traceback of a child that constructs the processor, with ``path`` first on its path."""
    done = shapes.run_on(path, "tests.e2e.constructed", *modules)
    assert done.returncode == 1, done.stderr
    return last_traceback(done.stderr)


def last_traceback(log: str) -> str:
    assert TRACEBACK in log, log[-2000:]
    return log.rpartition(TRACEBACK)[2]


def assert_complete(message: str, release: str, altered_copy: Path | None = None) -> None:
    """Which SGLang was found, what was tested, and the two ways out. No distribution has brought a copy."""
    assert "IncompatibleSGLangError" in message
    brought_by = "no distribution: a source tree" if altered_copy else f"distribution sglang {release}"
    assert f"SGLang {release} ({brought_by}, {altered_copy or '/'}" in message
    assert f"tested with SGLang {TESTED}" in message
    assert "DEEPEYES_PATCH=off" in message
    assert "please report this message in full" in message


def test_a_renamed_seam(renamed_seam: Path, folder: Path, release: str) -> None:
    message = refusal(folder, PYTHONPATH=str(renamed_seam))
    assert_complete(message, release, renamed_seam)
    assert "_process_and_collect_mm_items(input_text, images): found nothing: missing" in message
    found = "looked for process_mm_data_async(image_data, input_text, request_obj): found sglang."
    assert found in message, "the seams that are right belong into a report too"


def test_the_tokenizer_manager_without_its_seam(tmp_path: Path, release: str) -> None:
    edit = replacing("_tokenize_one_request", "_tokenize_request")
    message = refused_construction(altered.copy(tmp_path, {MANAGER: edit}))
    assert_complete(message, release, tmp_path)
    assert "_tokenize_one_request(obj): found nothing: missing" in message


def test_another_patch_that_came_after_ours(tmp_path: Path, release: str) -> None:
    (tmp_path / "relax_like_patch.py").write_text(RELAX_LIKE)
    message = refused_construction(tmp_path, "relax_like_patch")
    assert_complete(message, release)
    assert re.search(r"Qwen\w*VLImageProcessor\.process_mm_data_async", message)
    assert "relax_like_patch.patched_process_mm_data_async" in message
    assert "switch that package's patch off" in message
    assert "drop its flag --deepeyes-qwen-vl-patch" in message
    assert "or set DEEPEYES_PATCH=off" in message


def test_a_misspelt_switch(folder: Path) -> None:
    message = refusal(folder, DEEPEYES_PATCH="procesor")
    assert "SettingsError" in message
    assert "DEEPEYES_PATCH='procesor'" in message
    for valid in ("1, true, on or all", "processor", "mrope", "0, false, off or empty"):
        assert valid in message


def test_a_text_only_model_serves_all_the_same(renamed_seam: Path) -> None:
    """It constructs no Qwen-VL processor, so nothing of it is unsafe."""
    folder = models.ensure("qwen3")
    ids = reference.processor(folder).encode("The server of a text-only model", add_special_tokens=False)
    env = {**shapes.PATCHED, "PYTHONPATH": str(renamed_seam)}
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
