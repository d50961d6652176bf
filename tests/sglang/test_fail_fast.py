"""An SGLang that is not understood: the processor is not constructed, and the message says all.

The real release with one thing changed in memory, which is enough for what a hook finds. Edited copies on
disk, and servers that must not start, are in tests/e2e.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import deepeyes_patch
from tests.lab import processors
from tests.sglang import rollouts
from tests.sglang.rollouts import assert_exact, picture

FACTORY = "sglang.srt.managers.multimodal_processor"
MANAGER = "sglang.srt.managers.tokenizer_manager"


@pytest.fixture(autouse=True)
def off_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Uninstall before ``monkeypatch`` puts upstream's functions back, not after."""
    processors.processor_class()  # imports the module, whose hooks then run at install()
    importlib.import_module(MANAGER)
    yield
    deepeyes_patch.uninstall()


def refusal(kind: str = "qwen3_vl") -> str:
    with pytest.raises(deepeyes_patch.IncompatibleSGLangError) as caught:
        processors.build(kind)
    message = str(caught.value)
    assert importlib.import_module("sglang").__version__ in message
    assert "distribution sglang" in message
    assert "tested with SGLang 0.5.3" in message
    assert "DEEPEYES_PATCH=off" in message
    assert "report" in message
    return message


def owner(name: str) -> type:
    """The class in whose body upstream defines a seam."""
    return next(cls for cls in processors.processor_class().__mro__ if name in vars(cls))


@pytest.mark.parametrize(
    "seam",
    [
        "process_mm_data_async",
        "load_mm_data",
        "process_and_combine_mm_data",
        "process_mm_data",
        "_process_and_collect_mm_items",
        "get_mm_items_offset",
    ],
)
def test_a_missing_seam(seam: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = owner(seam)
    monkeypatch.setattr(body, f"{seam}_renamed", inspect.getattr_static(body, seam), raising=False)
    if seam == "process_mm_data_async":  # abstract in the base class: the subclass's goes
        body.__abstractmethods__ = frozenset()
    monkeypatch.delattr(body, seam)
    deepeyes_patch.install(["processor"])
    message = refusal()
    assert f"{seam}(" in message
    if seam == "process_mm_data_async":
        assert "abstract, and nothing implements it" in message
    else:
        assert "found nothing: missing" in message
        assert "looked for process_mm_data_async(image_data, input_text, request_obj)" in message
        assert message.count(": ok") >= 3, "what was found and is right belongs into a report"


def test_a_seam_with_another_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    def _process_and_collect_mm_items(self: Any, text: str, pictures: list[Any]) -> None: ...

    _process_and_collect_mm_items.__module__ = "sglang.srt.multimodal.processors.base_processor"
    seam = "_process_and_collect_mm_items"
    monkeypatch.setattr(owner(seam), seam, _process_and_collect_mm_items)
    deepeyes_patch.install(["processor"])
    assert "it takes no input_text and no images" in refusal()


def test_a_seam_that_became_async(monkeypatch: pytest.MonkeyPatch) -> None:
    async def get_mm_items_offset(input_ids: Any, mm_token_id: int) -> None: ...

    get_mm_items_offset.__module__ = "sglang.srt.multimodal.processors.base_processor"
    monkeypatch.setattr(
        owner("get_mm_items_offset"), "get_mm_items_offset", staticmethod(get_mm_items_offset)
    )
    deepeyes_patch.install(["processor"])
    assert "it must not be async" in refusal()


def test_the_tokenizer_manager_without_its_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = importlib.import_module(MANAGER)
    monkeypatch.delattr(manager.TokenizerManager, "_tokenize_one_request")
    deepeyes_patch.install(["processor"])
    assert "_tokenize_one_request(obj): found nothing: missing" in refusal()


def test_the_factory_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(importlib.import_module(FACTORY), "get_mm_processor")
    deepeyes_patch.install(["processor"])
    assert "get_mm_processor(hf_config): found nothing: missing" in refusal()


def test_the_sampling_of_videos_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(importlib.import_module(processors.MODULE), "preprocess_video")
    deepeyes_patch.install(["processor"])
    assert "preprocess_video(vr): found nothing: missing" in refusal()


def test_get_rope_index_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(processors.MODULE)
    monkeypatch.delattr(module.MRotaryEmbedding, "get_rope_index")
    deepeyes_patch.install(["processor"])
    assert "get_rope_index(" in refusal()


def test_the_token_ids_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = processors.processor_class()
    original = cls.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        del self.vision_end_token_id

    __init__.__module__ = cls.__module__
    __init__.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    monkeypatch.setattr(cls, "__init__", __init__)
    deepeyes_patch.install(["processor"])
    assert "vision_end_token_id" in refusal()


@pytest.mark.parametrize("module_name", ["managers.rust_server", "rust_server.server"])
def test_the_rust_server_is_refused(module_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves images past every wrapper; tests/e2e starts the real one."""
    try:
        module = importlib.import_module(f"sglang.srt.{module_name}")
    except ImportError:
        pytest.skip("not in this release")

    @classmethod  # type: ignore[misc]
    def launch(cls: type, scheduler: Any) -> str:
        return "launched"

    launch.__func__.__module__ = module.__name__
    monkeypatch.setattr(module.RustServer, "launch", launch)
    deepeyes_patch.install(["processor"])

    def scheduler(model_type: str) -> Any:
        config = SimpleNamespace(model_type=model_type)
        return SimpleNamespace(model_config=SimpleNamespace(hf_config=config))

    assert module.RustServer.launch(scheduler("qwen3")) == "launched"
    with pytest.raises(deepeyes_patch.IncompatibleSGLangError, match="unset SGLANG_RUST_SERVER"):
        module.RustServer.launch(scheduler("qwen3_vl_moe"))


class _OtherPatch:
    """Stands for another package that replaces a method of the processor at run time."""

    @staticmethod
    async def process_mm_data_async(
        self: Any, image_data: Any, input_text: Any, request_obj: Any, *args: Any, **kwargs: Any
    ) -> None: ...


def test_another_patch_replaced_a_method_before_us(monkeypatch: pytest.MonkeyPatch) -> None:
    replacement = _OtherPatch.process_mm_data_async
    monkeypatch.setattr(processors.processor_class(), "process_mm_data_async", replacement)
    deepeyes_patch.install(["processor"])
    message = refusal()
    assert "another package has replaced it" in message
    assert f"{__name__}._OtherPatch.process_mm_data_async" in message


def test_another_patch_replaced_a_method_after_us() -> None:
    cls = processors.processor_class()
    deepeyes_patch.install(["processor"])
    ours = inspect.getattr_static(cls, "process_mm_data_async")
    cls.process_mm_data_async = _OtherPatch.process_mm_data_async
    try:
        message = refusal()
    finally:
        cls.process_mm_data_async = ours
    assert f"{__name__}._OtherPatch.process_mm_data_async" in message
    assert "switch that package's patch off" in message
    assert "drop its flag --deepeyes-qwen-vl-patch" in message
    assert "or set DEEPEYES_PATCH=off" in message


def test_a_wrapper_around_ours_is_welcome() -> None:
    """Tracing tools wrap and call on; that takes nothing away."""
    cls = processors.processor_class()
    deepeyes_patch.install(["processor"])
    ours = inspect.getattr_static(cls, "process_mm_data_async")

    @functools.wraps(ours)
    async def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await ours.__get__(self, type(self))(*args, **kwargs)

    cls.process_mm_data_async = traced
    try:
        processor = processors.build("qwen3_vl")
        request = rollouts.expanded(_folder("qwen3_vl"), [picture(448, 224)])
        assert_exact(_folder("qwen3_vl"), processors.process(processor, request.ids, request.images), request)
    finally:
        cls.process_mm_data_async = ours


@pytest.mark.parametrize("caller", [FACTORY, MANAGER])
def test_a_class_put_in_place_of_ours(caller: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's external packages may register a processor of their own for Qwen-VL.

    The tokenizer manager imports the function by name, here before the repairs are installed.
    """
    cls = processors.processor_class()
    factory = importlib.import_module(FACTORY)

    class Elsewhere(cls):  # type: ignore[valid-type,misc]
        async def process_mm_data_async(
            self, image_data: Any, input_text: Any, request_obj: Any, *args: Any, **kwargs: Any
        ) -> None: ...

    importlib.import_module(caller)
    deepeyes_patch.install(["processor"])
    get_mm_processor = importlib.import_module(caller).get_mm_processor
    built = processors.build("qwen3_vl")
    arguments = (built.hf_config, built.server_args, built._processor, "default")
    models = dict.fromkeys(cls.models, cls)
    monkeypatch.setattr(factory, "PROCESSOR_MAPPING", models)
    assert type(get_mm_processor(*arguments)) is cls
    monkeypatch.setattr(factory, "PROCESSOR_MAPPING", dict.fromkeys(models, Elsewhere))
    with pytest.raises(deepeyes_patch.IncompatibleSGLangError, match=r"Elsewhere.*does not run through"):
        get_mm_processor(*arguments)


def test_applied_twice_changes_nothing_more() -> None:
    cls = processors.processor_class()
    deepeyes_patch.install(["processor"])
    once = dict(vars(cls))
    deepeyes_patch.install(["processor"])
    deepeyes_patch.install()
    assert dict(vars(cls)) == once
    processor = processors.build("qwen3_vl")
    request = rollouts.expanded(_folder("qwen3_vl"), [picture(448, 224)])
    assert_exact(_folder("qwen3_vl"), processors.process(processor, request.ids, request.images), request)


def test_uninstall_puts_every_original_back() -> None:
    module = importlib.import_module(processors.MODULE)
    manager, factory = importlib.import_module(MANAGER), importlib.import_module(FACTORY)
    owners = [
        processors.processor_class(),
        *processors.processor_class().__mro__[1:-1],
        module.MRotaryEmbedding,
        manager.TokenizerManager,
        factory,
    ]
    before = [dict(vars(owner)) for owner in owners]
    deepeyes_patch.install(["processor"])
    assert [dict(vars(owner)) for owner in owners] != before
    deepeyes_patch.uninstall()
    assert [dict(vars(owner)) for owner in owners] == before


def _folder(kind: str) -> Path:
    from tests.lab import models

    return models.ensure(kind)  # type: ignore[arg-type]
