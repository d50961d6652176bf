"""``make matrix``: every SGLang release, stock and patched, and the table in ``docs/compatibility.md``.

Modules, from the bottom up: ``cases`` (what is asked of a release's own classes, and what is right),
``probe`` and ``served`` (children that run in a release's environment and write JSON), ``table`` (from JSON
to Markdown) and ``run`` (the loop over the releases). The last two need only the standard library.
"""
