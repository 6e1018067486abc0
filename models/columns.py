"""Tables of named arrays: the column types of layouts, groups and costs, and helpers for rows of
numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def total(arrays: Iterable[Array | float]) -> Array:
    """Return the element-wise sum, added from the first to the last; scalars and arrays mix."""
    rest = iter(arrays)
    return np.asarray(reduce(add, rest, next(rest, 0.0)))


class ArrayTable(Protocol):
    """A table of arrays of one length, by name."""

    def take(self, rows: Array) -> Self: ...


class Columns:
    """The base of tables whose columns (arrays or :class:`SharedRows`) are attributes.

    A table that is taken from another one works out each column when it is first asked for, since
    few of them ever are.
    """

    __slots__ = ("_column",)
    _column: Callable[[Any, str], Any]

    def take(self, rows: Array) -> Self:
        """Return the rows at `rows`, which are positions or a mask."""
        at = np.flatnonzero(rows) if rows.dtype == bool else rows
        return self.lazy(lambda _, name: getattr(self, name).take(at))

    def with_columns(self, **columns: Array) -> Self:
        """Return the rows with these columns replaced, by name."""
        other = self.lazy(lambda _, name: getattr(self, name))
        for name, values in columns.items():
            object.__setattr__(other, name, values)
        return other

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts, one after the other."""
        return cls.lazy(lambda _, name: np.concatenate([getattr(part, name) for part in parts]))

    def materialised(self) -> Self:
        """Return a copy with every column worked out, so that the tables it came from can be
        freed."""
        return type(self)(**{name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def lazy(cls, column: Callable[[Self, str], Any]) -> Self:
        """Return a table that calls `column` with itself and a name when a column is first asked
        for."""
        new = object.__new__(cls)
        object.__setattr__(new, "_column", column)
        return new

    def __getattr__(self, name: str) -> Any:
        """Work out a column and keep it. Python calls this only where the column is not there
        yet."""
        if name not in type(self).__slots__:
            raise AttributeError(name)
        values = self._column(self, name)
        object.__setattr__(self, name, values)
        return values


T = TypeVar("T", bound=ArrayTable)


@dataclass(frozen=True, slots=True)
class SharedRows(Generic[T]):
    """Rows that share the few entries of a table: row i has entry `code[i]` of `table`."""

    table: T
    code: Array

    def take(self, rows: Array) -> SharedRows[T]:
        return SharedRows(self.table, self.code.take(rows))

    def per_row(self, values: Array) -> Array:
        """Return the value of each row, given the value of each entry of the table."""
        return values.take(self.code)


def distinct(*columns: Array) -> tuple[Array, Array]:
    """Number the distinct rows of some columns (n,), which hold non-negative integers or truth
    values. Return the position of the last row of each kind, and the kind of each row, (n,).
    For example, the column [5, 7, 5] has the kinds [0, 1, 0], last at positions [2, 1].

    A row is coded as one number, column by column. The codes are made consecutive whenever they
    might become too large to be counted in an array.
    """
    code, kinds = _as_integers(columns[0])
    limit = _countable(code) if len(code) > _SORTED_ROWS else _INTEGER_LIMIT
    for column in columns[1:]:
        more, count = _as_integers(column)
        if count == 1:
            continue
        if kinds * count > limit:
            code, kinds = _consecutive(code, kinds)
            more, count = _consecutive(more, count)
        code = code * count + more
        kinds = kinds * count
    code, kinds = _consecutive(code, kinds)
    first = np.empty(kinds, dtype=np.int64)
    first[code] = np.arange(len(code))
    return first, code


_INTEGER_LIMIT = 1 << 62  # codes stay within int64
_SORTED_ROWS = 1 << 16  # up to this many rows, one sort is faster than counting column by column


def _countable(rows: Array) -> int:
    """Return the largest range of codes for which counting these rows in an array is faster than
    sorting them."""
    return 8 * len(rows) + 1024


def _as_integers(column: Array) -> tuple[Array, int]:
    """Return a column as non-negative integers, and a number above the largest of them. A column
    with one value becomes zeros, so that it adds nothing to a code."""
    most = int(column.max(initial=0))
    if len(column) and column.min() == most:
        return np.zeros(len(column), dtype=np.int64), 1
    return column.astype(np.int64, copy=False), most + 1


def _consecutive(code: Array, count: int) -> tuple[Array, int]:
    """Renumber codes, which are below `count`, without gaps and in the same order. Return the new
    codes and how many different ones there are: [7, 2, 7] becomes [1, 0, 1] and 2."""
    if count > _countable(code):
        values, position = np.unique(code, return_inverse=True)
        return position.ravel(), len(values)
    position = np.cumsum(np.bincount(code, minlength=1) > 0) - 1
    return position.take(code), int(position[-1]) + 1


def expand_ranges(start: Array, count: Array) -> tuple[Array, Array]:
    """Return all positions in ranges that begin at `start` and are `count` long, one range after
    the other, as two arrays: the number of the range, and the position. Ranges from 3 and 8, 2 and
    1 long, are [0, 0, 1] and [3, 4, 8]."""
    owner = np.repeat(np.arange(len(count)), count)
    return owner, np.arange(len(owner)) + np.repeat(start - (np.cumsum(count) - count), count)


def growing_slices(order: Array, first: int, most: int) -> Iterator[tuple[Array, Array]]:
    """Yield consecutive slices of an array, each with the rest of the array from the slice's
    beginning on.

    The first slice is `first` long, and each is eight times as long as the one before, up to
    `most`.
    """
    start, size = 0, first
    while start < len(order):
        yield order[start : start + size], order[start:]
        start += size
        size = min(8 * size, most)
