"""Qwen3.5's gated attention: the release's own fused CUDA kernel, in Triton's interpreter.

Expected values are those of ``transformers``' Qwen3.5 classes.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import deepeyes_patch
from deepeyes_patch.errors import UnsupportedConfigError
from tests.lab import qwen3_5

EPS = 1e-6


def affected() -> bool:
    kernel = qwen3_5.kernel()
    return kernel is not None and "mrope_axis_map" not in inspect.signature(kernel).parameters


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if qwen3_5.kernel() is None:
        pytest.skip("this release has no fused kernel for Qwen3.5's attention")
    from tests.lab import processors

    processors.build("qwen3_vl")
    return qwen3_5.module_as_on_cuda(functools.partial(monkeypatch.setattr, raising=False))


@pytest.fixture
def patched(module: ModuleType) -> Iterator[None]:
    deepeyes_patch.install(["mrope"])
    yield
    deepeyes_patch.uninstall()


@torch.no_grad()
def by_transformers(heads: torch.Tensor, weight: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, HEAD] after transformers' norm and rotation."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import (
        Qwen3_5RMSNorm,
        Qwen3_5TextRotaryEmbedding,
        apply_rotary_pos_emb,
    )

    norm = Qwen3_5RMSNorm(qwen3_5.HEAD, eps=EPS)
    norm.weight.data = weight
    rope = Qwen3_5TextRotaryEmbedding(qwen3_5.reference().config)
    # As the kernel does: the table is not rounded to the activations' dtype.
    cos, sin = rope(heads.float(), positions.expand(3, -1)[:, None])
    normed = norm(heads)[None].transpose(1, 2).float()
    turned, _ = apply_rotary_pos_emb(normed, normed, cos, sin)
    return turned[0].transpose(0, 1)


def errors(
    module: ModuleType,
    positions: torch.Tensor,
    query_heads: int = 4,
    key_heads: int = 2,
    dtype: torch.dtype = torch.bfloat16,
    **more: Any,
) -> tuple[float, tuple[torch.Tensor, ...]]:
    """(largest error of q and k against transformers, the raw result) of the layer's own method."""
    generator = torch.Generator().manual_seed(11)
    tokens, head = positions.shape[-1], qwen3_5.HEAD
    sizes = [2 * query_heads * head, key_heads * head, key_heads * head]
    projection = torch.randn(tokens, sum(sizes), generator=generator).to(dtype)
    weights = [torch.randn(head, generator=generator).to(dtype) * 0.1 for _ in range(2)]
    norms = [SimpleNamespace(weight=SimpleNamespace(data=w), variance_epsilon=EPS) for w in weights]
    layer = SimpleNamespace(
        qkv_proj=lambda hidden: (projection, None),
        attn_output_gate=True,
        q_size=query_heads * head,
        kv_size=key_heads * head,
        q_norm=norms[0],
        k_norm=norms[1],
        num_heads=query_heads,
        num_kv_heads=key_heads,
        head_dim=head,
        rotary_emb=qwen3_5.rope(),
    )
    prepare = module.Qwen3_5AttentionDecoderLayer.forward_prepare_cuda_fused
    query, key, value, gate = prepare(layer, positions, torch.empty(tokens, 1), **more)
    q_gate, k, v = projection.split(sizes, dim=-1)
    # q and the gate lie side by side, head by head
    q, expected_gate = q_gate.view(tokens, query_heads, 2, head).unbind(dim=2)
    assert torch.equal(value, v)
    assert torch.equal(gate.view(expected_gate.shape), expected_gate)
    worst = 0.0
    for got, heads, weight in ((query, q, weights[0]), (key, k.view(tokens, -1, head), weights[1])):
        expected = by_transformers(heads, weight, positions)
        worst = max(worst, float((got.view(expected.shape).float() - expected).abs().max()))
    return worst, (query, key, gate)


# One rounding of elements up to 5, and of the norm before it
NOISE = {torch.bfloat16: 0.06, torch.float16: 0.008}


def image_positions(tokens: int, strided: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    buffer = torch.randint(0, qwen3_5.CONTEXT, (3, tokens + 5), generator=generator)
    return buffer[:, :tokens] if strided else buffer[:, :tokens].contiguous()


@pytest.mark.parametrize("dtype", list(NOISE))
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize(
    ("tokens", "query_heads", "key_heads"), [(1, 1, 1), (9, 4, 2), (11, 5, 1), (4, 16, 2), (2, 3, 3)]
)
def test_images(
    module: ModuleType,
    request: pytest.FixtureRequest,
    dtype: torch.dtype,
    strided: bool,
    tokens: int,
    query_heads: int,
    key_heads: int,
) -> None:
    positions = image_positions(tokens, strided)
    stock, _ = errors(module, positions, query_heads, key_heads, dtype)
    assert (stock > 1) == affected()
    request.getfixturevalue("patched")
    repaired, _ = errors(module, positions, query_heads, key_heads, dtype)
    assert repaired <= NOISE[dtype]


@pytest.mark.parametrize("tokens", [1, 17])
def test_text_is_stock(module: ModuleType, request: pytest.FixtureRequest, tokens: int) -> None:
    positions = torch.arange(tokens)
    error, stock = errors(module, positions)
    assert error <= NOISE[torch.bfloat16]
    request.getfixturevalue("patched")
    _, got = errors(module, positions)
    assert all(torch.equal(a, b) for a, b in zip(got, stock, strict=True))


def test_positions_that_are_text_in_three_rows(module: ModuleType, patched: None) -> None:
    """A text token of a batch with images has t = h = w."""
    error, _ = errors(module, torch.arange(17).expand(3, -1).contiguous())
    assert error <= NOISE[torch.bfloat16]


def test_no_tokens(module: ModuleType, patched: None) -> None:
    if not affected():
        pytest.skip("this release needs no repair")
    from deepeyes_patch.mrope.kernel import gather_rows_fused

    rows, in_order = gather_rows_fused(qwen3_5.rope().cos_sin_cache, image_positions(0), qwen3_5.SECTION)
    assert rows.shape == (0, 64)
    assert in_order.shape == (0,)


def test_status(module: ModuleType, patched: None) -> None:
    expected = "patched (Qwen3_5AttentionDecoderLayer)" if affected() else "native"
    assert deepeyes_patch.status()["mrope"] == expected


def test_off_cuda_nothing_is_done() -> None:
    """As this machine imports the module: without the kernel."""
    try:
        module = importlib.import_module("sglang.srt.models.qwen3_5")
    except ModuleNotFoundError:
        pytest.skip("this release does not serve Qwen3.5")
    before = dict(vars(module))
    forward = module.Qwen3_5ForCausalLM.forward
    deepeyes_patch.install(["mrope"])
    try:
        assert "patched (Qwen3_5" not in deepeyes_patch.status()["mrope"]
        assert dict(vars(module)) == before
        assert module.Qwen3_5ForCausalLM.forward is forward
    finally:
        deepeyes_patch.uninstall()


def hidden_states(model: Any, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(SGLang's, transformers') last hidden states for the same ids."""
    ids = torch.arange(positions.shape[-1]) * 7 % qwen3_5.VOCABULARY
    with torch.no_grad():
        expected = qwen3_5.reference()(
            input_ids=ids[None], position_ids=positions.expand(3, -1)[:, None], use_cache=False
        )
        got = model(ids, positions, qwen3_5.forward_batch())
    return got, expected.last_hidden_state[0]


def test_the_whole_text_model(
    module: ModuleType, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not affected():
        pytest.skip("this release needs no repair")
    model = qwen3_5.text_model(module)
    positions = qwen3_5.positions()

    def error(where: torch.Tensor) -> float:
        """Root mean square. The largest error of bfloat16 numbers moves in a few large steps."""
        got, expected = hidden_states(model, where)
        return float((got - expected).float().square().mean().sqrt())

    noise = error(torch.arange(positions.shape[1]))
    stock = error(positions)
    assert stock > 4 * noise
    request.getfixturevalue("patched")
    assert error(positions) < 1.5 * noise

    from deepeyes_patch.mrope import gated_attention

    gathered = []
    gather = gated_attention.gather_rows_fused
    monkeypatch.setattr(
        gated_attention, "gather_rows_fused", lambda *args: gathered.append(1) or gather(*args)
    )
    hidden_states(model, positions)
    assert len(gathered) == 1  # for both layers
    hidden_states(model, positions[0])
    assert len(gathered) == 1  # text


def with_a_new_parameter(cls: type, name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Give a method an optional parameter more, as an SGLang of tomorrow may; return what comes in it."""
    original = getattr(cls, name)
    came: list[Any] = []

    @functools.wraps(original)
    def newer(*args: Any, new: Any = None, **kwargs: Any) -> Any:
        came.append(new)
        return original(*args, **kwargs)

    signature = inspect.signature(original)
    new = inspect.Parameter("new", inspect.Parameter.KEYWORD_ONLY, default=None)
    newer.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), new]
    )
    monkeypatch.setattr(cls, name, newer)
    return came


@pytest.mark.parametrize("given", [{}, {"new": 7}])
def test_a_new_optional_parameter_of_the_layer(
    given: dict[str, Any], module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passed the check at start, and then every request failed, text too."""
    if not affected():
        pytest.skip("this release needs no repair")
    layer = module.Qwen3_5AttentionDecoderLayer
    came = with_a_new_parameter(layer, "forward_prepare_cuda_fused", monkeypatch)
    deepeyes_patch.install(["mrope"])
    try:
        for positions in (torch.arange(5), image_positions(5)):
            error, _ = errors(module, positions, **given)
            assert error <= NOISE[torch.bfloat16]
    finally:
        deepeyes_patch.uninstall()
    assert came == [given.get("new")] * 2


def test_a_new_optional_parameter_of_the_model(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    if not affected():
        pytest.skip("this release needs no repair")
    model = qwen3_5.text_model(module)
    came = with_a_new_parameter(module.Qwen3_5ForCausalLM, "forward", monkeypatch)
    deepeyes_patch.install(["mrope"])
    positions = qwen3_5.positions()
    try:
        with torch.no_grad():
            ids = torch.zeros(positions.shape[1], dtype=torch.long)
            model(ids, positions, qwen3_5.forward_batch(), new=7)
    finally:
        deepeyes_patch.uninstall()
    assert came == [7]


def test_a_rope_in_another_layout_is_refused(
    module: ModuleType, patched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not affected():
        pytest.skip("this release needs no repair")
    monkeypatch.setitem(qwen3_5.ROPE, "mrope_interleaved", False)
    with pytest.raises(
        UnsupportedConfigError, match=r"builds a MRotaryEmbedding that does not.*mrope_interleaved: true"
    ):
        qwen3_5.text_model(module)


def test_not_understood(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of another shape: the model is not built."""
    if not affected():
        pytest.skip("this release needs no repair")

    def kernel(q_gate: Any, k: Any, q_weight: Any, k_weight: Any, table: Any, where: Any) -> None: ...

    kernel.__module__ = module.__name__
    monkeypatch.setattr(module, qwen3_5.KERNEL, kernel)
    deepeyes_patch.install(["mrope"])
    try:
        with pytest.raises(
            deepeyes_patch.IncompatibleSGLangError, match="it takes no cos_sin_cache and no positions"
        ):
            qwen3_5.text_model(module)
    finally:
        deepeyes_patch.uninstall()


def test_uninstall_gives_stock_back(module: ModuleType) -> None:
    def state() -> list[dict[str, Any]]:
        classes = (module.Qwen3_5AttentionDecoderLayer, module.Qwen3_5ForCausalLM)
        return [dict(vars(owner)) for owner in (module, *classes)]

    before = state()
    deepeyes_patch.install(["mrope"])
    assert (state() != before) == affected()
    deepeyes_patch.uninstall()
    assert state() == before


TRACE = """
from tests.lab import tracing  # first

import torch
import deepeyes_patch
from tests.lab import processors, qwen3_5

processors.build("qwen3_vl")
module = qwen3_5.module_as_on_cuda(setattr)
model = qwen3_5.text_model(module)
deepeyes_patch.install(["mrope"])

from sglang.srt.compilation.compile import install_torch_compiled
from sglang.srt.model_executor.runner_backend_utils import tc_piecewise_cuda_graph

install_torch_compiled(model, backend_factory=tracing.backend("launches"), fullgraph=True)
positions = qwen3_5.positions()
try:
    with tc_piecewise_cuda_graph.enable_tc_piecewise_cuda_graph(), torch.no_grad():
        model(torch.zeros(positions.shape[1], dtype=torch.long), positions, qwen3_5.forward_batch())
except tracing.Traced:
    pass
"""


def test_sglang_compiles_it_in_one_graph() -> None:
    """SGLang's own compilation of the prefill: no graph break, one gather, one fused kernel a layer."""
    if not affected():
        pytest.skip("this release needs no repair")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TORCHDYNAMO_DISABLE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", TRACE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "launches 3" in done.stdout, done.stderr[-3000:]
    assert "[(s" in done.stdout, "the number of tokens must stay dynamic"
