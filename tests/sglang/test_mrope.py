"""The release's real rotary embeddings against ``transformers``' own, stock and patched."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import deepeyes_patch
from deepeyes_patch.errors import UnsupportedConfigError
from deepeyes_patch.mrope.lanes import interleaved_axes

MODULE = "sglang.srt.layers.rotary_embedding"
HEAD, THETA, CONTEXT = 128, 5e6, 4096
SECTION = [24, 20, 20]
INTERLEAVED = {"rope_type": "default", "mrope_section": SECTION, "mrope_interleaved": True}
YARN = {**INTERLEAVED, "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048}


def transformers_axes(section: list[int]) -> list[int]:
    """The axis of each lane, read off what transformers' own class makes of position (0, 1, 2)."""
    rope = transformers_rope(section)
    rope.inv_freq = torch.ones(sum(section))
    cos, _ = rope(torch.zeros(1), torch.tensor([0, 1, 2])[:, None, None])
    turned = cos[0, 0, : sum(section)]
    return (turned[:, None] - torch.tensor([0.0, 1.0, 2.0]).cos()).abs().argmin(dim=1).tolist()


def transformers_rope(section: list[int], **more: Any) -> Any:
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

    # Both spellings: transformers 4 reads rope_theta, 5 reads it beside the sections.
    parameters = {"rope_type": "default", "mrope_section": section, "mrope_interleaved": True, **more}
    config = Qwen3VLTextConfig(
        head_dim=HEAD,
        hidden_size=4 * HEAD,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
        rope_theta=THETA,
        rope_scaling={**parameters, "rope_theta": THETA},
    )
    return Qwen3VLTextRotaryEmbedding(config)


# Qwen3-VL of every size, MoE included; Qwen3.5; and what the chunked models use
@pytest.mark.parametrize("section", [[24, 20, 20], [11, 11, 10], [16, 24, 24]])
def test_lanes_are_those_of_transformers(section: list[int]) -> None:
    assert list(interleaved_axes(section)) == transformers_axes(section)


# The first example imports transformers, and a busy machine is slow.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 40), min_size=3, max_size=3).filter(any))
def test_lanes_are_those_of_transformers_for_any_section(section: list[int]) -> None:
    assert list(interleaved_axes(section)) == transformers_axes(section)


@pytest.fixture
def rope_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    from tests.lab import processors

    processors.processor_class()
    module = importlib.import_module(MODULE)
    home = inspect.getmodule(inspect.unwrap(module.get_rope))
    monkeypatch.setattr(home, "_ROPE_DICT", {})
    # Releases with a process-wide configuration ask it for a switch when a rope is built.
    processors.build("qwen3_vl")
    return module


@pytest.fixture
def installed(rope_module: Any) -> Iterator[Any]:
    deepeyes_patch.install(["mrope"])
    yield rope_module
    deepeyes_patch.uninstall()


def native(module: Any) -> bool:
    return "mrope_interleaved" in inspect.signature(module.MRotaryEmbedding).parameters


def build(module: Any, scaling: dict[str, Any] | None, dtype: torch.dtype = torch.float32) -> Any:
    return module.get_rope(
        HEAD, rotary_dim=HEAD, max_position=CONTEXT, base=THETA, rope_scaling=scaling, dtype=dtype
    )


def image_positions(tokens: int = 300) -> torch.Tensor:
    """int64 [3, tokens]: text, an image of unlike h and w, text."""
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, CONTEXT, (3, tokens), generator=generator)


def heads(tokens: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    query = torch.randn(tokens, 4 * HEAD, generator=generator)
    key = torch.randn(tokens, 2 * HEAD, generator=generator)
    return query.to(dtype), key.to(dtype)


def rotated_by_transformers(
    positions: torch.Tensor, dtype: torch.dtype, **more: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same heads through Qwen3-VL's own rotary class."""
    from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb

    rope = transformers_rope(SECTION, **more)
    query, key = heads(positions.shape[1], dtype)
    cos, sin = rope(query, positions[:, None])
    split = [x.view(1, positions.shape[1], -1, HEAD).transpose(1, 2) for x in (query, key)]
    turned = apply_rotary_pos_emb(*split, cos, sin)
    return tuple(x.transpose(1, 2).reshape(positions.shape[1], -1) for x in turned)  # type: ignore[return-value]


def error(rope: Any, positions: torch.Tensor, dtype: torch.dtype, **more: Any) -> float:
    expected = rotated_by_transformers(positions, dtype, **more)
    got = rope.forward(positions, *heads(positions.shape[1], dtype))
    return max(float((a - b).abs().max()) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_images_are_rotated_as_in_transformers(dtype: torch.dtype, installed: Any) -> None:
    rope = build(installed, INTERLEAVED, dtype)
    noise = 1e-3 if dtype == torch.float32 else 0.06  # two bf16 roundings of values up to 5
    assert error(rope, image_positions(), dtype) < noise


def test_stock_is_wrong_where_the_repair_is_needed(rope_module: Any) -> None:
    rope = build(rope_module, INTERLEAVED)
    wrong = error(rope, image_positions(), torch.float32) > 1
    assert wrong != native(rope_module)


def test_text_and_chunked_models_are_stock(rope_module: Any, request: pytest.FixtureRequest) -> None:
    chunked = {"rope_type": "default", "mrope_section": [16, 24, 24]}
    positions = image_positions()
    stock = build(rope_module, chunked)
    expected = stock.forward(positions, *heads(300))
    expected_text = stock.forward(positions[0], *heads(300))
    request.getfixturevalue("installed")
    interleaved = build(rope_module, {**chunked, "mrope_interleaved": True})
    patched = build(rope_module, {**chunked, "mrope_section": (16, 24, 24)})
    assert type(patched) is type(stock)
    assert patched is not interleaved
    for got, wanted in (
        (patched.forward(positions, *heads(300)), expected),
        (patched.forward(positions[0], *heads(300)), expected_text),
        (interleaved.forward(positions[0], *heads(300)), expected_text),
    ):
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    assert not torch.equal(interleaved.forward(positions, *heads(300))[0], expected[0])


def test_the_cache_keeps_both_apart(installed: Any) -> None:
    plain = {"rope_type": "default", "mrope_section": SECTION}
    ropes = [build(installed, scaling) for scaling in (plain, INTERLEAVED, plain, INTERLEAVED)]
    assert ropes[0] is ropes[2]
    assert ropes[1] is ropes[3]
    assert ropes[0] is not ropes[1]
    if not native(installed):
        assert type(ropes[0]) is installed.MRotaryEmbedding


def test_sections_that_do_not_fit_are_an_error(installed: Any) -> None:
    if native(installed):
        pytest.skip("this release interleaves by itself")
    with pytest.raises(UnsupportedConfigError, match=r"mrope_section \[16, 16, 16\] sums to 48.*needs 64"):
        build(installed, {**INTERLEAVED, "mrope_section": [16, 16, 16]})


def test_no_rope_with_sections_where_our_modules_are_gone(
    rope_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after ``pip uninstall`` while SGLang starts. It got stock's, and a scheduler said nothing."""
    from deepeyes_patch import mrope
    from deepeyes_patch.startup import integrity

    monkeypatch.setattr(integrity, "require_all_modules", lambda: None)  # they were there, then
    monkeypatch.setitem(sys.modules, "deepeyes_patch.mrope.binding", None)
    monkeypatch.delattr(mrope, "binding", raising=False)
    deepeyes_patch.install(["mrope"])
    try:
        with pytest.raises(deepeyes_patch.DeepEyesPatchError, match=r"cannot be loaded.*--force-reinstall"):
            build(rope_module, INTERLEAVED)
        assert type(build(rope_module, None)).__name__ == "RotaryEmbedding"
    finally:
        deepeyes_patch.uninstall()
    assert isinstance(build(rope_module, INTERLEAVED), rope_module.MRotaryEmbedding)


class TestYarn:
    """Before 0.5.9, SGLang builds a YaRN rope without sections, which raises for positions of images."""

    def test_stock_loses_the_sections(self, rope_module: Any) -> None:
        rope = build(rope_module, YARN)
        if native_yarn(rope_module):
            assert error(rope, image_positions(), torch.float32, **YARN) < 1e-3
        else:
            with pytest.raises((AssertionError, IndexError, RuntimeError, ValueError)):
                rope.forward(image_positions(), *heads(300))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_images_are_rotated_as_in_transformers(self, dtype: torch.dtype, installed: Any) -> None:
        rope = build(installed, YARN, dtype)
        assert list(rope.mrope_section) == SECTION
        noise = 1e-3 if dtype == torch.float32 else 0.06
        assert error(rope, image_positions(), dtype, **YARN) < noise
        assert error(rope, image_positions(), dtype) > 1, "YaRN is not the plain rope"

    def test_text_is_rotated_as_in_transformers(self, installed: Any) -> None:
        positions = image_positions()[:1].expand(3, -1)
        rope = build(installed, YARN)
        expected = rotated_by_transformers(positions, torch.float32, **YARN)
        got = rope.forward(positions[0], *heads(300))
        assert max(float((a - b).abs().max()) for a, b in zip(got, expected, strict=True)) < 1e-3

    def test_chunks_have_the_same_rows(self, installed: Any) -> None:
        """Qwen2.5-VL; the rope of each lane is that of its axis."""
        chunked = {key: value for key, value in YARN.items() if key != "mrope_interleaved"}
        rope = build(installed, chunked)
        positions = image_positions()
        rows = build(installed, YARN).cos_sin_cache
        axes = [axis for axis, lanes in enumerate(SECTION) for _ in range(lanes)]
        cos, sin = (
            torch.stack([part[positions[axis], lane] for lane, axis in enumerate(axes)], dim=1)
            for part in rows.chunk(2, dim=1)
        )
        query, _ = heads(300)
        first, second = query.view(300, 4, HEAD).chunk(2, dim=-1)
        expected = torch.cat(
            (first * cos[:, None] - second * sin[:, None], second * cos[:, None] + first * sin[:, None]),
            dim=-1,
        ).view(300, -1)
        got, _ = rope.forward(positions, *heads(300))
        assert float((got - expected).abs().max()) < 1e-3

    def test_it_shares_nothing_with_a_rope_without_yarn(self, installed: Any) -> None:
        yarn, plain = build(installed, YARN), build(installed, INTERLEAVED)
        assert build(installed, YARN) is yarn
        assert yarn is not plain
        assert error(plain, image_positions(), torch.float32) < 1e-3

    def test_rows_that_are_added_for_a_long_context(self, installed: Any) -> None:
        rope = build(installed, YARN)
        if native_yarn(installed) or not hasattr(rope, "_ensure_cos_sin_cache_length"):
            pytest.skip("this release adds no rows, or has YaRN with sections of its own")
        rope._ensure_cos_sin_cache_length(2 * CONTEXT)
        assert len(rope.cos_sin_cache) > 2 * CONTEXT
        assert error(rope, image_positions() + CONTEXT, torch.float32, **YARN) < 2e-3

    @pytest.mark.parametrize(
        "more", [{"attention_factor": 1.3}, {"mscale": 0.7}, {"truncate": False}], ids=str
    )
    def test_what_this_sglang_does_not_read_is_refused(self, more: dict[str, Any], installed: Any) -> None:
        if native_yarn(installed):
            pytest.skip("this release has YaRN with sections of its own")
        with pytest.raises(UnsupportedConfigError, match=f"YaRN has {next(iter(more))}, which this SGLang"):
            build(installed, {**YARN, **more})


def native_yarn(module: Any) -> bool:
    home = inspect.getmodule(inspect.unwrap(module.get_rope))
    return hasattr(home, "YaRNScalingMRotaryEmbedding")


def test_lost_sections_are_refused(installed: Any) -> None:
    """A rope of another type than YaRN has none, in any release."""
    lost = {**INTERLEAVED, "rope_type": "linear", "factor": 2.0}
    with pytest.raises(UnsupportedConfigError, match=r"ignores mrope_section \[24, 20, 20\]"):
        build(installed, lost)


MODELS = [
    ("qwen3_vl", "Qwen3VLForConditionalGeneration"),
    ("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration"),
    ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
]


@pytest.fixture(params=MODELS, ids=[cls for _, cls in MODELS])
def building(
    request: pytest.FixtureRequest, rope_module: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[dict[str, Any]], Any]]:
    """Build a rope as one of the release's models does, from inside the constructor of its class."""
    name, cls_name = request.param
    try:
        module = importlib.import_module(f"sglang.srt.models.{name}")
    except ModuleNotFoundError as missing:
        if missing.name != f"sglang.srt.models.{name}":
            raise
        pytest.skip(f"this release has no {cls_name}")
    built = []

    def construct(self: Any, scaling: dict[str, Any]) -> None:
        built.append(build(rope_module, scaling))

    construct.__module__ = module.__name__  # a constructor from elsewhere is refused
    cls = getattr(module, cls_name)
    monkeypatch.setattr(cls, "__init__", construct)

    def build_in_model(scaling: dict[str, Any]) -> Any:
        cls.__new__(cls).__init__(scaling)
        return built.pop()

    yield build_in_model
    deepeyes_patch.uninstall()


def warnings_of_ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        r.getMessage() for r in caplog.records if r.name == "deepeyes_patch" and r.levelno >= logging.WARNING
    ]


def test_a_config_without_the_flag_is_read_as_in_transformers(
    building: Any, rope_module: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"rope_type": "default", "mrope_section": SECTION}
    positions = image_positions()
    assert error(building(config), positions, torch.float32) > 1  # stock, of every release
    deepeyes_patch.install(["mrope"])
    rope = building(config)
    assert error(rope, positions, torch.float32) < 1e-3
    assert rope is not build(rope_module, config)  # a model that chunks, in the same process
    assert error(build(rope_module, config), positions, torch.float32) > 1
    assert warnings_of_ours(caplog) == []
    chunked = building({**config, "mrope_interleaved": False})
    assert error(chunked, positions, torch.float32) > 1
    assert "mrope_interleaved: false, so its rope stays chunked" in caplog.text


def test_rope_theta_in_the_rotary_block(building: Any, caplog: pytest.LogCaptureFixture) -> None:
    """transformers 5 keeps it there alone, and 0.5.6.post1 looks for it elsewhere."""
    deepeyes_patch.install(["mrope"])
    positions = image_positions()
    assert error(building({**INTERLEAVED, "rope_theta": THETA}), positions, torch.float32) < 1e-3
    assert warnings_of_ours(caplog) == []
    elsewhere = building({**INTERLEAVED, "rope_theta": 2 * THETA})
    assert elsewhere.base == 2 * THETA
    assert "rope_theta is 10000000.0, and SGLang would have used 5000000.0" in caplog.text


def test_installing_after_models_have_imported_get_rope(rope_module: Any) -> None:
    """``qwen3`` builds Qwen3-VL's attention. When its name for ``get_rope`` was left as it was, status said
    *patched* and the rope was stock."""
    qwen3 = importlib.import_module("sglang.srt.models.qwen3")
    importlib.import_module("sglang.srt.models.qwen3_vl")
    stock = rope_module.get_rope
    holders = {
        name: module
        for name, module in sys.modules.items()
        if name.startswith("sglang.") and vars(module).get("get_rope") is stock
    }
    assert {"sglang.srt.models.qwen3", MODULE} <= set(holders)
    deepeyes_patch.install(["mrope"])
    try:
        assert error(build(qwen3, INTERLEAVED), image_positions(), torch.float32) < 1e-3
        left = [name for name, module in holders.items() if module.get_rope is stock]
        assert left == [], "these still call SGLang's own"
    finally:
        deepeyes_patch.uninstall()
    assert all(module.get_rope is stock for module in holders.values())


def test_status_says_native_or_patched(installed: Any) -> None:
    expected = "native" if native(installed) else "patched (MRotaryEmbedding)"
    assert deepeyes_patch.status()["mrope"] == expected


def test_not_understood(rope_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if native(rope_module):
        pytest.skip("this release interleaves by itself")

    def forward(self: Any, where: Any, q: Any, k: Any) -> None: ...

    forward.__module__ = MODULE
    monkeypatch.setattr(rope_module.MRotaryEmbedding, "forward", forward)
    deepeyes_patch.install(["mrope"])
    try:
        with pytest.raises(deepeyes_patch.IncompatibleSGLangError, match="it takes no positions"):
            build(rope_module, INTERLEAVED)
        build(rope_module, {"rope_type": "default", "mrope_section": [16, 24, 24]})
        build(rope_module, None)
    finally:
        deepeyes_patch.uninstall()


def test_uninstall_gives_stock_back(rope_module: Any) -> None:
    before = dict(vars(rope_module))
    deepeyes_patch.install(["mrope"])
    deepeyes_patch.uninstall()
    assert dict(vars(rope_module)) == before
