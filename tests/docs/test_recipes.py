"""The files on the page of recipes, as far as they can be looked at without SGLang and ``transformers``.

``tests/e2e/test_recipes.py`` runs them.
"""

from __future__ import annotations

import ast

import pytest

from tests.docs import examples, pages
from tests.docs.pages import Block

PAGE = pages.page("recipes")
FILES = {block.name: block for block in PAGE.blocks if block.kind == "file"}
RUN = {"client.py", "engine.py", "parity.py", "train.py"}  # as `python FILE`
LONGEST = 60  # lines


def test_every_block_is_accounted_for() -> None:
    imported = {"episode.py", "rollout.py", "rule.py", "scoring.py", "actors.py"}
    assert set(FILES) == RUN | imported
    commands = [block.text for block in PAGE.blocks if block.kind is None]
    assert commands == [f"python {name}\n" for name in ("client.py", "train.py", "parity.py")]


@pytest.mark.parametrize("language", pages.LANGUAGES)
def test_the_page_shows_the_examples(language: str) -> None:
    """`python -m tests.docs.examples` writes them into both pages."""
    shown = {b.name: b.text for b in pages.page("recipes", language).blocks if b.kind == "file"}
    assert shown == examples.files()


def test_the_examples_say_what_they_are() -> None:
    text = (examples.EXAMPLES / "README.md").read_text()
    for name in FILES:
        assert f"`python {name}`" in text if name in RUN else f"`{name}`" in text, name


@pytest.mark.parametrize("block", FILES.values(), ids=FILES.keys())
def test_files_are_short_python(block: Block) -> None:
    assert block.language == "python"
    compile(block.text, str(block.name), "exec")
    assert len(block.text.splitlines()) < LONGEST


@pytest.mark.parametrize("block", FILES.values(), ids=FILES.keys())
def test_what_they_import_of_each_other_is_there(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.py" in FILES:
            assert {alias.name for alias in node.names} <= defined(FILES[f"{node.module}.py"]), node.module


def defined(block: Block) -> set[str]:
    """The names that a file's own statements bind."""
    tree = ast.parse(block.text)
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    names = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return names | {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


@pytest.mark.parametrize("name", sorted(RUN))
def test_what_runs_has_a_guard(name: str) -> None:
    """Children of an Engine and workers of Ray import the file again."""
    assert 'if __name__ == "__main__":\n' in FILES[name].text


def test_the_model_and_the_address_are_those_of_the_quick_start() -> None:
    quickstart = pages.page("quickstart")
    module = ast.parse(FILES["episode.py"].text)
    (model,) = (
        ast.literal_eval(node.value)
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODEL"
    )
    assert f"--model-path {model}\n" in quickstart.block("serve")
    (url,) = (line for line in FILES["client.py"].text.splitlines() if line.startswith("URL = "))
    assert f"{ast.literal_eval(url.removeprefix('URL = '))}/generate" in quickstart.block("ask")
