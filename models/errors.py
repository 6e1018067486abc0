"""Every way a question to the models can be wrong.

DomainError
├── Invalid            a value breaks a rule: names the field, the value and the rule
│   ├── UnknownName    no such chip, fabric, stack, architecture or coefficient: names near ones
│   ├── TooLarge       more than one search can hold: asks to constrain some degrees
│   └── Unsupported    a layer, stack feature or format the models do not describe: says what
│                      is missing
└── Infeasible         the question is well formed and has no answer: names the nearest
    │                  failing constraint
    └── OutOfTime      none was found in the time given
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_MOST_LISTED = 12  # names that a message lists where none is near, to keep it readable


class DomainError(Exception):
    """Base of all errors the models raise on purpose."""


class Invalid(DomainError):
    """The `value` of `field` breaks `rule`. `field` is a dotted path such as
    ``workload.seq_len``."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        super().__init__(f"{field} = {value!r}: {rule}")
        self.field = field
        self.value = value
        self.rule = rule

    def prefixed(self, prefix: str) -> Invalid:
        """Put `prefix` before the path of the field, in place, and return this error. For example,
        "seq_len" becomes "workload.seq_len"."""
        self.field = f"{prefix}.{self.field}" if self.field else prefix
        self.args = (f"{self.field} = {self.value!r}: {self.rule}",)
        return self


class UnknownName(Invalid):
    """A name that is in no catalogue. `near` lists up to three known names that `difflib` finds
    alike from `cutoff` on. Where there is none, the message says `otherwise`, or else lists known
    names."""

    def __init__(
        self,
        field: str,
        value: str,
        known: Iterable[str],
        *,
        cutoff: float = 0.5,
        otherwise: str | None = None,
    ) -> None:
        known = sorted(known)
        near = difflib.get_close_matches(value.lower(), known, n=3, cutoff=cutoff)
        if near:
            hint = f"; did you mean {', '.join(near)}?"
        elif otherwise:
            hint = f"; {otherwise}"
        else:
            more = f" and {len(known) - _MOST_LISTED} more" if len(known) > _MOST_LISTED else ""
            hint = f"; known: {', '.join(known[:_MOST_LISTED])}{more}"
        super().__init__(field, value, f"unknown name{hint}")
        self.near = near


class TooLarge(Invalid):
    """The cluster gives `count` of something (`what`), above the `limit` of one search."""

    def __init__(self, num_chips: int, count: int, what: str, limit: int) -> None:
        rule = f"gives {count} {what}, above the {limit} of one search; constrain some degrees"
        super().__init__("cluster.num_chips", num_chips, rule)


class Unsupported(Invalid):
    """Something real that the cost model does not describe; `missing` says what is missing."""

    def __init__(self, field: str, value: object, missing: str) -> None:
        super().__init__(field, value, f"not described by the cost model: {missing}")
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Surest:
    """The layout (models.spec.layout) that is surest to fit, where none is as sure as was asked.

    `on_torus` says whether its devices stand in a torus, for which a layout has knobs of its own.
    `min_fit_probability` is a constraint with which the same question has an answer, this layout or
    another. It is None where not even the predicted memory of this layout is available.
    """

    layout: Any
    on_torus: bool
    fit_probability: float
    min_fit_probability: float | None


class Infeasible(DomainError):
    """No layout satisfies every constraint.

    `constraint` is the nearest failing one. `needed` and `available` say, in `unit`, how much it
    asks for and how much there is. `enough_chips` is the number of chips that would do, where that
    is known. `blamed` are values of the question, each of which alone is in the way. `surest` is
    given where memory is short and a layout was found that comes nearest.
    """

    def __init__(
        self,
        constraint: str,
        detail: str,
        needed: float | None = None,
        available: float | None = None,
        unit: str = "",
        enough_chips: int | None = None,
        blamed: Sequence[Invalid] = (),
        surest: Surest | None = None,
    ) -> None:
        super().__init__(f"{constraint}: {detail}")
        self.constraint = constraint
        self.detail = detail
        self.needed = needed
        self.available = available
        self.unit = unit
        self.enough_chips = enough_chips
        self.blamed = tuple(blamed)
        self.surest = surest

    @property
    def brief(self) -> str:
        """A short message such as "memory: at least 95.0 GiB are needed, 80.0 are there"; the whole
        message where the amounts are not known."""
        if self.needed is None or self.available is None:
            return str(self)
        return (
            f"{self.constraint}: at least {self.needed:.1f} {self.unit} are needed,"
            f" {self.available:.1f} are there"
        )

    def with_detail(self, detail: str, enough_chips: int | None = None) -> Infeasible:
        """Return a copy of this error that says more at its end."""
        return self._saying(f"{self.detail}; {detail}", enough_chips, self.blamed)

    def with_cure(self, cure: str) -> Infeasible:
        """Return a copy of this error that says at its end, and at that of every value that it
        blames, what to ask instead."""
        blamed = [Invalid(one.field, one.value, f"{one.rule}; {cure}") for one in self.blamed]
        return self._saying(f"{self.detail}; {cure}", self.enough_chips, blamed)

    def with_preface(self, preface: str) -> Infeasible:
        """Return a copy of this error with words put before its message, and before the message of
        every value that it blames."""
        blamed = [Invalid(one.field, one.value, f"{preface}: {one.rule}") for one in self.blamed]
        return self._saying(f"{preface}: {self.detail}", self.enough_chips, blamed)

    def _saying(
        self, detail: str, enough_chips: int | None, blamed: Sequence[Invalid]
    ) -> Infeasible:
        """Return a copy of this error with another detail, number of chips and list of blamed
        values."""
        return Infeasible(
            constraint=self.constraint,
            detail=detail,
            needed=self.needed,
            available=self.available,
            unit=self.unit,
            enough_chips=enough_chips,
            blamed=blamed,
            surest=self.surest,
        )

    def prefixed(self, prefix: str) -> Infeasible:
        """Put `prefix` before the paths of the constraint and of the blamed fields, in place, and
        return this error. Nothing changes where it blames no field."""
        if self.blamed:
            self.constraint = f"{prefix}.{self.constraint}"
            self.blamed = tuple(fault.prefixed(prefix) for fault in self.blamed)
            self.args = (f"{self.constraint}: {self.detail}",)
        return self


class OutOfTime(Infeasible):
    """No layout was found in the time given; there may still be one."""

    def __init__(self, more: str = "") -> None:
        super().__init__(
            "time_limit_s",
            f"no layout that fits was found in the time given; there may be one{more}",
        )
