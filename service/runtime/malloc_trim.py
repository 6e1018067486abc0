"""What is freed goes back to the system: glibc keeps what a large search held, hundreds of MiB, for
the next one."""

from __future__ import annotations

import ctypes
import sys
from typing import Any


def trim() -> None:
    """Give back what nothing holds, where the C library can (malloc_trim(3))."""
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)


_MALLOC_TRIM: Any = (
    getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
)
