"""The command line ``deepeyes-patch``. No serving process imports it.

Commands:

``doctor``   checks the installation, and whether this SGLang needs the repairs and fits them
``verify``   runs the same requests stock and patched, and compares both with ``transformers``
``parity``   plays a visual episode on a running server, and compares it with ``transformers``
``run``      starts a command with the repairs on
``status``   shows what is patched in running processes, and what they have served

Each command is a module with ``add(commands)``, which describes it to argparse, and a function that takes the
parsed arguments and returns the exit code. A command that cannot give an answer raises
`terminal.CommandError`, whose message the user reads. The other modules:

``main``          the parser of all commands, and the exit code of an error
``project``       the project's address, and how to install the package again
``usage``         wrong arguments, and the word that was probably meant
``checkpoint``    finds the model that ``verify`` or ``parity`` names
``progress``      shows what a command is waiting for
``terminal``      lays out what a command writes, in 80 columns
``output``        stdout and stderr, and what happens if nobody takes what is written
``needs``         the packages that a command needs
``signals``       what a command does when it is told to end
``inspection``    collects the facts for ``doctor``
``findings``      judges these facts
``report``        prints them for an issue
``installation``  what is installed here, as files and metadata tell
``repairs``       which repairs this SGLang needs, and whether they fit, read in its source
``sides``         the child processes of ``verify``: stock, patched and ``transformers``
``verdicts``      judges what stock and patched SGLang answered to ``verify``
``unaided``       what ``doctor --deep`` asks stock SGLang
``deep``          child process of ``doctor --deep``: applies the repairs to the real SGLang
``probe``         starts child interpreters and checks whether they read our start-up file
``processes``     running processes and the records in them
``path``          the folder that ``run`` puts on ``PYTHONPATH`` if Python does not read our start-up file
"""
