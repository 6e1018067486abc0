"""Reads the out-of-memory message of PyTorch's allocator: how full the device was, and of what
(c10/cuda/CUDACachingAllocator.cpp)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from service.formats.logs.lines import Log

_SIZE = r"(\d{1,6}(?:\.\d{1,6})?) (bytes|KiB|MiB|GiB)"
_MESSAGE = re.compile(r"out of memory\. Tried to allocate ")
_REACH = 2000  # characters that a message has at most
_OTHER_PROCESS = re.compile(rf"Process \d{{1,10}} has {_SIZE} memory in use")
_MUCH_OF_A_DEVICE = 1 / 3
"""If other processes hold this share of a device, that memory ran out says little of the run. The
contexts that its other ranks leave on a device are far smaller."""
_GIB = {"bytes": 2**-30, "KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0}
# The second of two forms is that of PyTorch before 2.2: "(GPU 0; 79.15 GiB total capacity; 66.2 GiB
# already allocated; 25.19 MiB free; 70.1 GiB reserved in total by PyTorch)".
_FIELDS = {
    "asked_gib": re.compile(rf"Tried to allocate {_SIZE}"),
    "capacity_gib": re.compile(rf"(?:has a total capacit(?:y|ty) of|\(GPU \d{{1,6}};) {_SIZE}"),
    "free_gib": re.compile(rf"(?:of which|;) {_SIZE}(?: is)? free"),
    "process_gib": re.compile(rf"this process has {_SIZE} memory in use"),
    "allocated_gib": re.compile(
        rf"(?:Of the allocated memory|;) {_SIZE} (?:is allocated by PyTorch|already allocated)"
    ),
    "unallocated_gib": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
}
_RESERVED = re.compile(rf"{_SIZE} reserved in total by PyTorch")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorMessage:
    """The figures of one message in GiB; None where it does not have one."""

    asked_gib: float | None
    capacity_gib: float | None
    free_gib: float | None
    process_gib: float | None
    """Memory that this process held, including what is not PyTorch's."""
    allocated_gib: float | None
    """Memory of this process's tensors."""
    unallocated_gib: float | None
    """Memory that this process had reserved in pieces too small to use."""
    others_gib: float
    """Memory of other processes that the message names. Where it names none, it is what neither is
    free nor was held by this process, if that is a third of the device or more."""

    @property
    def others_held_much(self) -> bool:
        """Returns whether other processes held a third of the device or more."""
        capacity_gib = self.capacity_gib or math.inf
        return self.others_gib >= _MUCH_OF_A_DEVICE * capacity_gib


def allocator_message(text: str) -> AllocatorMessage | None:
    """Returns the figures, in GiB, of the last out-of-memory message that PyTorch's allocator
    printed in a log; None where there is none. A message is one line."""
    text = Log(text).text
    starts = [match.start() for match in _MESSAGE.finditer(text)]
    if not starts:
        return None
    message = text[starts[-1] : starts[-1] + _REACH]
    message = message.splitlines()[0]
    figures = {name: _gib(pattern.search(message)) for name, pattern in _FIELDS.items()}
    reserved_gib = _gib(_RESERVED.search(message))
    allocated_gib = figures["allocated_gib"]
    if reserved_gib is not None and allocated_gib is not None:
        figures["unallocated_gib"] = reserved_gib - allocated_gib
    return AllocatorMessage(**figures, others_gib=_others_gib(message, figures))


def _others_gib(message: str, figures: Mapping[str, float | None]) -> float:
    """Returns the memory of all processes but this one. In a container a process does not know its
    own number, and the message names it like the others: it is then the smallest of those that can
    hold what this one had reserved."""
    processes = sorted(_gib(match) or 0.0 for match in _OTHER_PROCESS.finditer(message))
    allocated_gib = figures["allocated_gib"]
    if processes and figures["process_gib"] is not None:
        return sum(processes)
    if allocated_gib is None:  # the message is cut off, and any process may be this one
        return 0.0
    reserved_gib = allocated_gib + (figures["unallocated_gib"] or 0.0)
    if processes:
        return sum(processes) - next((gib for gib in processes if gib >= reserved_gib), 0.0)
    capacity_gib = figures["capacity_gib"] or 0.0
    own_gib = figures["process_gib"] or reserved_gib
    not_free_gib = capacity_gib - (figures["free_gib"] or 0.0)
    # Libraries of this process hold memory too, but not so much.
    others_gib = not_free_gib - own_gib
    return others_gib if others_gib >= _MUCH_OF_A_DEVICE * capacity_gib else 0.0


def _gib(match: re.Match[str] | None) -> float | None:
    return None if match is None else float(match[1]) * _GIB[match[2]]
