"""The actor in the place of verl's trainer: it asks verl's managers for rollouts, and trains nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue
from omegaconf import DictConfig, OmegaConf
from verl import DataProto
from verl.experimental.agent_loop import AgentLoopManager
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.utils import tensordict_utils

from tests.frameworks.playing import QUESTION, Task
from tests.frameworks.verl_server import Servers

SECONDS = 120
UID, PARTITION = "prompt", "train"


class Rollouts:
    def run(self, config: DictConfig) -> None:
        OmegaConf.resolve(config)
        task = Task(**OmegaConf.to_container(config.lab.task))
        servers = Servers.create(config=config)
        loops = AgentLoopManager.create(config=config, llm_client=servers.get_client())
        report = Path(config.lab.report)
        episode = _batch(task, task.more.get("loop", "tool_agent"))
        facts = _played(loops.generate_sequences(episode), report.parent)
        (handle,) = servers.server_handles
        facts |= ray.get(handle.witness.remote())
        status = [sys.executable, "-m", "deepeyes_patch", "status"]
        facts["told_by_status"] = subprocess.run(status, capture_output=True, text=True, check=False).stdout
        if "alone" in task.more:
            facts["alone"] = _raised(loops, _batch(task, "pads_alone"))
        if "pads" in task.more:
            facts["v1"] = _in_v1(config, servers, task)
        report.write_text(json.dumps(facts))
        if "pads" in task.more:
            loops.generate_sequences(_batch(task, "pads"))


def _batch(task: Task, loop: str) -> DataProto:
    """One prompt, as verl's dataset gives it."""
    content = [{"type": "image", "image": task.images[0]}, {"type": "text", "text": QUESTION}]
    prompts = np.empty(1, dtype=object)
    prompts[0] = [{"role": "user", "content": content}]
    others = {"raw_prompt": prompts, "agent_name": np.array([loop], dtype=object)}
    return DataProto.from_dict(tensors={"unused": torch.zeros(1, 1)}, non_tensors=others)


def _played(batch: DataProto, folder: Path) -> dict[str, Any]:
    """What verl has recorded for its trainer, without the padding. The pixels go to a file."""
    prompt, width = batch.batch["prompts"], batch.batch["prompts"].shape[1]
    real = batch.batch["attention_mask"][0].bool()
    sampled = torch.cat([torch.zeros_like(prompt[0]), batch.batch["response_mask"][0]])
    scores = torch.cat([torch.zeros(width), batch.batch["rollout_log_probs"][0]])
    (inputs,) = batch.non_tensor_batch["multi_modal_inputs"]
    torch.save({name: inputs[name] for name in ("pixel_values", "image_grid_thw")}, folder / "media.pt")
    return {
        "ids": batch.batch["input_ids"][0][real].tolist(),
        "mask": sampled[real].tolist(),
        "logprobs": scores[real].tolist(),
    }


def _raised(loops: AgentLoopManager, batch: DataProto) -> str | None:
    try:
        loops.generate_sequences(batch)
    except Exception as error:
        return str(error)
    return None


def _in_v1(config: DictConfig, servers: Servers, task: Task) -> str:
    """The status that the v1 trainer's workers give to a prompt of whose rollouts one has failed."""
    prompts = dict(_batch(task, "pads").non_tensor_batch)
    prompts |= {"uid": np.array([UID], dtype=object), "index": np.array([0])}
    batch = tensordict_utils.get_tensordict(prompts)
    tensordict_utils.assign_non_tensor_data(batch, "global_steps", 0)
    transfer_queue.init(config.transfer_queue)
    try:
        tag = {"is_prompt": True, "status": "pending", "global_steps": 0}
        transfer_queue.kv_batch_put(keys=[UID], partition_id=PARTITION, tags=[tag])
        loops = AgentLoopManagerTQ.create(config=config, llm_client=servers.get_client())
        loops.generate_sequences(batch)
        deadline = time.monotonic() + SECONDS
        while (status := transfer_queue.kv_list()[PARTITION][UID]["status"]) in ("pending", "running"):
            assert time.monotonic() < deadline, status
            time.sleep(0.2)
        return str(status)
    finally:
        transfer_queue.close()
