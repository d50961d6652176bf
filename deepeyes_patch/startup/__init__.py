"""From the first import of ``sglang`` to a server that is patched, or stopped.

``activation``      what `deepeyes_patch.bootstrap` calls: reads the switch, installs repairs
``installer``     ``install`` and ``uninstall``
``hooks``         post-import hooks, made from the table of seams
``again``         runs them again on a module that is imported again
``stops``         the wrappers that stop a server which would run unrepaired
``failed_start``  a start that is stopped ends, and is heard
``integrity``     damaged, mixed and outdated installations
"""
