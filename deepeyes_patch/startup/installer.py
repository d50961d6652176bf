"""Register the post-import hooks, keep what became of them, and stop SGLang where one failed.

A hook never raises. SGLang turns an exception during the import of one of its processor modules into a
warning and goes on, and wrapt fires a raising hook only once, so whoever imports the module next gets
it unpatched. The failure is kept instead, and comes out when a Qwen-VL processor is constructed.

wrapt is the only import here that is not ours or the standard library's: torch must not be imported
because somebody imported the top of ``sglang``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import wrapt

from deepeyes_patch import __version__, bootstrap, settings
from deepeyes_patch.errors import DeepEyesPatchError, SettingsError
from deepeyes_patch.observe import counters, record
from deepeyes_patch.seams import examine as compat
from deepeyes_patch.seams import table as seams
from deepeyes_patch.seams import wrapping
from deepeyes_patch.settings import DEFAULT, REPAIRS, SWITCH

logger = logging.getLogger("deepeyes_patch")
_HTTP_SERVER = "sglang.srt.entrypoints.http_server"

_WRAPT_MINIMUM = (1, 16)

# Model types whose processor has to be ours, by prefix. For the others a class that SGLang derives from the
# Qwen-VL one may override the outermost method, or their configuration may lack what the repair reads.
_QWEN_VL_TYPES = (
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "qwen3_omni_moe", "qwen4_exp"),
    *("intern_s2_preview", "interns2_mobius", "cosmos3_omni"),
)

# Imported by the hooks, when torch is there.
_OWN_MODULES = (
    "ids.spans",
    "ids.video_blocks",
    "ids.request",
    "ids.positions",
    "request.frames",
    "request.unserved",
    "request.disaggregation",
    "request.begin",
    "request.admit",
    "startup.stops",
    "mrope",
    "mrope.kernel",
    "mrope.lanes",
    "mrope.rotation",
    "mrope.binding",
    "mrope.gated_attention",
)

_lock = threading.RLock()
_wanted: frozenset[str] = frozenset()
_environment: dict[str, str] = {}
_outcomes: dict[str, str] = {}
_failures: dict[str, Exception] = {}
_announced = ""


def install(repairs: Iterable[str] | None = None) -> None:
    """Switch repairs on in this process, and in the children that it starts from now on.

    Modules of SGLang that are imported already are patched at once, the others when they are imported.
    Installing again adds repairs; what is patched already stays as it is.

    Parameters
    ----------
    repairs:
        Names out of `deepeyes_patch.settings.REPAIRS`, beside those that the environment selects.
        ``None``: what the environment selects, and `deepeyes_patch.settings.DEFAULT` where it says
        nothing; where it says off, nothing.

    Raises
    ------
    SettingsError
        An unknown repair, ``video`` without ``processor``, or an environment variable that is not
        understood.
    DeepEyesPatchError
        wrapt is too old.
    """
    global _wanted
    selected = settings.read(os.environ)
    if repairs is None:
        wanted = selected.repairs if selected.source else DEFAULT
    else:
        wanted = frozenset([repairs] if isinstance(repairs, str) else repairs) | selected.repairs
        unknown = sorted(wanted.difference(REPAIRS))
        if unknown:
            raise SettingsError(f"unknown repairs {unknown}; there are {', '.join(REPAIRS)}")
        settings.require_base(wanted | _wanted, f"install({sorted(wanted)})")
    if not wanted:
        return
    _require_wrapt()
    _require_own_modules()
    with _lock:
        if not _wanted:
            _environment.clear()
            _environment.update({SWITCH: os.environ[SWITCH]} if SWITCH in os.environ else {})
        _wanted |= wanted
        os.environ[SWITCH] = ",".join(sorted(_wanted))
        bootstrap.mark_watching()
        for repair in sorted(wanted):
            for module_name, hook in _HOOKS[repair]:
                _when_imported(module_name, hook)
        _publish()


def uninstall() -> None:
    """Put every original back in this process and leave later imports unpatched.

    The environment is again what it was before `install`, for children started from now on, unless it
    would switch them on: then it says off.

    Raises
    ------
    RuntimeError
        Another package has wrapped one of our wrappers; nothing is changed then.
    """
    global _wanted, _announced
    with _lock:
        wrapping.restore_all()
        if _outcomes.get("video"):
            _undo_video()
        _wanted = frozenset()
        _failures.clear()
        _outcomes.clear()
        _announced = ""
        record.withdraw()
        os.environ.pop(SWITCH, None)
        os.environ.update(_environment)
        if settings.read(os.environ).repairs:
            os.environ[SWITCH] = "off"


def status() -> dict[str, str]:
    """What has become of each repair in this process: ``{repair: a few words for people}``."""
    wanted = _wanted
    if bootstrap.is_waiting():
        wanted |= settings.read(os.environ).repairs
    return {repair: _state(repair, wanted) for repair in REPAIRS}


def _publish() -> None:
    # Where a script has meanwhile set the switch to nonsense; a hook never raises, and others will.
    with contextlib.suppress(SettingsError):
        record.publish(__version__, status(), counters.NAMES)


def _state(repair: str, wanted: frozenset[str]) -> str:
    if repair not in wanted:
        return "off"
    if repair in _failures:
        return f"failed ({str(_failures[repair]).splitlines()[0]})"
    return _outcomes.get(repair, "waiting")


def _require_wrapt() -> None:
    found: str = wrapt.__version__  # type: ignore[attr-defined]
    if tuple(int(part) for part in found.split(".")[:2]) < _WRAPT_MINIMUM:
        raise DeepEyesPatchError(
            f"deepeyes-patch needs wrapt 1.16 or newer and found {found} ({wrapt.__file__}). "
            f"Run: pip install 'wrapt>=1.16'"
        )


def _require_own_modules() -> None:
    """Notice a damaged installation now, while SGLang can still be stopped."""
    for name in _OWN_MODULES:
        if importlib.util.find_spec(f"deepeyes_patch.{name}") is None:
            raise DeepEyesPatchError(
                f"deepeyes_patch.{name} is missing from the installation in {os.path.dirname(__file__)}. "
                f"Run: pip install --force-reinstall deepeyes-patch"
            )


# --- hooks --------------------------------------------------------------------------------------------


def _when_imported(module_name: str, hook: Callable[[ModuleType], None]) -> None:
    # wrapt forgets a hook once its module is imported, so registering again is what patches a module
    # that was imported before; wrapping twice is prevented where it happens.
    wrapt.register_post_import_hook(hook, module_name)


def _recorded(repair: str, patch: Callable[[ModuleType], str | None]) -> Callable[[ModuleType], None]:
    """A hook that applies ``patch`` and keeps its outcome or its exception."""

    def hook(module: ModuleType) -> None:
        with _lock:
            if repair not in _wanted:
                return
            try:
                outcome = patch(module)
            except Exception as error:  # whatever it is, it must come out where SGLang listens
                _failures.setdefault(repair, error)
            else:
                if outcome is not None:
                    _outcomes[repair] = outcome
            _publish()

    return hook


@contextlib.contextmanager
def _importing(name: str) -> Iterator[None]:
    """Around an import of ours in a hook or later: by then another version may be installed, or none.

    Raises
    ------
    DeepEyesPatchError, RuntimeError
        A module of ours is gone, or is one of another version.
    """
    try:
        if f"deepeyes_patch.{name}" not in sys.modules:
            bootstrap.require_same_version()
        yield
    except ImportError as error:
        if not (error.name or "").startswith("deepeyes_patch"):  # torch, say
            raise
        raise DeepEyesPatchError(bootstrap.UNLOADABLE.format(error=error)) from error


def _patch_processor(module: ModuleType) -> str:
    # First the door, then the house: should anything below fail, construction is refused.
    candidates = compat.classes_defined_in(module, lambda cls: hasattr(cls, "process_mm_data_async"))
    for cls in candidates:
        wrapping.wrap(cls, "__init__", _construct)
    with _importing("request.begin"):
        from deepeyes_patch.request import begin as processor

    cls = processor.apply(module, SWITCH)
    return f"patched ({cls.__name__})"


def _patch_factory(module: ModuleType) -> None:
    compat.require(module, seams.FACTORY, "processor", SWITCH)
    wrapping.wrap(module, "get_mm_processor", _get_mm_processor)


def _patch_intake(module: ModuleType) -> None:
    with _importing("request.admit"):
        from deepeyes_patch.request import admit as intake

    intake.apply(module, SWITCH)


def _patch_receiver(module: ModuleType) -> None:
    with _importing("request.disaggregation"):
        from deepeyes_patch.request import disaggregation as receiver

    receiver.apply(module, "processor", SWITCH)


def _patch_workers(module: ModuleType) -> None:
    with _importing("startup.stops"):
        from deepeyes_patch.startup import stops as workers

    workers.apply(module, "processor", SWITCH, _qwen_vl_type)


def _patch_rust_server(module: ModuleType) -> None:
    server = getattr(module, "RustServer", None)
    compat.require(server, seams.RUST_SERVER, "processor", SWITCH)
    wrapping.wrap(server, "launch", _launch_rust_server)


def _patch_grpc_server(module: ModuleType) -> None:
    compat.require(module, seams.GRPC_SERVER, "processor", SWITCH)
    wrapping.wrap(module, "serve_grpc", _serve_grpc)


def _patch_video(module: ModuleType) -> str:
    from deepeyes_patch.request import begin as processor

    processor.apply_video(module, SWITCH)
    return "patched (preprocess_video)"


def _undo_video() -> None:
    from deepeyes_patch.request import begin as processor

    processor.undo_video()


@contextlib.contextmanager
def _or_refused(module: ModuleType) -> Iterator[None]:
    """Where what `binding.refuse` is in cannot be imported: let no rope with sections be built."""
    try:
        yield
    except Exception as error:
        failure = error

        def get_rope(
            wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            if any(isinstance(a, dict) and "mrope_section" in a for a in (*args, *kwargs.values())):
                raise failure.with_traceback(None)
            return wrapped(*args, **kwargs)

        if hasattr(module, "get_rope"):
            wrapping.wrap(module, "get_rope", get_rope)
        raise


def _patch_rope(module: ModuleType) -> str:
    with _or_refused(module), _importing("mrope.binding"):
        from deepeyes_patch.mrope import binding

    try:
        return binding.apply(module, SWITCH, _announce)
    except Exception as error:
        binding.refuse(module, error)
        raise


def _patch_qwen3_5(module: ModuleType) -> str | None:
    with _or_refused(module), _importing("mrope.gated_attention"):
        from deepeyes_patch.mrope import binding, gated_attention

    binding.apply_to_model(module)
    try:
        return gated_attention.apply(module, SWITCH, _announce)
    except Exception as error:
        binding.refuse(module, error)
        raise


def _patch_qwen3_vl(module: ModuleType) -> None:
    from deepeyes_patch.mrope import binding

    binding.apply_to_model(module)


_HOOKS: dict[str, tuple[tuple[str, Callable[[ModuleType], None]], ...]] = {
    "processor": (
        ("sglang.srt.multimodal.processors.qwen_vl", _recorded("processor", _patch_processor)),
        ("sglang.srt.managers.multimodal_processor", _recorded("processor", _patch_factory)),
        ("sglang.srt.managers.tokenizer_manager", _recorded("processor", _patch_intake)),
        ("sglang.srt.managers.multi_tokenizer_mixin", _recorded("processor", _patch_workers)),
        ("sglang.srt.disaggregation.encode_receiver", _recorded("processor", _patch_receiver)),
        ("sglang.srt.disaggregation.encoder.receiver", _recorded("processor", _patch_receiver)),
        ("sglang.srt.entrypoints.grpc_server", _recorded("processor", _patch_grpc_server)),
        ("sglang.srt.managers.rust_server", _recorded("processor", _patch_rust_server)),
        ("sglang.srt.rust_server.server", _recorded("processor", _patch_rust_server)),
    ),
    # Registered after the processor's hook, whose wrappers it steers.
    "video": (("sglang.srt.multimodal.processors.qwen_vl", _recorded("video", _patch_video)),),
    # The models take get_rope from the first when they are imported, so it always comes first.
    "mrope": (
        ("sglang.srt.layers.rotary_embedding", _recorded("mrope", _patch_rope)),
        ("sglang.srt.models.qwen3_vl", _recorded("mrope", _patch_qwen3_vl)),
        ("sglang.srt.models.qwen3_vl_moe", _recorded("mrope", _patch_qwen3_vl)),
        ("sglang.srt.models.qwen3_5", _recorded("mrope", _patch_qwen3_5)),
    ),
}


# --- where SGLang stops -------------------------------------------------------------------------------


def _construct(
    wrapped: Callable[..., None], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Construct a Qwen-VL processor, or raise what went wrong while it was patched."""
    _raise_failure("processor")
    _raise_failure("video")
    wrapped(*args, **kwargs)
    from deepeyes_patch.request import begin as processor

    model_type = _qwen_vl_type(getattr(instance, "hf_config", None))
    processor.check_construction(instance, SWITCH, required=model_type is not None)
    if getattr(getattr(instance, "server_args", None), "enable_metrics", False):
        counters.export()
    _announce()


def _get_mm_processor(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Refuse a processor for a Qwen-VL model that does not run through our wrappers."""
    constructed = wrapped(*args, **kwargs)
    model_type = _qwen_vl_type(wrapping.bind(wrapped, args, kwargs).arguments["hf_config"])
    if model_type is None:
        return constructed
    _raise_failure("processor")
    from deepeyes_patch.request import begin as processor

    if processor.vision_tokens(constructed) is None:
        raise compat.incompatible(
            "request.begin",
            SWITCH,
            [
                f"model type {model_type} is served by {compat.origin(type(constructed))}, which does "
                f"not run through the Qwen-VL processor that deepeyes-patch has wrapped. Either switch "
                f"off what put that class there, or set {SWITCH}=off"
            ],
        )
    return constructed


def _launch_rust_server(
    wrapped: Callable[..., Any], server: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Refuse a Qwen-VL model on SGLang's embedded Rust server (0.5.17 and later, if asked for).

    It stands in the tokenizer manager's place, and tokenizes and processes images in compiled code: no
    request would meet a wrapper of ours, and expanded ids end in HTTP 500.
    """
    model_type = _qwen_vl_type(
        wrapping.bind(wrapped, args, kwargs).arguments["scheduler"].model_config.hf_config
    )
    if model_type is not None:
        raise compat.incompatible(
            "request.begin",
            SWITCH,
            [
                f"model type {model_type} would be served by SGLang's Rust server (SGLANG_RUST_SERVER), "
                f"whose compiled code takes requests past everything that deepeyes-patch has wrapped. Either "
                f"unset SGLANG_RUST_SERVER, or set {SWITCH}=off"
            ],
        )
    return wrapped(*args, **kwargs)


def _serve_grpc(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Refuse a Qwen-VL model on SGLang's gRPC server (``--grpc-mode``, ``--smg-grpc-mode``).

    Requests come tokenized and their images preprocessed: no request would meet a wrapper of ours, although
    the scheduler has a processor and says *patched*; images get text positions without a word.
    """
    with _importing("startup.stops"):
        from deepeyes_patch.startup import stops as workers

    model_type = _qwen_vl_type(
        workers.hf_config(wrapping.bind(wrapped, args, kwargs).arguments["server_args"])
    )
    if model_type is not None:
        raise compat.incompatible(
            "request.begin",
            SWITCH,
            [
                f"model type {model_type} would be served over gRPC (--grpc-mode, --smg-grpc-mode), whose "
                f"requests come preprocessed, past everything that deepeyes-patch has wrapped, and without "
                f"M-RoPE positions. Either serve it over HTTP, or set {SWITCH}=off"
            ],
        )
    return wrapped(*args, **kwargs)


def _qwen_vl_type(hf_config: Any) -> str | None:
    """The model type, where it is one whose requests must run through our wrappers."""
    model_type = getattr(hf_config, "model_type", None) or ""
    return model_type if model_type.startswith(_QWEN_VL_TYPES) else None


def _raise_failure(repair: str) -> None:
    if repair in _failures:
        raise _failures[repair].with_traceback(None)  # it would grow with every construction


def _announce() -> None:
    """Say in SGLang's log what was done to this process: once, and again when more was done since.

    Not earlier: SGLang sets its logging up after its modules are imported.
    """
    global _announced
    states = "; ".join(f"{repair}: {state}" for repair, state in status().items())
    if states == _announced:
        return
    _announced = states
    _heard_logger().info(
        "deepeyes-patch %s, SGLang %s, pid %d: %s",
        __version__,
        compat.sglang_version(),
        os.getpid(),
        states,
    )


def _heard_logger() -> logging.Logger:
    """Ours; in an HTTP worker (``--tokenizer-worker-num``) that of SGLang's HTTP server.

    There SGLang sets up no other one, and a worker that says nothing cannot be told from an unrepaired one.
    """
    return logger if logger.isEnabledFor(logging.INFO) else logging.getLogger(_HTTP_SERVER)
