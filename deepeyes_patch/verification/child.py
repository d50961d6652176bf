"""``python -m deepeyes_patch.verification.child ROLE FOLDER``: one side of the comparison.

The role ``transformers`` reads ``FOLDER/question.json`` and writes the requests and the expected values to
``transformers.json``. The roles ``stock`` and ``patched`` answer these requests, in ``stock.json`` and
``patched.json``; where the question says so, only until one that should be served is not. A role that fails
writes its error to ``ROLE.error``.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

STOCK_SECONDS = 20.0  # stock leaves some requests waiting forever
ALWAYS_INTERLEAVED = ("qwen3_vl", "qwen3_5")  # transformers interleaves these, whatever the config says


def main(role: str, folder: Path) -> None:
    # The stock forward of 0.5.3 is compiled, which takes minutes on a CPU and changes no result.
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    question = json.loads((folder / "question.json").read_text())
    if question["model"] is None:
        question["model"] = str(folder / "tiny")

    def doing(text: str) -> None:
        """Tell `verify` what this child is doing."""
        (folder / f"{role}.doing").write_text(text)

    try:
        answer = (_expect if role == "transformers" else _ask_sglang)(question, folder, doing)
    except Exception as error:
        said = {"is_import": isinstance(error, ImportError), "text": f"{type(error).__name__}: {error}"}
        (folder / f"{role}.error").write_text(json.dumps(said))
        raise
    (folder / f"{role}.json").write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # a stock request that hangs may hold a thread of SGLang


def _expect(question: dict[str, Any], folder: Path, doing: Callable[[str], None]) -> dict[str, Any]:
    doing("importing it")
    import torch
    import transformers

    from deepeyes_patch.verification import expected, requests, rope, tiny

    doing("computing what is right")
    model = Path(question["model"])
    if model == folder / "tiny":
        model.mkdir()
        tiny.write(model)
    images = question["images"] or requests.pictures(folder)
    core = expected.rope_owner(model)
    description = rope.describe(core)
    torch.save(rope.by_transformers(core, description), folder / "rotated.pt")
    return {
        "transformers": transformers.__version__,
        "model_type": core.config.model_type,
        "rope": description,
        "cases": requests.plan(model, images, _slow_images(torch.cuda.is_available())),
    }


def _ask_sglang(question: dict[str, Any], folder: Path, doing: Callable[[str], None]) -> dict[str, Any]:
    doing("importing SGLang")
    import torch

    gpu = torch.cuda.is_available()
    if not gpu:
        # Without this variable, SGLang treats a machine without CUDA as broken.
        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    from PIL import Image

    from deepeyes_patch.verification import harness, requests, rope

    expected = json.loads((folder / "transformers.json").read_text())
    model = Path(question["model"])
    harness.processor_class()
    loop = asyncio.new_event_loop()

    def build() -> Any:
        return harness.build(model, _server_args(gpu))

    processor = build()
    answers = []
    for number, case in enumerate(expected["cases"], 1):
        doing(f"request {number} of {len(expected['cases'])}, {case['name']}")
        images = [Image.open(file).convert("RGB") for file in case["images"]]
        answer = _answer(loop, processor, case, images)
        if case["kind"] == requests.TEXT:
            # If a repeated request gives another value for a key, that key is not compared.
            again = _answer(loop, processor, case, images)
            answer["unsteady"] = _differing(answer.get("keys", {}), again.get("keys", {}))
        answers.append(answer)
        if question.get("stops") and case["kind"] == requests.IDS and "error" in answer:
            break
        if answer.get("error", "").startswith("TimeoutError"):
            processor = build()
    doing("rotating")
    rotated = _or_error(
        lambda: rope.by_sglang(expected["rope"], expected["model_type"].startswith(ALWAYS_INTERLEAVED))
    )
    error = None
    if not isinstance(rotated, str):
        error = float((rotated - torch.load(folder / "rotated.pt")).abs().max())
    import deepeyes_patch
    from deepeyes_patch.observe import release

    return {
        "sglang": release.version(),
        "repairs": deepeyes_patch.status(),
        "answers": answers,
        "rope": {"error": error, "failure": rotated if isinstance(rotated, str) else None},
    }


def _answer(loop: Any, processor: Any, case: dict[str, Any], images: Sequence[Any]) -> dict[str, Any]:
    """The processor's result for a request, with a digest of each of its keys; or the error."""
    from deepeyes_patch.verification import harness

    prompt = case["prompt"] if isinstance(case["prompt"], str) else list(case["prompt"])
    work = harness.process_async(processor, prompt, list(images), seconds=STOCK_SECONDS, rid="verify")
    try:
        processed = loop.run_until_complete(work)
    except Exception as error:  # stock may raise any error
        return {"error": f"{type(error).__name__}: {error}"[:500], "refused": isinstance(error, ValueError)}
    positions = processed.mrope_positions
    return {
        "input_ids": processed.input_ids,
        "offsets": [list(pair) for pair in processed.offsets],
        "grids": None if processed.grids is None else processed.grids.tolist(),
        "mrope_positions": None if positions is None else positions.tolist(),
        "mrope_position_delta": processed.mrope_position_delta,
        "keys": _keys(processed.raw),
    }


def _keys(result: Any) -> dict[str, str]:
    """A digest of every part of the processor's result, and of every part of its items."""
    digests = {}
    for name, value in _fields(result).items():
        if name == "mm_items":
            for number, item in enumerate(value):
                for part, content in _fields(item).items():
                    digests[f"mm_items[{number}].{part}"] = _digest(content)
        else:
            digests[name] = _digest(value)
    return digests


def _fields(thing: Any) -> dict[str, Any]:
    """The fields of a result: a dict up to 0.5.9, then a msgspec structure, a dataclass or a plain object."""
    if isinstance(thing, dict):
        return thing
    declared = getattr(type(thing), "__struct_fields__", ())
    return {**{name: getattr(thing, name, None) for name in declared}, **getattr(thing, "__dict__", {})}


def _digest(value: Any) -> str:
    import torch

    state = hashlib.sha256()

    def feed(part: Any) -> None:
        if isinstance(part, torch.Tensor):
            state.update(f"tensor {part.dtype} {list(part.shape)}".encode())
            state.update(part.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        elif isinstance(part, dict):
            for key in sorted(part, key=str):
                state.update(f"key {key}".encode())
                feed(part[key])
        elif isinstance(part, (list, tuple)):
            state.update(f"list {len(part)}".encode())
            for element in part:
                feed(element)
        elif hasattr(part, "tobytes"):
            state.update(f"array {part.dtype} {list(part.shape)}".encode() + part.tobytes())
        else:
            # The repr of some objects shows only their address. Then the name of the type is used.
            state.update((type(part).__name__ if " at 0x" in repr(part) else repr(part)).encode())

    feed(value)
    return state.hexdigest()[:16]


def _differing(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    return sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))


def _or_error(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:500]


def _server_args(gpu: bool) -> dict[str, Any]:
    """The defaults of a server. Without a GPU, the arguments with which SGLang runs without one."""
    if gpu:
        return {}
    args: dict[str, Any] = {"device": "cpu", "attention_backend": "torch_native", "grammar_backend": "none"}
    if _slow_images(gpu):
        args |= {"disable_fast_image_processor": True, "mm_attention_backend": "sdpa", "dtype": "bfloat16"}
    return args


def _slow_images(gpu: bool) -> bool:
    """Whether SGLang needs its slow image processor here; read in its source.

    Up to 0.5.7, SGLang sends images to CUDA unless the slow image processor is chosen.
    """
    spec = importlib.util.find_spec("sglang")
    if gpu or spec is None or not spec.submodule_search_locations:
        return False
    file = Path(next(iter(spec.submodule_search_locations))) / "srt/multimodal/processors/base_processor.py"
    return "_is_cpu" not in file.read_text()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
