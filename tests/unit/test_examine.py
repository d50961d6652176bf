"""The judge: which functions of an SGLang fit a row of the table, seen live and seen in its source."""

from __future__ import annotations

import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepeyes_patch import IncompatibleSGLangError
from deepeyes_patch.observe import release
from deepeyes_patch.seams import rows
from deepeyes_patch.seams.examine import Finding, examine, require
from deepeyes_patch.seams.live import LiveView
from deepeyes_patch.seams.rows import Owner, Seam, View
from deepeyes_patch.seams.source import SourceView

SWITCH = "DEEPEYES_PATCH"
HOME = "sglang.srt.qwen_vl"
PROCESSOR = rows.named("Processor")
# The two views of a made-up SGLang, by the name of the view.
Views = Callable[[str], dict[str, View]]


def seam(signature: str, owner: Owner | None = PROCESSOR, **more: Any) -> Seam:
    return Seam("processor", HOME, owner, signature, None, "0.5.3 -", "a made-up row", **more)


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Views:
    """Make a text the module ``sglang.srt.qwen_vl``: imported, and as a file."""
    folder = tmp_path / "sglang"
    (folder / "srt").mkdir(parents=True)
    for package in (folder, folder / "srt"):
        (package / "__init__.py").write_text("")

    def write(name: str, text: str) -> None:
        text = textwrap.dedent(text)
        file = folder.joinpath(*name.split(".")[1:]).with_suffix(".py")
        file.write_text(text)
        module = types.ModuleType(name)
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(text, file, "exec"), vars(module))

    def made(text: str, **others: str) -> dict[str, View]:
        for name, other in others.items():
            write(f"sglang.srt.{name}", other)
        write(HOME, text)
        return {"live": LiveView(), "source": SourceView(folder)}

    return made


@pytest.fixture(params=["live", "source"])
def judged(request: pytest.FixtureRequest, sglang: Views) -> Callable[..., list[Finding]]:
    """What a view finds of rows in a made-up module."""

    def judge(text: str, *seams: Seam, **others: str) -> list[Finding]:
        return examine(sglang(text, **others)[request.param], seams)

    return judge


# --- what fits, and what does not, in both views ------------------------------------------------------


def test_a_seam_that_fits(judged: Callable[..., list[Finding]], tmp_path: Path) -> None:
    text = "class Processor:\n    def load(self, prompt, image_data=None, **kwargs): ..."
    (finding,) = judged(text, seam("load(prompt, image_data)"))
    assert finding.problem is None
    assert finding.present
    assert finding.owner == "Processor"
    assert finding.handle is not None
    assert finding.file == str(tmp_path / "sglang" / "srt" / "qwen_vl.py")
    assert str(finding).startswith(f"load(prompt, image_data): found {HOME}.")
    assert "load(self, prompt" in str(finding)
    assert str(finding).endswith(": ok")


def test_an_inherited_seam_fits(judged: Callable[..., list[Finding]]) -> None:
    text = "class Base:\n    def load(self, prompt): ...\nclass Processor(Base): ..."
    (finding,) = judged(text, seam("load(prompt)"))
    assert (finding.problem, finding.present) == (None, True)


def test_a_seam_inherited_from_another_module_fits(judged: Callable[..., list[Finding]]) -> None:
    text = "from sglang.srt.base import Base\nclass Processor(Base): ..."
    (finding,) = judged(text, seam("load(prompt)"), base="class Base:\n    def load(self, prompt): ...")
    assert (finding.problem, finding.present) == (None, True)
    assert finding.found.startswith("sglang.srt.base.")


def test_a_function_that_the_module_imports_fits(judged: Callable[..., list[Finding]]) -> None:
    (finding,) = judged(
        "from sglang.srt.base import get_rope", seam("get_rope(base)", None), base="def get_rope(base): ..."
    )
    assert (finding.problem, finding.present, finding.owner) == (None, True, "qwen_vl")


@pytest.mark.parametrize(
    ("definition", "signature", "problem"),
    [
        ("async def load(self, prompt): ...", "async load(prompt)", None),
        ("def load(self, prompt): ...", "load(prompt)", None),
        ("async def load(self, prompt): ...", "async? load(prompt)", None),
        ("def load(self, prompt): ...", "async? load(prompt)", None),
        ("def load(self, prompt): ...", "async load(prompt)", "it must be async"),
        ("async def load(self, prompt): ...", "load(prompt)", "it must not be async"),
    ],
)
def test_async_or_not(
    judged: Callable[..., list[Finding]], definition: str, signature: str, problem: str | None
) -> None:
    (finding,) = judged(f"class Processor:\n    {definition}", seam(signature))
    assert finding.problem == problem


def test_static_and_class_methods_are_looked_into(judged: Callable[..., list[Finding]]) -> None:
    text = """
        class Processor:
            @staticmethod
            def make(prompt): ...
            @classmethod
            def load(cls, prompt): ...
    """
    findings = judged(text, seam("make(prompt)"), seam("load(prompt, image_data)"))
    assert [finding.problem for finding in findings] == [None, "it takes no image_data"]


def test_an_abstract_function_is_no_use(judged: Callable[..., list[Finding]]) -> None:
    text = """
        import abc
        class Processor(abc.ABC):
            @abc.abstractmethod
            def load(self, prompt): ...
    """
    (finding,) = judged(text, seam("load(prompt)"))
    assert finding.problem == "abstract, and nothing implements it"


@pytest.mark.parametrize("required", [rows.always, rows.nowhere])
def test_a_missing_function(judged: Callable[..., list[Finding]], required: rows.Fact) -> None:
    (finding,) = judged("class Processor: ...", seam("load(prompt)", required=required))
    assert finding.found == "nothing"
    assert not finding.present
    assert finding.problem == ("missing" if required is rows.always else None)


@pytest.mark.parametrize("required", [rows.always, rows.nowhere])
def test_a_missing_class(judged: Callable[..., list[Finding]], required: rows.Fact) -> None:
    findings = judged("class Other: ...", seam("load(prompt)", required=required))
    assert [(f.owner, f.problem, f.present) for f in findings] == (
        [("Processor", "missing", False)] if required is rows.always else []
    )


@pytest.mark.parametrize("optional", [False, True])
def test_a_missing_module(judged: Callable[..., list[Finding]], optional: bool) -> None:
    gone = Seam("processor", "sglang.srt.gone", None, "serve(args)", None, "", "", optional_module=optional)
    findings = judged("", gone)
    assert [str(finding) for finding in findings] == (
        [] if optional else ["serve(args): found nothing: missing"]
    )


@pytest.mark.parametrize("required", [rows.always, rows.nowhere])
def test_a_renamed_parameter(judged: Callable[..., list[Finding]], required: rows.Fact) -> None:
    text = "class Processor:\n    def load(self, text, images): ..."
    (finding,) = judged(text, seam("load(prompt, images, audio)", required=required))
    # A function that came or went with a release may be absent; what is there must have the known shape.
    assert finding.problem == "it takes no prompt and no audio"
    assert "(self, text" in finding.found


def test_a_further_demand(judged: Callable[..., list[Finding]]) -> None:
    def demand(function: rows.Function) -> str | None:
        return None if "metadata" in function.uses else "it asks for no metadata"

    text = """
        def bare(vr): return vr
        def full(vr): return vr, vr.metadata
    """
    findings = judged(text, seam("bare(vr)", None, demand=demand), seam("full(vr)", None, demand=demand))
    assert [finding.problem for finding in findings] == ["it asks for no metadata", None]


def test_a_row_that_does_not_apply_is_not_looked_for(judged: Callable[..., list[Finding]]) -> None:
    assert judged("class Processor: ...", seam("load(prompt)", applies=rows.nowhere)) == []


# --- owners -------------------------------------------------------------------------------------------

SEVERAL = """
    from sglang.srt.base import Imported
    class First:
        def load(self, prompt): ...
    class Second(First): ...
    class Third:
        def load(self, text): ...
    class Fourth: ...
    Alias = First
"""
IMPORTED = {"base": "class Imported:\n    def load(self, prompt): ..."}


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        # Imported classes are not the module's, and another name for one of its classes is no second class.
        (rows.defining("load"), [("First", None), ("Third", "it takes no prompt")]),
        (rows.ending("th"), [("Fourth", "missing")]),
        (rows.ending("Absent"), [("every class named ...Absent", "missing")]),
    ],
)
def test_every_class_of_several(
    judged: Callable[..., list[Finding]], owner: Owner, expected: list[tuple[str, str | None]]
) -> None:
    findings = judged(SEVERAL, seam("load(prompt)", owner), **IMPORTED)
    assert [(f.owner, f.problem) for f in findings] == expected


@pytest.mark.parametrize("alias", ["", "\nAlias = First"])
def test_the_one_class_with_a_method(judged: Callable[..., list[Finding]], alias: str) -> None:
    text = f"class First:\n    def load(self, prompt): ...\nclass Other: ...{alias}"
    (finding,) = judged(text, seam("load(prompt)", rows.having("load")))
    assert (finding.owner, finding.problem) == ("First", None)


def test_two_classes_where_one_is_wanted(judged: Callable[..., list[Finding]]) -> None:
    text = "class First:\n    def load(self, prompt): ...\nclass Second(First): ..."
    findings = judged(text, seam("load(prompt)", rows.having("load")))
    problem = f"{HOME} should define one such class, and defines First and Second"
    assert [(f.owner, f.problem, f.present) for f in findings] == [
        ("First", problem, True),
        ("Second", problem, True),
    ]


def test_a_class_that_the_module_imports_by_name(judged: Callable[..., list[Finding]]) -> None:
    text = "from sglang.srt.base import Imported"
    (finding,) = judged(text, seam("load(prompt)", rows.named("Imported")), **IMPORTED)
    assert (finding.owner, finding.problem) == ("Imported", None)


# --- what only the imported module shows --------------------------------------------------------------


@pytest.mark.parametrize("value", ["None", "3", "'text'", "{}"])
def test_no_function(sglang: Views, value: str) -> None:
    view = sglang(f"class Processor:\n    load = {value}")["live"]
    (finding,) = examine(view, [seam("load()")])
    assert finding.problem == "not a function"
    assert value in finding.found


def test_a_signature_that_cannot_be_read(sglang: Views) -> None:
    text = """
        class Opaque:
            __signature__ = "no signature"
            def __call__(self): ...
        class Processor:
            load = Opaque()
    """
    (finding,) = examine(sglang(text)["live"], [seam("load()")])
    assert finding.problem == "its signature cannot be read"


@pytest.mark.parametrize("home", ["relax.patches.qwen", "sglang_patches"])  # the second only begins alike
def test_a_function_of_another_package_is_not_wrapped(sglang: Views, home: str) -> None:
    view = sglang("class Processor:\n    def load(self, prompt): ...")["live"]
    sys.modules[HOME].Processor.load.__module__ = home
    (finding,) = examine(view, [seam("load(prompt)")])
    relax = " (Relax's own patch: drop its flag --deepeyes-qwen-vl-patch)"
    assert finding.problem == f"another package has replaced it{relax * home.startswith('relax')}"
    assert finding.found.startswith(f"{home}.")


def test_the_source_is_read_below_conditions_and_through_relative_imports(sglang: Views) -> None:
    text = """
        import sys
        if sys.version_info > (3,):
            try:
                from .base import Imported as Processor
            except ImportError:
                Processor = None
    """
    sglang("", **IMPORTED)
    folder = Path(str(sys.modules[HOME].__file__)).parent.parent
    (folder / "srt" / "qwen_vl.py").write_text(textwrap.dedent(text))
    (finding,) = examine(SourceView(folder), [seam("load(prompt)")])
    assert (finding.problem, finding.present) == (None, True)


def test_a_source_that_cannot_be_parsed_is_missing(sglang: Views) -> None:
    sglang("")
    file = Path(str(sys.modules[HOME].__file__))
    file.write_text("class Processor(:")
    (finding,) = examine(SourceView(file.parent.parent), [seam("load(prompt)")])
    assert (finding.problem, finding.owner) == ("missing", "qwen_vl")


# --- the message --------------------------------------------------------------------------------------

WANTED = [
    seam("load(prompt)"),
    seam("combine(base_output)"),
    seam("offsets(input_ids)"),
    seam("fast()", required=rows.nowhere),
]


def test_the_message_names_everything(judged: Callable[..., list[Finding]]) -> None:
    text = """
        class Processor:
            def load(self, text): ...
            def combine(self, base_output): ...
    """
    with pytest.raises(IncompatibleSGLangError) as raised:
        require(judged(text, *WANTED), "processor")
    message = str(raised.value)
    first, *lines = message.splitlines()
    assert first == f"deepeyes-patch cannot apply its 'processor' repair to {release.description()}."
    # Each problem, and each seam with what was found, whether it fits or not.
    assert [line.split("(")[0] for line in lines if "problem:" in line] == [
        "  problem: load",
        "  problem: offsets",
    ]
    assert [line.split("(")[0] for line in lines if "looked for" in line] == [
        f"  looked for {row.name}" for row in WANTED
    ]
    assert f"load(prompt): found {HOME}." in message
    assert "load(self, text" in message
    assert "it takes no prompt" in message
    assert "offsets(input_ids): found nothing: missing" in message
    assert "combine(self, base_output" in message
    assert f"tested with SGLang {release.TESTED}." in message
    # The two ways out.
    assert f"{SWITCH}=off" in lines[-1]
    assert f"{SWITCH} without 'processor'" in lines[-1]
    assert "report" in lines[-1]


def test_nothing_is_raised_when_all_fit(judged: Callable[..., list[Finding]]) -> None:
    text = "class Processor:\n    def load(self, prompt): ..."
    findings = judged(text, WANTED[0], WANTED[-1])
    require(findings, "processor")
    assert [finding.present for finding in findings] == [True, False]
