"""The processor repair with wrappers left out: stands for a release that takes a path no wrapper covers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deepeyes_patch.seams import table


def leave_out(monkeypatch: pytest.MonkeyPatch, *functions: str) -> None:
    """From the next ``install`` on, put no wrapper on these functions of the processor."""
    rows = [seam for seam in table.SEAMS if seam.repair == "processor" and seam.name in functions]
    assert rows, f"the table has no {' or '.join(functions)}"
    left = tuple(replace(seam, wrapper=None) if seam in rows else seam for seam in table.SEAMS)
    monkeypatch.setattr(table, "SEAMS", left)
