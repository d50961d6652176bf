"""The SGLang releases that the lab can install: one line each, and those that every test run covers.

To add a release, add its line (its METADATA names the pins) and run ``make matrix RELEASE=VERSION``. Run as
a script, it prints the names in ``TESTED``; with ``transformers`` behind it, those in ``OTHER_TRANSFORMERS``.
Standard library only.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Release:
    """One SGLang release and what it takes to run it on a CPU.

    ``pins`` are the packages of its overlay beside SGLang and transformers. All are installed
    without dependencies: what they need beyond this is in the base.
    ``server_args`` are fields of SGLang's ``ServerArgs`` that this release needs beside those that
    every release gets; as fields, so that the processor harness and the server agree.
    """

    version: str
    transformers: str
    pins: tuple[str, ...] = ()
    server_args: Mapping[str, Any] = field(default_factory=dict)
    notes: str = ""

    @property
    def requirements(self) -> tuple[str, ...]:
        return (f"sglang=={self.version}", f"transformers=={self.transformers}", *self.pins)


# What a generation of transformers needs of its closest relatives.
_HF4 = ("tokenizers==0.22.2", "huggingface_hub==0.36.0")
_HF5 = ("tokenizers==0.22.2", "huggingface_hub==1.33.0")
_HF5_19 = ("tokenizers==0.23.2",)  # from 5.19.0 on the base's huggingface_hub serves

_TVM = "apache-tvm-ffi==0.1.11"
_AO = "torchao==0.9.0"

# Without these, releases of the 0.5.3 era pick a CUDA attention for the vision tower, read float16
# weights that the CPU cannot multiply, and send images to a CUDA device.
_EARLY = MappingProxyType(
    {
        "mm_attention_backend": "sdpa",
        "dtype": "bfloat16",
        "disable_fast_image_processor": True,
    }
)

_ROWS = (
    Release("0.5.3", "4.57.0", (*_HF4, _AO), _EARLY, "mrope is not interleaved"),
    Release("0.5.3.post1", "4.57.0", (*_HF4, _AO), _EARLY, "mrope is not interleaved"),
    Release("0.5.3.post2", "4.57.1", (*_HF4, _AO), _EARLY),
    Release("0.5.3.post3", "4.57.1", (*_HF4, _AO), _EARLY),
    Release("0.5.4", "4.57.1", (*_HF4, _AO, "xgrammar==0.1.25"), _EARLY, "processor class renamed"),
    Release("0.5.4.post1", "4.57.1", (*_HF4, _AO, "xgrammar==0.1.25"), _EARLY),
    Release("0.5.4.post2", "4.57.1", (*_HF4, _AO), _EARLY),
    Release("0.5.4.post3", "4.57.1", (*_HF4, _AO), _EARLY),
    Release("0.5.5", "4.57.1", (*_HF4, _AO), _EARLY),
    Release("0.5.5.post1", "4.57.1", (*_HF4, _AO), _EARLY),
    Release("0.5.5.post2", "4.57.1", (*_HF4, _AO), _EARLY, "resizes no image any more"),
    Release("0.5.5.post3", "4.57.1", (*_HF4, _AO), _EARLY),
    Release("0.5.6", "4.57.1", (*_HF4, _AO), _EARLY),
    Release("0.5.6.post1", "5.0.0rc0", (*_HF5, _AO), _EARLY),
    Release("0.5.6.post2", "4.57.1", (*_HF4, _AO), _EARLY),
    Release("0.5.7", "4.57.1", (*_HF4, _AO), _EARLY, "encoder disaggregation"),
    Release("0.5.8", "4.57.1", (*_HF4, _AO, _TVM), notes="fast loader"),
    Release("0.5.8.post1", "4.57.1", (*_HF4, _AO, _TVM)),
    Release("0.5.9", "4.57.1", (*_HF4, _AO, _TVM)),
    Release("0.5.10", "5.3.0", (*_HF5, _AO, _TVM), notes="typed result"),
    Release("0.5.10.post1", "5.3.0", (*_HF5, _AO, _TVM)),
    Release("0.5.11", "5.6.0", (*_HF5, _TVM), notes="plugins"),
    Release("0.5.12", "5.6.0", (*_HF5, "apache-tvm-ffi==0.1.9")),
    Release("0.5.12.post1", "5.6.0", (*_HF5, "apache-tvm-ffi==0.1.9"), notes="loads synchronously"),
    Release("0.5.13", "5.8.1", (*_HF5, "apache-tvm-ffi==0.1.9"), notes="loads asynchronously"),
    Release("0.5.13.post1", "5.8.1", (*_HF5, "apache-tvm-ffi==0.1.9")),
    Release("0.5.14", "5.8.1", (*_HF5, "apache-tvm-ffi==0.1.9")),
    Release("0.5.15", "5.12.1", (*_HF5, _TVM)),
    Release("0.5.15.post1", "5.12.1", (*_HF5, _TVM)),
    Release("0.5.16", "5.12.1", (*_HF5, _TVM, "xgrammar==0.2.1"), notes="Qwen3.5 on CUDA sees t alone"),
    Release("0.5.17", "5.12.1", (*_HF5, _TVM, "xgrammar==0.2.1"), notes="pool of processors"),
    Release("0.5.18", "5.12.1", (*_HF5, _TVM, "xgrammar==0.2.1")),
    Release("0.5.19", "5.12.1", (*_HF5, _TVM, "xgrammar==0.2.1")),
    Release("0.5.20", "5.12.1", (*_HF5, _TVM, "xgrammar==0.2.1"), notes="artifact path"),
    Release("0.5.21", "5.12.1", (*_HF5, _TVM, "xgrammar==0.2.7")),
    Release("0.5.22", "5.19.0", (*_HF5_19, _TVM, "xgrammar==0.2.7")),
    Release("0.5.23", "5.19.0", (*_HF5_19, _TVM, "xgrammar==0.2.7")),
)

RELEASES: dict[str, Release] = {row.version: row for row in _ROWS}

# ``make matrix`` starts a server of each of these: one of each generation of the processor. Of the second it
# is 0.5.4, because 0.5.7 and 0.5.9 compute nonsense on a CPU without AMX by themselves, also for text.
SERVED = ("0.5.3", "0.5.4", "0.5.12.post1", "0.5.16", "0.5.19", "0.5.23")

# ``make test`` runs the processor suite in these: the oldest, the newest, the reference (0.5.12.post1), and
# one of each generation of the processor between them. The newest, whose suite takes longest, first.
TESTED = ("0.5.23", "0.5.19", "0.5.16", "0.5.12.post1", "0.5.9", "0.5.3")


def _other(release: str, transformers: str, pins: tuple[str, ...]) -> Release:
    """A release beside another version of ``transformers`` than the one that it pins."""
    row = RELEASES[release]
    kept = tuple(pin for pin in row.pins if pin.partition("==")[0] not in ("tokenizers", "huggingface_hub"))
    return replace(row, transformers=transformers, pins=(*pins, *kept))


# An older and a newer ``transformers`` than the pinned one, of those that the release imports. SGLang 0.5.23
# imports 5.6.0 to 5.24.0. 0.5.12.post1 to 0.5.19 import none newer than 5.12.1, and 0.5.16 and 0.5.19 none
# older than 5.6.0. ``make nightly`` runs the processor suite in these.
OTHER_TRANSFORMERS: dict[str, Release] = {
    f"{row.version}-transformers-{row.transformers}": row
    for row in (
        _other("0.5.23", "5.24.0", _HF5_19),
        _other("0.5.23", "5.6.0", _HF5),
        _other("0.5.19", "5.6.0", _HF5),
        _other("0.5.16", "5.6.0", _HF5),
        _other("0.5.12.post1", "5.12.1", _HF5),
        _other("0.5.12.post1", "4.57.6", _HF4),
        _other("0.5.9", "5.12.1", _HF5),
        _other("0.5.9", "4.57.0", _HF4),
        _other("0.5.3", "4.57.6", _HF4),
    )
}

# All that `environments` can install.
INSTALLABLE: dict[str, Release] = {**RELEASES, **OTHER_TRANSFORMERS}


def in_range(text: str) -> list[str]:
    """The releases of a range, as in the table of seams: ``0.5.3 - 0.5.5.post1``, or ``0.5.9 -``, open.

    None for a row about another package: ``smg-grpc-servicer 0.5.0 -``.
    """
    names = list(RELEASES)
    first, _, last = text.partition(" -")
    if first not in RELEASES:
        return []
    end = names.index(last.strip()) + 1 if last.strip() else len(names)
    return names[names.index(first) : end]


if __name__ == "__main__":
    print(*(OTHER_TRANSFORMERS if "transformers" in sys.argv[1:] else TESTED))
