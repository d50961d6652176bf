"""The server that AReaL starts: its own launcher around SGLang's, for the release that AReaL pins.

On newer releases the launcher does not start: it imports what 0.5.12.post1 no longer has.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.frameworks import judging, layers, wire
from tests.frameworks.driving import Child
from tests.frameworks.judging import PICTURES
from tests.lab import flags, server

PINNED = "0.5.10.post1"


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Child:
    folder = tmp_path_factory.mktemp("areal")
    return Child("areal", folder, layers.python("areal", folder / "venv", PINNED))


@pytest.mark.parametrize("switch", ["1", None], ids=["patched", "stock"])
def test_three_turns(switch: str | None, child: Child, folder: Path) -> None:
    port = server.free_port()
    pads = judging.placeholders(folder)
    # AReaL has no option for it. The arguments of its own server can name the one of SGLang.
    options = json.dumps({"logit_bias": dict.fromkeys(pads, -100)})
    fields = flags.server_args(model_path=str(folder), host="127.0.0.1", port=port)
    fields["preferred_sampling_params"] = options
    env = {**server.QUICK, "DEEPEYES_PATCH": switch}
    with wire.between(f"http://127.0.0.1:{port}") as to:
        report = child.run(folder, to.url, PICTURES, env=env, how="turns", engine=fields)
        asked = to.take()
    if switch is None:
        assert {exchange.status for exchange in asked} == {500}
        return
    episode = judging.recorded(report)
    judging.assert_same_ids(folder, episode, asked, PICTURES)
    judging.assert_exact(folder, episode, PICTURES, pads)
