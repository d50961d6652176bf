"""``python -m deepeyes_patch``: the command line."""

from __future__ import annotations

import sys

from deepeyes_patch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
