"""One question on several numbers of chips."""

from __future__ import annotations

import pytest

from models.advice.chip_counts import Attempt, attempt_each, clusters_with_devices
from models.errors import Infeasible, TooLarge
from models.search.result import NothingFaster
from models.spec import catalogue
from models.spec.hardware import Cluster

CLUSTERS = [catalogue.cluster("h100", chips) for chips in (8, 16, 24)]


def solve(cluster: Cluster) -> int:
    if cluster.num_chips == 8:
        raise TooLarge(8, 2, "meshes", 1)
    if cluster.num_chips == 16:
        raise NothingFaster
    return cluster.num_chips


def test_attempts_tell_what_is_too_large_from_what_has_no_answer() -> None:
    assert [*attempt_each(CLUSTERS, solve, lambda: True)] == [
        Attempt(CLUSTERS[0], too_large=True),
        Attempt(CLUSTERS[1]),
        Attempt(CLUSTERS[2], 24),
    ]


def test_a_cluster_on_which_nothing_fits_has_no_answer() -> None:
    def refuse(cluster: Cluster) -> int:
        raise Infeasible("memory", "nothing fits")

    assert [*attempt_each(CLUSTERS[:1], refuse, lambda: True)] == [Attempt(CLUSTERS[0])]


def test_attempts_end_with_the_time() -> None:
    time_left = iter((True, True, False))
    tried = [*attempt_each(CLUSTERS, solve, lambda: next(time_left))]
    assert [attempt.cluster for attempt in tried] == CLUSTERS[:2]


@pytest.mark.parametrize(("counts", "kept"), [([3, 8, 12], [3, 8, 12]), ([], [])])
def test_a_switched_cluster_has_any_number_of_devices(counts: list[int], kept: list[int]) -> None:
    resized = clusters_with_devices(CLUSTERS[0], counts)
    assert [cluster.num_devices for cluster in resized] == kept
