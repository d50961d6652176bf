"""The two variables: every documented value, and that the ``.pth`` line reads them alike."""

from __future__ import annotations

import json

import pytest

from deepeyes_patch import DeepEyesPatchError, SettingsError, settings
from deepeyes_patch.settings import Settings
from tests.interpreters import CHECKOUT, Interpreter

SWITCH, RELAX = "DEEPEYES_PATCH", "RELAX_DEEPEYES_QWEN_VL_PATCH"
ALL = {"processor", "mrope"}

OFF_SPELLINGS = ["0", "false", "off", "False", "OFF", " 0 ", "off\n"]
ON_SPELLINGS = ["1", "true", "on", "True", "ON", " 1 "]


def read(switch: str | None = None, relax: str | None = None) -> Settings:
    return settings.read({k: v for k, v in ((SWITCH, switch), (RELAX, relax)) if v is not None})


def test_nothing_set() -> None:
    assert read() == Settings(frozenset(), None)
    assert read("", "") == Settings(frozenset(), None)


@pytest.mark.parametrize("value", OFF_SPELLINGS)
def test_off(value: str) -> None:
    assert read(value) == Settings(frozenset(), SWITCH)
    assert read(None, value) == Settings(frozenset(), RELAX)


@pytest.mark.parametrize("value", [*ON_SPELLINGS, "all", "ALL"])
def test_on(value: str) -> None:
    assert read(value) == Settings(frozenset(ALL), SWITCH)


@pytest.mark.parametrize(
    ("value", "repairs"),
    [
        ("processor", {"processor"}),
        ("mrope", {"mrope"}),
        ("processor,mrope", ALL),
        ("mrope , Processor", ALL),
        ("mrope,mrope", {"mrope"}),
        ("processor,mrope,video", {*ALL, "video"}),
        ("Video,processor", {"processor", "video"}),
        ("processor sampling", {"processor", "sampling"}),
        ("1,sampling", {*ALL, "sampling"}),
        ("1,deepstack", {*ALL, "deepstack"}),
        ("Deepstack", {"deepstack"}),
        ("video+ALL", {*ALL, "video"}),
    ],
)
def test_repairs_by_name(value: str, repairs: set[str]) -> None:
    assert read(value).repairs == repairs


@pytest.mark.parametrize("repair", ["video", "sampling"])
@pytest.mark.parametrize("value", ["{}", "mrope,{}"])
def test_some_repairs_stand_on_processor(value: str, repair: str) -> None:
    value = value.format(repair)
    message = rf"{SWITCH}='{value}': '{repair}' stands on 'processor'; name both"
    with pytest.raises(SettingsError, match=message):
        read(value)


@pytest.mark.parametrize("value", ON_SPELLINGS)
def test_relax_means_the_processor_repair(value: str) -> None:
    assert read(None, value) == Settings(frozenset({"processor"}), RELAX)
    assert read("", value) == Settings(frozenset({"processor"}), RELAX)


@pytest.mark.parametrize(
    ("switch", "relax", "expected"),
    [
        ("off", "1", Settings(frozenset(), SWITCH)),
        ("0", "maybe", Settings(frozenset(), SWITCH)),
        ("mrope", "1", Settings(frozenset({"mrope"}), SWITCH)),
        ("1", "0", Settings(frozenset(ALL), SWITCH)),
        ("  ", "1", Settings(frozenset(), SWITCH)),
    ],
)
def test_our_own_variable_decides_when_it_is_set(switch: str, relax: str, expected: Settings) -> None:
    assert read(switch, relax) == expected


@pytest.mark.parametrize(
    "value",
    ["processor,mrope", "processor mrope", "processor+mrope", " mrope , processor ", "processor,mrope,"],
)
def test_names_are_separated_by_commas_blanks_or_plus_signs(value: str) -> None:
    assert read(value) == Settings(frozenset({"processor", "mrope"}), SWITCH)


@pytest.mark.parametrize(
    ("value", "unknown"),
    [
        ("maybe", "'maybe'"),
        ("2", "'2'"),
        ("yes", "'yes'"),
        ("processor,rope", "'rope'"),
        ("processor,2", "'2'"),
        ("off,mrope", "'off'"),
        (",", "''"),
    ],
)
def test_an_unknown_value_is_named_with_the_valid_ones(value: str, unknown: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read(value)
    message = str(raised.value)
    assert message.startswith(f"{SWITCH}={value!r}")
    assert unknown in message
    for valid in ("1", "true", "on", "all", *settings.REPAIRS, "0", "false", "off"):
        assert valid in message.partition("Valid: ")[2]


@pytest.mark.parametrize("value", ["maybe", "all", "processor", "processor,mrope"])
def test_relax_selects_no_repairs_by_name(value: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read(None, value)
    message = str(raised.value)
    assert message.startswith(f"{RELAX}={value!r}")
    assert SWITCH in message
    for valid in ("1", "true", "on", "0", "false", "off"):
        assert valid in message.partition("Valid: ")[2]


def test_a_settings_error_is_not_an_import_error() -> None:
    # ``try: import sglang ... except ImportError`` must not swallow it.
    assert issubclass(SettingsError, DeepEyesPatchError)
    assert not issubclass(DeepEyesPatchError, ImportError)


PAIRS = [
    *(
        (value, None)
        for value in [None, "", " ", *OFF_SPELLINGS, *ON_SPELLINGS, "all", "mrope", "video", "maybe", "00"]
    ),
    *((None, value) for value in ["", " ", "0", "false", "off", "1", "on", "maybe"]),
    *((value, "1") for value in ["", " ", "0", "off", "1"]),
    *((value, "0") for value in ["", "1"]),
]


AGREE = """
import json, os, pkgutil, sys
def waiting(call):
    for name in [name for name in sys.modules if name.startswith("deepeyes_patch")]:
        del sys.modules[name]
    call()
    finders = [finder for finder in sys.meta_path if type(finder).__name__ == "SGLangFinder"]
    for finder in finders:
        sys.meta_path.remove(finder)
    return len(finders)
pth, start, pairs = open(sys.argv[1]).read(), open(sys.argv[2]).read().strip(), json.loads(sys.argv[3])
for environ in pairs:
    os.environ.pop("DEEPEYES_PATCH", None)
    os.environ.pop("RELAX_DEEPEYES_QWEN_VL_PATCH", None)
    os.environ.update(environ)
    by_pth = waiting(lambda: exec(pth, {}))
    loaded = sum(name.startswith("deepeyes_patch") for name in sys.modules)
    print(by_pth, loaded, waiting(lambda: pkgutil.resolve_name(start)()))
"""


def test_the_pth_line_and_the_start_file_agree_with_the_settings(patched: Interpreter) -> None:
    environs, expected = [], []
    for switch, relax in PAIRS:
        environs.append({k: v for k, v in ((SWITCH, switch), (RELAX, relax)) if v is not None})
        try:
            wanted = bool(read(switch, relax).repairs)
        except SettingsError:  # SGLang has to be stopped, so somebody must wait for it
            wanted = True
        # The line knows ``off`` alone: any other value that means off costs the module that reads it.
        reads = bool(environs[-1]) and switch != "off"
        expected.append("1 1 1" if wanted else f"0 {int(reads)} 0")
    assert {"1 1 1", "0 1 0", "0 0 0"} == set(expected)
    files = [patched.site_packages / name for name in ("deepeyes_patch.pth", "deepeyes_patch.start")]
    out = patched.run("-c", AGREE, *files, json.dumps(environs)).printed()
    assert dict(zip(PAIRS, out.splitlines(), strict=True)) == dict(zip(PAIRS, expected, strict=True))


def test_the_pth_is_one_short_line_that_imports_nothing_an_environment_value_names() -> None:
    (line,) = (CHECKOUT / "deepeyes_patch.pth").read_text(encoding="ascii").splitlines()
    assert line.startswith("import os; ")
    assert len(line) < 160
    imported = [part.split(")")[0] for part in line.split("__import__(")[1:]]
    assert imported == ['"deepeyes_patch"']
    assert "exec" not in line
    assert "eval" not in line
