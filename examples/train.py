import json

import ray
from PIL import Image

from actors import Rollout, Trainer

CHECKPOINTS = "/shared/checkpoints"  # a disk that both actors see

if __name__ == "__main__":
    ray.init(runtime_env={"working_dir": "."})  # the files of this page go to every node
    switch = {"DEEPEYES_PATCH": "1"}
    rollout = Rollout.options(runtime_env={"env_vars": switch}).remote()
    trainer = Trainer.remote()
    picture = Image.open("picture.png").convert("RGB")
    for step in range(2):
        episode = ray.get(rollout.play.remote(picture, "What is in the middle?"))
        checkpoint = f"{CHECKPOINTS}/{step}"
        off = ray.get(trainer.step.remote(episode, 1.0, checkpoint))
        print(json.dumps([episode.ids, episode.loss_mask, episode.logprobs, off]), flush=True)
        ray.get(rollout.load.remote(checkpoint))
    ray.get(rollout.shutdown.remote())
