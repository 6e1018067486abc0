"""How a log tells that a run did not fit."""

from __future__ import annotations

import re

_MARKS = re.compile(
    r"OutOfMemoryError|(?:CUDA|HIP|NPU|XPU) out of memory|RESOURCE_EXHAUSTED: (?:XLA|Out of memory|Ran out of memory)"
    r"|Ran out of memory in memory space"
)


def out_of_memory(text: str) -> bool:
    return _MARKS.search(text) is not None
