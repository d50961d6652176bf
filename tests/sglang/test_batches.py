"""With ``n`` > 1 SGLang takes even one prompt for a batch: its images are then a list of lists.

No code of ours takes part. The pages say which form of ``image_data`` a client must send.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

IDS = [1, 2, 3]


def normalized(n: int, image_data: Any) -> Any:
    """The request after SGLang has made it a batch, or left it one request."""
    request = importlib.import_module("sglang.srt.managers.io_struct").GenerateReqInput(
        input_ids=IDS, image_data=image_data, sampling_params={"n": n}
    )
    request.normalize_batch_and_arguments()
    return request


def test_one_answer_takes_a_flat_list() -> None:
    request = normalized(1, ["a", "b"])
    assert (request.input_ids, request.image_data) == (IDS, ["a", "b"])


def test_several_answers_take_a_list_for_each_prompt() -> None:
    request = normalized(2, [["a", "b"]])
    assert (request.input_ids, request.image_data) == ([IDS] * 2, [["a", "b"]] * 2)


def test_several_answers_with_a_flat_list_are_an_error_of_sglang() -> None:
    """It counts the images as if each belonged to a prompt of its own. With one image that is right."""
    with pytest.raises(ValueError, match="The length of image_data should be equal to the batch size"):
        normalized(2, ["a", "b"])
    assert normalized(2, ["a"]).image_data == [["a"]] * 2


def test_a_prompt_of_text_in_a_batch_has_an_empty_list() -> None:
    """A list that begins with None is flat for SGLang: what stands behind it is not taken apart."""
    structs = importlib.import_module("sglang.srt.managers.io_struct")
    for images, found in (([[], ["a"]], [[], ["a"]]), ([None, ["a"]], [[None], [["a"]]])):
        request = structs.GenerateReqInput(input_ids=[IDS, IDS], image_data=images)
        request.normalize_batch_and_arguments()
        assert request.image_data == found
