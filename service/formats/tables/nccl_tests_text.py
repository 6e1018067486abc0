"""The table that nccl-tests and rccl-tests print, whatever launchers put before its lines.

The header names the columns (writeResultHeader of nccl-tests src/util.cu): size, count, type, redop
and root, then time, algbw, busbw and #wrong out of place, and those four again in place. Older
releases have no root, and `error` for #wrong; those of an all-to-all leave redop blank in the rows.
Newer ones end rows with a time of day, if asked to (-S). A *placement* is a measurement out of
place or in place, of which a row may have both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from service.formats.tables.nccl_tests_rows import (
    Output,
    Placement,
    Row,
    cpu_time_refused,
    number,
    programs_in,
    seconds_of,
    wrong_result,
)

_LINE_REACH = 2000  # characters of a line that are looked at; rows have some 150
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")
_HEADER = re.compile(r"\b(?:size\s+count|bytes\s+N)\s+type\s(.*)")
_ROW = re.compile(
    r"(?:^|[\s:>|\])])(\d+)\s+(\d+)\s+"
    r"(u?int\d*|char|half|float\d*|double|bfloat16|bf16|fp16|fp8\w*|f8\w*)\s(.*)",
    re.ASCII,
)
"""Tags of ranks, names of pods and times of day may stand before the size, as mpirun, srun and
kubectl put them there."""
_WORD = re.compile(r"[A-Za-z]+")
_INTEGER = re.compile(r"-?\d+", re.ASCII)
_TIME_OF_DAY = re.compile(
    r"(?:\d{4}-\d\d-\d\d[T_]?)?(?:\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\d{10,}(?:\.\d+)?",
    re.ASCII,
)
_RANK = re.compile(r"#\s*Rank\s+(\d+)\s", re.ASCII)
_DEVICE = re.compile(r"#\s*Rank\s+\d+\s.*\[[0-9a-fA-F:.x]+\]\s+(.{1,80})")
_THREADS_AND_GPUS = re.compile(r"#\s*nThread\s+(\d{1,6})\s+nGpus\s+(\d{1,6})", re.ASCII)
_FAILURE = re.compile(r"Out of bounds values\s*:\s*\d+\s+FAILED|Test (?:\w+ )?failure\b.{0,200}")
_WARNING = re.compile(r"NCCL WARN .{1,200}")
_DEBUG = re.compile(r"\b[NRH]CCL (?:INFO|TRACE|CALL)\b")
_CHECKS = {"#wrong": "#wrong", "wrong": "#wrong", "error": "error", "res": "error"}
_ALGBW_STEP = 0.01  # GB/s, to which bandwidths are printed


@dataclass(frozen=True, slots=True)
class _Group:
    """The columns of one placement, counted from the first column of times on."""

    time: int
    end: int
    """The column after the last one."""
    algbw: int | None
    busbw: int | None
    check: tuple[int, str] | None
    """The column that says whether results are right, and what it says: #wrong or error."""


@dataclass(frozen=True, slots=True)
class _Columns:
    leading: tuple[str, ...]
    """The columns between the type and the first time: redop and root, if any."""
    groups: tuple[_Group, ...]

    @classmethod
    def of(cls, names: list[str]) -> _Columns | None:
        """Returns the columns of a header, given the names behind `type`; None where it has no
        times. Raises Invalid for times of the CPU."""
        if "cputime" in names:
            raise cpu_time_refused()
        # Rows may end with a time of day whether or not the header names it.
        names = [name for name in names if name not in ("timestamp", "date")]
        if "time" not in names:
            return None
        first = names.index("time")
        measured = names[first:]
        begins = [index for index, name in enumerate(measured) if name == "time"]
        ends = [*begins[1:], len(measured)]
        bounds = zip(begins, ends, strict=True)
        groups = [_column_group(measured, begin, end) for begin, end in bounds]
        return cls(tuple(names[:first]), tuple(groups))


def _column_group(names: list[str], begin: int, end: int) -> _Group:
    """Returns the columns from index `begin`, which is the time, to `end` as one group, out of
    place or in place. Its `check` is the column that checks results, if there is one."""
    index = {name: begin + offset for offset, name in enumerate(names[begin:end])}
    check = next(((index[name], _CHECKS[name]) for name in index if name in _CHECKS), None)
    return _Group(
        time=begin, end=end, algbw=index.get("algbw"), busbw=index.get("busbw"), check=check
    )


_USUAL_COLUMNS = _Columns(
    leading=("redop", "root"),
    groups=(
        _Group(time=0, end=4, algbw=1, busbw=2, check=(3, "#wrong")),
        _Group(time=4, end=8, algbw=5, busbw=6, check=(7, "#wrong")),
    ),
)
"""The columns of every release from 2.12 on."""


def read_text(text: str) -> Output:
    """Returns the rows of the tables in a text, without the prefixes that launchers print. Only the
    first _LINE_REACH characters of a line are read, which is far more than a row has."""
    reading = _Reading()
    for line in text.splitlines():
        reading.read_line(_COLOUR.sub("", line[:_LINE_REACH]))
    return reading.finished()


@dataclass(slots=True)
class _Reading:
    """Reads the lines of an output, one after the other."""

    output: Output = field(default_factory=Output)
    columns: _Columns | None = None
    """The columns of the last header."""
    program: str | None = None
    """The program that was last named, where a line names one alone."""
    ranks: set[int] = field(default_factory=set)
    """The numbers of the ranks that it lists."""
    devices: dict[str, None] = field(default_factory=dict)
    """The names of their devices, each once, in order."""
    ranks_of_process: int = 0
    """The number of ranks of one process: its threads times the GPUs of each."""
    warning: str | None = None
    """The first warning that NCCL itself prints."""

    def read_line(self, line: str) -> None:
        """Reads a row, a header, a rank of the list or any other line."""
        output = self.output
        output.has_debug_output = output.has_debug_output or bool(_DEBUG.search(line))
        if match := _ROW.search(line):
            self._read_row(float(match[1]), dtype=match[3], fields=match[4].split())
        elif match := _HEADER.search(line):
            self.columns = _Columns.of(match[1].split()) or self.columns
        elif match := _RANK.search(line):
            self.ranks.add(int(match[1]))
            if device := _DEVICE.search(line):
                self.devices[device[1].strip()] = None
        else:
            self._read_remark(line)

    def _read_remark(self, line: str) -> None:
        """Reads a line outside of the table and the list of ranks: names of programs, failures
        and warnings."""
        if match := _THREADS_AND_GPUS.search(line):
            self.ranks_of_process = int(match[1]) * int(match[2])
        if programs := programs_in(line):
            self.output.programs += programs
            # Rows behind a line that names several programs may be of any of them.
            self.program = programs[0] if len(set(programs)) == 1 else None
        if match := _FAILURE.search(line):
            self.output.failure = self.output.failure or match[0].strip()
        if match := _WARNING.search(line):
            self.warning = self.warning or match[0].strip()

    def _read_row(self, size: float, dtype: str, fields: list[str]) -> None:
        """Reads "1048576 262144 float sum -1 52.1 20.13 37.74 0 51.9 20.2 37.88 0"; `fields` are
        the words behind the data type. Counts the row as unread where it does not fit the
        columns."""
        row = _fields_by_column(self.columns or _USUAL_COLUMNS, fields)
        has_columns = self.columns is not None
        # Without a header, a row must show that it has the usual columns: by a redop here, and
        # by bandwidths that fit its times below.
        if row is None or (not has_columns and row.redop is None):
            self.output.unread += 1
            return
        placements = []
        wrong: str | None = None
        for group in row.groups:
            placement = _read_placement(row.measured, group)
            if placement is None:
                continue
            fault = _wrong_result(row.measured, group, dtype)
            if fault is None:
                placements.append(placement)
            else:
                wrong = wrong or f"{fault} at {size:.0f} bytes"
        if not has_columns and not all(
            _bandwidth_matches_time(size, placement) for placement in placements
        ):
            self.output.unread += 1
            return
        self.output.add(Row(size, row.redop, self.program, tuple(placements)), wrong)

    def finished(self) -> Output:
        """Returns the output, completed by the names of its devices and the number of its ranks.
        That number is None where the list of ranks lacks some."""
        output = self.output
        # Runs that work print warnings of NCCL too, but a table as well.
        if not output.rows and not output.unread:
            output.failure = output.failure or self.warning
        num_ranks = len(self.ranks)
        # Ranks count from 0, so the highest number shows how many the list should have. A list of
        # fewer ranks than one process has was cut off.
        has_all = num_ranks > 0 and max(self.ranks) + 1 == num_ranks >= self.ranks_of_process
        output.ranks = num_ranks if has_all else None
        output.devices = tuple(self.devices)
        output.has_header = self.columns is not None
        return output


def _read_placement(measured: list[str], group: _Group) -> Placement | None:
    """Returns the time and the bandwidths of one group of columns; None where the time is
    missing. `group` has the index of each column in `measured`."""
    seconds = seconds_of(measured[group.time])
    if seconds is None:
        return None
    algbw = None if group.algbw is None else number(measured[group.algbw])
    busbw = None if group.busbw is None else number(measured[group.busbw])
    return Placement(seconds, algbw, busbw)


def _wrong_result(measured: list[str], group: _Group, dtype: str) -> str | None:
    """Returns what the group's check column says is wrong, such as "#wrong 12"; None where the
    group has no such column or the results are right."""
    if group.check is None:
        return None
    index, column = group.check
    return wrong_result(column, measured[index], dtype)


@dataclass(frozen=True, slots=True)
class _Fields:
    redop: str | None
    groups: tuple[_Group, ...]
    """The groups of columns that the row has."""
    measured: list[str]


def _fields_by_column(columns: _Columns, fields: list[str]) -> _Fields | None:
    """Returns the words behind the data type by column; None where there are too few or too
    many, as in a row that another line was printed into."""
    redop: str | None = None
    for name in columns.leading:
        if name in ("redop", "op"):
            if not fields or not _WORD.fullmatch(fields[0]):
                continue  # releases that have the column leave it blank where nothing is reduced
            redop = fields[0].lower()
        elif name == "root" and not (fields and _INTEGER.fullmatch(fields[0])):
            return None
        fields = fields[1:]
    # A row has the columns of all groups or of the first, and may have a time of day behind them.
    width = columns.groups[-1].end
    measured = fields[:width]
    trailing = fields[width:]
    groups = tuple(group for group in columns.groups if group.end <= len(measured))
    if not groups or groups[-1].end != len(measured):
        return None
    if not all(map(_TIME_OF_DAY.fullmatch, trailing)):
        return None
    return _Fields(redop, groups, measured)


def _bandwidth_matches_time(size: float, placement: Placement) -> bool:
    """Returns True where the bandwidth equals size over time, within the printed digits. This
    shows that a table without a header has the usual columns."""
    if not placement.algbw:
        return True
    computed = size / placement.seconds / 1e9  # GB/s; 2% are for the digits of the printed time
    return abs(computed - placement.algbw) <= _ALGBW_STEP + 0.02 * computed
