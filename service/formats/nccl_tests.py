"""Output of nccl-tests (and rccl-tests): a collective of many sizes.

Columns as src/common.cu prints them: size (B), count, type, redop, root, then time (us), algbw,
busbw and #wrong, out of place and in place. The name of the operation is printed by newer releases
only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import get_args

from models.calibration.microbenchmarks import Operation
from models.errors import Invalid

_NAMES: dict[str, Operation] = {
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
_OTHERS = ("broadcast", "reduce", "gather", "scatter", "hypercube")
_NAMED = re.compile(r"\b(\w+?)_perf\b", re.ASCII)
_RANK = re.compile(r"#\s*Rank\s+(\d+)\s")
_DEVICE = re.compile(r"#\s*Rank\s+\d+\s.*\[[0-9a-fA-F:.x]+\]\s+(.{1,80})")
_LINE = 2000  # characters of a line that are looked at
_FEWEST_COLUMNS, _BOTH_PLACEMENTS = 8, 12
_LONGEST_S = 1e4
_UNNAMED = "is required: the output does not name the collective"


@dataclass(frozen=True, slots=True)
class Table:
    """`sizes` in bytes with the faster of both placements in seconds; `ranks` and the names of
    `devices` as the header lists them."""

    operation: Operation
    ranks: int | None
    devices: tuple[str, ...]
    sizes: tuple[float, ...]
    seconds: tuple[float, ...]
    unread: int


def read(text: str, operation: Operation | None = None) -> Table:
    """Raises Invalid, on `nccl_tests` or `operation`, where there is no table to read."""
    lines = [line[:_LINE] for line in text.splitlines()]
    rows, reduced, unread = list[tuple[float, float]](), set[str](), 0
    for line in lines:
        fields = line.split()
        if len(fields) < _FEWEST_COLUMNS or not fields[0].isdecimal() or not fields[1].isdecimal():
            continue
        row = _row(fields)
        reduced.add(fields[3])
        unread += row is None
        if row is not None and row[0] > 0:
            rows.append(row)
    if not rows:
        raise Invalid(
            "nccl_tests",
            None,
            f"holds no line of an nccl-tests table that could be read ({unread} could not)",
        )
    sizes, seconds = zip(*rows, strict=True)
    operation = _operation(lines, operation)
    _require_reduction(operation, reduced)
    return Table(operation, _ranks(lines), _devices(lines), sizes, seconds, unread)


def _row(fields: list[str]) -> tuple[float, float] | None:
    """Bytes and seconds. A result that was checked and found wrong is no measurement."""
    groups = [fields[-8:-4], fields[-4:]] if len(fields) >= _BOTH_PLACEMENTS else [fields[-4:]]
    times = [time for group in groups if (time := _time(group)) is not None]
    return (float(fields[0]), min(times)) if times else None


def _time(group: list[str]) -> float | None:
    try:
        seconds = float(group[0]) * 1e-6
    except ValueError:
        return None
    wrong = group[3] not in ("0", "N/A")
    return None if wrong or not 0 < seconds < _LONGEST_S else seconds


def _operation(lines: list[str], asked: Operation | None) -> Operation:
    """What the output names; what is asked for may say which where it names none or several."""
    named = [match[1].lower() for line in lines for match in _NAMED.finditer(line)]
    found = {_NAMES[name] for name in named if name in _NAMES}
    other = next((name for name in named if name in _OTHERS), None)
    if asked is not None:
        if asked not in found and (found or other):
            rule = f"is not what the output names: {', '.join(sorted(found) or [str(other)])}"
            raise Invalid("operation", asked, rule)
        return asked
    if len(found) == 1:
        return found.pop()
    uses = ", ".join(get_args(Operation))
    rule = f"is of {other}, which no layout has: their traffic is of {uses}" if other else _UNNAMED
    raise Invalid("operation", other, rule)


def _require_reduction(operation: Operation, reduced: set[str]) -> None:
    """Only reductions have an operator; nccl-tests prints "none" for the others."""
    if operation in ("all_gather", "all_to_all") and reduced & {"sum", "prod", "max", "min", "avg"}:
        raise Invalid(
            "operation", operation, f"reduces nothing, and the output says redop {min(reduced)}"
        )


def _devices(lines: list[str]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(match[1].strip() for line in lines if (match := _DEVICE.search(line)))
    )


def _ranks(lines: list[str]) -> int | None:
    found = {int(match[1]) for line in lines if (match := _RANK.match(line))}
    return len(found) or None
