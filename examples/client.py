import base64
import io
import json

import requests
from PIL import Image

from rollout import SAMPLING, play

URL = "http://127.0.0.1:30000"


def data_url(image):
    png = io.BytesIO()
    image.save(png, "PNG")  # lossless: the server sees the pixels that the trainer sees
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()


def generate(ids, images):
    request = {
        "input_ids": ids,
        "image_data": [data_url(image) for image in images],
        "sampling_params": SAMPLING,
        "return_logprob": True,
    }
    answer = requests.post(f"{URL}/generate", json=request, timeout=600)
    if answer.status_code != 200:
        raise RuntimeError(f"HTTP {answer.status_code}: {answer.text}")
    return answer.json()


if __name__ == "__main__":
    picture = Image.open("picture.png").convert("RGB")
    episode = play(generate, picture, "What is in the middle?")
    print(json.dumps([episode.ids, episode.loss_mask, episode.logprobs]))
