"""Rows of nccl-tests output, into which its two forms, text and JSON, are read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import isfinite

from models.errors import Invalid

_MAX_S = 1e4  # three hours for one collective is a broken clock
_NOT_CHECKED = {"N/A", "-"}
_ERROR_LIMITS = {
    "half": 1e-2,
    "fp16": 1e-2,
    "bfloat16": 1e-2,
    "bf16": 1e-2,
    "float": 1e-5,
    "double": 1e-12,
}
"""Up to which deviation releases with a column `error` take a result as right (deltaMaxValue of
their src/common.cu). Of integers, none."""
_FP8_ERROR_LIMIT = 1e-1

_PROGRAM = re.compile(r"\b([A-Za-z]\w*?)_perf(?![A-Za-z0-9])")


@dataclass(frozen=True, slots=True)
class Placement:
    """A collective measured out of place or in place: with its result in another buffer than the
    one that is sent, or in the same. Bandwidths are in GB/s."""

    seconds: float
    algbw: float | None = None
    busbw: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    size: float
    """In bytes."""
    redop: str | None
    program: str | None
    """The program that was last named before the row: all_reduce for all_reduce_perf."""
    placements: tuple[Placement, ...]


@dataclass(slots=True)
class Output:
    """An output as it was read, before anyone asks which collective it is of."""

    rows: list[Row] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    """The programs that it names: all_reduce for all_reduce_perf."""
    ranks: int | None = None
    """The number of ranks that it lists, if it lists all of them."""
    devices: tuple[str, ...] = ()
    """The names of the devices, each once."""
    unread: int = 0
    """Lines that could not be read, or whose results were wrong."""
    wrong: str | None = None
    """The fault of the first line without a right result."""
    failure: str | None = None
    """The program's message about a failure of the run."""
    has_header: bool = False
    has_debug_output: bool = False
    """Lines of NCCL's own log stand among those of the table."""

    def add(self, row: Row, wrong: str | None) -> None:
        """Adds a row. It holds only the placements with right results; a row without any counts
        as unread. `wrong` is the fault of a placement that was left out. Rows of size 0, which
        move nothing, are dropped."""
        if not row.placements:
            self.unread += 1
            self.wrong = self.wrong or wrong
        elif row.size > 0:
            self.rows.append(row)


def programs_in(text: str) -> list[str]:
    """Returns the programs of nccl-tests that a text names, without their suffix: ["alltoall"]
    for ./build/alltoall_perf_mpi."""
    return [match[1].lower() for match in _PROGRAM.finditer(text)]


def seconds_of(microseconds: object) -> float | None:
    """Returns a time in microseconds as seconds; None where it is no time, as in a column of
    N/A, or longer than _MAX_S."""
    value = number(microseconds)
    if value is None or not 0 < value * 1e-6 < _MAX_S:
        return None
    return value * 1e-6


def number(value: object) -> float | None:
    """Returns a value as a finite number; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        parsed = float(value)
    except (ValueError, OverflowError):
        return None
    return parsed if isfinite(parsed) else None


def wrong_result(column: str, value: object, dtype: str) -> str | None:
    """Returns what the column that checks results reports as wrong, such as "#wrong 12"; None
    where the results are right or were not checked. The column "#wrong" counts elements, "error"
    is the largest deviation."""
    if value is None or value in _NOT_CHECKED:
        return None
    count = number(value)
    if count is None or count > _error_limit(column, dtype):
        return f"{column} {value}"
    return None


def _error_limit(column: str, dtype: str) -> float:
    """Returns the largest value of a column at which results are right: 0 for counts, a
    tolerance by data type for the column "error"."""
    if column != "error":
        return 0.0
    if dtype.lower().startswith(("fp8", "f8")):
        return _FP8_ERROR_LIMIT
    return _ERROR_LIMITS.get(dtype.lower(), 0.0)


def cpu_time_refused() -> Invalid:
    """Returns the error for a table with times of the CPU in place of the collective's."""
    return Invalid(
        "nccl_tests",
        None,
        "has times of the CPU, and not of the collective; run it without -C (--report_cputime)",
    )
