"""What one release of the suite is spared, because another release of it runs that: see the Makefile.

A server keeps a core busy for a minute, and not everything about it is about a release. A release that is
named nowhere, such as the next one, runs all.
"""

from __future__ import annotations

import pytest

from tests.lab import flags


def on(release: str, because: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(flags.installed().version == release, reason=because)
