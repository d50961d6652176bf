"""Which tests run at which speed: ``make check``, ``make test`` and ``make nightly``.

`TABLE` is the one list. A row names a folder, a file, or a test of a file; the longest row that fits a
test counts. The speeds:

- ``check``: runs in ``make check``, too, and in ``make test`` on every release.
- ``test``: runs in ``make test``; if it is about a release, on the newest alone. So do tests without a row.
- ``nightly``: runs in ``make nightly`` alone. Its row says why no branch of ours is unvisited without it.

`ALSO` names what ``make test`` runs on one older release beside that. ``make nightly`` runs everything. The
Makefile says which suites and releases a speed runs. ``pytest --speed=test`` runs one speed by hand; without
the option, pytest runs all tests that it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

CHECK, TEST, NIGHTLY = "check", "test", "nightly"
# What nightly adds to test: `tests.coverage` compares the two.
ADDED = "added"
SPEEDS = (CHECK, TEST, NIGHTLY, ADDED)

# Folders whose tests run inside the environment of a release.
OF_A_RELEASE = ("tests/sglang", "tests/e2e", "tests/frameworks")


class Row(NamedTuple):
    speed: str
    why: str = ""


_STOCK = "it runs stock SGLang alone, and none of our code"

TABLE: dict[str, Row] = {
    # The unit tests, without those that start torch's and Triton's compilers.
    "tests/unit": Row(CHECK),
    "tests/unit/test_mrope_compile.py": Row(TEST),
    "tests/unit/test_mrope.py::test_kernels_are_traced_in_one_graph": Row(TEST),
    "tests/unit/test_mrope.py::test_kernel_in_every_combination": Row(
        NIGHTLY, "test_kernel has each pair of the same shapes, sizes and types"
    ),
    # The pages and the built site, without the tests that install the package with pip, and without those
    # that need node or a browser.
    "tests/docs": Row(CHECK),
    "tests/docs/test_quickstart.py": Row(TEST),
    "tests/docs/test_recipes.py": Row(TEST),
    "tests/docs/test_security.py": Row(TEST),
    "tests/docs/test_layout.py": Row(TEST),
    "tests/docs/test_search.py": Row(TEST),
    # The core of the processor suite: what a release can do in another way than the next one.
    "tests/sglang/test_admit.py": Row(CHECK),
    "tests/sglang/test_audio.py": Row(TEST),
    "tests/sglang/test_batches.py": Row(CHECK),
    "tests/sglang/test_cleanup.py": Row(CHECK),
    "tests/sglang/test_counters.py": Row(CHECK),
    "tests/sglang/test_disaggregation.py": Row(CHECK),
    "tests/sglang/test_disaggregated_videos.py": Row(TEST),
    "tests/sglang/test_fail_fast.py": Row(CHECK),
    "tests/sglang/test_failed_start.py": Row(CHECK),
    "tests/sglang/test_failed_start.py::test_any_other_error_there_is_never_heard": Row(NIGHTLY, _STOCK),
    "tests/sglang/test_family.py": Row(CHECK),
    "tests/sglang/test_family.py::test_it_is_served_by_us_or_not_at_all": Row(TEST),
    "tests/sglang/test_features.py": Row(CHECK),
    "tests/sglang/test_fetching.py": Row(CHECK),
    "tests/sglang/test_gated_attention.py": Row(CHECK),
    "tests/sglang/test_gated_attention.py::test_images": Row(TEST),
    "tests/sglang/test_grids.py": Row(CHECK),
    "tests/sglang/test_grids.py::TestResizedTwice::test_stock_differs_for_qwen3_vl": Row(NIGHTLY, _STOCK),
    "tests/sglang/test_handover.py": Row(CHECK),
    "tests/sglang/test_hashes.py": Row(CHECK),
    "tests/sglang/test_http_workers.py": Row(CHECK),
    "tests/sglang/test_imported_again.py": Row(TEST),
    "tests/sglang/test_last_look.py": Row(CHECK),
    "tests/sglang/test_late_install.py": Row(CHECK),
    "tests/sglang/test_mrope.py": Row(CHECK),
    "tests/sglang/test_on_policy.py": Row(CHECK),
    "tests/sglang/test_own_faults.py": Row(CHECK),
    "tests/sglang/test_preprocessed.py": Row(CHECK),
    "tests/sglang/test_preprocessed_videos.py": Row(TEST),
    "tests/sglang/test_processor.py": Row(CHECK),
    "tests/sglang/test_reference.py": Row(CHECK),
    "tests/sglang/test_renamed.py": Row(CHECK),
    "tests/sglang/test_sampling.py": Row(CHECK),
    "tests/sglang/test_sessions.py": Row(CHECK),
    "tests/sglang/test_sources.py": Row(CHECK),
    "tests/sglang/test_table.py": Row(CHECK),
    "tests/sglang/test_unknown_path.py": Row(CHECK),
    "tests/sglang/test_unserved.py": Row(CHECK),
    "tests/sglang/test_upstream_change.py::test_all_cases_with_the_package_on": Row(
        NIGHTLY, "test_core_cases has the branches; the rest is what test_processor.py sends"
    ),
    "tests/sglang/test_upstream_change.py::test_doctor_says_what_stock_cannot": Row(
        NIGHTLY,
        "tests/unit/test_unaided.py has every answer of an SGLang; the road is that of the changed one",
    ),
    "tests/sglang/test_upstream_change.py::test_unit_tests_fail_without_the_change": Row(NIGHTLY, _STOCK),
    "tests/sglang/test_vocabulary.py::test_stock_drifts_on_them": Row(NIGHTLY, _STOCK),
    # What the two shared servers of tests/e2e are asked: one stock, one patched.
    "tests/e2e/test_faults.py": Row(CHECK),
    "tests/e2e/test_prefix_cache.py": Row(CHECK),
    "tests/e2e/test_quickstart.py": Row(CHECK),
    "tests/e2e/test_rollout.py": Row(CHECK),
    "tests/e2e/test_rope.py": Row(CHECK),
    "tests/e2e/test_samples.py": Row(CHECK),
    "tests/e2e/test_samples.py::test_stock_ends": Row(NIGHTLY, _STOCK),
    "tests/e2e/test_sessions.py": Row(CHECK),
    "tests/e2e/test_sessions.py::test_stock": Row(NIGHTLY, _STOCK),
    "tests/e2e/test_ways_in.py": Row(CHECK),
    # Servers of their own, or minutes.
    "tests/e2e/test_cleanup.py": Row(
        NIGHTLY, "tests/sglang/test_cleanup.py looks at the states of all kinds of refused requests"
    ),
    "tests/e2e/test_disaggregation.py::test_stock": Row(NIGHTLY, _STOCK),
    "tests/e2e/test_engine.py::test_stock_raises_what_its_code_runs_into": Row(NIGHTLY, _STOCK),
    "tests/e2e/test_prompt_logprobs.py::test_stock": Row(NIGHTLY, _STOCK),
    "tests/e2e/test_prompt_logprobs.py::test_in_chunks": Row(
        NIGHTLY, "a server of its own; each chunk runs the code that a whole prompt runs"
    ),
    "tests/e2e/test_sampling.py": Row(
        NIGHTLY, "tests/sglang/test_sampling.py looks at what the scheduler gets; the rest is SGLang's"
    ),
    "tests/e2e/test_second_method.py": Row(
        NIGHTLY, "tests/sglang/test_unknown_path.py sends the same requests to the tokenizer manager"
    ),
    "tests/e2e/test_smoke.py::test_stock_loses_every_sample_with_expanded_ids": Row(NIGHTLY, _STOCK),
    "tests/e2e/test_smoke.py::test_stock_with_one_placeholder_an_image": Row(NIGHTLY, _STOCK),
    "tests/e2e/test_smoke.py::test_stock_keeps_features_of_old_weights": Row(NIGHTLY, _STOCK),
    "tests/e2e/test_upstream.py": Row(NIGHTLY, _STOCK),
    "tests/e2e/test_ways_past.py::test_the_grpc_server_without_the_package_that_it_needs": Row(
        NIGHTLY, "tests/sglang/test_over_grpc.py has the other ways in which this server can start"
    ),
    "tests/e2e/test_over_grpc.py": Row(
        NIGHTLY, "tests/sglang/test_over_grpc.py has the same requests, without a server"
    ),
    "tests/e2e/test_workers.py::test_stock_workers_die_of_expanded_ids": Row(NIGHTLY, _STOCK),
    "tests/e2e/test_workers.py::test_with_the_plugin_alone_it_does_not_start": Row(
        NIGHTLY, "tests/sglang/test_http_workers.py has the refusal, and test_plugin.py the plugin alone"
    ),
    "tests/e2e/test_load.py": Row(
        NIGHTLY,
        "more of the requests that test_rollout.py sends at the same time, and `make load`'s thousands",
    ),
    "tests/e2e/test_failed_start.py": Row(
        NIGHTLY, "tests/sglang/test_failed_start.py has the same, with a sleeping child for the scheduler"
    ),
    "tests/e2e/test_on_policy.py": Row(
        NIGHTLY, "tests/sglang/test_on_policy.py has the positions of each kind of pass"
    ),
    "tests/e2e/test_parallel.py": Row(
        NIGHTLY, "the ranks take what one processor made; the rope in them is the rope of one rank"
    ),
    "tests/e2e/test_fusion.py": Row(
        NIGHTLY, "servers of two ranks, half of them stock; test_table looks at its seams on every release"
    ),
    "tests/e2e/test_ray.py": Row(
        NIGHTLY,
        "the actor is a Python process with the switch in its environment, as every server's child is",
    ),
    "tests/e2e/test_recipes.py::test_actors": Row(
        NIGHTLY, "Ray and an Engine: see test_ray.py and test_engine.py"
    ),
    "tests/e2e/test_recipes.py::test_engine": Row(
        NIGHTLY, "the Engine of test_engine.py, switched on by install(), as all of tests/sglang is"
    ),
    "tests/e2e/test_refusal.py::test_a_text_only_model_serves_all_the_same": Row(
        NIGHTLY, "no processor is constructed; the hooks with an altered module run in test_a_renamed_seam"
    ),
    "tests/e2e/test_routed_experts.py": Row(
        NIGHTLY, "the requests are those of test_rollout.py; SGLang picks the experts, and none of our code"
    ),
    "tests/e2e/test_start_methods.py": Row(
        NIGHTLY, "tests/unit/test_bootstrap.py has these orders and more, with a made-up SGLang"
    ),
    "tests/e2e/test_verify.py::test_a_checkpoint_and_a_picture_of_ones_own": Row(
        NIGHTLY,
        "requests are made as for the built-in checkpoint; tests/unit/test_verify_command.py has the options",
    ),
    "tests/frameworks": Row(
        NIGHTLY, "the frameworks send what test_rollout.py and test_recipes.py send, or run out of retries"
    ),
    "tests/frameworks/test_strands.py": Row(TEST),
    "tests/frameworks/test_verl.py": Row(
        NIGHTLY, "its requests are those of test_engine.py and test_skip_tokenizer.py, in a Ray actor"
    ),
}

# The rope of 0.5.3 and a rollout on it are in the core. The legacy loader, as in the DeepEyes image, and
# videos whose times this `transformers` does not read:
ALSO: dict[str, tuple[str, ...]] = {
    "0.5.12.post1": ("tests/e2e/test_altered.py::test_a_file_edited_in_place",),
    "0.5.9": ("tests/sglang/test_videos.py::test_broken_seconds",),
}


def row_of(test: str, rows: Iterable[str]) -> str | None:
    """The longest row that fits a test, named as pytest names it: ``FILE::FUNCTION[PARAMETERS]``."""
    file, _, function = test.partition("[")[0].partition("::")
    return max((row for row in rows if _fits(row, file, function)), key=len, default=None)


def _fits(row: str, file: str, function: str) -> bool:
    place, _, name = row.partition("::")
    if name:
        return (place, name) == (file, function)
    return PurePosixPath(file).is_relative_to(place)


def speed_of(test: str) -> str:
    row = row_of(test, TABLE)
    return TABLE[row].speed if row else TEST


def runs(test: str, speed: str, older_release: str | None = None) -> bool:
    """Whether a test runs at a speed. None: on the newest release, or not about a release at all."""
    if speed == CHECK:
        return speed_of(test) == CHECK
    in_test = _runs_in_test(test, older_release)
    return in_test if speed == TEST else speed == NIGHTLY or not in_test


def _runs_in_test(test: str, older_release: str | None) -> bool:
    own = speed_of(test)
    if own != TEST or older_release is None:
        return own != NIGHTLY
    return row_of(test, ALSO.get(older_release, ())) is not None


def main() -> None:
    """Print what ``make test`` leaves to ``make nightly``, and why, as a Markdown table."""
    print("| only in `make nightly` | why |\n|---|---|")
    for name, row in TABLE.items():
        if row.speed == NIGHTLY:
            print(f"| `{name}` | {row.why} |")


if __name__ == "__main__":
    main()
