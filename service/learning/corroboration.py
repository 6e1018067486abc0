"""Corroboration finds what several tenants measured alike. A calibration that activates its own
version learns from a tenant only what others agree with, so that none moves the predictions of all
by itself.

Measurements are compared by kind, which is a chip with a stack, and by quantity. A tenant's level
of a quantity is the median, over its measurements, of measured over predicted, as a logarithm. Two
levels of one sign agree where they differ by no more than half of the larger one, so that either
tells more of the other than the profile's prediction does; or by no more than the margin of the
policy.

Levels that agree may still differ: 1.3 times the predicted time, and 1.68 times. Only the smaller
is agreed on, so a tenant's measurements are learnt as if its level went no further than that of
enough others. Otherwise each could move the profile further than anybody confirms.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from models.calibration.observation import Observation
from models.spec.profile import Profile, to_natural, to_unbounded
from service.resolve.calibration_targets import log_memory_residuals, log_residuals
from service.resolve.stored_runs import StoredRun

_TIME, _MEMORY = "step time", "memory"
_OUT_OF_MEMORY, _PARTS = "out of memory", "parts"  # without a size: their level is always 0


@dataclass(frozen=True, slots=True)
class Group:
    """Measurements of one kind by one tenant: runs, or benchmarks."""

    tenant: str | None
    chip: str
    stack: str
    of_benchmarks: bool = False

    @property
    def kind(self) -> tuple[str, str, bool]:
        """Returns chip, stack, and whether these are benchmarks. Tenants can confirm one another
        only within a kind."""
        return self.chip, self.stack, self.of_benchmarks


@dataclass(frozen=True, slots=True)
class TenantBenchmark:
    """A benchmark as an observation for the fit. `offsets` has, by coefficient, how far it lies
    from published ones."""

    group: Group
    observation: Observation
    offsets: dict[str, float]


@dataclass(frozen=True, slots=True)
class Corroborated:
    """Measurements that several tenants agree on. What was left out is in two fields. `waiting` has
    the first id of each group of which nothing is agreed on yet; `unused` has the ids of single
    measurements of the other groups. `reports` counts the reports in both."""

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
    min_tenants: int,
    margin: float,
) -> Corroborated:
    """Returns the part of these measurements on which at least `min_tenants` tenants agree, within
    `margin` or half of the larger level, and the ids of what is left out. Measurements that came
    without an API key need nobody to agree."""
    levels = _levels(runs, benchmarks, profile)
    shifts = _shifts(levels, min_tenants, margin)
    agreed_runs = [_agreed_part(run, shifts) for run in runs]
    agreed_benchmarks = [_agreed_coefficients(benchmark, shifts) for benchmark in benchmarks]
    agreed_groups = {group for group, _ in shifts}
    groups_and_ids = [
        *((group_of(run), run.report_id) for run in runs),
        *((benchmark.group, benchmark.observation.key) for benchmark in benchmarks),
    ]
    agreed_parts = [*agreed_runs, *agreed_benchmarks]
    left_out = [
        group_and_id
        for group_and_id, agreed in zip(groups_and_ids, agreed_parts, strict=True)
        if not agreed
    ]
    # Groups without any agreement wait, each with the first of its ids: from there on it is read
    # again by the next calibration, when others may agree.
    waiting: dict[Group, str] = {}
    for group, id_ in left_out:
        if group not in agreed_groups:
            waiting[group] = min(id_, waiting.get(group, id_))
    return Corroborated(
        runs=[run for run in agreed_runs if run],
        benchmarks=[benchmark for benchmark in agreed_benchmarks if benchmark],
        unused=[id_ for group, id_ in left_out if group in agreed_groups],
        waiting=waiting,
        reports=agreed_runs.count(None),  # None is a report of which nothing is agreed on
    )


_Levels = dict[tuple[Group, str], float]
"""The level of each quantity for each group, as a logarithm."""


def _levels(
    runs: Sequence[StoredRun], benchmarks: Sequence[TenantBenchmark], profile: Profile
) -> _Levels:
    """Returns the level of each quantity for each group: the median of the natural logarithm of
    measured over predicted. Having run out of memory, and having measured parts of the step, are
    quantities without a size: their level is 0, so that all tenants that have them agree."""
    samples: defaultdict[tuple[Group, str], list[float]] = defaultdict(list)
    timed = [run for run in runs if run.step_time_s is not None]
    for run, residual in zip(timed, log_residuals(timed, profile).tolist(), strict=True):
        samples[group_of(run), _TIME].append(residual)
    measured = [run for run in runs if run.reserved_bytes is not None]
    for run, residual in zip(
        measured, log_memory_residuals(measured, profile).tolist(), strict=True
    ):
        samples[group_of(run), _MEMORY].append(residual)
    for run in runs:
        if run.out_of_memory:
            samples[group_of(run), _OUT_OF_MEMORY].append(0.0)
        if _has_parts(run):
            samples[group_of(run), _PARTS].append(0.0)
    for benchmark in benchmarks:
        for coefficient, offset in benchmark.offsets.items():
            samples[benchmark.group, coefficient].append(offset)
    return {key: median(values) for key, values in samples.items()}


_Shifts = dict[tuple[Group, str], float]
"""By how much measurements are to be moved towards the profile, on the scale of the levels: for
each group, what others agree with."""


def _shifts(levels: _Levels, min_tenants: int, margin: float) -> _Shifts:
    """Returns, for each group and quantity that enough tenants agree on, the shift from the group's
    level to the agreed one. Quantities without agreement are left out."""
    shifts: _Shifts = {}
    for (group, quantity), level in levels.items():
        if group.tenant is None:  # sent without an API key, which needs nobody to agree
            shifts[group, quantity] = 0.0
            continue
        others = _levels_of_kind(levels, group, quantity)
        agreed = _agreed_level(level, others, min_tenants, margin)
        if agreed is not None:
            shifts[group, quantity] = agreed - level
    return shifts


def _levels_of_kind(levels: _Levels, group: Group, quantity: str) -> list[float]:
    """Returns the levels of a quantity for all tenants with measurements of this group's kind,
    including this group's own."""
    return [
        level
        for (other, other_quantity), level in levels.items()
        if other_quantity == quantity and other.kind == group.kind
    ]


def _agreed_level(own: float, levels: list[float], min_tenants: int, margin: float) -> float | None:
    """Returns the level that is agreed on, as a logarithm with the sign of `own`; None where fewer
    than `min_tenants` levels agree with `own`. Its distance from the profile is the largest that
    `min_tenants` levels reach, and no larger than that of `own`."""
    distances = sorted((abs(level) for level in levels if _agree(own, level, margin)), reverse=True)
    if len(distances) < min_tenants:
        return None
    # At least `min_tenants` levels lie this far from the profile, or further.
    return math.copysign(min(abs(own), distances[min_tenants - 1]), own)


def _agree(level: float, other: float, margin: float) -> bool:
    """Returns whether two levels agree: of one sign, and no further apart than the margin or half
    of the larger."""
    same_sign = level * other >= 0
    return same_sign and abs(level - other) <= max(margin, max(abs(level), abs(other)) / 2)


def _agreed_part(run: StoredRun, shifts: _Shifts) -> StoredRun | None:
    """Returns the run with only those measurements that others agree with, scaled to the agreed
    level; None where no measurement is left."""
    group = group_of(run)
    time_factor = _factor_of_shift(shifts.get((group, _TIME)))
    memory_factor = _factor_of_shift(shifts.get((group, _MEMORY)))
    is_timed = run.step_time_s is not None and time_factor is not None
    has_parts = is_timed and (group, _PARTS) in shifts
    # A part of the step is scaled with the step, and keeps its share of it.
    part_factor = time_factor if has_parts else None
    agreed = replace(
        run,
        step_time_s=_scaled(run.step_time_s, time_factor),
        exposed_communication_s=_scaled(run.exposed_communication_s, part_factor),
        # A ratio of tokens, which is not scaled with the time.
        expert_imbalance=run.expert_imbalance if has_parts else None,
        reserved_bytes=_scaled(run.reserved_bytes, memory_factor),
        out_of_memory=run.out_of_memory and (group, _OUT_OF_MEMORY) in shifts,
    )
    # Parts of a step are only learnt with its time.
    says_something = agreed.out_of_memory or agreed.step_time_s or agreed.reserved_bytes
    return agreed if says_something else None


def _factor_of_shift(shift: float | None) -> float | None:
    """Returns the factor by which a shift of logarithms multiplies; None where nothing is agreed
    on."""
    return None if shift is None else math.exp(shift)


def _scaled(measured: float | None, factor: float | None) -> float | None:
    return None if measured is None or factor is None else measured * factor


def _agreed_coefficients(benchmark: TenantBenchmark, shifts: _Shifts) -> TenantBenchmark | None:
    """Returns the benchmark with only those coefficients that others agree with, shifted to the
    agreed level; None where no coefficient is left."""
    coefficients = {
        name: _shifted(name, value, shifts[benchmark.group, name])
        for name, value in benchmark.observation.coefficients.items()
        if (benchmark.group, name) in shifts
    }
    if not coefficients:
        return None
    return replace(benchmark, observation=replace(benchmark.observation, coefficients=coefficients))


def _shifted(name: str, value: float, shift: float) -> float:
    """Returns the coefficient moved by `shift`, which is on the unbounded scale of offsets: the log
    of a positive coefficient, or the log-odds of a fraction, which thus stays below 1."""
    return float(to_natural(name, to_unbounded(name, value) + shift))


def _has_parts(run: StoredRun) -> bool:
    """Returns whether the run measured parts of its step: exposed communication or expert
    imbalance."""
    return run.exposed_communication_s is not None or run.expert_imbalance is not None
