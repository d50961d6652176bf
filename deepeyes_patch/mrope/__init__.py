"""Interleaved M-RoPE where SGLang lays the t/h/w frequencies out in chunks, or drops two of them.

``lanes``      which axis each rotary lane takes its position from
``rotation``   cos/sin rows of a batch, in torch
``binding``    how SGLang's ``get_rope`` comes to hand out interleaved instances
"""
