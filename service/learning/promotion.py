"""Promotion decides whether the version that a calibration made takes the place of the active one,
and says why not if it does not.

*Held-out*, or *unseen*, runs were reported and not learnt, so that they show the error of the new
version. A *kind* of runs is a chip or a stack. The *margin* is that of the profile's policy, by
which an error may grow. A *profile* has the coefficients of the cost model.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from models.calibration.calibrate import Calibration
from models.calibration.cross_validation import MIN_RUNS_TO_JUDGE, ProfileComparison
from models.calibration.fleet_effects import without_fleet
from models.spec.profile import Profile
from service.learning.published_sample import published_sample
from service.resolve.calibration_targets import log_residuals, observation
from service.resolve.stored_runs import StoredRuns
from service.schemas.profile import Policy, Promotion
from service.store import Store
from service.store.reports import ReportFilter

_LEAST_FALL = 0.001  # a smaller fall of the error is chance
_LEFT_TO_A_PERSON = "the policy is manual: a person activates it"
_RUNS_OF_A_SOURCE = 20  # the last that it reported
_SOURCES = 200  # those that reported last


def compare_on_published_runs(
    store: Store, before: Profile, after: Profile
) -> ProfileComparison | None:
    """Returns the errors of two profiles on a few published runs of each chip and stack. They show
    what a calibration on some machines does to all others. None where there are no published
    runs."""
    sample = published_sample(store, after.software_year)
    if not sample.runs:
        return None
    # Published runs are not of the fleet whose machines a profile has learnt.
    profiles = [without_fleet(before), without_fleet(after)]
    times_before, times_after = sample.log_times(profiles)
    # The standard deviations of the new version's logs: they make the 80% intervals whose coverage
    # is told.
    spreads = [
        profiles[1].neighbourhood(problem.neighbourhood_scopes).total for problem in sample.problems
    ]
    kinds = [
        (f"chip:{problem.cluster.chip.id}", f"stack:{problem.stack.calibrated_as}")
        for problem in sample.problems
    ]
    return ProfileComparison(
        measured=np.log([run.step_time_s or np.nan for run in sample.runs]),
        before=times_before,
        after=times_after,
        spread=np.array(spreads),
        kinds=tuple(kinds),
    )


def compare_on_latest_runs(
    store: Store, profile_id: str, before: Profile, after: Profile
) -> ProfileComparison | None:
    """Returns the errors of two profiles on the last runs of each tenant or source. They show
    whether one source's reports are learnt at the cost of another's. None where no step time was
    measured."""
    report_filter = ReportFilter(profile_id=profile_id, measured=True)
    with store.reading() as rows:
        reports = rows.reports.last_of_each_source(report_filter, _RUNS_OF_A_SOURCE, _SOURCES)
        readable, _ = StoredRuns(rows).read(reports)
    runs = [run for run in readable if run.step_time_s is not None]
    if not runs:
        return None
    measured = np.log([run.step_time_s or np.nan for run in runs])
    # Standard deviations of the new version's logs, for the coverage of 80% intervals.
    spreads = [after.neighbourhood(run.problem.neighbourhood_scopes).total for run in runs]
    return ProfileComparison(
        measured=measured,
        # Measured less residual, in logarithms, is what the profile predicts.
        before=measured - log_residuals(runs, before),
        after=measured - log_residuals(runs, after),
        spread=np.array(spreads),
        # Errors are compared by source, so each source is a kind here.
        kinds=tuple((observation(run).source,) for run in runs),
    )


def judge(
    policy: Policy,
    calibration: Calibration,
    published: ProfileComparison | None,
    latest_by_source: ProfileComparison | None = None,
    *,
    requested: bool,
    is_agreed: bool = True,
    is_own: bool = False,
) -> Promotion:
    """Decides whether the calibration's version is activated, and returns that with the reason.

    `published` and `latest_by_source` are the results of compare_on_published_runs and
    compare_on_latest_runs: errors that may not grow beyond the policy's margin. The reason names no
    source. `requested`: the caller wants the version active at once, whatever the policy's mode.
    `is_agreed`: several tenants measured alike what was learnt, or no API key was used. `is_own`:
    the version is for the tenant alone that measured all of it. Too few runs to hold any out may
    then move it as far as fleets are known to differ (models.calibration.fleet_effects).
    """
    outliers = len(calibration.outliers)
    # Most runs are not explained: likely they are described wrongly, or of another unit.
    if 2 * outliers > calibration.observations:
        return _not_promoted(
            f"{outliers} of {calibration.observations} reports are outliers: no coefficient"
            " explains them"
        )
    candidates = {
        "step times": calibration.held_out,
        "peaks of memory": calibration.held_out_memory,
    }
    unseen = {name: held_out for name, held_out in candidates.items() if held_out is not None}
    if not unseen and is_own:
        return _judge_by_learnt_runs(policy, calibration, requested=requested)
    if not unseen:
        rule = f"fewer than {MIN_RUNS_TO_JUDGE} measured step times, or peaks of memory"
        return _not_promoted(f"{rule}: its error on runs that it did not see is unknown")
    errors = {name: (runs.error_before, runs.error_after) for name, runs in unseen.items()}
    change = f"on runs that it did not see {_error_words(errors)}"
    if not _any_falls(errors):
        least = f"{100 * _LEAST_FALL:g} percentage points"
        return _not_promoted(f"{change}, which is no fall of {least} or more")
    if policy.mode == "manual" and not requested:
        return _not_promoted(f"{change}; {_LEFT_TO_A_PERSON}")
    if not is_agreed:
        return _not_promoted(
            f"{change}, but fewer than {policy.min_tenants} tenants measured alike: what one has"
            " measured moves nobody else's predictions until others agree, a person activates it,"
            " or the policy's min_tenants is 1"
        )
    compared = {f"{quantity} of unseen reports": held_out for quantity, held_out in unseen.items()}
    if published:
        compared["step times of published runs"] = published
    growth = _growth_for_a_source(latest_by_source, policy.margin) or _growth_of_a_kind(
        compared, policy.margin
    )
    if growth is not None:
        margin = f"by more than the margin of {policy.margin:.1%}"
        return _not_promoted(f"{change}, but {growth}, {margin}")
    return Promotion(
        promoted=True, reason=f"{change}, and nothing gets worse by more than {policy.margin:.1%}"
    )


def _judge_by_learnt_runs(
    policy: Policy, calibration: Calibration, *, requested: bool
) -> Promotion:
    """Decides on a tenant's own version by its error on the runs that it has learnt, because they
    were too few to hold any out. That is safe: so few runs move a version no further than fleets
    are known to differ."""
    candidates = {
        "step times": (calibration.error_before, calibration.error_after),
        "peaks of memory": (calibration.memory_error_before, calibration.memory_error_after),
    }
    errors = {
        quantity: (before, after)
        for quantity, (before, after) in candidates.items()
        if before is not None and after is not None
    }
    if not errors:
        return _not_promoted("no step time and no peak of memory was measured to judge it by")
    change = f"of what it has seen {_error_words(errors)}"
    if not _any_falls(errors):
        return _not_promoted(f"{change}, which is no fall")
    if policy.mode == "manual" and not requested:
        return _not_promoted(f"{change}; {_LEFT_TO_A_PERSON}")
    return Promotion(
        promoted=True,
        reason=(
            f"{change}; these are fewer than {MIN_RUNS_TO_JUDGE}, so that they move it only as far"
            " as fleets have been seen to differ"
        ),
    )


_Errors = Mapping[str, tuple[float, float]]
"""Median errors before and after a calibration, by the quantity in words, such as "step times"."""


def _error_words(errors: _Errors) -> str:
    """Returns words such as "the error of step times goes from 9.0% to 7.5%"."""
    return " and ".join(
        f"the error of {quantity} goes from {before:.1%} to {after:.1%}"
        for quantity, (before, after) in errors.items()
    )


def _any_falls(errors: _Errors) -> bool:
    return not all(after > before - _LEAST_FALL for before, after in errors.values())


def _growth_for_a_source(latest: ProfileComparison | None, margin: float) -> str | None:
    """Returns words on the first source whose error grows by more than the margin; None where no
    error grows. The source is not named, because other tenants read the words."""
    if latest is None:
        return None
    for runs, before, after in latest.by_kind.values():
        if after > before + margin:
            return (
                f"of the last {runs} runs that somebody reported the error grows from {before:.1%}"
                f" to {after:.1%}"
            )
    return None


def _growth_of_a_kind(compared: Mapping[str, ProfileComparison], margin: float) -> str | None:
    """Returns words on the first error that grows by more than the margin, over all runs or over
    one kind; None where none grows. `compared` maps a quantity in words, such as "step times of
    published runs", to its errors."""
    for quantity, held_out in compared.items():
        overall = len(held_out.measured), held_out.error_before, held_out.error_after
        by_kind = {f" of {kind}": errors for kind, errors in held_out.by_kind.items()}
        # The empty words stand for the runs of all kinds.
        for kind, (runs, before, after) in {"": overall, **by_kind}.items():
            if after > before + margin:
                return (
                    f"the error on {runs} {quantity}{kind} grows from {before:.1%} to {after:.1%}"
                )
    return None


def _not_promoted(reason: str) -> Promotion:
    return Promotion(promoted=False, reason=reason)
