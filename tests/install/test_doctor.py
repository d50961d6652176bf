"""``doctor`` in real environments: every finding is brought about for real."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import interpreters
from tests.install.conftest import pip
from tests.install.test_damage import away
from tests.interpreters import CHECKOUT, Interpreter, clean_environ
from tests.lab import environments
from tests.lab.releases import RELEASES

RELEASE = "0.5.12.post1"
ON = {"DEEPEYES_PATCH": "1"}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory, wheel: Path, offline: dict[str, str]) -> Interpreter:
    """Our wheel, and the files that matter of a real SGLang release, with its metadata."""
    created = interpreters.create(tmp_path_factory.mktemp("doctor"))
    pip("install", wheel, python=created.python, **offline)
    layer = environments.overlay(RELEASES[RELEASE])
    if not (layer / environments.COMPLETE).exists():
        environments.ensure([RELEASE])
    for name in (f"sglang-{RELEASE}.dist-info", "sglang"):
        shutil.copytree(
            layer / name, created.site_packages / name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    return Interpreter(created.python, {"PYTHONDONTWRITEBYTECODE": "1"})


@pytest.fixture
def environment(healthy: Interpreter) -> Iterator[Interpreter]:
    """The shared environment; a test puts back what it takes."""
    before = _state(healthy)
    yield healthy
    assert _state(healthy) == before


def _state(environment: Interpreter) -> set[str]:
    ours = environment.site_packages.glob("*deepeyes*")
    return {f"{path.name} {path.stat().st_size if path.is_file() else ''}" for path in ours}


def doctor(environment: Interpreter, *flags: str, **environ: str) -> tuple[int, dict[str, Any]]:
    result = environment.run("-m", "deepeyes_patch", "doctor", "--json", *flags, environ=environ)
    assert result.err == "", result
    return result.code, json.loads(result.out)


def ids(report: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in report["findings"]]


def finding(report: dict[str, Any], name: str) -> dict[str, str]:
    (found,) = (one for one in report["findings"] if one["id"] == name)
    return found


# --- healthy ------------------------------------------------------------------------------------------


def test_healthy(environment: Interpreter) -> None:
    code, report = doctor(environment, **ON)
    assert code == 0
    assert report["ok"]
    assert report["verdict"] == "all is well"
    assert report["findings"] == []
    assert report["startup"]["children"] == {
        "fresh": "live",
        "spawn": "live",
        "-I": "live",
        "-E": "live",
        "-S": "off",
    }
    assert [(Path(f["path"]).name, f["intact"]) for f in report["startup"]["files"]] == [
        ("deepeyes_patch.pth", True),
        ("deepeyes_patch.start", True),
    ]
    sglang = report["packages"]["sglang"]
    assert (sglang["version"], sglang["distribution"]) == (RELEASE, "sglang")
    assert sglang["path"] == str(environment.site_packages / "sglang")
    assert report["packages"]["torch"]["path"] is None
    states = {name: repair["state"] for name, repair in report["repairs"].items()}
    assert states == {
        "processor": "ready",
        "mrope": "native",
        "video": "available",
        "sampling": "available",
        "deepstack": "available",
    }
    assert report["switch"]["source"] == "DEEPEYES_PATCH"


def test_the_documented_schema(environment: Interpreter) -> None:
    _, report = doctor(environment)
    assert report["schema"] == 1
    text = (CHECKOUT / "docs" / "en" / "cli.md").read_text()
    schema = text[text.index('{"schema": 1, "command": "doctor"') : text.index("## verify")]
    for key in report:
        assert f'"{key}":' in schema, key
    for inner in (
        report["python"],
        report["switch"],
        report["packages"]["sglang"],
        report["repairs"]["processor"],
    ):
        for key in inner:
            assert f'"{key}"' in schema, key


def test_one_screen_of_80_columns(environment: Interpreter) -> None:
    result = environment.run("-m", "deepeyes_patch", "doctor", environ=ON)
    assert result.code == 0, result
    lines = result.out.splitlines()
    assert len(lines) <= 24, result.out
    assert lines[-1] == "all is well"
    assert "\x1b" not in result.out
    # Only a path may be longer than the screen is wide.
    assert all(len(line) <= 80 for line in lines if str(environment.python.parent.parent) not in line)


def test_a_report_for_an_issue(environment: Interpreter) -> None:
    """One block of Markdown, which names neither the environment's folder nor the user's."""
    home = {"HOME": str(environment.python.parents[2])}
    result = environment.run("-m", "deepeyes_patch", "doctor", "--report", environ=home)
    assert result.code == 0, result
    first, *lines, last = result.out.splitlines()
    assert (first, last) == ("```text", "```")
    assert lines[-1] == "1 warning: the processor repair is needed and NOT on"
    assert f"sglang {RELEASE}, torch not installed" in lines[1]
    assert any("[switch-unset]" in line for line in lines)
    assert home["HOME"] not in result.out
    assert "Paste this into" in result.err


def test_a_report_of_what_does_not_fit(environment: Interpreter) -> None:
    path = environment.site_packages / QWEN_VL
    original = path.read_bytes()
    try:
        path.write_bytes(original.replace(b"async def process_mm_data_async", b"async def renamed"))
        result = environment.run("-m", "deepeyes_patch", "doctor", "--report", environ=ON)
    finally:
        path.write_bytes(original)
    assert result.code == 1, result
    assert re.search(r"^  \w+\.process_mm_data_async: abstract", result.out, re.MULTILINE), result.out


def test_neither_torch_nor_sglang_is_imported(environment: Interpreter) -> None:
    program = """
import sys
from deepeyes_patch.cli.main import main
main(["doctor", "--json"])
print([name for name in ("torch", "sglang", "wrapt") if name in sys.modules], file=sys.stderr)
"""
    result = environment.run(program, environ=ON)
    assert result.err.strip() == "[]"


# --- start-up -----------------------------------------------------------------------------------------


def test_the_pth_missing(environment: Interpreter) -> None:
    with away(environment.site_packages / "deepeyes_patch.pth"):
        code, report = doctor(environment, **ON)
    assert code == 1
    assert ids(report) == ["pth-missing", "not-live"]
    assert "fresh interpreter (off) and a spawned child (off)" in finding(report, "not-live")["message"]
    assert "deepeyes-patch run" in finding(report, "not-live")["remedy"]


def test_the_pth_edited(environment: Interpreter) -> None:
    path = environment.site_packages / "deepeyes_patch.pth"
    original = path.read_bytes()
    try:
        path.write_bytes(original + b"# one more line\n")
        code, report = doctor(environment, **ON)
        assert (code, ids(report)) == (1, ["pth-edited"])
        path.write_bytes(b"# nothing is started\n")
        code, report = doctor(environment, **ON)
        assert (code, ids(report)) == (1, ["pth-edited", "not-live"])
    finally:
        path.write_bytes(original)


@pytest.mark.parametrize("damage", ["missing", "edited"])
def test_the_start_file(damage: str, environment: Interpreter) -> None:
    path = environment.site_packages / "deepeyes_patch.start"
    original = path.read_bytes()
    try:
        path.unlink()
        if damage == "edited":
            path.write_bytes(b"somebody.else:start\n")
        code, report = doctor(environment, **ON)
        assert (code, ids(report)) == (0, [f"start-{damage}"])
        assert finding(report, f"start-{damage}")["level"] == "warning"
    finally:
        path.write_bytes(original)


def test_a_broken_bootstrap(environment: Interpreter) -> None:
    with away(environment.site_packages / "deepeyes_patch" / "bootstrap.py"):
        code, report = doctor(environment, **ON)
    assert code == 1
    assert {"not-live", "package-damaged"} <= set(ids(report))
    assert report["startup"]["children"]["fresh"] == "broken"
    assert "deepeyes_patch/bootstrap.py" in finding(report, "package-damaged")["message"]


def test_two_copies(environment: Interpreter) -> None:
    code, report = doctor(environment, **ON, PYTHONPATH=str(CHECKOUT))
    assert code == 0
    message = finding(report, "two-copies")["message"]
    assert f"{CHECKOUT} is used" in message
    assert str(environment.site_packages) in message


def test_a_child_that_does_not_run(environment: Interpreter, tmp_path: Path) -> None:
    """Installing again would not help."""
    done = subprocess.run(
        ["bash", "-c", 'rmdir "$PWD" && exec "$0" -m deepeyes_patch doctor --json', environment.python],
        cwd=tmp_path,
        env=clean_environ(**ON),
        capture_output=True,
        text=True,
        timeout=60,
    )
    report = json.loads(done.stdout)
    assert (done.returncode, ids(report)) == (1, ["not-live"])
    found = finding(report, "not-live")
    assert found["message"].startswith("a spawned child did not run, so ")
    assert "in a folder that exists" in found["remedy"]


def test_a_copy_in_the_working_folder(environment: Interpreter) -> None:
    """Switched on, Python has imported the installed package before it looks into the working folder."""
    for environ, used in (ON, environment.site_packages), ({}, CHECKOUT):
        result = environment.run("-m", "deepeyes_patch", "doctor", "--json", environ=environ, cwd=CHECKOUT)
        report = json.loads(result.out)
        assert f"several copies: {used} is used" in finding(report, "two-copies")["message"]


def test_two_start_up_files(tmp_path: Path, wheel: Path, offline: dict[str, str]) -> None:
    """One in the user's site directory, and one in the environment."""
    created = interpreters.create(tmp_path / "env", system_site_packages=True)
    pip("install", "--ignore-installed", wheel, python=created.python, **offline)
    home = {"PYTHONUSERBASE": str(tmp_path / "user")}
    user = created.run("import site; print(site.getusersitepackages())", environ=home).printed()
    Path(user).mkdir(parents=True)
    shutil.copy(created.site_packages / "deepeyes_patch.pth", user)
    _, report = doctor(created, **ON, **home)
    assert "two-copies" in ids(report)
    assert user in finding(report, "two-copies")["message"]
    assert report["startup"]["children"]["-I"] == "live"
    # Alone, the user's is not read by an isolated interpreter.
    (created.site_packages / "deepeyes_patch.pth").unlink()
    (Path(user) / "deepeyes_patch").symlink_to(created.site_packages / "deepeyes_patch")
    _, report = doctor(created, **ON, **home)
    assert report["startup"]["children"]["fresh"] == "live"
    assert report["startup"]["children"]["-I"] == "off"
    assert "not-live" not in ids(report)


# --- the package --------------------------------------------------------------------------------------


def test_a_changed_file(environment: Interpreter) -> None:
    path = environment.site_packages / "deepeyes_patch" / "ids" / "spans.py"
    original = path.read_bytes()
    try:
        path.write_bytes(original + b"# edited\n")
        code, report = doctor(environment, **ON)
    finally:
        path.write_bytes(original)
    assert (code, ids(report)) == (1, ["package-damaged"])
    assert "deepeyes_patch/ids/spans.py" in finding(report, "package-damaged")["message"]


def test_wrapt_missing(environment: Interpreter) -> None:
    with away(environment.site_packages / "wrapt"):
        code, report = doctor(environment, **ON)
    assert (code, ids(report)) == (1, ["wrapt-missing"])
    assert "pip install 'wrapt>=1.16'" in finding(report, "wrapt-missing")["remedy"]


def test_wrapt_old(tmp_path: Path, environment: Interpreter) -> None:
    (tmp_path / "wrapt").mkdir()
    (tmp_path / "wrapt" / "__init__.py").touch()
    (tmp_path / "wrapt-1.15.0.dist-info").mkdir()
    (tmp_path / "wrapt-1.15.0.dist-info" / "METADATA").write_text("Name: wrapt\nVersion: 1.15.0\n")
    code, report = doctor(environment, **ON, PYTHONPATH=str(tmp_path))
    assert (code, ids(report)) == (1, ["wrapt-old"])
    assert "1.15.0" in finding(report, "wrapt-old")["message"]


# --- the switch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({}, "DEEPEYES_PATCH is not set or empty"),
        ({"DEEPEYES_PATCH": ""}, "DEEPEYES_PATCH is not set or empty"),
        ({"DEEPEYES_PATCH": " "}, "DEEPEYES_PATCH=' ' says off"),
        ({"DEEPEYES_PATCH": "Off"}, "DEEPEYES_PATCH='Off' says off"),
        (
            {"DEEPEYES_PATCH": "", "RELAX_DEEPEYES_QWEN_VL_PATCH": "0"},
            "RELAX_DEEPEYES_QWEN_VL_PATCH='0' says off",
        ),
    ],
)
def test_the_switch_unset(environ: dict[str, str], reason: str, environment: Interpreter) -> None:
    code, report = doctor(environment, **environ)
    assert (code, ids(report)) == (0, ["switch-unset"])
    assert finding(report, "switch-unset")["level"] == "warning"
    assert finding(report, "switch-unset")["message"] == f"{reason}: nothing is switched on"
    assert not report["ok"]
    assert report["verdict"] == "1 warning: the processor repair is needed and NOT on"
    assert report["repairs"]["processor"]["state"] == "needed"
    # What the installation can do does not depend on it.
    assert report["startup"]["children"]["fresh"] == "live"


def test_the_switch_leaves_out_what_is_needed(environment: Interpreter) -> None:
    """A choice that somebody has made, so no warning."""
    code, report = doctor(environment, "--strict", DEEPEYES_PATCH="mrope")
    assert (code, ids(report)) == (0, ["repair-off"])
    assert report["ok"]
    assert report["verdict"] == "1 note: the processor repair is needed and NOT on"


def test_strict_makes_a_warning_an_error(environment: Interpreter) -> None:
    """The line of an image: it fails where the switch is not set, and passes where it is."""
    for environ, expected in ({}, 1), (ON, 0):
        result = environment.run("-m", "deepeyes_patch", "doctor", "--strict", environ=environ)
        assert result.code == expected, result


def test_one_count_of_seams(environment: Interpreter) -> None:
    _, report = doctor(environment, **ON)
    shown = environment.run("-m", "deepeyes_patch", "doctor", environ=ON).out
    counts = [len(repair["seams"]) for repair in report["repairs"].values()]
    assert re.findall(r"seams (\d+)/(\d+)", shown) == [(str(count),) * 2 for count in counts]
    assert all(
        seam["found"] != "nothing" for repair in report["repairs"].values() for seam in repair["seams"]
    )


@pytest.mark.parametrize("name", ["DEEPEYES_PATCH", "RELAX_DEEPEYES_QWEN_VL_PATCH"])
def test_a_wrong_value(name: str, environment: Interpreter) -> None:
    code, report = doctor(environment, **{name: "maybe"})
    assert (code, ids(report)) == (1, ["switch-invalid"])
    assert f"{name}='maybe'" in finding(report, "switch-invalid")["message"]
    assert report["switch"]["variables"][name] == "maybe"


def test_relaxs_variable(environment: Interpreter) -> None:
    code, report = doctor(environment, RELAX_DEEPEYES_QWEN_VL_PATCH="1")
    assert (code, ids(report)) == (0, [])
    assert report["switch"]["source"] == "RELAX_DEEPEYES_QWEN_VL_PATCH"
    assert report["switch"]["repairs"] == ["processor"]


# --- SGLang -------------------------------------------------------------------------------------------


def test_sglang_missing(environment: Interpreter) -> None:
    with away(environment.site_packages / "sglang"):
        code, report = doctor(environment, **ON)
    assert (code, ids(report)) == (1, ["sglang-missing"])
    assert report["repairs"]["processor"]["state"] == "unknown"


QWEN_VL = "sglang/srt/multimodal/processors/qwen_vl.py"


def test_the_cp_overlay_of_an_old_qwen_vl(environment: Interpreter) -> None:
    """What the usual remedy did: an older release's file over the installed one."""
    path = environment.site_packages / QWEN_VL
    original = path.read_bytes()
    old = environments.overlay(RELEASES["0.5.3"])
    if not (old / environments.COMPLETE).exists():
        environments.ensure(["0.5.3"])
    try:
        shutil.copy(old / QWEN_VL, path)
        code, report = doctor(environment, **ON)
        found = finding(report, "sglang-overlay")
        assert code == 1
        assert QWEN_VL in found["message"]
        assert found["remedy"].endswith(f"--force-reinstall --no-deps sglang=={RELEASE}")
        assert report["repairs"]["video"]["state"] == "available"  # the file fits, whatever else does not
    finally:
        path.write_bytes(original)


def test_an_edited_file_that_still_fits(environment: Interpreter) -> None:
    path = environment.site_packages / QWEN_VL
    original = path.read_bytes()
    try:
        path.write_bytes(original + b"\n# sed was here\n")
        code, report = doctor(environment, **ON)
    finally:
        path.write_bytes(original)
    assert (code, ids(report)) == (1, ["sglang-overlay"])
    assert report["repairs"]["processor"]["state"] == "ready"


def test_a_seam_that_is_gone(environment: Interpreter) -> None:
    """In a release of its own, so to speak: RECORD agrees with the file."""
    path = environment.site_packages / QWEN_VL
    record = environment.site_packages / f"sglang-{RELEASE}.dist-info" / "RECORD"
    original, rows = path.read_bytes(), record.read_text()
    changed = original.replace(b"async def process_mm_data_async", b"async def renamed")
    assert changed != original
    digest = base64.urlsafe_b64encode(hashlib.sha256(changed).digest()).rstrip(b"=").decode()
    try:
        path.write_bytes(changed)
        kept = [row for row in rows.splitlines() if not row.startswith(f"{QWEN_VL},")]
        record.write_text("\n".join([*kept, f"{QWEN_VL},sha256={digest},{len(changed)}", ""]))
        code, report = doctor(environment, **ON)
    finally:
        path.write_bytes(original)
        record.write_text(rows)
    assert code == 1
    assert ids(report) == ["incompatible"]
    assert "process_mm_data_async" in finding(report, "incompatible")["message"]
    assert report["repairs"]["mrope"]["state"] == "native"


def test_a_rebuild_under_another_name(environment: Interpreter) -> None:
    info = environment.site_packages / f"sglang-{RELEASE}.dist-info"
    renamed = environment.site_packages / f"sglang_kt-{RELEASE}.dist-info"
    info.rename(renamed)
    metadata = (renamed / "METADATA").read_text()
    try:
        (renamed / "METADATA").write_text(metadata.replace("Name: sglang\n", "Name: sglang-kt\n"))
        code, report = doctor(environment, **ON)
    finally:
        (renamed / "METADATA").write_text(metadata)
        renamed.rename(info)
    assert (code, ids(report)) == (0, [])
    assert report["packages"]["sglang"]["distribution"] == "sglang-kt"
    assert report["packages"]["sglang"]["version"] == RELEASE


def test_a_source_tree_in_front(environment: Interpreter, tmp_path: Path) -> None:
    """As in images that carry an edited SGLang: there is no RECORD to compare it with."""
    shutil.copytree(environment.site_packages / "sglang" / "srt", tmp_path / "sglang" / "srt", symlinks=True)
    (tmp_path / "sglang" / "__init__.py").touch()
    (tmp_path / "sglang" / "version.py").write_text('__version__ = "0.0.0.dev0"\n')
    code, report = doctor(environment, **ON, PYTHONPATH=str(tmp_path))
    assert (code, ids(report)) == (0, ["sglang-unchecked"])
    assert report["findings"][0]["remedy"] == f"git -C {tmp_path / 'sglang'} status --short"
    assert report["packages"]["sglang"] == {
        "version": "0.0.0.dev0",
        "distribution": None,
        "path": str(tmp_path / "sglang"),
    }


def test_the_rust_server(environment: Interpreter) -> None:
    code, report = doctor(environment, **ON, SGLANG_RUST_SERVER="1")
    assert (code, ids(report)) == (1, ["rust-server"])


def test_deep_where_sglang_cannot_be_imported(environment: Interpreter) -> None:
    # This environment has no torch.
    code, report = doctor(environment, "--deep", **ON)
    assert (code, ids(report)) == (1, ["deep-failed"])
    assert finding(report, "deep-failed")["message"] == "ModuleNotFoundError: No module named 'torch'"
    assert "-m pip check" in finding(report, "deep-failed")["remedy"]
    # Nothing is asked then. "processor-native" is in tests/sglang/test_upstream_change.py.
    assert report["unaided"] is None


def test_every_finding_is_documented_and_tested_here() -> None:
    source = (CHECKOUT / "deepeyes_patch" / "cli" / "findings.py").read_text()
    text = (CHECKOUT / "docs" / "en" / "cli.md").read_text()
    table = text[text.index("| finding |") : text.index("A child with `-S`")]
    documented = {word for line in table.splitlines() for word in line[: line.find(" | ")].split("`")[1::2]}
    for name in documented:
        stem = name.rpartition("-")[0] if name.startswith(("pth", "start")) else name
        assert stem in source, name
        assert f'"{name}"' in Path(__file__).read_text() or f"{stem}-" in Path(__file__).read_text(), name
    assert (CHECKOUT / "docs" / "zh" / "cli.md").read_text().count("`") == text.count("`")


def test_what_was_shipped_is_what_is_in_the_checkout() -> None:
    program = "from deepeyes_patch.cli.installation import SHIPPED; import json; print(json.dumps(SHIPPED))"
    shipped = subprocess.run(
        [interpreters.sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(shipped) == {
        name: hashlib.sha256((CHECKOUT / name).read_bytes()).hexdigest()
        for name in ("deepeyes_patch.pth", "deepeyes_patch.start")
    }
