"""The table of supported releases: what is written, what counts as not right, and whether it is of today."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deepeyes_patch.observe.release import TESTED
from tests.lab.environments import CHECKOUT
from tests.lab.releases import RELEASES, SERVED
from tests.matrix import brief, chinese, run, table


def seam(repair: str, name: str, releases: str, usable: int = 1, imported: int | None = 1) -> dict[str, Any]:
    """A row of the table of seams, as the probe of a release reports it."""
    return {
        "repair": repair,
        "name": name,
        "releases": releases,
        "source": {"usable": usable, "problems": []},
        "imported": None if imported is None else {"usable": imported, "problems": []},
    }


def entry(release: str, **changes: Any) -> dict[str, Any]:
    """A release that stock serves in part and the patch in full."""
    result: dict[str, Any] = {
        "release": release,
        "transformers": "4.57.1",
        "sources": "1a2b3c",
        "probe": {
            "class": "QwenVLImageProcessor",
            "seams": [
                seam("processor", "load_mm_data(prompt)", "0.5.3 -"),
                seam("processor", "receive(self)", "0.5.3 -", 2, 2),
                seam("processor", "launch(scheduler)", "0.5.17 - 0.5.18", 0, 0),
                seam("processor", "serve_grpc(server_args)", "0.5.3 -", 1, None),
                seam("mrope", "get_rope(rope_scaling)", "0.5.3 -"),
            ],
            "stock": {
                "faults": {kind: {"short": "", "expanded": "IndexError"} for kind in table.KINDS},
                "grids": 7,
                "grid_images": 20,
                "rope": {"native": False, "error": 3.2, "right": False, "yarn": "lost"},
            },
            "patched": {
                "faults": {kind: {"short": "", "expanded": ""} for kind in table.KINDS},
                "grids": 0,
                "grid_images": 20,
                "rope": {"native": False, "error": 1e-6, "right": True, "yarn": "kept"},
            },
            "videos": {kind: {"short": "exact", "drifted": "refused"} for kind in table.KINDS},
            "status": {"processor": "patched (QwenVLImageProcessor)", "mrope": "patched (MRotaryEmbedding)"},
        },
        "server": "",
        "seconds": 60,
    }
    for path, value in changes.items():
        *way, last = path.split("__")
        inner: Any = result
        for step in way:
            inner = inner[int(step) if step.isdigit() else step]
        inner[int(last) if last.isdigit() else last] = value
    return result


def row(entries: list[dict[str, Any]], release: str) -> list[str]:
    lines = table.document(entries).splitlines()
    (line,) = [line for line in lines if line.startswith(f"| {release} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row() -> None:
    assert row([entry("0.5.3")], "0.5.3") == [
        "0.5.3",
        "4.57.1",
        "`QwenVLImageProcessor`",
        "processor 4, mrope 1",
        "no, repaired; YaRN repaired",
        "7 differ, repaired",
        "2 of 4",
        "4 of 4",
        "Qwen3-VL: 1 exact, 1 refused; Qwen2.5-VL: 1 exact, 1 refused",
        "yes",
        "`1a2b3c`",
    ]
    assert table.faults(entry("0.5.3")) == []


def test_a_native_release_that_needs_no_repair_of_grids() -> None:
    rope = {"native": True, "error": 0.0, "right": True, "yarn": "kept"}
    native = entry(
        "0.5.9", probe__stock__rope=rope, probe__patched__rope=rope, probe__stock__grids=0, server=None
    )
    cells = row([native], "0.5.9")
    assert cells[3:8] == ["processor 4, mrope 1", "yes", "right", "2 of 4", "4 of 4"]
    assert cells[9] == "-"
    assert table.faults(native) == []


@pytest.mark.parametrize(
    ("changes", "fault", "cell"),
    [
        ({"probe__patched__faults__qwen3_vl__short": "pool: ids"}, "Qwen3-VL, short: pool: ids", "3 of 4"),
        (
            {"probe__videos__qwen2_5_vl__short": "TimeoutError"},
            "Qwen2.5-VL, video, short: TimeoutError",
            "Qwen3-VL: 1 exact, 1 refused; Qwen2.5-VL: 1 refused, 1 WRONG",
        ),
        ({"probe__patched__grids": 2}, "2 images with another grid", "7 differ, 2 STILL"),
        ({"probe__patched__rope__right": False}, "rope is off by", "NO; YaRN repaired"),
        (
            {"probe__patched__rope__yarn": "lost"},
            "YaRN rope with sections is lost",
            "no, repaired; YaRN LOST",
        ),
        (
            {
                "probe__seams__0__source__problems": ["it takes no prompt"],
                "probe__seams__0__imported": None,
            },
            "processor: load_mm_data(prompt): it takes no prompt",
            "processor 4, mrope 1",
        ),
        (
            {"probe__seams__0": seam("processor", "load_mm_data(prompt)", "0.5.4 -")},
            "load_mm_data(prompt): the table says 0.5.4 -, and it is there",
            "processor 4, mrope 1",
        ),
        (
            {"probe__seams__0": seam("processor", "load_mm_data(prompt)", "0.5.3 -", 0, 0)},
            "load_mm_data(prompt): the table says 0.5.3 -, and it is not there",
            "processor 3, mrope 1",
        ),
        (
            {"probe__seams__1__imported__usable": 1},
            "receive(self): doctor sees {'usable': 2, 'problems': []} in the source, and the hooks",
            "processor 4, mrope 1",
        ),
        ({"probe__status__mrope": "failed (x)"}, "mrope: failed (x)", "yes"),
        ({"server": "the server ended with 1"}, "server: the server ended with 1", "no"),
        ({"probe": {"error": "Traceback"}}, "probe: Traceback", "failed"),
        ({"elsewhere": {"Python 3.12": "HTTP 500"}}, "Python 3.12: HTTP 500", "yes; Python 3.12: no"),
        ({"elsewhere": {"Python 3.12": {"error": "rc 1"}}}, "Python 3.12: rc 1", "failed"),
        ({"server": {"error": "not done after 900 s"}}, "server: not done after 900 s", "failed"),
    ],
)
def test_what_is_not_right_is_told_and_shown(changes: dict[str, Any], fault: str, cell: str) -> None:
    changed = entry("0.5.3", **changes)
    (message,) = table.faults(changed)
    assert message.startswith("0.5.3")
    assert fault in message
    entries = [entry("0.5.2"), changed]
    assert cell in row(entries, "0.5.3")
    assert chinese.page(table.document(entries)), "each of its words has a Chinese one"


def test_what_stock_serves_right_is_told_by_ranges() -> None:
    entries = [entry(f"0.5.{i}") for i in range(6)]
    for i in (1, 2, 4):
        entries[i]["probe"]["stock"]["faults"]["qwen3_vl"]["expanded"] = ""
    lines = table.document(entries).splitlines()
    assert "| short | all | all |" in lines
    assert "| expanded | 0.5.1 - 0.5.2, 0.5.4 | none |" in lines


def test_one_line_is_rewritten_or_put_in_its_place() -> None:
    text = table.document([entry("0.5.3"), entry("0.5.9")])
    with_another_head = text.replace("do not edit", "edit at will")
    assert table.updated(with_another_head, entry("0.5.3"), []) == text
    again = table.updated(text, entry("0.5.3", sources="new"), [])
    assert again == text.replace("`1a2b3c`", "`new`", 1)
    between = table.updated(text, entry("0.5.7"), ["0.5.3", "0.5.5"])
    assert between == table.document([entry("0.5.3"), entry("0.5.7"), entry("0.5.9")])


def test_the_table_in_the_repository_has_every_release_right() -> None:
    """What messages claim to be tested (`release.TESTED`)."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (CHECKOUT / "docs" / "en" / "releases.md").read_text().splitlines()
        if line.startswith("| 0.5.")
    ]
    rows = {found[0]: dict(zip(table.COLUMNS, found, strict=True)) for found in cells}
    assert list(rows) == list(RELEASES)
    assert f"{next(iter(RELEASES))} to {list(RELEASES)[-1]}, every release" == TESTED
    for release, row in rows.items():
        right, asked = row["patched"].split(" of ")
        assert right == asked, release
        words = " ".join(row.values())
        assert not [word for word in ("failed", "WRONG", "STILL", "LOST", "NO;") if word in words], release
        assert row["server"].split(";")[0] == ("yes" if release in SERVED else "-"), release


@pytest.mark.parametrize("name", brief.PAGES)
def test_the_short_tables_are_those_of_the_whole_one(name: str) -> None:
    text = (CHECKOUT / "docs" / "en" / "releases.md").read_text()
    page = (CHECKOUT / "docs" / name).read_text()
    assert page == brief.updated(page, text, name[:2]), "run `python3 -m tests.matrix.brief`"


def test_the_short_table_has_a_row_for_neighbours_with_equal_results() -> None:
    worse = {f"probe__stock__faults__{kind}": {"short": "a", "expanded": "b"} for kind in table.KINDS}
    entries = [
        entry("0.5.3", server=None),
        entry("0.5.4"),
        entry("0.5.5", server="no answer"),
        entry("0.5.6", transformers="5.0.0"),
        entry("0.5.7", server=None, transformers="5.0.0", **worse),
        entry("0.5.8", server=None),
    ]
    assert list(brief.rows(table.document(entries))) == [
        ("0.5.3 - 0.5.5", "4.57.1", "2/4", "4/4", "0.5.4, 0.5.5: NO"),
        ("0.5.6", "5.0.0", "2/4", "4/4", "0.5.6"),
        ("0.5.7", "5.0.0", "0/4", "4/4", "-"),
        ("0.5.8", "4.57.1", "2/4", "4/4", "-"),
    ]


def test_a_page_without_a_place_for_the_short_table() -> None:
    with pytest.raises(ValueError, match="no place"):
        brief.updated("text", table.document([entry("0.5.3")]), "en")


def test_summary_is_one_line() -> None:
    summary = table.summary(entry("0.5.3"))
    assert "\n" not in summary
    assert "patched 4 of 4" in summary


# --- the age of the lines -----------------------------------------------------------------------------

PAGE = CHECKOUT / "docs" / "en" / "releases.md"


def test_the_page_says_which_lines_an_older_package_made() -> None:
    """A package that has changed since is no fault, but readers of the page must see it."""
    text = PAGE.read_text()
    hint = "the package has changed: run `python3 -m tests.matrix.run --mark` and commit the page"
    assert text == table.dated(text, run.package_digest()), hint


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (("new", "new"), table.CURRENT),
        (("old", "older"), f"{table.OLDER} the lines below were made"),
        (("old", "new"), f"{table.OLDER} 1 of 2 lines were made (0.5.3); `make matrix` makes them anew."),
    ],
)
def test_what_the_page_says_about_its_age(sources: tuple[str, str], expected: str) -> None:
    entries = [
        entry(name, sources=made_with) for name, made_with in zip(("0.5.3", "0.5.9"), sources, strict=True)
    ]
    text = table.dated(table.document(entries), "new")
    assert sum(line.startswith(expected) for line in text.splitlines()) == 1
    assert ("Older results" in text) == (sources != ("new", "new"))
    # Once the page says so, further changes of the package change nothing in it.
    assert table.dated(text, "new") == text
    if sources == ("old", "older"):
        assert table.dated(text, "newer") == text


def test_what_the_digest_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that runs in SGLang's processes; not the command line, and no byte code."""
    for name in ("ids/spans.py", "verification/tiny_merges.txt", "cli/main.py", "__main__.py", "x/a.pyc"):
        (tmp_path / "deepeyes_patch" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "deepeyes_patch" / name).write_text("1")
    (tmp_path / "deepeyes_patch.pth").write_text("1")
    monkeypatch.setattr(run, "CHECKOUT", tmp_path)

    def changes(name: str) -> bool:
        digests = []
        for text in ("2", "3"):
            (tmp_path / name).write_text(text)
            run._digest.cache_clear()
            digests.append(run.package_digest())
        return digests[0] != digests[1]

    try:
        assert changes("deepeyes_patch/ids/spans.py")
        assert changes("deepeyes_patch/verification/tiny_merges.txt")
        assert changes("deepeyes_patch.pth")
        assert not changes("deepeyes_patch/cli/main.py")
        assert not changes("deepeyes_patch/__main__.py")
        assert not changes("deepeyes_patch/x/a.pyc")
    finally:
        run._digest.cache_clear()


def test_marking_and_checking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "en" / "releases.md"
    page.parent.mkdir()
    page.write_text(table.document([entry("0.5.3"), entry("0.5.9")]))
    for name in brief.PAGES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"above\n{brief.BEGIN}{brief.END}below\n")
    monkeypatch.setattr(run, "DOCUMENT", page)
    assert run.main(["--check"]) == 1
    assert "Older results" not in page.read_text()
    assert run.main(["--mark"]) == 0
    assert "Older results" in page.read_text()
    for name in brief.PAGES:
        assert "| 0.5.3 - 0.5.9 | 4.57.1 | 2/4 | 4/4 |" in (tmp_path / name).read_text()
    assert "较早的结果" in (tmp_path / chinese.CHINESE).read_text()
    page.write_text(page.read_text().replace("`1a2b3c`", f"`{run.package_digest()}`"))
    assert run.main(["--check"]) == 0
    assert run.main(["--mark"]) == 0
    assert "Older results" not in page.read_text()
