"""Reads the output of nccl-tests (and rccl-tests): how long a collective of various sizes takes.

The columns are those that src/common.cu prints: size (B), count, type, redop, root, and then time
(us), algbw, busbw and #wrong, first out of place and then in place. Only newer releases print the
name of the operation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import get_args

from models.calibration.microbenchmarks import Operation
from models.errors import Invalid

_OPERATIONS: dict[str, Operation] = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "sendrecv": "send_recv",
    "send_recv": "send_recv",
}
_OTHER_COLLECTIVES = ("broadcast", "reduce", "gather", "scatter", "hypercube")
_PROGRAM = re.compile(r"\b(\w+?)_perf\b", re.ASCII)
_RANK = re.compile(r"#\s*Rank\s+(\d+)\s")
_DEVICE = re.compile(r"#\s*Rank\s+\d+\s.*\[[0-9a-fA-F:.x]+\]\s+(.{1,80})")
_LINE_REACH = 2000  # characters of a line that are looked at
_MIN_COLUMNS = 8  # of a release that prints one placement only
_BOTH_PLACEMENTS_COLUMNS = 12
_MAX_S = 1e4
_UNNAMED_RULE = "is required: the output does not name the collective"


@dataclass(frozen=True, slots=True)
class Table:
    operation: Operation
    ranks: int | None
    """The number of ranks that the header lists, if it lists any."""
    devices: tuple[str, ...]
    """The names of the devices there, each once."""
    sizes: tuple[float, ...]
    """In bytes."""
    seconds: tuple[float, ...]
    """For each size the time of the faster placement."""
    unread: int
    """Lines of the table that could not be read, or whose results were wrong."""


def read(text: str, operation: Operation | None = None) -> Table:
    """The table of an output. `operation` says which collective it is of where the output does not.
    Raises Invalid, about `nccl_tests` or `operation`, where there is no table to read."""
    lines = [line[:_LINE_REACH] for line in text.splitlines()]
    rows: list[tuple[float, float]] = []
    reductions: set[str] = set()
    unread = 0
    for line in lines:
        fields = line.split()
        if len(fields) < _MIN_COLUMNS or not fields[0].isdecimal() or not fields[1].isdecimal():
            continue
        row = _row(fields)
        reductions.add(fields[3])
        if row is None:
            unread += 1
        elif row[0] > 0:
            rows.append(row)
    if not rows:
        raise Invalid(
            "nccl_tests",
            None,
            f"holds no line of an nccl-tests table that could be read ({unread} could not)",
        )
    sizes, seconds = zip(*rows, strict=True)
    operation = _operation(lines, operation)
    _require_reduction(operation, reductions)
    return Table(operation, _ranks(lines), _devices(lines), sizes, seconds, unread)


def _row(fields: list[str]) -> tuple[float, float] | None:
    """Bytes and seconds. None where no placement has a time, or its results were wrong: those are
    no measurements."""
    groups = [fields[-4:]]
    if len(fields) >= _BOTH_PLACEMENTS_COLUMNS:
        groups.append(fields[-8:-4])
    times = [time for group in groups if (time := _time(group)) is not None]
    return (float(fields[0]), min(times)) if times else None


def _time(group: list[str]) -> float | None:
    """The seconds of one placement, from its four columns."""
    try:
        seconds = float(group[0]) * 1e-6
    except ValueError:
        return None
    wrong = group[3] not in ("0", "N/A")
    return None if wrong or not 0 < seconds < _MAX_S else seconds


def _operation(lines: list[str], asked: Operation | None) -> Operation:
    """The collective that the output names. Where it names none or several, `asked` says which it
    is."""
    named = [match[1].lower() for line in lines for match in _PROGRAM.finditer(line)]
    found = {_OPERATIONS[name] for name in named if name in _OPERATIONS}
    other = next((name for name in named if name in _OTHER_COLLECTIVES), None)
    if asked is not None:
        if asked not in found and (found or other):
            rule = f"is not what the output names: {', '.join(sorted(found) or [str(other)])}"
            raise Invalid("operation", asked, rule)
        return asked
    if len(found) == 1:
        return found.pop()
    uses = ", ".join(get_args(Operation))
    rule = _UNNAMED_RULE
    if other:
        rule = f"is of {other}, which no layout has: their traffic is of {uses}"
    raise Invalid("operation", other, rule)


def _require_reduction(operation: Operation, reductions: set[str]) -> None:
    """Raises Invalid where an output that names a reduction is said to be of a collective without
    one, for which nccl-tests prints "none"."""
    is_reduced = reductions & {"sum", "prod", "max", "min", "avg"}
    if operation in ("all_gather", "all_to_all") and is_reduced:
        rule = f"reduces nothing, and the output says redop {min(reductions)}"
        raise Invalid("operation", operation, rule)


def _devices(lines: list[str]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(match[1].strip() for line in lines if (match := _DEVICE.search(line)))
    )


def _ranks(lines: list[str]) -> int | None:
    found = {int(match[1]) for line in lines if (match := _RANK.match(line))}
    return len(found) or None
