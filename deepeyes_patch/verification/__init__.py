"""What ``deepeyes-patch verify`` runs in child processes.

``tiny``      a checkpoint without weights, for when the user gives none
``harness``   SGLang's real processor, as its tokenizer manager makes and calls it
``expected``  what ``transformers`` makes of the same model
``requests``  what is sent, and what must come of it
``rope``      a model's rotary embedding, SGLang's and that of ``transformers``
``child``     the program that a child process runs
"""
