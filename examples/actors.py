import ray
import torch
from transformers import AutoModelForImageTextToText

from episode import MODEL
from parity import mismatch
from rollout import SAMPLING, play
from scoring import loss


@ray.remote(num_gpus=1)
class Rollout:
    def __init__(self):
        import sglang

        self.engine = sglang.Engine(model_path=MODEL)

    def play(self, picture, question):
        return play(self.generate, picture, question)

    def generate(self, ids, images):
        request = {"input_ids": ids, "image_data": images, "sampling_params": SAMPLING}
        return self.engine.generate(**request, return_logprob=True)

    def load(self, checkpoint):
        success, message, *_ = self.engine.update_weights_from_disk(checkpoint)
        assert success, message

    def shutdown(self):
        self.engine.shutdown()


@ray.remote(num_gpus=1)
class Trainer:
    def __init__(self):
        model = AutoModelForImageTextToText.from_pretrained(MODEL, dtype=torch.bfloat16)
        self.model = model.to("cuda").eval()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6)

    def step(self, episode, advantage, checkpoint):
        off = mismatch(self.model, episode)
        loss(self.model, episode, advantage).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.model.save_pretrained(checkpoint)
        return off
