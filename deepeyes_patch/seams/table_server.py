"""The rows of ``processor`` outside the processor class: tokenizer manager, scheduler, servers.

`table` has the others, and puts them together.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepeyes_patch.seams.rows import Owner, Seam, always, defining, named, nowhere

FACTORY = "sglang.srt.managers.multimodal_processor"
TOKENIZER_MANAGER = "sglang.srt.managers.tokenizer_manager"
HTTP_WORKERS = "sglang.srt.managers.multi_tokenizer_mixin"
RECEIVERS = ("sglang.srt.disaggregation.encode_receiver", "sglang.srt.disaggregation.encoder.receiver")
SERVING_CHAT = "sglang.srt.entrypoints.openai.serving_chat"
GRPC_SERVER = "sglang.srt.entrypoints.grpc_server"
# The package that serves gRPC for SGLang 0.5.10 and later; the rows about it name its own releases.
GRPC_SERVICER = "smg_grpc_servicer.sglang.servicer"
_GRPC_START = "smg_grpc_servicer.sglang.server"
# What a scheduler does with an update of the weights; the module has moved once.
WEIGHT_UPDATERS = (
    "sglang.srt.managers.scheduler_update_weights_mixin",
    "sglang.srt.managers.scheduler_components.weight_updater",
)
SAMPLING_BATCH = "sglang.srt.sampling.sampling_batch_info"
SCHEDULE_BATCH = "sglang.srt.managers.schedule_batch"
# What a scheduler returns of log-probs; the module has moved once.
LOGPROB_RESULTS = (
    "sglang.srt.managers.scheduler_output_processor_mixin",
    "sglang.srt.managers.scheduler_components.logprob_result_processor",
)
SCHEDULER = "sglang.srt.managers.scheduler"
# The module has moved once.
SESSIONS = ("sglang.srt.managers.session_controller", "sglang.srt.session.session_controller")
RUST_SERVERS = ("sglang.srt.managers.rust_server", "sglang.srt.rust_server.server")


def _moved(
    modules: Sequence[str], releases: Sequence[str], owner: Owner, signature: str, wrapper: str, role: str
) -> list[Seam]:
    """The rows of a function whose module has another name in later releases."""
    return [
        Seam("processor", module, owner, signature, wrapper, own, role, optional_module=True)
        for module, own in zip(modules, releases, strict=True)
    ]


AROUND_THE_PROCESSOR = (
    Seam(
        *("processor", FACTORY, None),
        "async? get_mm_processor(hf_config)",
        "startup.stops:get_processor",
        "0.5.3 -",
        "stop a Qwen-VL model whose processor does not run through our wrappers",
        imported_by_name=True,
    ),
    Seam(
        *("processor", TOKENIZER_MANAGER, named("TokenizerManager")),
        "async _tokenize_one_request(obj)",
        "request.admit:admit",
        "0.5.3 -",
        "refuse placeholders without media, and ids that SGLang cut; the last look, whatever the path",
    ),
    Seam(
        *("processor", TOKENIZER_MANAGER, named("TokenizerManager")),
        "async? generate_request(obj)",
        "request.cleanup:generate",
        "0.5.3 -",
        "remove the state of a refused request, which 0.5.10 - 0.5.13 keep for ever",
        required=nowhere,
    ),
    Seam(
        *("processor", TOKENIZER_MANAGER, None),
        "wrap_shm_features(obj)",
        "request.handover:wrap_features",
        "0.5.9 -",
        "give each sample of a request (`n`) its images; to 0.5.12.post1, SGLang ends without it",
        required=nowhere,
    ),
    Seam(
        *("processor", SERVING_CHAT, named("OpenAIServingChat")),
        "_can_reuse_text_only_prompt_ids(processed_messages)",
        "request.admit:keep_text",
        "0.5.22 -",
        "leave a chat whose text names a placeholder a text, as it was before it became ids",
        required=nowhere,
        optional_module=True,
    ),
    Seam(
        *("processor", HTTP_WORKERS, None),
        "write_to_shared_memory(obj, name)",
        "startup.stops:start_http_workers",
        "0.5.3 -",
        "stop HTTP workers that nothing of ours would reach",
        optional_module=True,
    ),
    *(
        Seam(
            *("processor", module, defining(method)),
            signature,
            f"request.disaggregation:{wrapper}",
            "0.5.17 - 0.5.18" if "consume_parts" in signature and releases[-1].isdigit() else releases,
            "hand a refusal over as a refusal, where a request waits for an encoder",
            required=always if method in signature else nowhere,
            optional_module=True,
        )
        for module, releases in zip(RECEIVERS, ("0.5.7 - 0.5.18", "0.5.19 -"), strict=True)
        for method, signature, wrapper in (
            ("_try_recv_mm_data", "_try_recv_mm_data(self)", "receive"),
            ("_try_recv_mm_data", "consume_parts(self, parts)", "receive"),
            ("_recv_mm_data", "async _recv_mm_data(mm_processor, prompt)", "receive_in_tokenizer"),
        )
    ),
    *(
        Seam(
            *("processor", module, defining("update_weights_from_disk")),
            f"update_weights_from_{source}(recv_req)",
            "request.features:update_weights",
            releases if source != "ipc" else releases.replace("0.5.3", "0.5.4"),
            "drop the vision features that SGLang keeps: they are of the old weights",
            required=nowhere,
            optional_module=True,
        )
        for module, releases in zip(WEIGHT_UPDATERS, ("0.5.3 - 0.5.12.post1", "0.5.13 -"), strict=True)
        for source in ("disk", "tensor", "distributed", "ipc")
    ),
    Seam(
        *("processor", SCHEDULE_BATCH, named("MultimodalDataItem")),
        "set_pad_value(self)",
        "request.hashes:set_pad_value",
        "0.5.3 -",
        "make the hash of an image depend on its grid, so that the prefix cache tells pictures apart",
    ),
    Seam(
        *("processor", SCHEDULE_BATCH, named("ScheduleBatch")),
        "prepare_for_extend(self)",
        "request.prompt_logprobs:choose_ids",
        "0.5.3 -",
        "log-probs of the prompt: take them of the placeholders, not of what SGLang pads them with",
    ),
    *_moved(
        *(LOGPROB_RESULTS, ("0.5.3 - 0.5.12.post1", "0.5.13 -"), defining("add_input_logprob_return_values")),
        "add_input_logprob_return_values(req)",
        "request.prompt_logprobs:return_ids",
        "log-probs of the prompt: return the placeholders, not 0",
    ),
    Seam(
        *("processor", SCHEDULER, named("Scheduler")),
        "handle_generate_request(recv_req)",
        "request.sessions:handle_request",
        "0.5.3 -",
        "sessions: whether the model is one of ours",
    ),
    *_moved(
        *(SESSIONS, ("0.5.3 - 0.5.10.post1", "0.5.11 -"), named("Session")),
        "create_req(req)",
        "request.sessions:create_request",
        "sessions: the positions of the whole prompt, for a turn without images",
    ),
    Seam(
        *("processor", SCHEDULE_BATCH, named("Req")),
        "extend_image_inputs(image_inputs)",
        "request.sessions:extend_inputs",
        "0.5.3 -",
        "sessions: the positions of the whole prompt, for a turn with images",
    ),
    Seam(
        *("processor", GRPC_SERVER, None),
        "async serve_grpc(server_args)",
        "startup.stops:serve_grpc",
        "0.5.3 -",
        "stop a Qwen-VL model on a gRPC server that drops images, or that nothing of ours would reach",
        optional_module=True,
    ),
    *(
        Seam(
            *("processor", GRPC_SERVICER, named("SGLangSchedulerServicer")),
            signature,
            wrapper,
            "smg-grpc-servicer 0.5.0 -",
            role,
            optional_module=True,
            door=wrapper if "__init__" in signature else None,
            reported="generate" in signature,
        )
        for signature, wrapper, role in (
            (
                "__init__(server_args)",
                "startup.stops:construct_servicer",
                "read the model's configuration; stop SGLang where it lacks something",
            ),
            (
                "_convert_generate_request(grpc_req)",
                "request.over_grpc:convert",
                "refuse images and placeholders that contradict each other; add M-RoPE positions",
            ),
            (
                "_convert_embed_request(grpc_req)",
                "request.over_grpc:convert",
                "refuse images, which SGLang drops there, and placeholders without images",
            ),
        )
    ),
    Seam(
        *("processor", _GRPC_START, None),
        "async serve_rust(server_args)",
        "startup.stops:serve_rust",
        "smg-grpc-servicer 0.13.6 -",
        "stop a Qwen-VL model on the Rust servicer, which takes requests past the Python one",
        required=nowhere,
        optional_module=True,
    ),
    *_moved(
        *(RUST_SERVERS, ("0.5.17 - 0.5.18", "0.5.19 -"), named("RustServer")),
        "launch(scheduler)",
        "startup.stops:launch_rust_server",
        "stop a Qwen-VL model on the Rust server, which takes requests past the processor",
    ),
)
