"""The array type of the models, sums of arrays, rows that many others share, and stretches of an
order."""

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
    """Element-wise sum; scalars and arrays mix."""
    rest = iter(arrays)
    return np.asarray(reduce(add, rest, next(rest, 0.0)))


class Rows(Protocol):
    """Arrays of one length, by name."""

    def take(self, rows: Array) -> Self: ...


class Columns:
    """Arrays or shared rows by name, worked out when they are asked for: of those taken from others
    few are."""

    __slots__ = ("_column",)
    _column: Callable[[Any, str], Any]

    def take(self, rows: Array) -> Self:
        """Those at `rows` (positions or a mask)."""
        at = np.flatnonzero(rows) if rows.dtype == bool else rows
        return self.lazy(lambda _, name: getattr(self, name).take(at))

    def with_columns(self, **columns: Array) -> Self:
        """The same with other columns."""
        other = self.lazy(lambda _, name: getattr(self, name))
        for name, values in columns.items():
            object.__setattr__(other, name, values)
        return other

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        return cls.lazy(lambda _, name: np.concatenate([getattr(part, name) for part in parts]))

    def materialised(self) -> Self:
        """With every column, and without those that they are from."""
        return type(self)(**{name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def lazy(cls, column: Callable[[Self, str], Any]) -> Self:
        """With each column by its name, and by what has the others."""
        new = object.__new__(cls)
        object.__setattr__(new, "_column", column)
        return new

    def __getattr__(self, name: str) -> Any:
        """A column that is asked for first."""
        if name not in type(self).__slots__:
            raise AttributeError(name)
        values = self._column(self, name)
        object.__setattr__(self, name, values)
        return values


T = TypeVar("T", bound=Rows)


@dataclass(frozen=True, slots=True)
class SharedRows(Generic[T]):
    """Rows that many others share: row i has entry `code[i]` of `table`."""

    table: T
    code: Array

    def take(self, rows: Array) -> SharedRows[T]:
        return SharedRows(self.table, self.code.take(rows))

    def per_row(self, values: Array) -> Array:
        """Of values by entry of the table, those of each row."""
        return values.take(self.code)


def distinct(*columns: Array) -> tuple[Array, Array]:
    """What rows differ: (position of one row of each kind, the kind of each row). Columns hold
    non-negative integers or truth values."""
    code, kinds = _numbers(columns[0])
    few = _few(code) if len(code) > _SORTED else _MOST
    for column in columns[1:]:
        more, count = _numbers(column)
        if count == 1:
            continue
        if kinds * count > few:
            (code, kinds), (more, count) = _codes(code, kinds), _codes(more, count)
        code, kinds = code * count + more, kinds * count
    code, kinds = _codes(code, kinds)
    first = np.empty(kinds, dtype=np.int64)
    first[code] = np.arange(len(code))
    return first, code


_MOST = 1 << 62
_SORTED = 1 << 16  # so many rows are sorted sooner than counted column by column


def _few(rows: Array) -> int:
    """Numbers that are counted sooner than so many rows are sorted."""
    return 8 * len(rows) + 1024


def _numbers(column: Array) -> tuple[Array, int]:
    """A column as numbers from 0 on, and how many there may be."""
    most = int(column.max(initial=0))
    if len(column) and column.min() == most:
        return np.zeros(len(column), dtype=np.int64), 1
    return column.astype(np.int64, copy=False), most + 1


def _codes(number: Array, count: int) -> tuple[Array, int]:
    """Consecutive numbers in place of others, of so many, in their order; and how many there
    are."""
    if count > _few(number):
        values, code = np.unique(number, return_inverse=True)
        return code.ravel(), len(values)
    place = np.cumsum(np.bincount(number, minlength=1) > 0) - 1
    return place.take(number), int(place[-1]) + 1


def all_distinct(rows: int) -> tuple[Array, Array]:
    """As :func:`distinct`, where every row stands for itself."""
    return np.arange(rows), np.arange(rows)


def take_at(values: Array, row: Array, column: Array) -> Array:
    """values[..., row, column], in a third of the time."""
    *rest, _, width = values.shape
    return values.reshape(*rest, -1).take(row * width + column, axis=-1)


def first_match(columns: Sequence[Array], wanted: Sequence[Array]) -> Array:
    """The first row of a table with all the values that are wanted, for each of n."""
    return np.all(
        [of[:, None] == each for of, each in zip(columns, wanted, strict=True)], axis=0
    ).argmax(axis=0)


def expand_ranges(start: Array, count: Array) -> tuple[Array, Array]:
    """For stretches of a table: (the stretch each of their entries is of, where it stands in the
    table)."""
    owner = np.repeat(np.arange(len(count)), count)
    return owner, np.arange(len(owner)) + np.repeat(start - (np.cumsum(count) - count), count)


def growing_slices(order: Array, first: int, most: int) -> Iterator[tuple[Array, Array]]:
    """Stretches of an order, each eight times as long as the one before; and all from its beginning
    on."""
    start, size = 0, first
    while start < len(order):
        yield order[start : start + size], order[start:]
        start, size = start + size, min(8 * size, most)
