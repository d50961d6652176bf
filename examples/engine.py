import json

import deepeyes_patch

deepeyes_patch.install()  # or DEEPEYES_PATCH=1 before Python starts

import sglang
from PIL import Image

from episode import MODEL
from rollout import SAMPLING, play


def main():
    with sglang.Engine(model_path=MODEL) as engine:

        def generate(ids, images):
            request = {"input_ids": ids, "image_data": images, "sampling_params": SAMPLING}
            return engine.generate(**request, return_logprob=True)

        picture = Image.open("picture.png").convert("RGB")
        episode = play(generate, picture, "What is in the middle?")
        print(json.dumps([episode.ids, episode.loss_mask, episode.logprobs]))


# An Engine starts its children with spawn, and they import this file again.
if __name__ == "__main__":
    main()
