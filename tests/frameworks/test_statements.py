"""Names and options that the page about trainers gives for a framework stand in its installed source."""

from __future__ import annotations

import pytest

from tests.docs import pages
from tests.frameworks import layers

# For each framework: a file of the installed package, what it holds, and the words of the page.
STATEMENTS: dict[str, list[tuple[str, str, str]]] = {
    "strands": [
        ("strands_sglang/client.py", "max_retries: int = 60,", "`SGLangClient(max_retries=60)`"),
        ("strands_sglang/sglang.py", "sampling_params: dict[str, Any]", "`SGLangModel(sampling_params="),
    ],
    "miles": [
        ("miles/utils/http_utils.py", "max_retries=60", "repeated 60 times"),
        ("miles/utils/arguments.py", '"--train-env-vars"', "`--train-env-vars`"),
        (
            "miles/utils/arguments.py",
            '"--custom-generate-function-path"',
            "`--custom-generate-function-path`",
        ),
        (
            "miles/utils/arguments.py",
            '"--recompute-logprobs-via-prefill"',
            "`--recompute-logprobs-via-prefill`",
        ),
        (
            "miles/utils/arguments.py",
            "--recompute-logprobs-via-prefill requires --true-on-policy-mode",
            "`--true-on-policy-mode`",
        ),
        ("miles/rollout/generate_utils/prefill_logprobs.py", "alignment mismatch", "alignment error"),
        (
            "miles/utils/external_utils/command_utils.py",
            "extra_env_vars=None",
            "`execute_train(extra_env_vars=",
        ),
        ("miles/rollout/generate_hub/multi_turn.py", "def ", "`multi_turn.py`"),
    ],
    "verl": [
        (
            "verl/workers/rollout/sglang_rollout/async_sglang_server.py",
            "dataclasses.fields(ServerArgs)",
            "`ServerArgs` is no dataclass",
        ),
        (
            "verl/workers/rollout/sglang_rollout/async_sglang_server.py",
            '"log_level": "error"',
            "log level `error`",
        ),
        ("verl/trainer/config/ppo_trainer.yaml", "use_v1: true", "`trainer.use_v1=False`"),
        ("verl/trainer/ppo/v1/agent_loop_tq.py", "Error in _run_prompt", "`_run_prompt`"),
    ],
    "areal": [
        ("areal/api/cli_args.py", "request_retries: int = field(", "repeated three times"),
        ("areal/api/cli_args.py", "class GenerationHyperparameters", "`GenerationHyperparameters`"),
        ("areal/api/cli_args.py", "env_vars: dict[str, str] = field(", "scheduling_spec"),
        ("areal/api/cli_args.py", 'log_level: str = "warning"', "`warning`"),
        ("areal/infra/workflow_executor.py", "Workflow execution failed", "`WorkflowExecutor`"),
        ("areal-1.0.4.dist-info/METADATA", "transformers>=5.0.0,<=5.3.0", "transformers 5.3.0"),
    ],
}
# Files that would hold an option which the page says is not there.
WITHOUT_BIAS = {"areal": ("areal/api/cli_args.py", "areal/engine/sglang_remote.py")}


@pytest.mark.parametrize("framework", STATEMENTS)
def test_names_and_options_exist(framework: str) -> None:
    page = pages.page("trainers").path.read_text(encoding="utf-8")
    for file, source, words in STATEMENTS[framework]:
        assert source in (layers.layer(framework) / file).read_text(), (file, source)
        assert words in " ".join(page.split()), words


@pytest.mark.parametrize("framework", WITHOUT_BIAS)
def test_there_is_no_option_for_a_bias(framework: str) -> None:
    for file in WITHOUT_BIAS[framework]:
        assert "logit_bias" not in (layers.layer(framework) / file).read_text(), file


@pytest.mark.parametrize("framework", STATEMENTS)
def test_the_page_names_the_version(framework: str) -> None:
    page = pages.page("trainers").path.read_text(encoding="utf-8")
    name, _, version = layers.PINS[framework][0].partition("==")
    shown = {"strands-sglang": "strands-sglang", "miles-rl": "miles", "areal": "AReaL", "verl": "verl"}[name]
    assert f"| {shown} {version}" in page
