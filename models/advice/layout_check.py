"""A check of one layout says whether it is legal and fits, what would be faster, and what to change
first.

A layout is *sure* if it fits with the probability that the constraints ask for. A *switch* is a
choice of the software that no layout makes, such as a kernel. A change is *expressed* as settings
of a framework, which may have none for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from statistics import NormalDist

from models.advice.layout_warnings import LayoutWarning, layout_warnings
from models.advice.rule_cures import BrokenRule, alternatives, broken_rules_of, format_value
from models.advice.safe_fit import solve_avoiding_oom
from models.advice.single_changes import SingleChange, single_changes, whole_change
from models.cost.memory_uncertainty import percent
from models.errors import Infeasible, TooLarge
from models.layouts.space import Space
from models.prediction.prediction import Prediction, predict_layouts
from models.search.enumeration import search
from models.search.infeasibility import constraints_in_the_way, rule_to_blame
from models.search.result import Goal, SearchAnswer, ShouldContinue, run_to_completion
from models.search.tables import NoLegalLayout
from models.spec.constraints import Constraints
from models.spec.hardware import GIB
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Z80, Profile

LEAST_GAIN = 0.01
"""The least gain of a change that is worth naming: 1% of a step."""
_LOW_MFU_GAIN = 0.2  # more steps an hour of the best layout, from which on MFU counts as low
_MANY = Goal(tolerance=1.0, top=32, both_sides=True)
"""The goal of the second search, where the fastest layout is not accepted: it finds others up to
twice as slow."""
_MOST_CURES = 3  # shown with an answer: more are not read
_MOST_TRIED = 12  # changes that are tried until the framework has words for one
_SLOW = 0.25  # more steps an hour of the best layout, from which on a single change counts as slow


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCheck:
    """All that there is to say of one layout before it is launched.

    `prediction` is None where a rule is broken. `best` is the fastest layout on the same devices
    that fits as surely as the constraints ask; it is the checked layout itself where none is
    faster. It is None where none was found, and `no_best` then has the reason. `best_is_exact` says
    that its search came to its end.

    `first_change` is the change to make first. For an illegal layout it is the least change that
    makes it legal. For a layout that does not fit it is the single change that makes it fit at
    least cost. Where no single change does, or only a slow one, it is the change to the best layout
    as a whole. Where no layout surely fits, it is the single change that is likeliest to fit. For a
    layout that fits it is the change that gains most; None where none gains LEAST_GAIN.

    `fitting` are the single changes that make a layout fit which does not surely fit.
    `first_change` comes first where it is one of them; the others follow by step time, the shortest
    first. `single_changes` are all that are legal, whatever the constraints
    (models.advice.single_changes).
    """

    broken_rules: tuple[BrokenRule, ...]
    prediction: Prediction | None
    best: Prediction | None
    best_is_exact: bool
    no_best: str | None
    first_change: SingleChange | None
    fitting: tuple[SingleChange, ...]
    single_changes: tuple[SingleChange, ...]
    warnings: tuple[LayoutWarning, ...]
    reserve_gib: float = 0.0
    """Memory of every device that the constraints leave free."""

    @property
    def fits(self) -> bool:
        """Return whether the layout is predicted to fit beside the memory that is left free."""
        predicted = self.prediction
        return (
            predicted is not None and predicted.fits and _leaves_free(predicted, self.reserve_gib)
        )

    @property
    def gain(self) -> float | None:
        """Return the step time of the checked layout over that of the best layout, less 1; None
        where one of them is not known."""
        if self.prediction is None or self.best is None:
            return None
        return self.prediction.step_time_s / self.best.step_time_s - 1

    @property
    def gain_probability(self) -> float | None:
        """Return the probability that the best layout is really faster, with the errors of the two
        predictions taken as independent. Shared errors only make it surer."""
        if self.prediction is None or self.best is None:
            return None
        log_gain = math.log(self.prediction.step_time_s / self.best.step_time_s)
        # Each end of an 80% interval is Z80 standard deviations of a log-normal time away.
        sooner = math.log(self.prediction.step_time_s / self.prediction.step_time_low_s)
        later = math.log(self.best.step_time_high_s / self.best.step_time_s)
        spread = math.hypot(sooner, later) / Z80
        return NormalDist().cdf(log_gain / spread) if spread else float(log_gain > 0)


def check_layout(
    problem: Problem,
    profile: Profile,
    layout: Layout | None,
    constraints: Constraints | None = None,
    should_continue: ShouldContinue = run_to_completion,
    oom_gib: float = math.inf,
    accepts: Callable[[Problem, Layout], bool] | None = None,
    express: Callable[[SingleChange], SingleChange | None] | None = None,
) -> LayoutCheck:
    """Return the check of a layout whose knobs are all settled (models.layouts.defaults), legal or
    not. If the layout is None, the check has the best layout alone.

    `constraints` are on the layouts that it is compared with. They must also need less than
    `oom_gib`, at which a run of this model, chip and stack ran out of memory. Only layouts for
    which `accepts` is true are named. `express` returns a change as the framework can be told it,
    with the prediction of just that, or None if it cannot be told.
    """
    criteria = _Criteria(problem, constraints or Constraints(), oom_gib, accepts, express)
    broken = broken_rules_of(problem, layout)
    every_change = [] if layout is None else single_changes(problem, profile, layout)
    changes = [
        change
        for change in every_change
        if criteria.allows(change.layout, change.outcome.needed_gib)
    ]
    sure = [change for change in changes if criteria.is_sure(change.outcome.fit_probability)]
    sure.sort(key=lambda change: change.outcome.step_time_s)
    fastest = _find_fastest(profile, criteria, should_continue)
    rivals = [*_first_accepted_layout(sure, criteria), *fastest.layouts]
    prediction, best = _predict_with_best(profile, criteria, None if broken else layout, rivals)
    fits_surely = (
        prediction is not None
        and criteria.is_sure(prediction.fit_probability)
        and _leaves_free(prediction, criteria.constraints.memory_reserve_gib)
    )
    if fits_surely:
        # A change must gain enough by itself, and also as settings of the framework (`express`).
        first = _fastest_change(filter(_gains_enough, sure), criteria, _gains_enough)
    else:
        # In order: what repairs a broken rule, what makes the layout fit, what brings it nearest to
        # that.
        first = (
            (_least_repair(broken, sure, criteria) if broken else None)
            or _change_that_fits(profile, layout, best, sure, criteria)
            or _likeliest_to_fit(changes, prediction, criteria)
        )
    must_fit = prediction is not None and not fits_surely
    return LayoutCheck(
        broken_rules=broken,
        prediction=prediction,
        best=best,
        best_is_exact=fastest.is_exact,
        no_best=fastest.reason if best is None else None,
        first_change=first,
        fitting=tuple(_first_of_each_knob(first, sure, criteria)) if must_fit else (),
        single_changes=tuple(every_change),
        warnings=tuple(_all_warnings(profile, criteria, prediction, best)),
        reserve_gib=criteria.constraints.memory_reserve_gib,
    )


def _leaves_free(prediction: Prediction, reserve_gib: float) -> bool:
    """Return whether a layout leaves `reserve_gib` of memory free. Without a reserve it is true of
    every layout, even of one that does not fit."""
    return not reserve_gib or prediction.needed_gib + reserve_gib <= prediction.usable_gib


@dataclass(frozen=True, slots=True)
class _Criteria:
    """The demands on layouts that are named: the constraints, and what the framework can be told
    (`accepts` and `express` of check_layout; None where it can be told everything)."""

    problem: Problem
    constraints: Constraints
    oom_gib: float
    accepts: Callable[[Problem, Layout], bool] | None
    express: Callable[[SingleChange], SingleChange | None] | None

    def accepts_change(self, change: SingleChange) -> bool:
        return self.accepts is None or self.accepts(change.problem, change.layout)

    def expressed(self, change: SingleChange) -> SingleChange | None:
        """Return a change as the framework can be told it, with its prediction; None if it cannot
        be told."""
        if not self.accepts_change(change):
            return None
        return change if self.express is None else self.express(change)

    def allows(self, layout: Layout, needed_gib: float) -> bool:
        """Return whether a layout meets the constraints on its knobs and on free memory, and needs
        less memory than a run that ran out. Without a reserve of memory even layouts that do not
        fit are allowed, so that they can be ranked by how near they come."""
        reserve_gib = self.constraints.memory_reserve_gib
        usable_gib = self.problem.cluster.usable_bytes / GIB
        limit_gib = usable_gib - reserve_gib if reserve_gib else math.inf
        fits_limits = needed_gib < self.oom_gib and needed_gib <= limit_gib
        return fits_limits and not self.ruled_out_knobs(layout)

    def ruled_out_knobs(self, layout: Layout) -> list[str]:
        """Return the knobs of a layout whose values the constraints do not allow. The modules to
        recompute count only under selective recompute, and must then be exactly the allowed
        ones."""
        allowed = dict(self.constraints.allowed)
        modules = allowed.pop("recompute_modules", None)
        knobs = [knob for knob, values in allowed.items() if getattr(layout, knob) not in values]
        is_selective = layout.recompute == "selective"
        if modules and is_selective and {*modules} != {*layout.recompute_modules}:
            knobs.append("recompute_modules")
        return knobs

    def is_sure(self, fit_probability: float) -> bool:
        return fit_probability >= self.constraints.min_fit_probability


def _predict_with_best(
    profile: Profile, criteria: _Criteria, layout: Layout | None, rivals: Sequence[Layout]
) -> tuple[Prediction | None, Prediction | None]:
    """Return the predictions of the given layout and of the fastest layout that surely fits. Where
    the given layout is not legal, `layout` and its prediction are None. The fastest is one of
    `rivals`, or the given layout itself."""
    layouts = [*rivals] if layout is None else [layout, *rivals]
    if not layouts:
        return None, None
    predictions = predict_layouts(criteria.problem, layouts, profile)
    prediction = None if layout is None else predictions[0]
    eligible = predictions
    if prediction is not None and not (
        criteria.is_sure(prediction.fit_probability)
        and criteria.allows(prediction.layout, prediction.needed_gib)
    ):
        eligible = predictions[1:]
    best = min(eligible, key=attrgetter("step_time_s"), default=None)
    return prediction, best


def _first_accepted_layout(changes: Iterable[SingleChange], criteria: _Criteria) -> list[Layout]:
    """Return a list with the layout of the first change of a knob that the criteria accept; empty
    where there is none. It may beat what a stopped search found. Changes of switches are passed
    over: they leave the layout as it is."""
    of_layout = (change for change in changes if change.switch is None)
    first = next(filter(criteria.accepts_change, of_layout), None)
    return [] if first is None else [first.layout]


# -- what would be better
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fastest:
    """The fastest layout of a search if it found one, or the reason why it found none."""

    layouts: list[Layout]
    is_exact: bool
    reason: str | None = None


def _find_fastest(
    profile: Profile, criteria: _Criteria, should_continue: ShouldContinue
) -> _Fastest:
    """Return the fastest layout that the framework can be told (`criteria.accepts`). If it cannot
    be told the fastest of all, a second search finds more layouts to choose from, and the result is
    not exact."""
    problem = criteria.problem
    space = Space(problem, criteria.constraints)

    def search_for(goal: Goal) -> SearchAnswer:
        """Return the answer among layouts that need less memory than a run that ran out."""
        return solve_avoiding_oom(
            criteria.oom_gib,
            space,
            lambda searched: search(searched, profile, goal, should_continue),
        )

    try:
        answer = search_for(Goal())
        accepts = criteria.accepts
        if accepts is None or accepts(problem, answer.layouts[0]):
            return _Fastest([answer.layouts[0]], is_exact=answer.certificate.exact)
        ranked = _fastest_layouts(search_for(_MANY))  # 32 or so, at most twice as slow
    except NoLegalLayout:
        contradicted = constraints_in_the_way(space)
        reason = contradicted.brief if contradicted else str(Infeasible(*rule_to_blame(problem)))
        return _Fastest([], is_exact=True, reason=reason)
    except TooLarge as error:
        return _Fastest([], is_exact=False, reason=str(error))
    except Infeasible as error:
        # Where time ran out, a longer search might find one.
        return _Fastest([], is_exact=error.constraint != "time_limit_s", reason=error.brief)
    accepted = next((layout for layout in ranked if accepts(problem, layout)), None)
    if accepted is not None:
        return _Fastest([accepted], is_exact=False)
    reason = f"the framework has no words for any of the {len(ranked)} fastest layouts found"
    return _Fastest([], is_exact=False, reason=reason)


def _fastest_layouts(answer: SearchAnswer) -> list[Layout]:
    """Return the ranked layouts of an answer, the fastest first, and then its fastest without a
    pipeline."""
    positions = answer.ranked if answer.without is None else [*answer.ranked, answer.without]
    return [answer.layouts[position] for position in dict.fromkeys(positions)]


def _gains_enough(change: SingleChange) -> bool:
    """Return whether a change gains at least LEAST_GAIN; False where the gain is not known, since
    the given layout is not legal."""
    return (change.gain or 0) >= LEAST_GAIN


def _change_that_fits(
    profile: Profile,
    layout: Layout | None,
    best: Prediction | None,
    sure: Sequence[SingleChange],
    criteria: _Criteria,
) -> SingleChange | None:
    """Return the fastest change with which a layout surely fits: one of the single changes `sure`,
    or the change to the best layout as a whole, if that is much faster. None where there is
    none."""
    fastest = _fastest_change(sure, criteria)
    if layout is None or best is None:
        return fastest
    if fastest is not None and fastest.outcome.step_time_s <= (1 + _SLOW) * best.step_time_s:
        return fastest
    to_best = whole_change(criteria.problem, profile, layout, best.layout)
    # If the framework cannot be told the best layout, the slow single change has to do.
    return _expressed_if_sure(to_best, criteria) or fastest


def _expressed_if_sure(change: SingleChange, criteria: _Criteria) -> SingleChange | None:
    """Return a change as the framework can be told it, if it then surely fits; None otherwise."""
    expressed = criteria.expressed(change)
    if expressed and criteria.is_sure(expressed.outcome.fit_probability):
        return expressed
    return None


def _fastest_change(
    changes: Iterable[SingleChange],
    criteria: _Criteria,
    is_worth: Callable[[SingleChange], bool] = lambda change: True,
) -> SingleChange | None:
    """Return the change with the shortest step that surely fits and that `is_worth` accepts.
    `changes` are in the order of step time, and the first _MOST_TRIED are looked at. Among changes
    within LEAST_GAIN of the fastest, the one with the fewest settings is returned."""
    fastest = list[SingleChange]()
    for change in islice(changes, _MOST_TRIED):
        if fastest:
            limit_s = (1 + LEAST_GAIN) * fastest[0].outcome.step_time_s
            if change.outcome.step_time_s > limit_s:
                break
        expressed = _expressed_if_sure(change, criteria)
        if expressed and is_worth(expressed):
            fastest.append(expressed)
    return min(fastest, key=attrgetter("num_settings"), default=None)


def _least_repair(
    broken: Sequence[BrokenRule], changes: Sequence[SingleChange], criteria: _Criteria
) -> SingleChange | None:
    """Return the smallest change that makes a layout legal: the one with the fewest settings, then
    one of a knob that the broken rules blame, then the one to the nearest value. All else stays as
    the submitter meant it. The nearest _MOST_TRIED changes are looked at."""
    blamed = {rule.knob for rule in broken}

    def how_far(change: SingleChange) -> tuple[bool, float, float]:
        """Return a key that sorts changes of blamed knobs first, then by how far values move."""
        return change.knob not in blamed, _distance(change), change.outcome.step_time_s

    nearest = islice(sorted(changes, key=how_far), _MOST_TRIED)
    expressed = filter(None, map(criteria.expressed, nearest))
    return min(expressed, key=lambda change: (change.num_settings, how_far(change)), default=None)


def _distance(change: SingleChange) -> float:
    """Return how far a change moves a value: the absolute logarithm of the ratio of two numbers,
    since degrees are halved and doubled. Other values count 1, like a factor of e."""
    values = (change.before, change.after)
    # True and False are integers to Python.
    are_numbers = all(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in values
    )
    if not are_numbers or min(values) <= 0:
        return 1.0
    return abs(math.log(change.after / change.before))


def _likeliest_to_fit(
    changes: Sequence[SingleChange], prediction: Prediction | None, criteria: _Criteria
) -> SingleChange | None:
    """Return the change with which a layout is likeliest to fit, among those that the framework can
    be told; None where none makes it likelier. The _MOST_TRIED likeliest are looked at."""
    # Any change is likelier to fit than an illegal layout, which has no prediction.
    probability = 0.0 if prediction is None else prediction.fit_probability
    likelier = [change for change in changes if change.outcome.fit_probability > probability]
    likelier.sort(key=lambda change: -change.outcome.fit_probability)
    return next(filter(None, map(criteria.expressed, likelier[:_MOST_TRIED])), None)


def _first_of_each_knob(
    first_change: SingleChange | None, changes: Iterable[SingleChange], criteria: _Criteria
) -> list[SingleChange]:
    """Return different ways to make a layout fit: the first change of each knob that the framework
    can be told and that surely fits, at most _MOST_CURES, out of the first _MOST_TRIED changes.
    `first_change` comes before them, if it surely fits and is a single change."""
    by_knob = dict[str, SingleChange]()
    if (
        first_change is not None
        and criteria.is_sure(first_change.outcome.fit_probability)
        and not first_change.is_whole
    ):
        by_knob[first_change.knob] = first_change
    others = (change for change in changes if change.knob not in by_knob)
    for change in islice(others, _MOST_TRIED):
        if len(by_knob) == _MOST_CURES:
            break
        expressed = None if change.knob in by_knob else _expressed_if_sure(change, criteria)
        if expressed:
            by_knob[expressed.knob] = expressed
    return list(by_knob.values())


# -- warnings
# --------------------------------------------------------------------------------------------------


def _all_warnings(
    profile: Profile,
    criteria: _Criteria,
    prediction: Prediction | None,
    best: Prediction | None,
) -> Iterator[LayoutWarning]:
    """Yield all warnings about a legal layout; none without a prediction."""
    if prediction is None:
        return
    yield from _constraint_warnings(prediction, criteria)
    yield from layout_warnings(criteria.problem, profile, prediction)
    yield from _fit_warnings(prediction, criteria)
    if best is not None:
        yield from _low_mfu_warnings(prediction, best)


def _constraint_warnings(prediction: Prediction, criteria: _Criteria) -> Iterator[LayoutWarning]:
    """Yield a warning if the checked layout itself has values that the constraints rule out."""
    ruled_out = criteria.ruled_out_knobs(prediction.layout)
    if not ruled_out:
        return
    allowed = criteria.constraints.allowed
    deviations = [
        f"{knob} {format_value(getattr(prediction.layout, knob))} where constraints.{knob} allows"
        f" {alternatives(allowed[knob])}"
        for knob in ruled_out
    ]
    yield LayoutWarning(
        code="outside_constraints",
        numbers={},
        message=f"the job has {', and '.join(deviations)}",
    )


def _fit_warnings(prediction: Prediction, criteria: _Criteria) -> Iterator[LayoutWarning]:
    """Yield a warning if a layout fits at the median of its memory, but with a smaller probability
    than was asked for."""
    fits = prediction.fits and _leaves_free(prediction, criteria.constraints.memory_reserve_gib)
    if not fits or criteria.is_sure(prediction.fit_probability):
        return
    yield LayoutWarning(
        code="may_not_fit",
        numbers={
            "fit_probability": prediction.fit_probability,
            "needed_gib": prediction.needed_gib,
            "needed_high_gib": prediction.needed_high_gib,
            "usable_gib": prediction.usable_gib,
        },
        message=(
            f"it fits with a probability of {percent(prediction.fit_probability)} only:"
            f" {prediction.needed_gib:.1f} ({prediction.needed_low_gib:.1f} to"
            f" {prediction.needed_high_gib:.1f}) of {prediction.usable_gib:.1f} GiB"
        ),
    )


def _low_mfu_warnings(prediction: Prediction, best: Prediction) -> Iterator[LayoutWarning]:
    """Yield a warning if the best layout is so much faster that the chips do much less than they
    could."""
    gain = prediction.step_time_s / best.step_time_s - 1
    if gain < _LOW_MFU_GAIN:
        return
    mfu = prediction.mfu["causal"]
    best_mfu = best.mfu["causal"]
    yield LayoutWarning(
        code="low_mfu",
        numbers={"mfu": mfu, "best_mfu": best_mfu, "gain": gain},
        message=(
            f"MFU is {mfu:.0%} where these chips reach {best_mfu:.0%} with the best layout:"
            f" {gain:.0%} more steps an hour"
        ),
    )
