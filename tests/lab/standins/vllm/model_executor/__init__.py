"""Only what SGLang imports; see `vllm`."""
