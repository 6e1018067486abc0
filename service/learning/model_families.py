"""Families of models, by the names of their members. Statistics, filters and drift take the sizes
of one family together, because few runs are of any one size."""

from __future__ import annotations

import re

_SIZE = re.compile(r"-(?:\d+x)?\d+(?:\.\d+)?[bmt](?:-.*)?$", re.IGNORECASE)


def family_of(architecture: str) -> str:
    """Returns a model's name up to its size: `llama-3.1` for `llama-3.1-405b`, `qwen3` for
    `qwen3-235b-a22b`. A name without a size is returned whole."""
    return _SIZE.sub("", architecture) or architecture
