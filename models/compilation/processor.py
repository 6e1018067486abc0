"""The processor that machine code is made for."""

from __future__ import annotations

import numba
from llvmlite.binding import get_host_cpu_features

_X86_64_V3 = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
"""The features of a processor of level 3 of the x86-64 psABI, which nearly all since 2015 have."""


def target_shared_processor_level() -> None:
    """Set numba's target to the processor level x86-64-v3 if this processor has it, so that what
    one machine compiled runs on others of that level. The code is as fast as for this processor:
    what later levels add is for long vectors. A user's NUMBA_CPU_NAME takes precedence."""
    if numba.config.CPU_NAME is None and all(map(_features().get, _X86_64_V3)):
        numba.config.CPU_NAME = "x86-64-v3"
        numba.config.CPU_FEATURES = ""


def _features() -> dict[str, bool]:
    """Return the features of this processor; none where they are not known."""
    try:
        return {**get_host_cpu_features()}
    except RuntimeError:
        return {}
