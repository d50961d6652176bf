"""The changes in ``docs/upstream``, which are made for SGLang itself, on copies of a release."""
