"""The lab: the real SGLang releases, tiny models and a reference, all on a CPU machine.

Modules, from the bottom up: ``releases`` (a table), ``pythons`` (finds interpreters), ``environments``
(installs releases) and ``children`` (runs a module in one) need only the standard library; ``models``
builds tiny checkpoints; ``processors`` runs a release's own processor class in this process; ``reference``
says what ``transformers`` makes of the same input; ``server`` and ``client`` run and ask a real server.

Importing a module of the lab never imports SGLang, torch or transformers: functions that need
them import them when called, so collection works in an environment that has none of them.
"""
