"""What several tenants measured alike. A calibration that activates its own version learns from a
tenant only what others agree with, so that none moves the predictions of all by itself.

Measurements are compared by kind, which is a chip with a stack, and by quantity. What a tenant says
of a quantity is a level: the median, over its measurements, of how far they lie from the profile,
as a logarithm. Two levels agree where they differ by no more than half of the larger one, so that
either tells more of the other than the profile does; or by no more than the margin of the policy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from models.calibration.observation import Observation
from models.spec.profile import Profile
from service.resolve.calibration_targets import log_memory_residuals, log_residuals
from service.resolve.stored_runs import StoredRun

_TIME, _MEMORY = "step time", "memory"
_OUT_OF_MEMORY, _PARTS = "out of memory", "parts"  # which have no level but 0: others say so too


@dataclass(frozen=True, slots=True)
class Group:
    """What one tenant measured of one kind: runs, or benchmarks."""

    tenant: str | None
    chip: str
    stack: str
    of_benchmarks: bool = False

    @property
    def kind(self) -> tuple[str, str, bool]:
        return self.chip, self.stack, self.of_benchmarks


@dataclass(frozen=True, slots=True)
class TenantBenchmark:
    """A benchmark as a calibration takes it. `offsets` say by coefficient how far it lies from
    published ones."""

    group: Group
    observation: Observation
    offsets: dict[str, float]


@dataclass(frozen=True, slots=True)
class Corroborated:
    """What several tenants agree on. Of the others, `waiting` has the first ids of the groups of
    which nothing is agreed on yet, and `unused` the ids of single measurements. `reports` is how
    many reports are among both."""

    runs: list[StoredRun]
    benchmarks: list[TenantBenchmark]
    unused: list[str]
    waiting: dict[Group, str]
    reports: int


def group_of(run: StoredRun) -> Group:
    return Group(run.tenant, run.chip, run.stack)


def corroborated(
    runs: Sequence[StoredRun],
    benchmarks: Sequence[TenantBenchmark],
    profile: Profile,
    *,
    tenants: int,
    margin: float,
) -> Corroborated:
    """What at least so many tenants agree on of these measurements. What nobody's key came with
    counts without others."""
    levels = _levels(runs, benchmarks, profile)
    agreed = {
        (group, quantity)
        for group, quantity in levels
        if group.tenant is None or _count_agreeing(levels, group, quantity, margin) >= tenants
    }
    kept_runs = [_agreed_part(run, agreed) for run in runs]
    kept_benchmarks = [_agreed_coefficients(one, agreed) for one in benchmarks]
    agreed_groups = {group for group, _ in agreed}
    ids = [
        *((group_of(run), run.report_id) for run in runs),
        *((one.group, one.observation.key) for one in benchmarks),
    ]
    left_out = [
        place for place, kept in zip(ids, [*kept_runs, *kept_benchmarks], strict=True) if not kept
    ]
    waiting: dict[Group, str] = {}
    for group, id_ in left_out:
        if group not in agreed_groups:
            waiting[group] = min(id_, waiting.get(group, id_))
    return Corroborated(
        runs=[run for run in kept_runs if run],
        benchmarks=[one for one in kept_benchmarks if one],
        unused=[id_ for group, id_ in left_out if group in agreed_groups],
        waiting=waiting,
        reports=kept_runs.count(None),
    )


_Levels = dict[tuple[Group, str], float]


def _levels(
    runs: Sequence[StoredRun], benchmarks: Sequence[TenantBenchmark], profile: Profile
) -> _Levels:
    found: defaultdict[tuple[Group, str], list[float]] = defaultdict(list)
    timed = [run for run in runs if run.step_time_s is not None]
    for run, residual in zip(timed, log_residuals(timed, profile).tolist(), strict=True):
        found[group_of(run), _TIME].append(residual)
    measured = [run for run in runs if run.reserved_bytes is not None]
    for run, residual in zip(
        measured, log_memory_residuals(measured, profile).tolist(), strict=True
    ):
        found[group_of(run), _MEMORY].append(residual)
    for run in runs:
        if run.out_of_memory:
            found[group_of(run), _OUT_OF_MEMORY].append(0.0)
        if _has_parts(run):
            found[group_of(run), _PARTS].append(0.0)
    for one in benchmarks:
        for coefficient, offset in one.offsets.items():
            found[one.group, coefficient].append(offset)
    return {key: median(values) for key, values in found.items()}


def _count_agreeing(levels: _Levels, group: Group, quantity: str, margin: float) -> int:
    """How many tenants, this one among them, say the same of a quantity."""
    own = levels[group, quantity]
    return sum(
        _agree(own, level, margin)
        for (other, what), level in levels.items()
        if what == quantity and other.kind == group.kind
    )


def _agree(one: float, other: float, margin: float) -> bool:
    return abs(one - other) <= max(margin, max(abs(one), abs(other)) / 2)


def _agreed_part(run: StoredRun, agreed: set[tuple[Group, str]]) -> StoredRun | None:
    """The run with those measurements that others agree with, if any."""
    group = group_of(run)
    if (group, _TIME) not in agreed:
        run = replace(run, step_time_s=None)
    if run.step_time_s is None or (group, _PARTS) not in agreed:
        run = replace(run, exposed_communication_s=None, expert_imbalance=None)
    if (group, _MEMORY) not in agreed:
        run = replace(run, reserved_bytes=None)
    if (group, _OUT_OF_MEMORY) not in agreed:
        run = replace(run, out_of_memory=False)
    says_something = run.out_of_memory or run.step_time_s or run.reserved_bytes
    return run if says_something else None


def _agreed_coefficients(
    benchmark: TenantBenchmark, agreed: set[tuple[Group, str]]
) -> TenantBenchmark | None:
    kept = {
        name: value
        for name, value in benchmark.observation.coefficients.items()
        if (benchmark.group, name) in agreed
    }
    if not kept:
        return None
    return replace(benchmark, observation=replace(benchmark.observation, coefficients=kept))


def _has_parts(run: StoredRun) -> bool:
    return run.exposed_communication_s is not None or run.expert_imbalance is not None
