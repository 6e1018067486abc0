"""Families of models, by the names of their members."""

from __future__ import annotations

import re

_SIZE = re.compile(r"-(?:\d+x)?\d+(?:\.\d+)?[bmt](?:-.*)?$", re.IGNORECASE)


def family_of(architecture: str) -> str:
    """`llama-3.1` of `llama-3.1-405b`, `qwen3` of `qwen3-235b-a22b`; a name without a size is a
    family of its own."""
    return _SIZE.sub("", architecture) or architecture
