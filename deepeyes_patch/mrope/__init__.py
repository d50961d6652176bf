"""Interleaved M-RoPE where SGLang lays the t/h/w frequencies out in chunks, or drops two of them.

``lanes``            which axis each rotary lane takes its position from
``rotation``         cos/sin rows of a batch, in torch
``kernel``           the same rows, and the rotation by them, in Triton
``building``         which model is being built, and what stops it where the repair failed
``binding``          how SGLang's ``get_rope`` comes to hand out interleaved instances
``gated_attention``  how Qwen3.5's fused attention kernel comes to see all three axes
"""
