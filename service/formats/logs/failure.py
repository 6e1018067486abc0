"""How a log tells that a run did not fit."""

from __future__ import annotations

import re

_MARKS = re.compile(
    r"OutOfMemoryError|(?:CUDA|HIP|NPU|XPU)(?: error:)? out of memory|Cuda failure (?:\d+ )?'out of"
    r" memory'"
    r"|cudaErrorMemoryAllocation|(?:CU|HIP|ROC)BLAS_STATUS_ALLOC_FAILED"
    r"|RESOURCE_EXHAUSTED: (?:XLA|Out of memory|Ran out of memory|Attempting to"
    r" (?:allocate|reserve)|Error allocating"
    r"|Error loading program|Failed to allocate)"
    r"|Ran out of memory in memory space"
)


def out_of_memory(text: str) -> bool:
    return _MARKS.search(text) is not None


def after_the_last(text: str) -> str:
    """What follows the last line that tells so."""
    end = max((mark.end() for mark in _MARKS.finditer(text)), default=0)
    return text[end:]
