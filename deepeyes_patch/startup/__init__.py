"""From the first import of ``sglang`` to a server that is patched, or stopped.

``activation``  what the finder in `deepeyes_patch.bootstrap` calls: read the switch, install what it selects
``installer``   ``install``, ``uninstall`` and ``status``
``hooks``       post-import hooks, made from the table of seams
``stops``       the wrappers that let no server start unrepaired
``integrity``   damaged, mixed and outdated installations
"""
