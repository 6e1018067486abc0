"""The numbers of chips that are worth a try, where not all chips may be used.

A number is *promising* if it divides over the axes in more ways than every larger one: one of these
ways may make up for the chips that it leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from models.advice.chip_counts import clusters_with_devices
from models.layouts.space import Space
from models.spec.hardware import Cluster
from models.spec.problem import Problem

# Numbers of chips that are tried of more than FEW_DEVICES up to _SEVERAL_DEVICES, where any is
# promising. With fewer, 224 of 250 GB200 were missed; beyond _SEVERAL_DEVICES they took up to twice
# as long (docs/lab/number-of-chips.md).
_LEAST_TRIED = 6
_SEVERAL_DEVICES = 512
FEW_DEVICES = 64
"""The largest number of devices for which searches are short. Up to it every smaller number is
tried, if any is promising: records of divisibility alone missed the fastest by up to 14%."""


def most_promising_first(spaces: Iterable[Space], factorizations: Mapping[int, int]) -> list[Space]:
    """Return the spaces with the probably fastest first, because the step time of one bounds the
    search of those behind it."""

    def promise_of_space(space: Space) -> float:
        devices = space.problem.cluster.num_devices
        return promise_score(devices, factorizations.get(devices, 0))

    return sorted(spaces, key=promise_of_space, reverse=True)


def promise_score(devices: int, ways: int) -> float:
    """Return the score by which numbers of devices are tried, the highest first. It grows with the
    devices and with the `ways` to divide them, the ways counting ever less."""
    return devices * math.log1p(ways)


def promising_spaces(
    whole: Space, factorizations: Mapping[int, int], *, more_than: int = 0
) -> Iterator[Space]:
    """Yield spaces on fewer chips that have layouts, from the largest number down. `factorizations`
    has the number of ways to divide each number of devices. A number must divide in more ways than
    all larger ones and than `more_than`. On few devices every number with layouts is yielded, if
    any divides in more ways than `more_than`."""
    cluster = whole.problem.cluster
    most_ways = max(factorizations.values(), default=0)
    takes_every = cluster.num_devices <= FEW_DEVICES and most_ways > more_than
    ways_to_exceed = more_than
    for count in sorted(factorizations, reverse=True):
        if count % cluster.chip.devices_per_chip:
            continue
        if not takes_every and factorizations[count] <= ways_to_exceed:
            continue
        for space in _legal_spaces(whole, [count]):  # one space, or none
            ways_to_exceed = factorizations[count]
            yield space


def spaces_to_try(
    whole: Space, factorizations: Mapping[int, int], most: int, *, more_than: int = 0
) -> list[Space]:
    """Return the first `most` spaces of promising_spaces. If these are few, but not none, on up to
    _SEVERAL_DEVICES devices, the most promising of the other numbers are added: 224 are fewer than
    240 and divide in fewer ways, but may divide into the stages that suit a model."""
    cluster = whole.problem.cluster
    spaces = list(islice(promising_spaces(whole, factorizations, more_than=more_than), most))
    # Up to FEW_DEVICES, promising_spaces has yielded every number already.
    is_of_several = FEW_DEVICES < cluster.num_devices <= _SEVERAL_DEVICES
    if not (is_of_several and 0 < len(spaces) < _LEAST_TRIED):
        return spaces
    known = {cluster.num_devices} | {space.problem.cluster.num_devices for space in spaces}
    others = sorted(
        factorizations.keys() - known,
        key=lambda count: promise_score(count, factorizations[count]),
        reverse=True,
    )
    return [*spaces, *islice(_legal_spaces(whole, others), _LEAST_TRIED - len(spaces))]


def _legal_spaces(whole: Space, counts: Sequence[int]) -> Iterator[Space]:
    """Yield the space on each of these numbers of devices, if it has a legal layout and the
    cluster has them in its scale-up domains."""
    for smaller in _clusters_within(whole.problem.cluster, counts):
        space = whole.on_cluster(smaller)
        if space.has_legal():
            yield space


def whole_domains(problem: Problem) -> list[Cluster]:
    """Return clusters on fewer chips, which may be faster because groups then fill domains: the
    cluster cut to whole scale-up domains, if some chips lie outside them; and, if numbers of
    experts share only powers of two with a domain, the cluster with the largest power of two of
    each domain, such as 64 chips of 72."""
    cluster = problem.cluster
    # A torus has no scale-up domains to keep whole.
    if not cluster.dims or cluster.dims[0].kind == "ring":
        return []
    domain = max(cluster.dims[0].domain, 1)
    domains, outside = divmod(cluster.num_devices, domain)
    devices_per_domain = [domain] if outside else []
    # chips_per_domain is set where the caller says how many chips of a domain the job gets.
    if cluster.chips_per_domain is None and _experts_want_power_of_two(problem, domain):
        # The largest power of two of devices that a domain has: 72 -> 64.
        devices_per_domain.append(1 << (domain.bit_length() - 1))
    counts = {domains * devices for devices in devices_per_domain} - {0, cluster.num_devices}
    return list(_clusters_within(cluster, sorted(counts, reverse=True)))


def _experts_want_power_of_two(problem: Problem, domain: int) -> bool:
    """Return whether expert parallelism within a domain only works with powers of two: the number
    of experts and the domain's devices have no other common factor. 256 experts divide over 8 of 72
    devices, and over all of 64."""
    common_factors = {
        math.gcd(kind.moe.num_experts, domain) for kind in problem.architecture.kinds if kind.moe
    }
    return bool(common_factors) and all(n & (n - 1) == 0 for n in common_factors)


def _clusters_within(cluster: Cluster, counts: Sequence[int]) -> Iterator[Cluster]:
    """Yield the cluster cut to each of these numbers of devices, if these lie in no more scale-up
    domains than the job has now. They might: a resized cluster takes equally many devices of each
    domain where it can, and so may take them of more domains."""
    domains = _domain_count(cluster)
    for resized in clusters_with_devices(cluster, counts):
        if _domain_count(resized) <= domains:
            yield resized


def _domain_count(cluster: Cluster) -> int:
    """Return the number of scale-up domains that the chips occupy, wholly or in part; 0 for a
    torus."""
    # -(-a // b) rounds up: a domain that is used in part counts too.
    return 0 if cluster.fabric.torus else -(-cluster.num_devices // cluster.scale_up_domain)
