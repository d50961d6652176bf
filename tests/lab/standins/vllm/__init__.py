"""Stand-in for the few modules of vLLM that 0.5.3-era SGLang imports where there is no CUDA.

Only these modules exist, so SGLang's own "is vLLM installed?" checks for anything else still
answer no.
"""

__version__ = "0+lab"
