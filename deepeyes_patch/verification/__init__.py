"""What ``deepeyes-patch verify`` runs in child processes, and what ``deepeyes-patch parity`` does.

``tiny``      a checkpoint without weights, used if the user names none
``harness``   builds and calls SGLang's real processor as its tokenizer manager does
``expected``  the values that ``transformers`` computes for the same model
``requests``  the requests, and the result that each must have
``rope``      a model's rotary embedding, in SGLang and in ``transformers``
``child``     the program that a child process runs

``trainer``   parity: a checkpoint in ``transformers``, its ids and log-probs
``episode``   parity: a visual episode on a running server, beside the trainer
"""
