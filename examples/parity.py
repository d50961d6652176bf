import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from client import generate
from episode import MODEL
from rollout import play
from scoring import sampled, scores


def mismatch(model, episode):
    """Largest and mean |log-prob of the trainer - log-prob of the server|."""
    with torch.inference_mode():
        off = scores(model, episode).cpu() - torch.tensor(sampled(episode, episode.logprobs))
    return float(off.abs().max()), float(off.abs().mean())


if __name__ == "__main__":
    model = AutoModelForImageTextToText.from_pretrained(MODEL, dtype=torch.bfloat16).to("cuda").eval()
    picture = Image.open("picture.png").convert("RGB")
    episode = play(generate, picture, "What is in the middle?")
    print("largest {:.1e}, mean {:.1e}".format(*mismatch(model, episode)))
