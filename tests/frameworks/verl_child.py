"""verl: its ``run_ppo`` starts Ray, its managers start the server and play, in actors.

verl's own are ``run_ppo``, `LLMServerManager`, `SGLangReplica`, `SGLangHttpServer`, `AgentLoopManager`,
`AgentLoopWorker` and `ToolAgentLoop`; of the v1 trainer, also `AgentLoopManagerTQ`. Ours are the options,
`Rollouts` in the place of the trainer, what a team writes (`verl_team`), and a record of what the server's
tokenizer manager sends to its scheduler (`verl_server`). Ray is told of a GPU, which nobody has.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import ray
from hydra import compose, initialize_config_module
from omegaconf import open_dict
from verl.trainer.main_ppo import run_ppo

import deepeyes_patch
from tests.frameworks import playing
from tests.frameworks.verl_rollouts import Rollouts
from tests.lab import flags

STORE_BYTES = 100 * 2**20
# Ray places actors by these numbers; no process is bound to a core.
CPUS = 6
TEAM = "tests.frameworks.verl_team"


def main() -> None:
    task = playing.task()
    folder = Path(task.pictures[0]).parent
    report = folder / "verl.json"
    report.unlink(missing_ok=True)
    (folder / "tools.yaml").write_text(json.dumps(_tools(task)))
    loops = {"pads": "PadLoop", "pads_alone": "LonePadLoop"}
    listed = [{"name": name, "_target_": f"{TEAM}.{kind}"} for name, kind in loops.items()]
    (folder / "loops.yaml").write_text(json.dumps(listed))
    with tempfile.TemporaryDirectory(prefix="ray-") as ray_folder:
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=_options(task, folder, ray_folder))
        with open_dict(config):
            config.lab = {"task": vars(task), "report": str(report)}
        facts: dict[str, Any] = {}
        try:
            run_ppo(config, task_runner_class=ray.remote(Rollouts))
        except Exception as error:
            facts["raised"] = [[kind.__name__ for kind in type(error).__mro__], str(error)]
        finally:
            ray.shutdown()
    if report.exists():
        facts |= json.loads(report.read_text())
    playing.tell(driver=deepeyes_patch.status(), **facts)


def _tools(task: playing.Task) -> dict[str, Any]:
    nothing = {"type": "object", "properties": {}, "required": []}
    zoom = {"name": "zoom", "description": "Enlarges the middle.", "parameters": nothing}
    return {
        "tools": [
            {
                "class_name": f"{TEAM}.Zoom",
                "config": {"type": "native", "picture": task.pictures[1]},
                "tool_schema": {"type": "function", "function": zoom},
            }
        ]
    }


def _options(task: playing.Task, folder: Path, ray_folder: str) -> list[str]:
    """As on the command line of ``python -m verl.trainer.main_ppo``."""
    rollout, init = "actor_rollout_ref.rollout", "ray_kwargs.ray_init"
    engine = {
        **flags.server_args(),
        "enable_memory_saver": False,
        "random_seed": 7,
    }
    if task.forbidden:
        engine["preferred_sampling_params"] = json.dumps({"logit_bias": task.logit_bias})
    switch = [f"+{init}.runtime_env.env_vars.{name}={_quoted(value)}" for name, value in _variables(task)]
    return [
        f"actor_rollout_ref.model.path={task.model}",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        f"{rollout}.name=sglang",
        f"{rollout}.load_format=auto",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.nnodes=1",
        f"{rollout}.n_gpus_per_node=1",
        f"{rollout}.prompt_length=512",
        f"{rollout}.response_length=1024",
        f"{rollout}.agent.num_workers=1",
        f"{rollout}.agent.default_agent_loop=tool_agent",
        f"{rollout}.agent.agent_loop_config_path={folder / 'loops.yaml'}",
        f"{rollout}.multi_turn.format=every",
        f"{rollout}.multi_turn.max_assistant_turns=3",
        f"{rollout}.multi_turn.tool_config_path={folder / 'tools.yaml'}",
        *[f"+{rollout}.engine_kwargs.sglang.{name}={_quoted(value)}" for name, value in engine.items()],
        f"+{rollout}.custom.mend={json.dumps(task.more.get('mend', True))}",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        f"{init}.num_cpus={CPUS}",
        f"+{init}.num_gpus=1",
        f"+{init}.include_dashboard=false",
        f"+{init}.object_store_memory={STORE_BYTES}",
        f"+{init}._temp_dir={ray_folder}",
        # Otherwise Ray ends actors of ours when other processes of the machine take its memory.
        f"+{init}._system_config.memory_monitor_refresh_ms=0",
        *switch,
    ]


def _variables(task: playing.Task) -> list[tuple[str, str]]:
    return list(task.more.get("runtime_env", {}).items())


def _quoted(value: Any) -> str:
    """A value in hydra's grammar; strings stay strings there if they are quoted."""
    return json.dumps(value)


if __name__ == "__main__":
    main()
