"""Fast tests of the package's own logic: no SGLang, no torch, seconds in total."""
