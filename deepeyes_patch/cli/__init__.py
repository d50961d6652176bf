"""The command line ``deepeyes-patch``. Nothing that a serving process runs imports it.

Commands:

``doctor``   is it installed right, and does this SGLang need and fit it?
``verify``   the same requests, stock and patched, beside ``transformers``
``run``      start a command with the repairs on
``status``   what is patched in running processes, and what they have served

Each command is a module with ``add(commands)``, which describes it to argparse, and a function that takes the
parsed arguments and returns the exit code. A command that has no answer raises `terminal.CommandError`, whose
message the user reads. The other modules:

``main``          the parser of all commands, and the exit code of an error
``terminal``      writes in 80 columns
``inspection``    what ``doctor`` looks at
``findings``      judges it
``installation``  what is installed here, as files and metadata tell
``repairs``       which repairs this SGLang needs, and whether they fit, read in its source
``deep``          child of ``doctor --deep``: the same in a real process
``probe``         asks child interpreters whether our start-up file reaches them
``processes``     running processes and the records in them
``path``          the folder that ``run`` puts on ``PYTHONPATH`` where our start-up file is not read
"""
