"""``make matrix``: every SGLang release, stock and patched, and the tables in ``docs/*/releases.md``.

Modules, from the bottom up: ``cases`` (what is asked of a release's own classes, and what is right),
``probe`` and ``served`` (children that run in a release's environment and write JSON), ``table`` (from JSON
to Markdown), ``brief`` and ``chinese`` (other pages, made from that page) and ``run`` (the loop over the
releases). All but the first three need only the standard library.
"""
