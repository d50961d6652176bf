"""Many requests at the same time, some of them malformed, against one patched server."""
