"""Vision features of old weights: stock keeps them over every kind of update, with the repair they go.

tests/e2e/test_smoke.py has a real server, real updates from disk, and log-probs.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any
from unittest import mock

import pytest
import torch

from deepeyes_patch.errors import InternalError
from deepeyes_patch.seams import table_server
from tests.lab import processors
from tests.lab.installed import has_module

KINDS = ("disk", "tensor", "distributed", "ipc")


def updater() -> type:
    """The class of the release whose methods the scheduler calls."""
    processors.processor_class()
    (home,) = (name for name in table_server.WEIGHT_UPDATERS if has_module(name))
    module = importlib.import_module(home)
    (cls,) = (
        cls
        for cls in vars(module).values()
        if inspect.isclass(cls) and cls.__module__ == home and "update_weights_from_disk" in vars(cls)
    )
    return cls


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The release's own cache, in its place, with features of one image."""
    processors.processor_class()
    names = [name for name in ("mm_schedule", "mm_utils") if has_module(f"sglang.srt.managers.{name}")]
    module = importlib.import_module(f"sglang.srt.managers.{names[0]}")
    cache_module = importlib.import_module("sglang.srt.mem_cache.multimodal_cache")
    name = "MultiModalStaticCache" if hasattr(cache_module, "MultiModalStaticCache") else "MultiModalCache"
    cache = getattr(cache_module, name)(1 << 20)
    features = torch.ones(4, 8)
    if hasattr(cache_module, "EmbeddingResult"):
        cache.set(7, cache_module.EmbeddingResult(embedding=features))
    else:
        cache.put(7, features)
    assert len(cache) == 1
    monkeypatch.setattr(module, "embedding_cache", cache)
    return cache


def update(kind: str) -> Exception | None:
    """As the scheduler does, with a scheduler of no substance: what is raised, over that or nothing."""
    cls = updater()
    if not hasattr(cls, f"update_weights_from_{kind}"):
        pytest.skip(f"this release has no update_weights_from_{kind}")
    try:
        getattr(cls, f"update_weights_from_{kind}")(mock.MagicMock(), mock.MagicMock())
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_drops_them(kind: str, kept: Any, request: pytest.FixtureRequest) -> None:
    stock = update(kind)
    assert len(kept) == 1
    request.getfixturevalue("patched")
    ours = update(kind)
    assert len(kept) == 0
    assert type(ours) is type(stock)


def test_without_a_cache_nothing_happens(patched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no request with an image has come yet."""
    for name in ("mm_schedule", "mm_utils"):
        if has_module(f"sglang.srt.managers.{name}"):
            module = importlib.import_module(f"sglang.srt.managers.{name}")
            monkeypatch.setattr(module, "embedding_cache", None, raising=False)
    assert not isinstance(update("disk"), InternalError)
