"""The goal of a search, and its answer. A *mesh* is the parallel degrees of a layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.columns import Array
from models.search.compiled_tables import Meshes
from models.search.tables import SearchTables
from models.spec.layout import Layouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Says what an answer has to contain: the `top` fastest meshes; the simplest layout that is
    slower than the fastest by no more than `tolerance`, a share; and, with `both_sides`, the best
    layouts with and without a pipeline. Layouts that take `faster_than` seconds or longer are no
    answer."""

    tolerance: float = 0.0
    top: int = 1
    both_sides: bool = False
    faster_than: float = np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Counts what the search looked at. Every layout of the space is in exactly one of the counts.

    - `rejected` has the layouts that are not legal, by the first rule that refused them, as far as
      the search got. Its "dominated" are policies that recompute more than they have to. A rule of
      schedules counts where no mesh has the schedule, or a mesh has no schedule at all.
    - `over_memory` were evaluated and are too large.
    - `pruned_by_memory` were left out by a bound of the memory that a core needs.
    - `evaluated` were fully evaluated.
    - `pruned_by_bound` are all others, legal or not. They lie in parts of the space whose bound,
      taken over layouts that fit, is no better than the answer.

    `closing_bound_s` is the least of the bounds that left layouts out. `exact` says that the search
    came to its end. `gap` is the most by which a layout that was not looked at is faster than the
    answer: (answer - that) / that.
    """

    space: int
    cardinality: dict[str, int]
    rejected: dict[str, int]
    over_memory: int
    pruned_by_memory: int
    pruned_by_bound: int
    evaluated: int
    closing_bound_s: float | None
    exact: bool
    gap: float


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """Holds layouts in order of (step time, complexity), and how the search went. These parts of
    the answer are positions in `layouts`:

    - `ranked` are the fastest meshes, each with its best policy and placement. Of meshes that take
      equally long it has the simplest.
    - `front` has the fastest layout of each complexity that is within the tolerance and faster than
      any simpler one, the `simplest` first.
    - `without` and `with_pp` are the best layouts without and with a pipeline.

    `tables` are those that the search looked things up in. `opened` are the meshes that it did not
    rule out, and would not have ruled out for layouts that have to fit with an even chance only.
    """

    layouts: Layouts
    times: Array
    complexities: Array
    ranked: list[int]
    front: list[int]
    without: int | None
    with_pp: int | None
    certificate: Certificate
    tables: SearchTables
    opened: Sequence[Meshes]

    @property
    def simplest(self) -> int:
        return self.front[0]

    def inexact(self, bound_s: float = np.inf) -> SearchAnswer:
        """Return this answer marked as not exact, since time ended before everything was looked at.
        Layouts that were not looked at take at least `bound_s`, by which the bound and the gap of
        the certificate get worse. Without it they stay as they are."""
        certificate, closing = self.certificate, bound_s
        if certificate.closing_bound_s is not None:
            closing = min(bound_s, certificate.closing_bound_s)
        certificate = replace(
            certificate,
            closing_bound_s=closing if np.isfinite(closing) else None,
            exact=False,
            # Without `bound_s` (infinite) the second number is -1, and the gap stays.
            gap=max(certificate.gap, float(self.times[0]) / bound_s - 1),
        )
        return replace(self, certificate=certificate)


ShouldContinue = Callable[[], bool]


def run_to_completion() -> bool:
    return True


class NothingFaster(Exception):
    """No layout that fits is faster than the goal asks."""
