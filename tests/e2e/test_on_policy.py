"""A server with ``--rl-on-policy-target``, stock and patched, beside ``transformers``.

The server is of a copy of SGLang, because the mode is written for GPUs. The copy differs in what a CPU has
not: it takes the torch attention that the lab uses, keeps torch's own operators where the mode puts Triton
kernels, and does not make the frequencies of the rope on CUDA.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepeyes_patch.seams.table_mrope import FORWARD_BATCH
from tests.e2e import shapes
from tests.e2e.shapes import Sent
from tests.lab import altered, installed, server
from tests.lab.server import Server
from tests.sglang import rollouts

MODE = ["--rl-on-policy-target", "fsdp"]
ANSWER_TOKENS = 32

pytestmark = pytest.mark.skipif(
    all("rl_on_policy_target" not in file.read_text() for file in installed.sources(FORWARD_BATCH)),
    reason="positions do not depend on the training system in this release",
)

CHOICES = "\nDETERMINISTIC_ATTENTION_BACKEND_CHOICES = ["
KERNELS = r"\ndef enable_batch_invariant_mode\([^)]*\):\n"
ON_CUDA = "inv_freq.cuda()"


def sources(*modules: str) -> dict[str, str]:
    """The text of the files of these modules, by their paths inside the package."""
    files = [file for module in modules for file in installed.sources(module)]
    return {file.as_posix().rpartition("/sglang/")[2]: file.read_text() for file in files}


@pytest.fixture(scope="module")
def on_a_cpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    edits = {}
    for file, text in sources("sglang.srt.arg_groups.choices", "sglang.srt.server_args").items():
        if CHOICES in text:
            edits[file] = altered.replacing(CHOICES, f'{CHOICES}"torch_native", ')
    for file, text in sources("sglang.srt.batch_invariant_ops.batch_invariant_ops").items():
        head = re.search(KERNELS, text)
        assert head is not None
        edits[file] = altered.replacing(head[0], f"{head[0]}    return\n")
    for file, text in sources(
        "sglang.srt.layers.rotary_embedding", "sglang.srt.layers.rotary_embedding.base"
    ).items():
        if ON_CUDA in text:
            edits[file] = altered.replacing(ON_CUDA, "inv_freq")
    return {"PYTHONPATH": str(altered.copy(tmp_path_factory.mktemp("on-policy"), edits))}


@pytest.fixture(scope="module", params=["stock", "patched"])
def running(
    request: pytest.FixtureRequest, folder: Path, on_a_cpu: dict[str, str]
) -> Iterator[tuple[str, Server]]:
    switch = shapes.STOCK if request.param == "stock" else shapes.PATCHED
    with server.serve(folder, env={**switch, **on_a_cpu}, args=MODE) as started:
        yield request.param, started


def test_images_have_the_positions_of_transformers(folder: Path, running: tuple[str, Server]) -> None:
    which, started = running
    sizes = {"one": [(448, 224)], "two": [(448, 224), (224, 672)]}
    for name, sides in sizes.items():
        images = [rollouts.picture(*size) for size in sides]
        sent = shapes.text(folder, rollouts.conversation(len(images)), images)
        errors = compared(folder, started, sent)
        assert errors < shapes.NOISE if which == "patched" else errors > shapes.WRONG, (name, errors)
    said = "because of --rl-on-policy-target fsdp" in started.log_text()
    assert said == (which == "patched")


def test_expanded_ids(folder: Path, running: tuple[str, Server]) -> None:
    which, started = running
    if which == "stock":
        pytest.skip("what stock does with expanded ids is not about this mode: see test_rollout.py")
    assert compared(folder, started, shapes.one_image(folder)) < shapes.NOISE


def test_text(folder: Path, running: tuple[str, Server]) -> None:
    assert compared(folder, running[1], shapes.text(folder, "Tell me about the red cup.")) < shapes.NOISE


def compared(folder: Path, running: Server, sent: Sent) -> float:
    """The largest error of a log-prob of the answer."""
    answer = shapes.ask(running.url, sent, ANSWER_TOKENS)
    assert answer is not None, "no answer in time"
    assert answer.status == 200, answer.body
    errors, _ = shapes.compare(folder, sent, answer)
    return float(errors.max())
