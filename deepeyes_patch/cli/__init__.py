"""The command line ``deepeyes-patch``. Nothing that a serving process runs imports it.

``doctor``   is it installed right, and does this SGLang need and fit it?
``verify``   the same requests, stock and patched, beside ``transformers``
``run``      start a command with the repairs on
``status``   what is patched in running processes, and what they have served

Each command is a module with ``add(commands)``, which describes it to argparse, and a function that takes the
parsed arguments and returns the exit code. What the user cannot be told otherwise is a `CommandError`.
"""
