"""The RL frameworks' own client code, unmodified, on real SGLang servers: stock and patched.

A test starts a *child*: a small program (``strands_child.py``) that lets the framework's own functions play
an episode of three turns. The child runs in the release's environment with the framework's packages last on
its path (`layers`), so that SGLang, torch and transformers are the lab's. Whatever of a framework needs a
GPU, Megatron or a cluster at its import is replaced by a module of ``standins/FRAMEWORK``.

Between child and server stands `wire`, a proxy that records what the framework sends and what SGLang
answers. (verl holds its server in a Ray actor and sends nothing over a wire: `verl_server` records there.)
`judging` compares three things: the ids that the framework has recorded, the ids on the wire, and the
log-probs of ``transformers`` on these ids.

- ``recorded``: requests of frameworks that are on no index; ``test_recorded`` sends them
- ``layers``: the pinned packages of each framework, and its environment
- ``playing``: what all children share: the task, its pictures, and how they report
- ``driving``: starts a child and reads its report
- ``wire``: the recording proxy
- ``judging``: what is asserted of an episode
"""
