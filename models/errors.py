"""Every way a question to the models can be wrong.

DomainError ├── Invalid                  a value breaks a rule: names the field, the value and the
rule │   ├── UnknownName          no such chip, fabric, stack, architecture or coefficient: names
near ones │   ├── TooLarge             more than one search may hold: names the degrees to constrain
│   └── Unsupported          a layer, stack feature or format the models do not describe: names what
is missing └── Infeasible               the question is well formed and has no answer: names the
nearest failing constraint └── OutOfTime            none was found in the time given
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_LISTED = 12  # names of a catalogue, where none is near


class DomainError(Exception):
    """Base of all errors the models raise on purpose."""


class Invalid(DomainError):
    """`value` of `field` breaks `rule`. `field` is a dotted path such as ``workload.seq_len``."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        super().__init__(f"{field} = {value!r}: {rule}")
        self.field, self.value, self.rule = field, value, rule

    def prefixed(self, prefix: str) -> Invalid:
        """The same error seen from the object that holds the field."""
        self.field = f"{prefix}.{self.field}" if self.field else prefix
        self.args = (f"{self.field} = {self.value!r}: {self.rule}",)
        return self


class UnknownName(Invalid):
    """A name that is in no catalogue."""

    def __init__(self, field: str, value: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = difflib.get_close_matches(value.lower(), known, n=3, cutoff=0.5)
        more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
        hint = (
            f"; did you mean {', '.join(near)}?"
            if near
            else f"; known: {', '.join(known[:_LISTED])}{more}"
        )
        super().__init__(field, value, f"unknown name{hint}")
        self.near = near


class TooLarge(Invalid):
    """So many chips give more than `most` of something for one search."""

    def __init__(self, num_chips: int, count: int, of: str, most: int) -> None:
        rule = f"gives {count} {of}, above the {most} of one search; constrain some degrees"
        super().__init__("cluster.num_chips", num_chips, rule)


class Unsupported(Invalid):
    """Something real that the cost model does not describe; `missing` says what."""

    def __init__(self, field: str, value: object, missing: str) -> None:
        super().__init__(field, value, f"not described by the cost model: {missing}")
        self.missing = missing


class Infeasible(DomainError):
    """No layout satisfies every constraint.

    `constraint` is the nearest failing one, `needed` and `available` are in `unit`. `enough_chips`:
    how many would do, where that is known. `blamed`: values of the question of which each alone is
    in the way.
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
    ) -> None:
        super().__init__(f"{constraint}: {detail}")
        self.constraint, self.detail = constraint, detail
        self.needed, self.available, self.unit = needed, available, unit
        self.enough_chips, self.blamed = enough_chips, tuple(blamed)

    @property
    def brief(self) -> str:
        if self.needed is None or self.available is None:
            return str(self)
        return (
            f"{self.constraint}: at least {self.needed:.1f} {self.unit} are needed,"
            f" {self.available:.1f} are there"
        )

    def with_detail(self, detail: str, enough_chips: int | None = None) -> Infeasible:
        """The same, with something more to say."""
        more = f"{self.detail}; {detail}"
        return Infeasible(
            self.constraint, more, self.needed, self.available, self.unit, enough_chips, self.blamed
        )

    def with_preface(self, detail: str) -> Infeasible:
        """The same, with something to say first, of every value that is blamed too."""
        blamed = [Invalid(one.field, one.value, f"{detail}: {one.rule}") for one in self.blamed]
        told = self.needed, self.available, self.unit, self.enough_chips
        return Infeasible(self.constraint, f"{detail}: {self.detail}", *told, blamed)

    def prefixed(self, prefix: str) -> Infeasible:
        """The same error seen from the object that holds what is blamed."""
        if self.blamed:
            self.constraint = f"{prefix}.{self.constraint}"
            self.blamed = tuple(fault.prefixed(prefix) for fault in self.blamed)
            self.args = (f"{self.constraint}: {self.detail}",)
        return self


class OutOfTime(Infeasible):
    """Whether there is one is not known."""

    def __init__(self, more: str = "") -> None:
        super().__init__(
            "time_limit_s",
            f"no layout that fits was found in the time given; there may be one{more}",
        )
