"""Stands in for SGLang's router, 90 MB of Rust: miles imports it, and asks for its version where it ends."""

__version__ = "0.3.2"
