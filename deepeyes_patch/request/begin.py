"""Every point where we touch SGLang's Qwen-VL image processor (``qwen_vl.py``).

A request whose prompt is a list of ids opens a scope on the outermost method; the inner seams repair only
inside one, so text prompts, and classes that override the outermost method, run upstream's code alone. (Ids
that such a class hands to the loader are looked at there and in the result, see `bystanders`.)
Upstream's own code then computes offsets, item splits, padded ids and M-RoPE positions from the
caller's ids, because it finds them where it used to find re-tokenized ones:

==================================  ===================================================================
seam                                what we do there, inside a scope
==================================  ===================================================================
``process_mm_data_async``           open the scope: find the spans, refuse what cannot be served; look
                                    at the result once more before it leaves
``load_mm_data``, ``fast_...``,     hand the loader one placeholder per image and video in place of the
``legacy_load_mm_data``             ids, which stock decodes, searches and tokenizes again; note the scope
                                    on the result, which travels to a worker thread from 0.5.17 on
``preprocess_video``                keep the times of a video's frames with the frames. With the ``video``
                                    repair, text prompts too: let the HF processor choose the frames
``process_and_combine_mm_data``     enter the noted scope, also on that thread
``process_mm_data``                 hand the kept times on to the HF processor where stock does not
``_process_and_collect_mm_items``   here re-tokenized ids are born: return the caller's
``get_mm_items_offset``             preprocessed items reach no other seam before their offsets are made
``build_input_ids``                 artifact path (0.5.20 and later) and encoder disaggregation: give it
                                    one placeholder per image, which is what it expands
``get_mm_data``                     encoder disaggregation: opens a scope as the outermost method does
``MRotaryEmbedding.get_rope_index`` a ``vision_start`` that ends the ids makes it read past the end
``resize_image_async``              to 0.5.5.post1, text prompts too: a step before the HF processor that
                                    rounds sides to multiples of 28; skipped for other factors (Qwen3-VL)
``__init__``                        where SGLang must stop if any of this cannot be done
==================================  ===================================================================
"""

from __future__ import annotations

import binascii
import errno
import inspect
import re
import struct
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from deepeyes_patch.ids import positions
from deepeyes_patch.ids import video_blocks as videos
from deepeyes_patch.ids.positions import Medium
from deepeyes_patch.ids.request import PretokenizedRequest, Resolution, Videos
from deepeyes_patch.ids.spans import VisionTokens
from deepeyes_patch.ids.video_blocks import GridTHW
from deepeyes_patch.observe import counters
from deepeyes_patch.request import disaggregation as receiver
from deepeyes_patch.request import frames as sampling
from deepeyes_patch.request.unserved import BystanderRequest
from deepeyes_patch.seams import examine as compat
from deepeyes_patch.seams import wrapping
from deepeyes_patch.seams.table import MODULE_SEAMS, ROPE_SEAMS, processor_seams
from deepeyes_patch.seams.wrapping import bind

REPAIR = "processor"
VIDEO_REPAIR = "video"


class _Scope:
    """The pre-tokenized request that a call of the processor is about."""

    def __init__(self, processor: Any, request: PretokenizedRequest) -> None:
        self.processor = processor
        self.request = request
        self.resolution: Resolution | None = None
        # What the HF processor has made of the request's videos, and the times of their frames.
        self.blocks: list[videos.Block] = []
        self.times: list[dict[str, Any]] = []

    @property
    def spatial_merge_size(self) -> int:
        return int(self.processor.hf_config.vision_config.spatial_merge_size)

    def resolve(self, grids: Any, video_grids: Any = None, tokenizer: Any = None) -> Resolution:
        self.resolution = self.check(grids, video_grids, tokenizer)
        return self.resolution

    def check(self, grids: Any, video_grids: Any = None, tokenizer: Any = None) -> Resolution:
        rows, made = _grid_rows(grids), None
        known = self.resolution
        if known is not None and not self.request.video_count and rows == known.grids:
            return known
        if self.request.video_count:
            spell = (tokenizer or self.processor._processor.tokenizer).decode
            made = Videos(_grid_rows(video_grids, "video_grid_thw"), self.blocks, spell)
        return self.request.resolve(
            rows,
            self.spatial_merge_size,
            lambda: _pixel_bounds(self.processor),
            made,
        )

    def read_blocks(self, ids: Sequence[int], video_grids: Any) -> None:
        grids = _grid_rows(video_grids, "video_grid_thw")
        self.blocks = videos.read_blocks(ids, grids, self.spatial_merge_size, self.request.tokens)


# Marks a processor that was constructed with our wrappers in place, and whether it is served; a wrapper that
# another package puts around ours later, without saying what it wraps, hides them from a look at the class.
_SERVED = "_deepeyes_patch_serves"

# The factor of the sides of an image (patch_size * spatial_merge_size) that ``resize_image_async`` knows.
_RESIZE_FACTOR = 28

# The processor whose outermost method runs.
_running: ContextVar[Any] = ContextVar("deepeyes_patch_running", default=None)
_scope: ContextVar[_Scope | None] = ContextVar("deepeyes_patch_scope", default=None)

# The name under which a loader's result carries its scope to the worker thread.
_NOTE = "_deepeyes_patch_scope"

# Whether the ``video`` repair is on.
_samples_as_hf = False


# --- finding the class, and wrapping it ---------------------------------------------------------------


def apply(module: ModuleType, switch: str) -> type:
    """Wrap the seams of the processor class in ``module``, all of them or none; return the class.

    Raises
    ------
    IncompatibleSGLangError
        The class, or a seam that it needs, is not there or has another shape.
    """
    classes = compat.classes_defined_in(module, lambda cls: hasattr(cls, "process_mm_data_async"))
    if len(classes) != 1:
        names = ", ".join(cls.__name__ for cls in classes) or "none"
        problem = f"{module.__name__} should define one processor class, and defines {names}"
        raise compat.incompatible(REPAIR, switch, [problem])
    (cls,) = classes
    seams = processor_seams(hasattr(cls, "compose_image_artifacts"))
    rope = getattr(module, "MRotaryEmbedding", None)
    compat.require(rope, ROPE_SEAMS, REPAIR, switch)
    in_module = compat.require(module, MODULE_SEAMS, REPAIR, switch)
    for finding in compat.require(cls, seams, REPAIR, switch):
        if finding.present and finding.seam.name in _WRAPPERS:
            wrapping.wrap(cls, finding.seam.name, _WRAPPERS[finding.seam.name])
    wrapping.wrap(rope, "get_rope_index", _get_rope_index)
    for finding in in_module:
        if finding.present:
            wrapping.wrap(module, finding.seam.name, _MODULE_WRAPPERS[finding.seam.name])
    return cls


def apply_video(module: ModuleType, switch: str) -> None:
    """Let the HF processor choose the frames of every video, on top of `apply`.

    Raises
    ------
    IncompatibleSGLangError
        This SGLang hands no times of frames to the HF processor.
    """
    global _samples_as_hf
    if not _hands_times_on(module):
        problem = f"{module.__name__}.preprocess_video makes no metadata of the frames that it takes"
        raise compat.incompatible(VIDEO_REPAIR, switch, [problem])
    _samples_as_hf = True


def undo_video() -> None:
    """Leave the choice of frames to SGLang again."""
    global _samples_as_hf
    _samples_as_hf = False


def _hands_times_on(module: ModuleType) -> bool:
    """Whether ``preprocess_video`` makes metadata (0.5.4 and later) or returns bare frames."""
    function = inspect.unwrap(module.preprocess_video)
    return "video_metadata" in function.__code__.co_varnames


def check_construction(processor: Any, switch: str, required: bool) -> None:
    """Make sure that a processor just constructed is served by our wrappers.

    Classes of SGLang's that override the outermost method are not ours to serve, and pass. So does a
    processor that lacks the token ids that the repair works with, unless it is ``required`` to be served.

    Raises
    ------
    IncompatibleSGLangError
        Another package has replaced what we wrapped, or a required processor lacks a token id.
    """
    displaced = wrapping.displaced()
    if displaced:
        raise compat.incompatible(
            REPAIR,
            switch,
            [
                f"deepeyes-patch wrapped {name}, and another package has put "
                f"{compat.origin(function)} in its place. One of the two must go: switch that "
                f"package's patch off (Relax's own: unset RELAX_DEEPEYES_QWEN_VL_PATCH and set "
                f"{switch}=processor), or set {switch}=off"
                for name, function in displaced
            ],
        )
    if not _runs_through_ours(processor):
        return
    try:
        _require_readable(processor)
        _refuse_sizing(processor, switch)
    except (AttributeError, TypeError) as error:
        if required:
            raise compat.incompatible(
                REPAIR, switch, [f"{type(processor).__name__} was constructed, but {error}"]
            ) from error
        setattr(processor, _SERVED, False)
    else:
        setattr(processor, _SERVED, True)


def _require_readable(processor: Any) -> None:
    """Raise AttributeError or TypeError unless everything is there that the repair reads later."""
    _vision_tokens(processor)
    _vocab_size(processor)
    processor.hf_config.vision_config.spatial_merge_size + 0
    processor.mm_tokens.image_token + ""


def _refuse_sizing(processor: Any, switch: str) -> None:
    sizing = sorted(set(sampling.SIZING).intersection(getattr(processor, "video_config", None) or {}))
    if _samples_as_hf and sizing:
        raise compat.incompatible(
            VIDEO_REPAIR,
            switch,
            [
                f"--mm-process-config sets {', '.join(sizing)} for videos, and with 'video' the HF processor "
                f"alone sizes frames. Set the bounds in the model's video preprocessor config instead"
            ],
        )


# --- the outermost methods ----------------------------------------------------------------------------


async def _process_mm_data_async(
    wrapped: Callable[..., Awaitable[Any]],
    processor: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    running = _running.set(processor)
    try:
        return await _process(wrapped, processor, args, kwargs)
    except ValueError as error:
        counters.count_refusal(error)
        raise
    finally:
        _running.reset(running)


async def _process(
    wrapped: Callable[..., Awaitable[Any]],
    processor: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    call = bind(wrapped, args, kwargs)
    prompt = call.arguments["input_text"]
    if prompt is None or isinstance(prompt, str) or vision_tokens(processor) is None:
        result = await wrapped(*args, **kwargs)
        counters.count(counters.PASSED)
        return result
    images = _checked_images(call.arguments["image_data"])
    request_obj = call.arguments["request_obj"]
    _refuse_media(audio=getattr(request_obj, "audio_data", None))
    video_count = _checked_videos(processor, getattr(request_obj, "video_data", None))
    scope = _open(processor, prompt, images, video_count)
    # Copies: several releases keep the ids or cut them to the context length, and take preprocessed items
    # to pieces.
    call.arguments["input_text"] = list(scope.request.ids)
    call.arguments["image_data"] = images
    token = _scope.set(scope)
    try:
        result = await wrapped(*call.args, **call.kwargs)
    except Exception as error:
        if _is_about_media(error) or (scope.request.expanded_only and isinstance(error, _WRONG_SHAPE)):
            what = ["an image"] * bool(images) + ["a video"] * bool(video_count)
            raise ValueError(f"{' or '.join(what)} could not be loaded: {_shortened(error)}") from error
        raise
    finally:
        _scope.reset(token)
    _last_look(scope, result)
    counters.count(counters.RESTORED)
    return result


def _get_mm_data(
    wrapped: Callable[..., Any], processor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    try:
        return _get(wrapped, processor, args, kwargs)
    except ValueError as error:
        counters.count_refusal(error)
        receiver.note_refusal(error)
        raise


def _get(wrapped: Callable[..., Any], processor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = bind(wrapped, args, kwargs)
    prompt = call.arguments["prompt"]
    if prompt is None:
        prompt = receiver.waiting_ids()
    if prompt is None or isinstance(prompt, str) or vision_tokens(processor) is None:
        return wrapped(*args, **kwargs)
    call.arguments["prompt"] = prompt
    # Declared by name or collected by **kwargs, depending on the release.
    media = {**call.arguments, **call.arguments.get("kwargs", {})}
    _refuse_media(video=media.get("video_grid_thw"), audio=media.get("audio_feature_lens"))
    grids = media.get("img_grid_thw")
    request = PretokenizedRequest(
        prompt,
        _vision_tokens(processor),
        vocab_size=_vocab_size(processor),
        image_count=len(_grid_rows(grids)),
    )
    scope = _Scope(processor, request)
    token = _scope.set(scope)
    try:
        result = wrapped(*call.args, **call.kwargs)
    finally:
        _scope.reset(token)
    _last_look(scope, result, grids)
    counters.count(counters.RESTORED)
    return result


def _checked_images(image_data: Any) -> list[Any]:
    """The request's images as a list of its own, with the grids of preprocessed items as tensors."""
    images = [] if image_data is None else list(image_data)
    for index, image in enumerate(images):
        if image is None or isinstance(image, (list, tuple, int, float)):
            raise ValueError(f"image_data[{index}] is {image!s:.100}, which is no image")
        if _is_preprocessed(image):
            images[index] = {**image, "image_grid_thw": torch.tensor(_preprocessed_grids([image]))}
    return images


def _is_preprocessed(image: Any) -> bool:
    """A dict is what the HF processor made, or embeddings; but SGLang also takes ``{"url": ...}``."""
    return isinstance(image, dict) and "url" not in image


def _checked_videos(processor: Any, video_data: Any) -> int:
    """How many videos came along; all of them clips that SGLang will decode itself."""
    items = [] if video_data is None else _as_list(video_data)
    for index, video in enumerate(items):
        if isinstance(video, dict):
            raise ValueError(
                f"video_data[{index}] is a preprocessed item; with input_ids, send the clip itself (a path, "
                f"URL or data URL)"
            )
        if video is None or isinstance(video, (list, tuple, int, float)) or hasattr(video, "shape"):
            raise ValueError(
                f"video_data[{index}] is of type {type(video).__name__}, and no clip whose frames have known "
                f"times; with input_ids, send a path, URL or data URL"
            )
    if len(items) and not _hands_times_on(_module_of(processor)):
        raise ValueError(
            f"video data with input_ids: SGLang {compat.sglang_version()} does not tell the HF processor the "
            f"times of a video's frames, so timestamps and M-RoPE positions would be wrong. Newer releases "
            f"(0.5.4 and later) do"
        )
    return len(items)


def _module_of(processor: Any) -> ModuleType:
    """SGLang's ``qwen_vl``, also for a class that derives from its processor."""
    owner = next(cls for cls in type(processor).__mro__ if "process_mm_data_async" in vars(cls))
    return sys.modules[owner.__module__]


def _open(processor: Any, prompt: Sequence[int], images: Sequence[Any], video_count: int = 0) -> _Scope:
    preprocessed = [image for image in images if _is_preprocessed(image)]
    if preprocessed and len(preprocessed) != len(images):
        raise ValueError(
            f"image_data mixes {len(preprocessed)} preprocessed item(s) (dict) with "
            f"{len(images) - len(preprocessed)} raw image(s); with input_ids, send one kind"
        )
    if preprocessed and video_count:
        raise ValueError(
            f"image_data holds preprocessed items (dict) beside {video_count} video(s); with input_ids, send "
            f"raw images beside videos"
        )
    request = PretokenizedRequest(
        prompt,
        _vision_tokens(processor),
        vocab_size=_vocab_size(processor),
        image_count=None if preprocessed else len(images),
        video_count=video_count,
        expanded_only=bool(preprocessed),
    )
    scope = _Scope(processor, request)
    for image in preprocessed:
        _check_rows(image, scope.spatial_merge_size)
    return scope


def _check_rows(image: dict[str, Any], spatial_merge_size: int) -> None:
    """Refuse preprocessed features that are more or fewer rows than their grids say."""
    patches = sum(t * h * w for t, h, w in _grid_rows(image["image_grid_thw"]))
    wanted = {
        "pixel_values": patches,
        "feature": patches // spatial_merge_size**2,
        "precomputed_embeddings": patches // spatial_merge_size**2,
    }
    for name, rows in wanted.items():
        shape = getattr(image.get(name), "shape", None)
        if shape is not None and (len(shape) == 0 or shape[0] != rows):
            raise ValueError(
                f"a preprocessed item of image_data holds {name} of shape {list(shape)}, and its "
                f"image_grid_thw demands {rows} rows"
            )


def _refuse_media(**media: Any) -> None:
    for modality, data in media.items():
        if data is not None and any(item is not None for item in _as_list(data)):
            raise ValueError(
                f"{modality} data with input_ids: deepeyes-patch does not serve it here in "
                f"pre-tokenized requests. Send the prompt as text"
            )


# What upstream raises over preprocessed items that are not what it expects.
_WRONG_SHAPE = (TypeError, KeyError, AttributeError, IndexError)

# The packages that SGLang decodes videos with.
_VIDEO_DECODERS = {"decord", "torchcodec"}

_UNREADABLE = (OSError, SyntaxError, struct.error, binascii.Error)

# The machine's troubles, not the image's.
_RESOURCES = (errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def _is_about_media(error: BaseException) -> bool:
    """Whether an exception of upstream's goes back to image or video data that cannot be read.

    Its loaders turn every such exception into a RuntimeError, but some images are decoded later, and
    some paths have no such loader. Pillow raises OSError, SyntaxError or struct.error, and base64
    binascii.Error. What began as a RuntimeError is another matter, such as CUDA's, unless a video decoder
    raised it.
    """
    wrapped_by_loader = False
    while (earlier := error.__cause__ or error.__context__) is not None:
        wrapped_by_loader |= isinstance(error, RuntimeError) and "load" in str(error)
        error = earlier
    if isinstance(error, OSError) and error.errno in _RESOURCES:
        return False
    if _from_a_video_decoder(error):
        return True
    unreadable = isinstance(error, _UNREADABLE) and not isinstance(error, TimeoutError)
    return unreadable or (wrapped_by_loader and not isinstance(error, (RuntimeError, MemoryError)))


def _from_a_video_decoder(error: BaseException) -> bool:
    """Decoders raise plain RuntimeErrors too, in their own code, over data that they cannot read."""
    frames = traceback.walk_tb(error.__traceback__)
    modules = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in frames}
    # Its subclasses are torch's: no memory left, a device that failed.
    plain = type(error) is RuntimeError or type(error).__module__.partition(".")[0] in _VIDEO_DECODERS
    return plain and not modules.isdisjoint(_VIDEO_DECODERS) and "CUDA" not in str(error)


def _shortened(error: BaseException) -> str:
    # Upstream's messages repeat the data, which can be megabytes of base64.
    text = str(error)
    return text if len(text) <= 500 else f"{text[:250]} ... {text[-250:]}"


# --- inside a scope -----------------------------------------------------------------------------------


def _load_mm_data(
    wrapped: Callable[..., Any], processor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    scope = _scope.get()
    call = bind(wrapped, args, kwargs)
    images = call.arguments.get("image_data") or []
    note: _Scope | BystanderRequest
    if scope is not None:
        # As many placeholders as there are images and videos, nothing else: the text would be thrown away.
        prompt = processor.mm_tokens.image_token * len(images)
        if scope.request.video_count:
            tokens = scope.request.tokens
            ids = [tokens.vision_start, tokens.video, tokens.vision_end]
            prompt += processor._processor.tokenizer.decode(ids) * scope.request.video_count
        call.arguments["prompt"] = prompt
        note = scope
    elif call.arguments["prompt"] is None or isinstance(call.arguments["prompt"], str):
        return wrapped(*args, **kwargs)
    else:
        note = _bystander(processor, call.arguments["prompt"])
        if not any(_is_preprocessed(image) for image in images):
            note.check_placeholders(len(images))
    loading = wrapped(*call.args, **call.kwargs)
    return _noted_later(loading, note) if inspect.isawaitable(loading) else _noted(loading, note)


def _bystander(processor: Any, ids: Sequence[int]) -> BystanderRequest:
    """Only an outermost method that is not ours, or does not serve its processor, opens no scope for ids."""
    return BystanderRequest(ids, processor.mm_tokens.image_token_id, type(processor).__name__)


async def _noted_later(loading: Awaitable[Any], note: _Scope | BystanderRequest) -> Any:
    return _noted(await loading, note)


def _noted(base_output: Any, note: _Scope | BystanderRequest) -> Any:
    setattr(base_output, _NOTE, note)
    return base_output


def _process_and_combine_mm_data(
    wrapped: Callable[..., Any], processor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    base_output = bind(wrapped, args, kwargs).arguments["base_output"]
    scope = getattr(base_output, _NOTE, None) or _scope.get()
    if scope is None:
        return wrapped(*args, **kwargs)
    if isinstance(scope, BystanderRequest):
        items, input_ids, ret = wrapped(*args, **kwargs)
        offsets = [tuple(pair) for item in items if item.is_image() for pair in item.offsets]
        scope.check_result(input_ids.flatten().tolist(), offsets)
        return items, input_ids, ret
    token = _scope.set(scope)
    try:
        if not scope.request.expanded_only:
            return wrapped(*args, **kwargs)
        grids = _preprocessed_grids(base_output.images)
        resolution = scope.resolve(grids)
        items, input_ids, ret = wrapped(*args, **kwargs)
        if ret is None:
            # To 0.5.12.post1 the grids of preprocessed items reach get_rope_index only through here;
            # without them the images get text positions.
            ret = SimpleNamespace(image_grid_thw=torch.tensor(grids))
        return items, input_ids.new_tensor(resolution.ids), ret
    finally:
        _scope.reset(token)


def _process_and_collect_mm_items(
    wrapped: Callable[..., Any], processor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    scope = _scope.get()
    items, input_ids, ret = wrapped(*args, **kwargs)
    if scope is None:
        return items, input_ids, ret
    if not scope.request.video_count:
        resolution = scope.resolve(ret["image_grid_thw"])
        return items, input_ids.new_tensor(resolution.ids), ret
    grids, video_grids = ret.get("image_grid_thw"), ret["video_grid_thw"]
    scope.read_blocks(input_ids.tolist(), video_grids)
    # On a worker thread the clone's own tokenizer, which no other thread uses.
    resolution = scope.resolve(grids, video_grids, getattr(kwargs.get("processor"), "tokenizer", None))
    if isinstance(ret.get("second_per_grid_ts"), torch.Tensor):
        # 0.5.4 to 0.5.6.post2 ask it for its truth, which a tensor of several videos has not.
        ret["second_per_grid_ts"] = ret["second_per_grid_ts"].tolist()
    return items, input_ids.new_tensor(resolution.ids), ret


def _process_mm_data(
    wrapped: Callable[..., Any], processor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Stock hands Qwen3-VL's times on, and not Qwen2.5-VL's."""
    scope = _scope.get()
    if scope is None and not _samples_as_hf:
        return wrapped(*args, **kwargs)
    clips = bind(wrapped, args, kwargs).arguments.get("videos") or []
    times = [kept for clip in clips if (kept := sampling.noted(clip)) is not None]
    known = 0 < len(times) == len(clips)
    if scope is not None:
        scope.times = times if known else []
    if known:
        # Other copies than those in `times`: some releases of the HF processor write into theirs.
        own = {"video_metadata": [sampling.noted(clip) for clip in clips], "do_sample_frames": False}
        kwargs = {name: value for name, value in kwargs.items() if name not in own}
        config = kwargs.get("processor_video_config")
        if getattr(processor, "video_config", None) if config is None else config:
            # Upstream hands its configuration on as ``videos_kwargs``, beside which ``transformers`` reads
            # no such argument of the call itself.
            kwargs["videos_kwargs"] = {**kwargs.get("videos_kwargs", {}), **own}
        else:
            kwargs |= own
    return wrapped(*args, **kwargs)


def _get_mm_items_offset(
    wrapped: Callable[..., Any], processor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    scope = _scope.get()
    if scope is None or scope.resolution is None or not scope.request.expanded_only:
        return wrapped(*args, **kwargs)
    call = bind(wrapped, args, kwargs)
    call.arguments["input_ids"] = torch.tensor(scope.resolution.ids)
    return wrapped(*call.args, **call.kwargs)


def _build_input_ids(
    wrapped: Callable[..., Any], processor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    scope = _scope.get()
    call = bind(wrapped, args, kwargs)
    if scope is None:
        if not isinstance(prompt := call.arguments["prompt"], str):
            grids = _grid_rows(call.arguments.get("img_grid_thw"))
            _bystander(processor, prompt).check_placeholders(len(grids))
        return wrapped(*args, **kwargs)
    scope.resolve(call.arguments["img_grid_thw"])
    call.arguments["prompt"] = scope.request.collapsed()
    return wrapped(*call.args, **call.kwargs)


def _get_rope_index(
    wrapped: Callable[..., Any], rope: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Upstream reads the token after each ``vision_start``, also where that is the last one.

    Where it fails over ids that fit their media, it has no positions for the model.
    """
    scope = _scope.get()
    if scope is None:
        return wrapped(*args, **kwargs)
    call = bind(wrapped, args, kwargs)
    ids = call.arguments["input_ids"]
    start = call.arguments["vision_start_token_id"]
    ends_open = int(ids[0, -1]) == start
    if ends_open:
        # One text token more moves neither what stands before it nor the delta.
        call.arguments["input_ids"] = torch.cat([ids, ids.new_tensor([[start + 1]])], dim=1)
    try:
        positions, delta = wrapped(*call.args, **call.kwargs)
    except (IndexError, ValueError) as error:
        raise ValueError(
            f"the get_rope_index of this SGLang has no M-RoPE positions for these images or videos of model "
            f"type {scope.processor.hf_config.model_type}, and raised {type(error).__name__}: {error}"
        ) from error
    return positions[..., :-1] if ends_open else positions, delta


async def _preprocess_video(
    wrapped: Callable[..., Awaitable[Any]], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Another model's processor that takes this function from ``qwen_vl`` is not the one that runs."""
    processor = _running.get()
    call = bind(wrapped, args, kwargs)
    decoder = call.arguments["vr"]
    as_hf = processor is not None and _chooses_as_hf(processor)
    if not (as_hf or _scope.get() is not None) or not sampling.is_decoder(decoder):
        return await wrapped(*args, **kwargs)
    if as_hf:
        config = call.arguments.get("video_config") or {}
        made: Any = sampling.sample(decoder, processor._processor.video_processor, config)
    else:
        made = await wrapped(*args, **kwargs)
    sampling.note(*made)
    return made


async def _resize_image_async(
    wrapped: Callable[..., Awaitable[Any]], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Leave the image as it is where the HF processor works with another factor than this step.

    Resized twice, an image gets another grid than ``transformers`` gives it, and blurs. Another model's
    processor that takes this function from ``qwen_vl`` is not the one that runs.
    """
    processor = _running.get()
    if processor is None or _side_factor(processor) == _RESIZE_FACTOR:
        return await wrapped(*args, **kwargs)
    return bind(wrapped, args, kwargs).arguments["image"]


def _chooses_as_hf(processor: Any) -> bool:
    """Omni models, which pair frames with sound, are not what the ``video`` repair is for."""
    return _samples_as_hf and getattr(processor, "audio_token_id", None) is None


def _side_factor(processor: Any) -> int:
    vision = processor.hf_config.vision_config
    return int(vision.patch_size * vision.spatial_merge_size)


_WRAPPERS: dict[str, wrapping.Wrapper] = {
    "process_mm_data_async": _process_mm_data_async,
    "get_mm_data": _get_mm_data,
    "load_mm_data": _load_mm_data,
    "fast_load_mm_data": _load_mm_data,
    "legacy_load_mm_data": _load_mm_data,
    "process_and_combine_mm_data": _process_and_combine_mm_data,
    "process_mm_data": _process_mm_data,
    "_process_and_collect_mm_items": _process_and_collect_mm_items,
    "get_mm_items_offset": _get_mm_items_offset,
    "build_input_ids": _build_input_ids,
}
_MODULE_WRAPPERS: dict[str, wrapping.Wrapper] = {
    "preprocess_video": _preprocess_video,
    "resize_image_async": _resize_image_async,
}


# --- the last look ------------------------------------------------------------------------------------


def _last_look(scope: _Scope, result: Any, grids: Any = None) -> None:
    """Refuse a result that does not follow from the caller's ids, whichever path produced it.

    The grids come from the items that will be served, not from what the inner seams noted, so a path
    that no wrapper covers is found out too. Linear in the number of ids, in C loops.

    Raises
    ------
    ValueError
        Ids, padded ids, offsets or positions differ from what the ids and grids demand.
    """
    items: list[Any] = []
    clips: list[Any] = []
    for item in field(result, "mm_items") or []:
        (items if getattr(item, "video_grid_thw", None) is None else clips).append(item)
    if grids is None:
        grids = [row for item in items for row in _grid_rows(getattr(item, "image_grid_thw", None))]
    video_grids = [row for clip in clips for row in _grid_rows(clip.video_grid_thw, "video_grid_thw")]
    expected = scope.check(grids, video_grids)
    offsets = [tuple(pair) for item in items for pair in item.offsets]
    padded = field(result, "padded_input_ids")
    ids = field(result, "input_ids")
    _demand("input_ids", ids == expected.ids)
    _demand("image offsets", offsets == expected.offsets)
    _look_at_videos(scope, clips, expected)
    media = _media(scope, expected)
    if padded is not None:
        # Upstream makes them of its own ids: the same objects, which are equal at a glance.
        _demand("padded_input_ids", _outside(padded, media) == _outside(ids, media))
    right = positions.positions(len(expected.ids), media, scope.spatial_merge_size)
    found = field(result, "mrope_positions")
    same = found is not None and torch.equal(found.cpu().long(), right)
    if not same:
        _refuse_wrong_times(scope, clips)
    _demand("M-RoPE positions", same)
    delta = int(right.max()) + 1 - len(expected.ids)
    found = field(result, "mrope_position_delta")
    _demand("M-RoPE delta", found is not None and int(torch.as_tensor(found).flatten()[0]) == delta)


def _look_at_videos(scope: _Scope, clips: Sequence[Any], expected: Resolution) -> None:
    """Each item holds its own videos' spans and features; the times of all frames are known."""
    _demand("videos", len(expected.videos) == scope.request.video_count)
    remaining = iter(expected.videos)
    for clip in clips:
        own = [next(remaining) for _ in _grid_rows(clip.video_grid_thw, "video_grid_thw")]
        offsets = [pair for video in own for pair in video.offsets]
        _demand("video offsets", [tuple(pair) for pair in clip.offsets] == offsets)
        rows = getattr(getattr(clip, "feature", None), "shape", None)
        patches = sum(t * h * w for t, h, w in (video.grid for video in own))
        _demand("features of videos", rows is None or rows[0] == patches)
    _demand("times of frames", len(scope.times) == scope.request.video_count)
    for index, video in enumerate(expected.videos):
        due = sampling.group_times(scope.times[index], _temporal_patch_size(scope.processor))
        _demand("groups of frames", len(due) == video.grid[0])
        for label, seconds in zip(scope.blocks[index].labels, due, strict=False):
            text = scope.processor._processor.tokenizer.decode(label)
            # Written with one digit after the point; of Qwen2.5-VL there is no text.
            written = re.search(r"\d+(\.\d+)?", text)
            if label and not (written and abs(float(written[0]) - seconds) < 0.05 + 1e-6):
                raise ValueError(
                    f"video {index} of {scope.request.video_count}: SGLang {compat.sglang_version()} lets "
                    f"the HF processor write {text!r} before frames that are at {seconds:.2f} seconds"
                )


def _refuse_wrong_times(scope: _Scope, clips: Sequence[Any]) -> None:
    """Say so where the positions are wrong because this SGLang has other times than the clip."""
    given = [getattr(clip, "second_per_grid_ts", None) for clip in clips]
    found = [float(s) for seconds in given if seconds is not None for s in torch.as_tensor(seconds).flatten()]
    for index, (metadata, seconds) in enumerate(zip(scope.times, found, strict=False)):
        true = sampling.seconds_per_grid(metadata, _temporal_patch_size(scope.processor))
        if abs(seconds - true) > 1e-6 * true:
            raise ValueError(
                f"video {index} of {scope.request.video_count}: its frame groups are {true:.6g} seconds "
                f"apart, and SGLang {compat.sglang_version()} places them {seconds:.6g} seconds apart, "
                f"so its M-RoPE positions would be wrong"
            )


def field(result: Any, name: str) -> Any:
    """A part of the processor's result, which is a dict to 0.5.9 and a typed object since."""
    return result.get(name) if isinstance(result, dict) else getattr(result, name, None)


def _demand(what: str, right: bool) -> None:
    if not right:
        raise ValueError(
            f"deepeyes-patch refuses this request: the {what} that SGLang {compat.sglang_version()} "
            f"made for it do not follow from its input_ids and grids. Either preprocessed data that "
            f"came with it says otherwise, or it took a path through SGLang's processor that "
            f"deepeyes-patch does not cover; then please report it"
        )


def _media(scope: _Scope, expected: Resolution) -> list[Medium]:
    """All images, videos and groups of frames, in the order of the ids."""
    media = [
        Medium(first, last, torch.arange(t), h, w)
        for (first, last), (t, h, w) in zip(expected.offsets, expected.grids, strict=True)
    ]
    if not expected.videos:
        return media
    for index, video in enumerate(expected.videos):
        t, h, w = video.grid
        if len(video.offsets) == t:  # each group of frames is a picture of its own (Qwen3-VL)
            media += [Medium(first, last, torch.arange(1), h, w) for first, last in video.offsets]
        else:
            ((first, last),) = video.offsets
            media.append(Medium(first, last, _times(scope, index, t), h, w))
    return sorted(media, key=lambda medium: medium.first)


def _times(scope: _Scope, index: int, t: int) -> torch.Tensor:
    """Positions on the t axis of one video's groups of frames, relative to the first."""
    per_second = getattr(scope.processor.hf_config.vision_config, "tokens_per_second", None)
    if per_second is None:  # Qwen2-VL
        return torch.arange(t)
    seconds = sampling.seconds_per_grid(scope.times[index], _temporal_patch_size(scope.processor))
    return positions.times(t, seconds, per_second)


def _temporal_patch_size(processor: Any) -> int:
    return int(processor.hf_config.vision_config.temporal_patch_size)


def _outside(ids: Sequence[int], media: Sequence[Medium]) -> list[Any]:
    """The total length, and everything between the images and videos."""
    pieces: list[Any] = [len(ids)]
    position = 0
    for medium in media:
        pieces.append(ids[position : medium.first])
        position = medium.last + 1
    pieces.append(ids[position:])
    return pieces


# --- reading what upstream holds ----------------------------------------------------------------------


def vision_tokens(processor: Any) -> VisionTokens | None:
    """The token ids of a processor that is ours to serve; ``None`` for any other."""
    served = getattr(processor, _SERVED, None)
    if served is None:
        served = _runs_through_ours(processor)
    return _vision_tokens(processor) if served else None


def _runs_through_ours(processor: Any) -> bool:
    outermost = inspect.getattr_static(type(processor), "process_mm_data_async", None)
    while outermost is not None and not isinstance(outermost, wrapping.SeamWrapper):
        outermost = getattr(outermost, "__wrapped__", None)
    return outermost is not None


def _vision_tokens(processor: Any) -> VisionTokens:
    ids = {
        "image": processor.mm_tokens.image_token_id,
        "vision_start": processor.vision_start_token_id,
        "vision_end": processor.vision_end_token_id,
    }
    for name, token in ids.items():
        if not isinstance(token, int):
            raise TypeError(f"its {name} token id is {token!r}")
    foreign = {
        modality: token
        for modality in ("video", "audio")
        if isinstance(token := getattr(processor.mm_tokens, f"{modality}_token_id", None), int)
    }
    return VisionTokens(**ids, foreign=foreign)


def _preprocessed_grids(images: Iterable[Any]) -> list[GridTHW]:
    grids: list[GridTHW] = []
    for index, image in enumerate(images):
        rows = _grid_rows(image.get("image_grid_thw"))
        if not rows:
            raise ValueError(
                f"preprocessed item {index} of image_data holds no image_grid_thw, so the M-RoPE "
                f"positions of its image are unknown; its keys are {sorted(map(str, image))}"
            )
        grids += rows
    return grids


def _grid_rows(grids: Any, name: str = "image_grid_thw") -> list[GridTHW]:
    """(t, h, w) rows from a tensor, an array or nested lists of shape [N, 3] or [3].

    Raises
    ------
    ValueError
        Another shape, or sizes that are not whole and positive.
    """
    if grids is None:
        return []
    try:
        if isinstance(grids, (list, tuple)) and len(grids) and isinstance(grids[0], torch.Tensor):
            grids = torch.stack(list(grids))
        table = torch.as_tensor(grids)
        if table.numel() == 0:
            return []
        if table.ndim > 2 or table.shape[-1] != 3:
            raise ValueError(f"shape {list(table.shape)}")
        rows = table.reshape(-1, 3).tolist()
        if any(size != int(size) or size < 1 for row in rows for size in row):
            raise ValueError("sizes that are not whole and positive")
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise ValueError(
            f"{name} must be (t, h, w) for each image or video, of shape [N, 3] or [3], and is "
            f"{grids!s:.200}: {error}"
        ) from error
    return [(int(t), int(h), int(w)) for t, h, w in rows]


def _vocab_size(processor: Any) -> int:
    return int(processor.hf_config.get_text_config().vocab_size)


def _pixel_bounds(processor: Any) -> str:
    """The pixel bounds that the server's image processor really works with."""
    image_processor = getattr(processor._processor, "image_processor", None)
    # --mm-process-config, which SGLang hands to the image processor with every call
    config = dict(getattr(processor, "image_config", None) or {})
    sizes = [config.pop("size", None), getattr(image_processor, "size", None)]

    def bound(edge: str, name: str) -> Any:
        given = [size.get(edge) for size in sizes if size is not None]
        return next((pixels for pixels in given if pixels), getattr(image_processor, name, None))

    bounds = {
        "min_pixels": bound("shortest_edge", "min_pixels"),
        "max_pixels": bound("longest_edge", "max_pixels"),
        **config,
    }
    return ", ".join(f"{name} {value}" for name, value in bounds.items())


def _as_list(data: Any) -> Sequence[Any]:
    return data if isinstance(data, (list, tuple)) or hasattr(data, "shape") else [data]
