"""The checkpoint that ``--model`` names: a folder, or a model in the local cache of the hub."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from deepeyes_patch.cli import needs
from deepeyes_patch.cli.terminal import CommandError

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # owner/name, as on the hub
_FILES = ("config.json", "preprocessor_config.json", "tokenizer_config.json")


def find(model: str, weights: bool = False) -> Path:
    """The folder of a Qwen-VL checkpoint. Nothing is downloaded; ``weights``: the caller will load them.

    Raises
    ------
    CommandError
        There is no such checkpoint here, or it has no vision part.
    """
    folder = Path(model)
    if not model:  # of a shell variable that is not set; Path would make the working folder of it
        _none(model)
    if not (folder / "config.json").is_file():
        folder = _in_the_hub_cache(model, weights) if _HUB_NAME.fullmatch(model) else _none(model)
    try:
        description = dict(json.loads((folder / "config.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise CommandError(f"{folder / 'config.json'} cannot be read: {error}", 2) from error
    if "vision_config" not in description:
        kind = description.get("model_type", "unknown")
        raise CommandError(
            f"{model} is a model of type {kind} without a vision_config. Give a Qwen-VL checkpoint.", 2
        )
    return folder.resolve()


def _none(model: str) -> Path:
    raise CommandError(
        f"{model!r} holds no config.json. Give the folder of a local checkpoint, or the name of a model that "
        f"the local hub cache holds.",
        2,
    )


def _in_the_hub_cache(name: str, weights: bool) -> Path:
    needs.require("huggingface_hub")  # transformers requires it
    from huggingface_hub import constants, try_to_load_from_cache

    found = [try_to_load_from_cache(name, file) for file in _FILES]
    if all(isinstance(path, str) for path in found):
        return Path(str(found[0])).parent
    missing = [file for file, path in zip(_FILES, found, strict=True) if not isinstance(path, str)]
    what, only = (
        ("the weights of a checkpoint, too", "")
        if weights
        else (
            "the small files of a checkpoint, never its weights",
            ", allow_patterns=['*.json', '*.txt', '*.jinja']",
        )
    )
    raise CommandError(
        f"{name} is no folder here, and the hub cache {constants.HF_HUB_CACHE} does not hold its "
        f"{', '.join(missing)}. This reads {what}. Download "
        f'them: {sys.executable} -c "from huggingface_hub import snapshot_download as get; '
        f'get({name!r}{only})"',
        2,
    )
