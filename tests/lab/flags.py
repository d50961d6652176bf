"""How the lab runs SGLang without a GPU: the same settings for the server and in this process."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any

from tests.lab.installed import sources as installed_sources
from tests.lab.releases import RELEASES, Release

# SGLang otherwise takes a machine without CUDA for one that is broken. Read at its import.
ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1"}


def installed() -> Release:
    """The release of the running environment."""
    try:
        version = metadata.version("sglang")
    except metadata.PackageNotFoundError:  # a source tree on the path
        version = importlib.import_module("sglang").__version__
    # A development version runs like the release that it is based on.
    release = RELEASES.get(version.partition(".dev")[0])
    return release or Release(version, metadata.version("transformers"))


def interleaves() -> bool:
    """Whether this release's own rope knows ``mrope_interleaved``; read in its source, nothing is run."""
    files = installed_sources("sglang.srt.layers.rotary_embedding")
    return any("mrope_interleaved" in file.read_text() for file in files)


def server_args(**overrides: Any) -> dict[str, Any]:
    """Fields of ``ServerArgs`` for the installed release."""
    return {
        "device": "cpu",
        "attention_backend": "torch_native",
        "grammar_backend": "none",
        "disable_overlap_schedule": True,
        "skip_server_warmup": True,
        "max_total_tokens": 8192,
        # An idle scheduler otherwise spins on a core, and two servers at a time are the rule here.
        "sleep_on_idle": True,
        **installed().server_args,
        **overrides,
    }


def as_flags(fields: dict[str, Any]) -> list[str]:
    """``{"dtype": "bfloat16", "skip_server_warmup": True}`` as command-line flags."""
    flags: list[str] = []
    for name, value in fields.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            flags.append(flag)
        elif value is not False and value is not None:
            flags += [flag, str(value)]
    return flags
