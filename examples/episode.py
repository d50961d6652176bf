"""An episode as a trainer keeps it: ids that only grow. The other files import this one."""

from dataclasses import dataclass, field

from transformers import AutoProcessor

MODEL = "Qwen/Qwen3-VL-8B-Instruct"
processor = AutoProcessor.from_pretrained(MODEL)
id_of = processor.tokenizer.convert_tokens_to_ids
END, PAD = id_of("<|im_end|>"), id_of("<|image_pad|>")
# What the model must not sample: no image would belong to it.
FORBIDDEN = [PAD, id_of("<|video_pad|>"), id_of("<|vision_start|>")]
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def user_turn(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def observation(text, answer):
    """The turn after an answer: its sampled ids end in <|im_end|>, or were cut before it."""
    return ("" if answer[-1] == END else "<|im_end|>") + "\n" + user_turn(text)


@dataclass
class Episode:
    """Where an id was sampled, `loss_mask` is 1 and `logprobs` has the server's; elsewhere both are 0."""

    ids: list = field(default_factory=list)
    loss_mask: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    images: list = field(default_factory=list)

    def see(self, text, images):
        """Append a prompt or an observation: its text alone, each image expanded."""
        new = processor(text=[text], images=images or None)["input_ids"][0]
        self._append([int(token) for token in new], 0, [0.0] * len(new))
        self.images += images

    def say(self, answer):
        """Append what SGLang sampled, id by id; nothing is decoded."""
        meta = answer["meta_info"]
        if meta["prompt_tokens"] != len(self.ids):
            raise RuntimeError(f"{len(self.ids)} ids sent, the model saw {meta['prompt_tokens']}")
        logprobs, sampled, *_ = zip(*meta["output_token_logprobs"])
        self._append(sampled, 1, logprobs)
        return sampled

    def _append(self, ids, mask, logprobs):
        self.ids += ids
        self.loss_mask += [mask] * len(ids)
        self.logprobs += logprobs
