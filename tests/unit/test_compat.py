"""What is said about an SGLang that does not fit."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import importlib_metadata
import pytest

from deepeyes_patch import IncompatibleSGLangError
from deepeyes_patch.seams import examine as compat
from deepeyes_patch.seams.examine import Seam

SWITCH = "DEEPEYES_PATCH"
HOME = "sglang.srt.multimodal.processors.qwen_vl"


def processor_class(**functions: Any) -> type[Any]:
    """A class as if ``qwen_vl`` had defined it."""
    for function in functions.values():
        plain = getattr(function, "__func__", function)
        if isinstance(plain, types.FunctionType):
            plain.__module__ = HOME
            plain.__qualname__ = f"Processor.{plain.__name__}"
    return type("Processor", (), {"__module__": HOME, **functions})


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Pretend that an SGLang of some version from some distribution is imported."""

    def pretend(version: str | None, distribution: str | None, distribution_version: str = "0.0") -> None:
        module = types.ModuleType("sglang")
        module.__file__ = str(tmp_path / "sglang" / "__init__.py")
        if version is not None:
            module.__version__ = version  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "sglang", module)
        importlib_metadata.packages_distributions()  # it imports as it goes
        monkeypatch.setattr(sys, "path", [str(tmp_path)])  # no other distribution in sight
        if distribution is not None:
            info = tmp_path / f"{distribution.replace('-', '_')}-{distribution_version}.dist-info"
            info.mkdir()
            metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {distribution_version}\n"
            (info / "METADATA").write_text(metadata)
            (info / "top_level.txt").write_text("sglang\n")

    return pretend


def test_a_seam_that_fits() -> None:
    def load(self: Any, prompt: Any, image_data: Any = None, **kwargs: Any) -> None: ...

    (finding,) = compat.examine(processor_class(load=load), [Seam("load", ("prompt", "image_data"))])
    assert finding.problem is None
    assert finding.present
    assert str(finding).startswith("load(prompt, image_data): found ")
    assert "Processor.load(self, prompt" in str(finding)
    assert str(finding).endswith(": ok")


def test_an_inherited_seam_fits() -> None:
    def load(self: Any, prompt: Any) -> None: ...

    derived = type("Derived", (processor_class(load=load),), {})
    assert compat.examine(derived, [Seam("load", ("prompt",))])[0].problem is None


async def coroutine(self: Any, prompt: Any) -> None: ...


def plain(self: Any, prompt: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "wanted", "problem"),
    [
        (coroutine, True, None),
        (plain, False, None),
        (coroutine, None, None),
        (plain, None, None),
        (plain, True, "it must be async"),
        (coroutine, False, "it must not be async"),
    ],
)
def test_async_or_not(function: Any, wanted: bool | None, problem: str | None) -> None:
    seam = Seam("load", ("prompt",), coroutine=wanted)
    assert compat.examine(processor_class(load=function), [seam])[0].problem == problem


def test_static_and_class_methods_are_looked_into() -> None:
    def make(prompt: Any) -> None: ...

    def load(cls: Any, prompt: Any) -> None: ...

    cls = processor_class(make=staticmethod(make), load=classmethod(load))
    findings = compat.examine(cls, [Seam("make", ("prompt",)), Seam("load", ("prompt", "image_data"))])
    assert [finding.problem for finding in findings] == [None, "it takes no image_data"]


@pytest.mark.parametrize("optional", [False, True])
def test_a_missing_seam(optional: bool) -> None:
    (finding,) = compat.examine(processor_class(), [Seam("load", ("prompt",), optional=optional)])
    assert finding.found == "nothing"
    assert not finding.present
    assert finding.problem == (None if optional else "missing")


@pytest.mark.parametrize("optional", [False, True])
def test_a_renamed_parameter(optional: bool) -> None:
    def load(self: Any, text: Any, images: Any) -> None: ...

    seam = Seam("load", ("prompt", "images", "audio"), optional=optional)
    (finding,) = compat.examine(processor_class(load=load), [seam])
    # An optional seam may be absent; what is there must have the known shape.
    assert finding.problem == "it takes no prompt and no audio"
    assert "(self, text" in finding.found


@pytest.mark.parametrize("value", [None, 3, "text", {}])
def test_no_function(value: object) -> None:
    (finding,) = compat.examine(processor_class(load=value), [Seam("load", ())])
    assert finding.problem == "not a function"
    assert repr(value) in finding.found


def test_a_signature_that_cannot_be_read() -> None:
    class Opaque:
        __module__ = HOME
        __signature__ = "no signature"

        def __call__(self) -> None: ...

    (finding,) = compat.examine(processor_class(load=Opaque()), [Seam("load", ())])
    assert finding.problem == "its signature cannot be read"


def test_a_function_of_another_package_is_not_wrapped() -> None:
    def load(self: Any, prompt: Any) -> None: ...

    cls = processor_class(load=load)
    load.__module__ = "relax.patches.qwen"
    (finding,) = compat.examine(cls, [Seam("load", ("prompt",))])
    assert finding.problem == "another package has replaced it"
    assert finding.found.startswith("relax.patches.qwen.")
    load.__module__ = "sglang_patches"  # the name only begins alike
    assert compat.examine(cls, [Seam("load", ("prompt",))])[0].problem is not None


def test_the_message_names_everything(sglang: Callable[..., None], tmp_path: Path) -> None:
    sglang("0.5.99", "sglang", "0.5.99")

    def load(self: Any, text: Any) -> None: ...

    def combine(self: Any, base_output: Any) -> None: ...

    cls = processor_class(load=load, combine=combine)
    seams = [
        Seam("load", ("prompt",)),
        Seam("combine", ("base_output",)),
        Seam("offsets", ("input_ids",)),
        Seam("fast", (), optional=True),
    ]
    with pytest.raises(IncompatibleSGLangError) as raised:
        compat.require(cls, seams, "processor", SWITCH)
    message = str(raised.value)
    first, *lines = message.splitlines()
    assert first == (
        f"deepeyes-patch cannot apply its 'processor' repair to SGLang 0.5.99 "
        f"(distribution sglang 0.5.99, {tmp_path / 'sglang' / '__init__.py'})."
    )
    # Each problem, and each seam with what was found, whether it fits or not.
    assert [line.split("(")[0] for line in lines if "problem:" in line] == [
        "  problem: load",
        "  problem: offsets",
    ]
    assert [line.split("(")[0] for line in lines if "looked for" in line] == [
        f"  looked for {seam.name}" for seam in seams
    ]
    assert f"load(prompt): found {HOME}.Processor.load(self, text" in message
    assert "it takes no prompt" in message
    assert "offsets(input_ids): found nothing: missing" in message
    assert f"combine(base_output): found {HOME}.Processor.combine(self, base_output" in message
    assert f"tested with SGLang {compat.TESTED}." in message
    # The two ways out.
    assert f"{SWITCH}=off" in lines[-1]
    assert f"{SWITCH} without 'processor'" in lines[-1]
    assert "report" in lines[-1]


def test_require_returns_the_findings_when_all_fit() -> None:
    def load(self: Any, prompt: Any) -> None: ...

    seams = [Seam("load", ("prompt",)), Seam("fast", (), optional=True)]
    findings = compat.require(processor_class(load=load), seams, "processor", SWITCH)
    assert [finding.present for finding in findings] == [True, False]


def test_a_distribution_under_another_name(sglang: Callable[..., None]) -> None:
    sglang("0.5.12.post1", "sglang-router-fork", "7.1")
    description = compat.sglang_description()
    assert "SGLang 0.5.12.post1" in description
    assert "sglang-router-fork 7.1" in description


@pytest.mark.parametrize("own", ["0.0.0.dev0", None])
def test_a_version_that_only_the_distribution_knows(own: str | None, sglang: Callable[..., None]) -> None:
    """SGLang asks for a distribution called ``sglang``; that of a rebuild has another name."""
    sglang(own, "sglang-kt", "0.7.2")
    assert compat.sglang_version() == "0.7.2"
    assert compat.sglang_description().startswith("SGLang 0.7.2 (distribution sglang-kt 0.7.2, ")


def test_the_modules_own_version_comes_first(sglang: Callable[..., None]) -> None:
    """The metadata of a release stays behind when another tree is put before it on the path."""
    sglang("0.5.16", "sglang", "0.5.9")
    assert compat.sglang_version() == "0.5.16"


def test_two_distributions_that_both_hold_sglang(sglang: Callable[..., None]) -> None:
    sglang("0.0.0.dev0", "sglang", "0.5.9")
    sglang("0.0.0.dev0", "sglang-kt", "0.7.2")
    assert compat.sglang_version() == "0.0.0.dev0"
    assert "(distribution sglang 0.5.9, distribution sglang-kt 0.7.2, " in compat.sglang_description()


def test_a_source_tree_without_a_distribution(sglang: Callable[..., None], tmp_path: Path) -> None:
    sglang("0.0.0.dev0", None)
    description = compat.sglang_description()
    assert "SGLang 0.0.0.dev0 (no distribution: a source tree" in description
    assert str(tmp_path) in description


def test_a_version_that_the_module_does_not_tell(sglang: Callable[..., None]) -> None:
    sglang(None, None)
    assert "of unknown version" in compat.sglang_description()


def test_no_sglang_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    assert "an unknown place" in compat.sglang_description()


def test_classes_defined_in_leaves_imported_ones_out() -> None:
    module = types.ModuleType(HOME)
    own = processor_class(process=plain)
    module.Own, module.Alias, module.Imported, module.value = own, own, Path, 3  # type: ignore[attr-defined]
    assert set(compat.classes_defined_in(module)) == {own}
    assert compat.classes_defined_in(module, lambda cls: hasattr(cls, "absent")) == []
