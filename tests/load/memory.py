"""What a server's processes hold in memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

# SGLang names its children; the first process is the HTTP server and tokenizer manager.
ROLES = {"scheduler": "scheduler", "detokenizer": "detokenizer", "launch_server": "tokenizer manager"}


def resident(leader: int) -> dict[str, float]:
    """MiB that each process of a server holds, by its role. ``leader`` leads the server's session."""
    held: dict[str, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.getsid(int(entry.name)) != leader:
                continue
            command = (entry / "cmdline").read_text().replace("\0", " ")
            status = (entry / "status").read_text()
        except (ProcessLookupError, FileNotFoundError):
            continue
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        role = next((role for word, role in ROLES.items() if word in command), None)
        if found and role:
            held[role] = held.get(role, 0.0) + int(found[1]) / 1024
    return held
