"""Messages in a log which say that a run ran out of memory, or crashed."""

from __future__ import annotations

import re

_MARKS = re.compile(
    r"OutOfMemoryError|hipErrorOutOfMemory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|(?:CUDA|HIP|NPU|XPU)(?: error:)? out of memory|Cuda failure (?:\d+ )?'out of"
    r" memory'"
    r"|cudaErrorMemoryAllocation|(?:CU|HIP|ROC)BLAS_STATUS_ALLOC_FAILED"
    r"|RESOURCE_EXHAUSTED: (?:XLA|Out of memory|Ran out of memory|Attempting to"
    r" (?:allocate|reserve)|Error allocating"
    r"|Error loading program|Failed to allocate)"
    r"|Ran out of memory in memory space"
)


_CRASHES = re.compile(
    r"Traceback \(most recent call last\)|ChildFailedError|Fatal Python error|Segmentation fault"
    r"|terminate called after|exited on signal|srun: error:|slurmstepd: error:"
)


def tells_crash(text: str) -> bool:
    """Whether the log has the last words of a process that failed."""
    return _CRASHES.search(text) is not None


def tells_out_of_memory(text: str) -> bool:
    return _MARKS.search(text) is not None


def text_after_last_mark(text: str) -> str:
    """What follows the last such message; the whole text where there is none."""
    end = max((mark.end() for mark in _MARKS.finditer(text)), default=0)
    return text[end:]
