"""``deepeyes-patch verify`` without SGLang: verdicts, what it prints, and the checkpoint that it takes."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from deepeyes_patch.cli import checkpoint, installation, needs, sides, terminal, verdicts, verify
from deepeyes_patch.cli.progress import Progress
from deepeyes_patch.cli.terminal import CommandError
from tests.interpreters import CHECKOUT, clean_environ
from tests.unit.test_cli import cli

DEMANDED = {
    "input_ids": [1, 2, 2, 3],
    "offsets": [[1, 2]],
    "grids": [[1, 2, 4]],
    "mrope_positions": [[0], [0], [0]],
    "mrope_position_delta": -1,
}
EXACT = {**DEMANDED, "keys": {"a": "1", "b": "2"}}


def case(kind: str, demanded: object = DEMANDED) -> dict[str, object]:
    return {"name": "n", "kind": kind, "expected": demanded}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (EXACT, "exact"),
        ({"error": "IndexError: x", "refused": False}, "HTTP 500, IndexError"),
        ({"error": "ValueError: x", "refused": True}, "HTTP 400"),
        ({"error": "TimeoutError: ", "refused": False}, "no answer"),
        ({**EXACT, "input_ids": [1, 2, 3]}, "3 of 4 ids"),
        ({**EXACT, "input_ids": [1, 2, 2, 4]}, "other ids"),
        ({**EXACT, "mrope_positions": [[1], [0], [0]]}, "wrong positions"),
        ({**EXACT, "grids": None}, "wrong grids"),
    ],
)
def test_verdicts(answer: dict[str, object], expected: str) -> None:
    assert verdicts.verdict(answer, DEMANDED) == expected


def test_ids_that_come_out_wrong_are_not_as_promised() -> None:
    wrong = {**EXACT, "mrope_position_delta": 0}
    stock = {"error": "IndexError: x", "refused": False}
    assert verdicts.judge(case("ids"), stock, EXACT)["ok"]
    row = verdicts.judge(case("ids"), stock, wrong)
    assert not row["ok"]
    assert row["why"] == "differs from transformers in mrope_position_delta"
    row = verdicts.judge(case("ids"), wrong, EXACT)
    assert row["changed"] == ["mrope_position_delta"]
    assert row["why"] == "mrope_position_delta: it follows from the caller's ids"


def test_a_refusal_that_is_served_is_not_as_promised() -> None:
    refused = {"error": "ValueError: named", "refused": True}
    assert verdicts.judge(case("refused", None), EXACT, refused)["ok"]
    assert not verdicts.judge(case("refused", None), EXACT, EXACT)["ok"]
    crash = {"error": "IndexError: x", "refused": False}
    assert not verdicts.judge(case("refused", None), EXACT, crash)["ok"]


def test_text_must_be_identical_on_every_key() -> None:
    row = verdicts.judge(case("text"), EXACT, EXACT)
    assert (row["ok"], row["why"]) == (True, "identical on all 2 keys")
    other = {**EXACT, "keys": {"a": "1", "b": "3"}}
    row = verdicts.judge(case("text"), EXACT, other)
    assert (row["ok"], row["changed"]) == (False, ["b"])
    row = verdicts.judge(case("text"), {**EXACT, "unsteady": ["b"]}, other)
    assert (row["ok"], row["why"]) == (True, "identical on all 1 keys")
    nothing = {**EXACT, "keys": {}}
    assert not verdicts.judge(case("text"), nothing, nothing)["ok"], "nothing was compared"
    # To 0.5.5.post1 the images of text prompts get the grids of transformers.
    twice = {**EXACT, "grids": [[1, 4, 4]]}
    assert verdicts.judge(case("text"), twice, other)["ok"]
    assert not verdicts.judge(case("text"), other, twice)["ok"]


def test_the_rope_must_be_right() -> None:
    right, wrong = {"error": 1e-6, "failure": None}, {"error": 2.0, "failure": None}
    assert verdicts.judge_rope(wrong, right)["ok"]
    assert not verdicts.judge_rope(right, wrong)["ok"]
    failed = {"error": None, "failure": "ValueError: named"}
    assert verdicts.judge_rope(wrong, failed) == {
        "stock": 2.0,
        "stock_ok": False,
        "patched": None,
        "ok": False,
        "note": "ValueError: named",
    }


def shown(capsys: pytest.CaptureFixture[str], patched: object) -> list[str]:
    """What ``verify`` prints of a text, of expanded ids, of ids that must be refused, and of the rope."""
    stock = {"error": "AssertionError: x", "refused": False}
    refused = {"error": "ValueError: named", "refused": True}
    cases = [
        verdicts.judge(case("text"), EXACT, EXACT),
        verdicts.judge(case("ids"), stock, patched),
        verdicts.judge(case("refused", None), stock, refused),
    ]
    rope = verdicts.judge_rope({"error": 0.0, "failure": None}, {"error": 0.0, "failure": None})
    about = dict.fromkeys(("version", "sglang", "transformers", "model", "model_type"), "x")
    verify.show(all(row["ok"] for row in cases), about, cases, rope)
    return capsys.readouterr().out.splitlines()


def test_verify_ends_with_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    *lines, last = shown(capsys, EXACT)
    assert last == "patched: 4 of 4 right (3 exact, 1 refused); stock: 2 of 4"
    legend = {word for line in lines for word in re.findall(r"^  (\S.*?\S)   *\S", line)}
    assert legend == {"exact", "HTTP 400", "HTTP 500", "N off"}, (
        "the words that stand in the table, and no others"
    )
    *lines, last = shown(capsys, {**EXACT, "input_ids": [1, 2]})
    assert last == "patched: 3 of 4 right (2 exact, 1 refused), NOT as promised; stock: 2 of 4"
    assert any(line.startswith("  N of M ids  ") for line in lines)
    assert all(len(line) <= terminal.WIDTH for line in lines)


def test_verify_colours_right_and_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    text = "\n".join(shown(capsys, EXACT))
    assert "\x1b[31mHTTP 500, AssertionError\x1b[0m" in text
    assert "\x1b[32mHTTP 400\x1b[0m" in text
    assert "\x1b[32mexact\x1b[0m" in text


def through_a_terminal(program: str) -> str:
    """What a program writes on stderr if that is a terminal."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=CHECKOUT,
        env=clean_environ(TERM="xterm", COLUMNS="40"),
        stdout=subprocess.DEVNULL,
        stderr=slave,
    ):
        os.close(slave)
        said = b""
        with contextlib.suppress(OSError):  # Linux raises EIO at the end
            while part := os.read(master, 1000):
                said += part
    os.close(master)
    return said.decode()


WAITING = """
import subprocess, sys
from deepeyes_patch.cli.progress import Progress
with Progress() as progress:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"])
    assert progress.wait([child], 60, lambda: "waiting for " + 50 * "x")
"""


def test_progress_on_a_terminal() -> None:
    """One line, never longer than the terminal, and nothing of it is left."""
    *lines, last = through_a_terminal(WAITING).split("\r\x1b[K")[1:]
    assert len(lines) > 1
    assert lines[0].startswith("   0 s  waiting for x")
    assert all(len(line) == 39 for line in lines)
    assert last == ""


def test_no_progress_in_a_pipe() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAITING], cwd=CHECKOUT, env=clean_environ(), capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_waiting_has_an_end() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not Progress().wait([child], 0.3, str)
    finally:
        child.communicate(b"\n")


def in_a_cache(folder: Path, name: str, files: Iterable[str]) -> dict[str, str]:
    """A model in a hub cache, as ``huggingface_hub`` lays it out, and the variable that names the cache."""
    model = folder / f"models--{name.replace('/', '--')}"
    snapshot = model / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("abc")
    for file in files:
        (snapshot / file).write_text('{"vision_config": {}, "model_type": "qwen3_vl"}')
    return {"HF_HUB_CACHE": str(folder)}


def found_checkpoint(name: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    program = f"from deepeyes_patch.cli import checkpoint; print(checkpoint.find({name!r}))"
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=CHECKOUT,
        env=clean_environ(**environ),
        capture_output=True,
        text=True,
        timeout=60,
    )


FILES = ("config.json", "preprocessor_config.json", "tokenizer_config.json")


def test_a_model_in_the_hub_cache(tmp_path: Path) -> None:
    done = found_checkpoint("Qwen/Qwen3-VL", in_a_cache(tmp_path, "Qwen/Qwen3-VL", FILES))
    assert done.stdout.strip() == str(tmp_path / "models--Qwen--Qwen3-VL" / "snapshots" / "abc"), done


@pytest.mark.parametrize("files", [(), FILES[:1]])
def test_a_model_that_the_hub_cache_does_not_hold(files: tuple[str, ...], tmp_path: Path) -> None:
    """The message says where it looked, what is missing, and how to get it."""
    environ = in_a_cache(tmp_path, "Qwen/Qwen3-VL", files)
    done = cli("verify", "--model", "Qwen/Qwen3-VL", **environ)
    assert done.returncode == 2, done
    assert f"the hub cache {tmp_path} does not hold its {', '.join(FILES[len(files) :])}" in done.stderr
    (download,) = re.findall(r'-c "(.*)"$', done.stderr)
    assert "get('Qwen/Qwen3-VL'," in download
    compile(download, "download", "exec")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "/nowhere"], "holds no config.json"),
        (["--image", "/nowhere.png"], "is not a file"),
    ],
)
def test_verify_says_what_is_wrong_with_its_arguments(arguments: list[str], words: str) -> None:
    done = cli("verify", *arguments)
    assert done.returncode == 2, done
    assert words in done.stderr


def test_verify_of_a_text_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    done = cli("verify", "--model", str(tmp_path))
    assert done.returncode == 2, done
    assert "type qwen3 without a vision_config" in done.stderr


@pytest.mark.parametrize("content", ["{", "[1]", "7"])
def test_a_config_that_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    done = cli("verify", "--model", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
    assert f"{tmp_path / 'config.json'} " in done.stderr


def test_an_empty_model_is_not_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a shell variable that is not set."""
    (tmp_path / "config.json").write_text('{"vision_config": {}}')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match=r"^'' holds no config.json"):
        checkpoint.find("")


# --- what is missing ----------------------------------------------------------------------------------


def test_packages_that_are_missing(tmp_path: Path) -> None:
    """One line, for each command that needs them."""
    (tmp_path / "config.json").write_text('{"vision_config": {}}')
    parity = ("parity", "http://127.0.0.1:9", "--model", str(tmp_path))
    for arguments, missing, wanted in (
        (("verify",), "sglang, transformers", "sglang"),
        (parity, "transformers", "transformers"),
    ):
        done = cli(*arguments)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr == (
            f"deepeyes-patch {arguments[0]}: {sys.executable} lacks {missing}. Use the Python that SGLang "
            f"runs with, or run: {sys.executable} -m pip install {wanted}\n"
        )


def test_a_hub_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "package", lambda name: installation.Package())
    with pytest.raises(
        CommandError, match=r"lacks huggingface_hub\. .*-m pip install huggingface_hub"
    ) as caught:
        checkpoint.find("owner/name")
    assert caught.value.code == 3


def with_broken(folder: Path, *names: str) -> dict[str, str]:
    """A folder with packages that need one which is missing, and the variable that puts it in front."""
    for name in names:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("import no_such_package\n")
    return {"PYTHONPATH": str(folder)}


def test_transformers_that_cannot_be_imported(tmp_path: Path) -> None:
    done = cli("verify", **with_broken(tmp_path, "sglang", "transformers"))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        "deepeyes-patch verify: transformers cannot be imported here: ModuleNotFoundError: No module named "
        f"'no_such_package'. {needs.CHECK}\n"
    )


def test_an_sglang_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    (tmp_path / "transformers.json").write_text('{"cases": []}')
    sides.ask(tmp_path, {"model": None, "images": []})
    for name, value in with_broken(tmp_path, "sglang").items():
        monkeypatch.setenv(name, f"{value}{os.pathsep}{CHECKOUT}")
    with Progress() as progress, pytest.raises(CommandError) as caught:
        sides.run(progress, tmp_path, sides.STOCK)
    assert caught.value.code == 3
    assert str(caught.value) == (
        "SGLang cannot be imported here: ModuleNotFoundError: No module named 'no_such_package'. "
        + needs.CHECK
    )


@pytest.mark.parametrize(
    ("role", "model", "words"),
    [
        (
            sides.TRANSFORMERS,
            "/a/model",
            r"^transformers cannot use /a/model: KeyError: 'x'\. Give a complete ",
        ),
        (sides.TRANSFORMERS, None, "last words:\nof the log"),
        (sides.PATCHED, "/a/model", "last words:\nof the log"),
    ],
)
def test_other_errors_of_a_child(role: str, model: str | None, words: str, tmp_path: Path) -> None:
    sides.ask(tmp_path, {"model": model})
    (tmp_path / f"{role}.error").write_text('{"is_import": false, "text": "KeyError: \'x\'"}')
    (tmp_path / f"{role}.log").write_text("of the log")
    with pytest.raises(CommandError, match=words):
        sides._answer_of(tmp_path, role, 1)


def test_a_picture_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no picture")
    with pytest.raises(CommandError, match=r"cannot read the picture '.*a\.png'") as caught:
        verify._require_picture(str(tmp_path / "a.png"))
    assert caught.value.code == 2
