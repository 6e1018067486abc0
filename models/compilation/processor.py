"""The processor that machine code is for."""

from __future__ import annotations

import numba
from llvmlite.binding import get_host_cpu_features

_X86_64_V3 = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
"""What a processor of this level of the x86-64 psABI has, as nearly all since 2015 have."""


def target_any_like_this_one() -> None:
    """Makes numba compile for all processors of the level x86-64-v3 where this is one, so that what
    one machine compiled runs on another. It is as fast: what later processors have besides is for
    long vectors. NUMBA_CPU_NAME goes before this."""
    if numba.config.CPU_NAME is None and all(map(_features().get, _X86_64_V3)):
        numba.config.CPU_NAME = "x86-64-v3"
        numba.config.CPU_FEATURES = ""


def _features() -> dict[str, bool]:
    """What this processor has, or nothing where that is not known."""
    try:
        return {**get_host_cpu_features()}
    except RuntimeError:
        return {}
