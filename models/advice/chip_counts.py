"""One question on several numbers of chips: the clusters, and what a search finds on each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from models.errors import Infeasible, Invalid, TooLarge
from models.search.result import NothingFaster, ShouldContinue
from models.search.tables import NoLegalLayout
from models.spec.hardware import Cluster
from models.spec.problem import Problem

Solution = TypeVar("Solution")


@dataclass(frozen=True, slots=True)
class Attempt(Generic[Solution]):
    """The result of a search on one cluster: a solution, or None where no layout is legal, fits and
    is fast enough. A cluster with too many layouts to search is `too_large`."""

    cluster: Cluster
    solution: Solution | None = None
    too_large: bool = False


def attempt_each(
    clusters: Iterable[Cluster],
    solve: Callable[[Cluster], Solution],
    should_continue: ShouldContinue,
) -> Iterator[Attempt[Solution]]:
    """Yield the result of `solve` on each cluster, one after the other, until `should_continue`
    returns False. Errors that say that nothing was found become an Attempt without a solution, so
    that the next cluster is still tried."""
    for cluster in clusters:
        if not should_continue():
            return
        try:
            solution = solve(cluster)
        except TooLarge:
            yield Attempt(cluster, too_large=True)
        except (NothingFaster, NoLegalLayout, Infeasible):
            yield Attempt(cluster)
        else:
            yield Attempt(cluster, solution)


def clusters_with_devices(cluster: Cluster, counts: Iterable[int]) -> Iterator[Cluster]:
    """Yield the cluster resized to each of these numbers of devices. Numbers that its chips or the
    slices of its torus do not allow are left out. Slices of a given shape stay whole."""
    per_chip = cluster.chip.devices_per_chip
    slice_chips = math.prod(cluster.torus_shape or ())  # 1 where no shape is given
    for count in counts:
        if count % (per_chip * slice_chips):
            continue
        try:
            # with_num_chips drops the shape of a single slice.
            resized = replace(
                cluster.with_num_chips(count // per_chip), torus_shape=cluster.torus_shape
            )
            _ = resized.dims  # raises Invalid where no slice has so many chips
        except Invalid:
            continue
        yield resized


def problem_with_chips(problem: Problem, chips: int) -> Problem:
    """Return the problem on `chips` of its chips. The cluster must allow that number."""
    devices = chips * problem.cluster.chip.devices_per_chip
    (cluster,) = clusters_with_devices(problem.cluster, [devices])
    return replace(problem, cluster=cluster)
