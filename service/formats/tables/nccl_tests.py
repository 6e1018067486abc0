"""Reads the output of nccl-tests (and rccl-tests): how long a collective of various sizes takes.

The output is the table that the programs print, or the JSON that newer ones write. A *program* is
one of nccl-tests, such as all_reduce_perf. A *placement* is a measurement out of place or in place:
with the result in another buffer, or in the one that is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor
from typing import get_args

from models.calibration.microbenchmarks import Operation
from models.errors import Invalid
from service.formats.tables.nccl_tests_output import Output, read_output
from service.formats.tables.nccl_tests_rows import Placement, Row

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
_UNUSED_COLLECTIVES = (
    "alltoallv", "all_to_allv", "all_reduce_bias", "broadcast", "reduce", "gather", "scatter",
    "hypercube",
)  # fmt: skip
"""Collectives of nccl-tests that no layout uses."""
_UNNAMED_RULE = "is required: the output does not name the collective"
_BANDWIDTH_ROUNDING = 0.005  # GB/s: bandwidths are printed to 0.01


@dataclass(frozen=True, slots=True)
class Table:
    operation: Operation
    ranks: int | None
    """The number of ranks that the bandwidths tell, or that the output lists, if either does."""
    devices: tuple[str, ...]
    """The names of the devices that the output lists, each once."""
    sizes: tuple[float, ...]
    """In bytes."""
    seconds: tuple[float, ...]
    """For each size the time of the faster placement."""
    unread: int
    """Lines of the table that could not be read, or whose results were wrong."""


def read(text: str, operation: Operation | None = None) -> Table:
    """Returns the table of one collective in the text of an output."""
    return table_of(read_output(text), operation)


def table_of(output: Output, operation: Operation | None = None) -> Table:
    """Returns the size of each row of one collective, and the time of its faster placement.
    `operation` chooses the collective where the output names none or several.

    Raises Invalid, about `nccl_tests` or `operation`, where there is no such table.
    """
    _require_success(output)
    collective = _decide_operation(output.programs, operation)
    rows = output.rows
    if operation is not None and len(_named_operations(output.programs)) > 1:
        # Rows without a program (None) stand where a line named several, and may be of any.
        programs = [None, *(name for name in _OPERATIONS if _OPERATIONS[name] == collective)]
        rows = [row for row in rows if row.program in programs]
    if not rows:
        raise Invalid("nccl_tests", None, f"has no line of its {collective} that could be read")
    _check_reduction(collective, {row.redop for row in rows if row.redop})
    return Table(
        operation=collective,
        ranks=_number_of_ranks(output.ranks, collective, rows),
        devices=output.devices,
        sizes=tuple(row.size for row in rows),
        seconds=tuple(min(placement.seconds for placement in row.placements) for row in rows),
        unread=output.unread,
    )


def _require_success(output: Output) -> None:
    """Raises Invalid where the run failed, or where no row could be read, with the likely
    reason."""
    if output.failure:
        wrong = f"; results were wrong: {output.wrong}" if output.wrong else ""
        rule = f"is of a run that failed: {output.failure}{wrong}; send one that passed"
        raise Invalid("nccl_tests", None, rule)
    if output.rows:
        return
    unread = f"holds no line of an nccl-tests table that could be read ({output.unread} could not"
    if output.wrong:
        rule = f"{unread}, because results were wrong: {output.wrong}); send a run that passed"
    elif output.has_debug_output:
        rule = (
            f"{unread}): NCCL's debug output (NCCL INFO) stands in the middle of its rows; run it"
            " again with NCCL_DEBUG unset, or with NCCL_DEBUG_FILE, which takes it out of the table"
        )
    elif output.unread and not output.has_header:
        rule = (
            f"{unread}): the header that names the columns (# size count type …) is missing; send"
            " the output whole"
        )
    else:
        rule = f"{unread}); send the output whole, with the header and the lines under it"
    raise Invalid("nccl_tests", None, rule)


def _decide_operation(programs: list[str], requested: Operation | None) -> Operation:
    """Returns the collective that the output names, or the requested one where it names none or
    several. Raises Invalid where the two contradict each other or neither decides."""
    operations = _named_operations(programs)
    # A collective that no layout has, such as broadcast.
    unused = next((name for name in programs if name in _UNUSED_COLLECTIVES), None)
    if requested is not None:
        if requested not in operations and (operations or unused):
            rule = f"is not what the output names: {', '.join(operations or [str(unused)])}"
            raise Invalid("operation", requested, rule)
        return requested
    if len(operations) == 1 and unused is None:
        return operations[0]
    uses = ", ".join(get_args(Operation))
    rule = _UNNAMED_RULE
    if operations:
        names = ", ".join([*operations, *([unused] if unused else [])])
        rule = f"is required: the output names several collectives ({names})"
    elif unused:
        rule = f"is of {unused}, which no layout has: their traffic is of {uses}"
    raise Invalid("operation", None if operations else unused, rule)


def _named_operations(programs: list[str]) -> list[Operation]:
    return sorted({_OPERATIONS[name] for name in programs if name in _OPERATIONS})


def _check_reduction(operation: Operation, reductions: set[str]) -> None:
    """Raises Invalid where the rows have a reduction such as "sum", but the collective reduces
    nothing: nccl-tests prints "none" for it, so the rows are of another collective."""
    is_reduced = reductions & {"sum", "prod", "max", "min", "avg"}
    if operation in ("all_gather", "all_to_all") and is_reduced:
        rule = f"reduces nothing, and the output says redop {min(is_reduced)}"
        raise Invalid("operation", operation, rule)


def _number_of_ranks(listed: int | None, operation: Operation, rows: Iterable[Row]) -> int | None:
    """Returns the number of ranks: those that the output lists, or more where the bandwidths
    imply more, since lines of the list may be missing. None where neither tells."""
    placements = [placement for row in rows for placement in row.placements]
    by_bandwidth = _ranks_by_bandwidth(operation, placements)
    if listed is None or (by_bandwidth is not None and by_bandwidth > listed):
        return by_bandwidth
    return listed


def _ranks_by_bandwidth(operation: Operation, placements: Iterable[Placement]) -> int | None:
    """Returns the number n of ranks that two printed bandwidths imply: bus bandwidth is (n-1)/n of
    the algorithm's, or twice that for an all-reduce (nccl-tests doc/PERFORMANCE.md).

    None where the printed digits allow several n.
    """
    factors = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
    if operation not in factors:
        return None
    # The largest bandwidths, which rounding changes least.
    best = max(placements, key=lambda placement: placement.algbw or 0.0, default=None)
    if best is None or not best.algbw or not best.busbw:
        return None
    ratio = best.busbw / best.algbw
    # Both are rounded to 0.01 GB/s: the error of a quotient, to first order.
    error = _BANDWIDTH_ROUNDING * (1 + ratio) / best.algbw
    # (n-1)/n lies between these two, and n between 1/(1-low) and 1/(1-high).
    low = (ratio - error) / factors[operation]
    high = (ratio + error) / factors[operation]
    if not 0 < low < high < 1:
        return None
    fewest = ceil(1 / (1 - low))
    most = floor(1 / (1 - high))
    return fewest if fewest == most and fewest >= 2 else None
