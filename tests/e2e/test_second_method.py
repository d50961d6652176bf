"""A copy of SGLang whose processor has a second outermost method: exact or refused, and the server lives.

tests/sglang/test_unknown_path.py looks at what comes out of it; this is the way there, over HTTP.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import shapes
from tests.lab import altered, client, server
from tests.lab.environments import CHECKOUT
from tests.sglang import rollouts, second_method
from tests.sglang.test_unknown_path import ALL, IMAGES, REQUESTS

END_SECONDS = 60
MANAGER, REQUEST = "srt/managers/tokenizer_manager.py", "srt/managers/io_struct.py"


def with_the_field(source: str) -> str:
    before, start, rest = source.partition("class GenerateReqInput")
    body, field, after = rest.partition("\n    # Whether to return logprobs.")
    assert field, "GenerateReqInput is not written as it was"
    return f"{before}{start}{body}\n    {second_method.FIELD}: Optional[int] = None{field}{after}"


def with_the_method(source: str) -> str:
    return f"{source}\n\nfrom tests.sglang import second_method\n\nsecond_method.serve(TokenizerManager)\n"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    edits = {MANAGER: with_the_method, REQUEST: with_the_field}
    return f"{altered.copy(tmp_path_factory.mktemp('second-method'), edits)}:{CHECKOUT}"


def test_exact_or_refused_and_the_server_lives(folder: Path, path: str) -> None:
    wrong = {}
    with server.serve(folder, env={**shapes.PATCHED, "PYTHONPATH": path}) as running:
        for name, (make, expanded, served) in REQUESTS.items():
            request = make(folder)
            field = len(request.ids) if expanded == ALL else expanded
            answer = client.generate(running.url, request.ids, request.images, **{second_method.FIELD: field})
            exact = answer.status == 200 and answer.prompt_tokens == len(request.expected_ids)
            if not (exact if served else answer.status == 400):
                wrong[name] = (answer.status, str(answer.body)[:300])
        assert wrong == {}
        good = rollouts.expanded(folder, IMAGES)
        last = client.generate(running.url, good.ids, good.images, **{second_method.FIELD: len(good.ids)})
        assert last.status == 200


def test_stock_serves_wrong_ids_or_ends(folder: Path, path: str) -> None:
    make, _, _ = REQUESTS["one pad short"]
    request = make(folder)
    field = {second_method.FIELD: len(request.ids)}
    with server.serve(folder, env={**shapes.STOCK, "PYTHONPATH": path}) as running:
        try:
            answer = client.generate(running.url, request.ids, request.images, **field)
        except ConnectionError:  # the scheduler has more features than places for them
            running.process.wait(END_SECONDS)
        else:
            assert answer.status == 200
            assert answer.prompt_tokens == len(request.ids)
