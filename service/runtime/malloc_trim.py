"""Returns freed memory to the system. Without it glibc keeps the hundreds of MiB that a large
search has freed."""

from __future__ import annotations

import ctypes
import sys
from typing import Any


def trim() -> None:
    """Gives free memory back where the C library has malloc_trim(3), and does nothing elsewhere."""
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)


_MALLOC_TRIM: Any = (
    getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
)
