import inspect

import torch

from episode import FORBIDDEN, PAD, processor


def sampled(episode, values):
    """Those of `values`, one for each id, where the id was sampled."""
    return [value for value, mask in zip(values, episode.loss_mask) if mask]


def scores(model, episode):
    """float32 [N]: the model's log-probs of the N sampled ids, from one pass over the episode."""
    media = processor.image_processor(images=episode.images, return_tensors="pt").to(model.device)
    # The last id is looked at, never fed.
    fed = torch.tensor([episode.ids[:-1]], device=model.device)
    if "mm_token_type_ids" in inspect.signature(model.forward).parameters:  # transformers 5
        media["mm_token_type_ids"] = (fed == PAD).int()
    logits = model(input_ids=fed, attention_mask=torch.ones_like(fed), use_cache=False, **media).logits[0]
    logits = logits.float().index_fill(-1, torch.tensor(FORBIDDEN, device=model.device), -torch.inf)
    before = [place - 1 for place in sampled(episode, range(len(episode.ids)))]
    targets = torch.tensor(sampled(episode, episode.ids), device=model.device)
    return logits[before].log_softmax(-1).gather(1, targets[:, None])[:, 0]


def loss(model, episode, advantage):
    """Policy gradient over the sampled ids; observations and pads are no part of it."""
    ours = scores(model, episode)
    theirs = torch.tensor(sampled(episode, episode.logprobs), device=ours.device)
    return -((ours - theirs).exp() * advantage).mean()
