"""What the judge sees of source files: names are followed through imports as Python would follow them."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepeyes_patch.seams.source import SourceView

FILES = {
    "__init__.py": "",
    "base.py": "class Base:\n    async def load(self, a, *, b=1, **rest): ...\n",
    "sub/__init__.py": "from .inner import Inner as Renamed\nfrom pack.base import *\nAlias = Renamed\n",
    "sub/inner.py": (
        "from ..base import Base\n"
        "if True:\n    from pack.base import Base as B2\n"
        "class Inner(B2):\n    @abc.abstractmethod\n    def left(self): ...\n    def own(self, x): ...\n"
        "def loop(a): ...\n"
    ),
    "circle.py": "from .circle import thing\n",
    "broken.py": "def (",
}


@pytest.fixture
def view(tmp_path: Path) -> SourceView:
    package = tmp_path / "pack"
    for name, text in FILES.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    return SourceView(package)


@pytest.mark.parametrize(
    ("name", "home"), [("Renamed", "pack.sub.inner"), ("Alias", "pack.sub.inner"), ("Base", "pack.base")]
)
def test_a_name_is_followed_through_imports(name: str, home: str, view: SourceView) -> None:
    definition = view.find(view.module("pack.sub"), name)
    assert definition is not None
    assert definition.module.name == home


@pytest.mark.parametrize(("module", "name"), [("pack.sub", "nothing"), ("pack.circle", "thing")])
def test_a_name_that_leads_nowhere(module: str, name: str, view: SourceView) -> None:
    assert view.module(module) is not None
    assert view.find(view.module(module), name) is None


@pytest.mark.parametrize("module", ["pack.broken", "pack.absent", "other"])
def test_a_module_that_cannot_be_read_is_absent(module: str, view: SourceView) -> None:
    assert view.module(module) is None


def test_methods_are_the_classes_own_or_inherited(view: SourceView) -> None:
    cls = view.named(view.module("pack.sub"), "Renamed")
    inherited, own, abstract = (view.function(cls, name) for name in ("load", "own", "left"))
    assert inherited is not None
    assert (inherited.home, inherited.parameters) == ("pack.base", ("self", "a", "b", "rest"))
    assert inherited.is_coroutine
    assert not view.defines(cls, "load")
    assert own is not None
    assert (own.home, own.parameters, own.is_coroutine) == ("pack.sub.inner", ("self", "x"), False)
    assert view.defines(cls, "own")
    assert abstract is not None
    assert abstract.is_abstract
    assert view.function(cls, "gone") is None
