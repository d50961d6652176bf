"""The table of supported releases: what is written, and what counts as not right."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from deepeyes_patch.seams.examine import TESTED
from tests.lab.environments import CHECKOUT
from tests.lab.releases import RELEASES, SERVED
from tests.matrix import table

REQUIRED = {
    name: {"optional": False, "problem": None}
    for name in ("process_mm_data_async", "load_mm_data", "get_rope_index")
}


def entry(release: str, **changes: Any) -> dict[str, Any]:
    """A release that stock serves in part and the patch in full."""
    made: dict[str, Any] = {
        "release": release,
        "transformers": "4.57.1",
        "sources": "1a2b3c",
        "probe": {
            "class": "QwenVLImageProcessor",
            "seams": {
                **copy.deepcopy(REQUIRED),
                "resize_image_async": {"optional": True, "problem": None},
            },
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
                "rope": {"native": False, "error": 1e-6, "right": True, "yarn": "refused"},
            },
            "videos": {kind: {"short": "exact", "drifted": "refused"} for kind in table.KINDS},
            "status": {"processor": "patched (QwenVLImageProcessor)", "mrope": "patched (MRotaryEmbedding)"},
        },
        "server": "",
        "seconds": 60,
    }
    for path, value in changes.items():
        *way, last = path.split("__")
        inner = made
        for step in way:
            inner = inner[step]
        inner[last] = value
    return made


def row(entries: list[dict[str, Any]], release: str) -> list[str]:
    lines = table.document(entries).splitlines()
    (line,) = [line for line in lines if line.startswith(f"| {release} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row() -> None:
    assert row([entry("0.5.3")], "0.5.3") == [
        "0.5.3",
        "4.57.1",
        "`QwenVLImageProcessor`",
        "3 + `resize_image_async`",
        "no, repaired; YaRN refused",
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
    made = entry(
        "0.5.9", probe__stock__rope=rope, probe__patched__rope=rope, probe__stock__grids=0, server=None
    )
    cells = row([made], "0.5.9")
    assert cells[3:8] == ["3 + `resize_image_async`", "yes", "right", "2 of 4", "4 of 4"]
    assert cells[9] == "-"
    assert table.faults(made) == []


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
        ({"probe__patched__rope__right": False}, "rope is off by", "NO; YaRN refused"),
        ({"probe__patched__rope__yarn": "lost"}, "loses its sections", "no, repaired; YaRN LOST"),
        (
            {"probe__seams__load_mm_data__problem": "missing"},
            "seam load_mm_data: missing",
            "3 + `resize_image_async`",
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
    made = entry("0.5.3", **changes)
    (told,) = table.faults(made)
    assert told.startswith("0.5.3")
    assert fault in told
    assert cell in row([entry("0.5.2"), made], "0.5.3")


def test_what_stock_serves_right_is_told_by_ranges() -> None:
    entries = [entry(f"0.5.{i}") for i in range(6)]
    for i in (1, 2, 4):
        entries[i]["probe"]["stock"]["faults"]["qwen3_vl"]["expanded"] = ""
    lines = table.document(entries).splitlines()
    assert "| short | all | all |" in lines
    assert "| expanded | 0.5.1 - 0.5.2, 0.5.4 | none |" in lines


def test_one_line_is_rewritten_or_put_in_its_place() -> None:
    text = table.document([entry("0.5.3"), entry("0.5.9")])
    again = table.updated(text, entry("0.5.3", sources="new"), [])
    assert again == text.replace("`1a2b3c`", "`new`", 1)
    between = table.updated(text, entry("0.5.7"), ["0.5.3", "0.5.5"])
    assert between == table.document([entry("0.5.3"), entry("0.5.7"), entry("0.5.9")])


def test_the_table_in_the_repository_has_every_release_right() -> None:
    """What messages claim to be tested (`compat.TESTED`)."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (CHECKOUT / "docs" / "compatibility.md").read_text().splitlines()
        if line.startswith("| 0.5.")
    ]
    rows = {found[0]: dict(zip(table.COLUMNS, found, strict=True)) for found in cells}
    assert list(rows) == list(RELEASES)
    assert f"{next(iter(RELEASES))} to {list(RELEASES)[-1]}, every release" == TESTED
    for release, row in rows.items():
        right, asked = row["patched"].split(" of ")
        assert right == asked, release
        told = " ".join(row.values())
        assert not [word for word in ("failed", "WRONG", "STILL", "LOST", "NO;") if word in told], release
        assert row["server"].split(";")[0] == ("yes" if release in SERVED else "-"), release


def test_summary_is_one_line() -> None:
    made = entry("0.5.3")
    assert "\n" not in table.summary(made)
    assert "patched 4 of 4" in table.summary(made)
