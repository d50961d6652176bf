"""Random requests for the real processor classes, and a judge that decides from the definition alone."""
