"""What the release's own encoder makes of the clips of a scene (encoder disaggregation).

Its class takes the frames, calls the HF video processor and computes the times. Nothing of a server runs, and
the embeddings are numbered rows: the vision tower has no part in ids and positions.
"""

from __future__ import annotations

import contextlib
import importlib
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.lab import processors, reference
from tests.sglang import rollouts
from tests.sglang.films import Scene

WIDTH = 8  # of an embedding
_MERGED = 4  # patches in a token


@dataclass(frozen=True)
class Sent:
    """What the encoder sends of a scene's images and videos.

    ``images`` and ``videos`` float32 [tokens, 8] are the embeddings; ``image_grids`` and ``video_grids`` are
    int64 [N, 3]. Without images, theirs are None. ``times`` is ``video_timestamps`` (Qwen3-VL) or
    ``second_per_grid_ts`` (Qwen2.5-VL) by its name.
    """

    images: torch.Tensor | None
    image_grids: torch.Tensor | None
    videos: torch.Tensor
    video_grids: torch.Tensor
    times: dict[str, list[Any]]

    def arguments(self) -> dict[str, Any]:
        """Those of ``get_mm_data`` beside the prompt."""
        from sglang.srt.managers.schedule_batch import Modality

        embeddings = {Modality.VIDEO: self.videos}
        if self.images is not None:
            embeddings[Modality.IMAGE] = self.images
        return {
            "embeddings": embeddings,
            "img_grid_thw": self.image_grids,
            "video_grid_thw": self.video_grids,
            "audio_feature_lens": None,
            **self.times,
        }

    def messages(self, cls: type) -> list[list[bytes]]:
        """Over the wire: the release's ``EmbeddingData``, pickled, and the embeddings; one for each kind."""
        from sglang.srt.managers.schedule_batch import Modality

        kinds = [(Modality.VIDEO, self.video_grids, self.videos, self.times)]
        if self.images is not None:
            kinds.insert(0, (Modality.IMAGE, self.image_grids, self.images, {}))
        found = []
        for index, (modality, rows, values, times) in enumerate(kinds):
            data = cls("r", len(kinds), index, rows, modality, embedding=values, **times)  # type: ignore[call-arg]
            found.append([pickle.dumps(data.copy_without_embedding()), values.numpy().tobytes()])
        return found

    def but(self, **other: Any) -> Sent:
        return replace(self, **other)


def encode(folder: Path, processor: Any, scene: Scene) -> Sent:
    """Let the release's encoder work on a scene."""
    from sglang.srt.managers.schedule_batch import Modality

    encoder, data = _encoder(folder, processor), [clip.data for clip in scene.clips]
    if hasattr(encoder, "_process_video_items"):
        made = processors.run(encoder._process_video_items(data, None))
    else:  # before 0.5.13
        made, _ = processors.run(encoder._process_mm_items(data, Modality.VIDEO))
    names = ("video_timestamps", "second_per_grid_ts")
    times = {name: list(made[name]) for name in names if made.get(name) is not None}
    image_grids = rollouts.image_grids(folder, scene.images) if scene.images else None
    images = None if image_grids is None else -_numbered(image_grids)
    return Sent(images, image_grids, _numbered(made["video_grid_thw"]), made["video_grid_thw"], times)


def _numbered(grids: torch.Tensor) -> torch.Tensor:
    count = int(grids.prod(dim=1).sum()) // _MERGED
    return 1 + torch.arange(count * WIDTH, dtype=torch.float32).reshape(count, WIDTH)


def _encoder(folder: Path, processor: Any) -> Any:
    """The release's encoder without a server: what works on clips, and the configuration that it reads."""
    hf = reference.processor(folder)
    pool = ThreadPoolExecutor(1)
    made = object.__new__(_encoder_class())
    made.__dict__.update(
        model_type=processor.model_type,
        image_processor=hf.image_processor,
        video_processor=hf.video_processor,
        audio_processor=None,
        use_image_processor_gpu=False,
        model=SimpleNamespace(get_video_feature=None),
        model_config=SimpleNamespace(hf_config=processor.hf_config),
        encoder_media_processor_config=SimpleNamespace(preserve_media_metadata=False),
        io_executor=pool,
        preproc_executor=pool,
        executor=pool,
    )
    made._build_vision_config(None)
    return made


def _encoder_class() -> type:
    for name, cls in (("encoder.preprocessor", "EncoderPreprocessor"), ("encode_server", "MMEncoder")):
        with contextlib.suppress(ModuleNotFoundError):
            found: type = getattr(importlib.import_module(f"sglang.srt.disaggregation.{name}"), cls)
            return found
    raise AssertionError("no encoder")
