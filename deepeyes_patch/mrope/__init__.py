"""Interleaved M-RoPE, if SGLang lays the t/h/w frequencies out in chunks, or drops the h and w positions.

``lanes``            which axis each rotary lane takes its position from
``rotation``         cos/sin rows of a batch, in torch
``kernel``           the same rows, and the rotation by them, in Triton
``building``         which model is being built, and what stops it if the repair failed
``binding``          makes SGLang's ``get_rope`` return interleaved instances
``yarn``             gives a rope with sections the rows of a YaRN rope that has none
``gated_attention``  gives all three axes to Qwen3.5's fused attention kernel
``deepstack``        keeps deepstack features where SGLang fuses the all-reduce of a layer
``on_policy``        keeps the positions of images under ``--rl-on-policy-target``
"""
