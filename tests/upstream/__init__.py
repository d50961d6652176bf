"""The changes in ``docs/upstream``, made for SGLang itself, on copies of a release; and its own tests."""
