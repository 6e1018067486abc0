"""A check of one layout says whether it is legal and fits, what would be faster, and what to change
first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import NormalDist
from typing import Any

import numpy as np

from models.advice.layout_warnings import LayoutWarning, layout_warnings
from models.advice.safe_fit import solve_avoiding_oom
from models.advice.single_changes import SingleChange, single_changes, whole_change
from models.cost.memory_uncertainty import percent
from models.errors import Infeasible, TooLarge
from models.layouts.factors import divisors
from models.layouts.mesh_rules import BATCH_FIELD, nearest_batches
from models.layouts.neighbours import KNOBS
from models.layouts.rule import Rule
from models.layouts.rules import broken_rules
from models.layouts.space import Space
from models.prediction.prediction import Prediction, predict_layouts
from models.search.enumeration import search
from models.search.infeasibility import blame, in_the_way
from models.search.result import Goal, SearchAnswer, ShouldContinue, run_to_completion
from models.search.tables import NoLegalLayout
from models.spec.constraints import Constraints
from models.spec.hardware import GIB
from models.spec.layout import DEGREES, Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Z80, Profile

LEAST_GAIN = 0.01
"""The least gain of a change that is worth naming: 1% of a step."""
_LOW_MFU_GAIN = 0.2  # more steps an hour of the best layout, from which on MFU counts as low
_MANY = Goal(tolerance=1.0, top=32, both_sides=True)
"""The goal of the second search, where the fastest layout is not accepted: it finds others up to
twice as slow."""
BATCH = "global_batch"
_MOST_CURES = 3  # shown with an answer: more are not read
_MOST_TRIED = 12  # changes that are tried until the framework has words for one
_SLOW = 0.25  # more steps an hour of the best layout, from which on a single change counts as slow
_MOST_VALUES = 4  # in the cure of a broken rule: more are not read


@dataclass(frozen=True, slots=True)
class Cure:
    """Values of a knob, or of the global batch, that obey a rule."""

    name: str
    values: tuple[Any, ...]
    note: str = ""

    @property
    def is_of_batch(self) -> bool:
        return self.name == BATCH

    @property
    def words(self) -> str:
        """The cure as a sentence names it, such as "tp = 1, 2 or 4"."""
        return f"{self.name} = {alternatives(self.values)}{self.note}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """A rule that a layout breaks. `knob` is the field of the layout to blame. It is None where no
    single field is, or where the global batch is to blame (`is_of_batch`). Each of `cures` is
    enough; the first is the nearest."""

    rule: Rule
    knob: str | None
    is_of_batch: bool
    message: str
    cures: tuple[Cure, ...]

    @property
    def cure(self) -> str:
        """The values that obey the rule, in words."""
        return cure_in_words([cure.words for cure in nearest_cures(self.cures)])


def nearest_cures(cures: Sequence[Cure]) -> list[Cure]:
    """Return the first cure of a knob, and the cure of the batch, in their order."""
    of_knob = next((cure for cure in cures if not cure.is_of_batch), None)
    return [cure for cure in cures if cure.is_of_batch or cure is of_knob]


def cure_in_words(said: Sequence[str]) -> str:
    return (
        ", or ".join(said) or "no other value of one knob obeys it: take those of the best layout"
    )


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
        """True where the layout is predicted to fit beside the memory that is left free."""
        found = self.prediction
        return found is not None and found.fits and _leaves(found, self.reserve_gib)

    @property
    def gain(self) -> float | None:
        """The step time of the checked layout over that of the best layout, less 1."""
        if self.prediction is None or self.best is None:
            return None
        return self.prediction.step_time_s / self.best.step_time_s - 1

    @property
    def gain_probability(self) -> float | None:
        """The least probability that the best layout is really faster, as if the errors of the two
        predictions had nothing in common."""
        if self.prediction is None or self.best is None:
            return None
        log_gain = math.log(self.prediction.step_time_s / self.best.step_time_s)
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
    said: Callable[[SingleChange], SingleChange | None] | None = None,
) -> LayoutCheck:
    """Return the check of a layout whose knobs are all settled (models.layouts.defaults), legal or
    not. None stands for a layout that cannot be told; its check has the best layout alone.

    `constraints` are those of the layouts that it is compared with. These layouts also need less
    memory than `oom_gib`, with which a run like these ran out. Only layouts that `accepts` takes
    are named. `said` returns a change as the framework can be told it, with the prediction of just
    that, and None where the framework has no words for it.
    """
    criteria = _Criteria(problem, constraints or Constraints(), oom_gib, accepts, said)
    broken = _all_broken(problem, layout)
    legal = [] if layout is None else single_changes(problem, profile, layout)
    changes = [
        change for change in legal if criteria.takes(change.layout, change.outcome.needed_gib)
    ]
    sure = [change for change in changes if criteria.is_sure(change.outcome.fit_probability)]
    sure.sort(key=lambda change: change.outcome.step_time_s)
    found = _fastest(problem, profile, criteria, should_continue)
    rivals = [*_first_of(sure, problem, criteria), *found.layouts]
    prediction, best = _predicted(problem, profile, criteria, None if broken else layout, rivals)
    fits_surely = (
        prediction is not None
        and criteria.is_sure(prediction.fit_probability)
        and _leaves(prediction, criteria.constraints.memory_reserve_gib)
    )
    if fits_surely:
        first = _cheapest(filter(_gains, sure), criteria, _gains)
    elif broken and (repair := _repair(broken, sure, criteria)):
        first = repair
    else:
        first = _cheapest(sure, criteria)
        if layout is not None and best is not None and _is_slow(first, best):
            first = (
                _said_surely(whole_change(problem, profile, layout, best.layout), criteria) or first
            )
        first = first or criteria.first_said(_surer(changes, prediction))
    must_fit = prediction is not None and not fits_surely
    return LayoutCheck(
        broken_rules=broken,
        prediction=prediction,
        best=best,
        best_is_exact=found.is_exact,
        no_best=found.reason if best is None else None,
        first_change=first,
        fitting=tuple(_of_different_knobs(first, sure, criteria)) if must_fit else (),
        single_changes=tuple(legal),
        warnings=tuple(_warnings(problem, profile, criteria, prediction, best)),
        reserve_gib=criteria.constraints.memory_reserve_gib,
    )


def _leaves(prediction: Prediction, reserve_gib: float) -> bool:
    """Say whether a layout leaves so much memory free. It does where nothing has to be left
    free."""
    return not reserve_gib or prediction.needed_gib + reserve_gib <= prediction.usable_gib


@dataclass(frozen=True, slots=True)
class _Criteria:
    """The demands on the layouts that the given layout is compared with, and on that layout
    itself."""

    problem: Problem
    constraints: Constraints
    oom_gib: float
    accepts: Callable[[Problem, Layout], bool] | None
    said: Callable[[SingleChange], SingleChange | None] | None

    def accepts_change(self, change: SingleChange) -> bool:
        return self.accepts is None or self.accepts(change.problem, change.layout)

    def as_said(self, change: SingleChange) -> SingleChange | None:
        """Return a change as the framework can be told it; None where it cannot."""
        if not self.accepts_change(change):
            return None
        return change if self.said is None else self.said(change)

    def first_said(self, changes: Iterable[SingleChange]) -> SingleChange | None:
        return next(filter(None, map(self.as_said, islice(changes, _MOST_TRIED))), None)

    def takes(self, layout: Layout, needed_gib: float) -> bool:
        """Say whether a layout has only values that the constraints allow, leaves the memory free
        that they ask for, and needs less memory than ran out before."""
        return (
            not self.ruled_out(layout)
            and needed_gib < self.oom_gib
            and needed_gib <= self._limit_gib
        )

    def ruled_out(self, layout: Layout) -> list[str]:
        """Return the knobs of a layout whose values the constraints do not allow."""
        allowed = dict(self.constraints.allowed)
        modules = allowed.pop("recompute_modules", None)
        found = [knob for knob, values in allowed.items() if getattr(layout, knob) not in values]
        is_selective = layout.recompute == "selective"
        if modules and is_selective and {*modules} != {*layout.recompute_modules}:
            found.append("recompute_modules")
        return found

    @property
    def _limit_gib(self) -> float:
        """The memory in GiB that layouts may need. Without a reserve there is no limit, so that
        layouts that do not fit can be ranked by how near they come."""
        reserve = self.constraints.memory_reserve_gib
        return self.problem.cluster.usable_bytes / GIB - reserve if reserve else math.inf

    def is_sure(self, fit_probability: float) -> bool:
        return fit_probability >= self.constraints.min_fit_probability


def _predicted(
    problem: Problem,
    profile: Profile,
    criteria: _Criteria,
    layout: Layout | None,
    rivals: Sequence[Layout],
) -> tuple[Prediction | None, Prediction | None]:
    """Return the prediction of the given layout, if it is legal, and that of the fastest layout
    that fits surely. The fastest is one of the rivals, or the given layout itself."""
    own = [] if layout is None else [layout]
    if not (own or rivals):
        return None, None
    predictions = predict_layouts(problem, [*own, *rivals], profile)
    prediction = predictions[0] if own else None
    eligible = predictions[len(own) :]
    if (
        prediction is not None
        and criteria.is_sure(prediction.fit_probability)
        and criteria.takes(prediction.layout, prediction.needed_gib)
    ):
        eligible = predictions
    best = min(eligible, key=lambda one: one.step_time_s, default=None)
    return prediction, best


def _first_of(
    changes: Iterable[SingleChange], problem: Problem, criteria: _Criteria
) -> list[Layout]:
    """Return the layout of the first change of the layout itself, as a list; empty where there is
    none."""
    of_layout = (change for change in changes if change.switch is None)
    first = next(filter(criteria.accepts_change, of_layout), None)
    return [] if first is None else [first.layout]


# -- rules
# --------------------------------------------------------------------------------------------------


def _all_broken(problem: Problem, layout: Layout | None) -> tuple[BrokenRule, ...]:
    rules = () if layout is None else broken_rules(problem, layout)
    return tuple(_broken(problem, layout, rule) for rule in rules if layout is not None)


def _broken(problem: Problem, layout: Layout, rule: Rule) -> BrokenRule:
    field = rule.blamed_field(problem, layout)
    is_of_batch = field == BATCH_FIELD
    knob = rule.blamed_knob(problem, layout)
    of_batch = [] if knob == "micro_batch" else _cures_of_batch(problem, layout, rule)
    of_knobs = [*_cures_of_knobs(problem, layout, rule, knob)]
    return BrokenRule(
        rule=rule,
        knob=knob,
        is_of_batch=is_of_batch,
        message=rule.message(problem, layout),
        cures=tuple([*of_batch, *of_knobs] if is_of_batch else [*of_knobs, *of_batch]),
    )


def _cures_of_batch(problem: Problem, layout: Layout, rule: Rule) -> list[Cure]:
    """Return the cure of the nearest global batches that the micro-batches divide and that obey a
    rule, on a mesh that fills the cluster. The list is empty where there is none."""
    batch = problem.workload.global_batch
    if layout.num_devices != problem.cluster.num_devices:
        return []  # the number of data-parallel ranks is open
    near = {
        nearest for rounds in (1, layout.pp) for nearest in nearest_batches(batch, layout, rounds)
    }

    def obeys(other: int) -> bool:
        workload = replace(problem.workload, global_batch=other)
        return bool(np.all(rule.test(replace(problem, workload=workload), Layouts.of([layout]))))

    obeying = [other for other in sorted(near) if other != batch and obeys(other)]
    below = [other for other in obeying if other < batch][-1:]
    values = (*below, *[other for other in obeying if other > batch][:1])
    return [Cure(BATCH, values)] if values else []


def _cures_of_knobs(
    problem: Problem, layout: Layout, rule: Rule, blamed: str | None
) -> Iterator[Cure]:
    """Yield the values that obey a rule: those of the knob that it blames first, then those of
    others."""
    for name in sorted(_CURES, key=lambda name: name != blamed):
        variants = [layout, *_CURES[name](problem, layout, name)]
        values = _obeying(problem, layout, rule, name, variants)
        if values:
            yield Cure(name, values)
    for name in ("tp", "pp", "cp"):
        variants = [layout, *KNOBS[name].variants(problem, layout)]
        values = _obeying(problem, layout, rule, name, variants)
        if values:
            yield Cure(name, values, ", with data parallelism over the other devices")


def _obeying(
    problem: Problem, layout: Layout, rule: Rule, name: str, variants: Sequence[Layout]
) -> tuple[Any, ...]:
    """Return the first values of a knob, other than the layout's, among the variants that obey a
    rule."""
    obeys = np.broadcast_to(rule.test(problem, Layouts.of(variants)), len(variants))
    values = dict.fromkeys(
        getattr(variant, name)
        for variant, is_obeying in zip(variants, obeys, strict=True)
        if is_obeying and getattr(variant, name) != getattr(layout, name)
    )
    return (*values,)[:_MOST_VALUES]


def _degrees(problem: Problem, layout: Layout, name: str) -> list[Layout]:
    """Return layouts with other values of a degree that divide the devices (or, for a micro-batch,
    the batch). Those near the given value come first."""
    whole = problem.cluster.num_devices
    if name == "micro_batch":
        whole = problem.workload.global_batch
    given = getattr(layout, name)
    near = sorted(divisors(whole), key=lambda value: abs(math.log(value / given)))
    freed: dict[str, Any] = {"layers_per_chunk": ()} if name == "pp" else {}
    return [replace(layout, **{**freed, name: value}) for value in near]


def _others(problem: Problem, layout: Layout, name: str) -> list[Layout]:
    return [*KNOBS[name].variants(problem, layout)]


_CURES = {
    **dict.fromkeys((*DEGREES, "micro_batch"), _degrees),
    **{
        name: _others
        for name, knob in KNOBS.items()
        if knob.fields[0] == name and name not in (*DEGREES, "micro_batch")
    },
}
"""Functions by knob that return layouts which differ from a given one in that knob, with the values
that may obey a rule."""


def alternatives(values: Sequence[Any]) -> str:
    """Return values of a knob of which each will do, such as "1, 2 or 4"."""
    in_order = sorted(values) if all(isinstance(value, int) for value in values) else values
    *others, last = map(_shown, in_order)
    return f"{', '.join(others)}{' or ' if others else ''}{last}"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return " < ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- what would be better
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """The fastest layout of a search if it found one, or the reason why it found none."""

    layouts: list[Layout]
    is_exact: bool
    reason: str | None = None


def _fastest(
    problem: Problem, profile: Profile, criteria: _Criteria, should_continue: ShouldContinue
) -> _Found:
    def solved(goal: Goal) -> SearchAnswer:
        return solve_avoiding_oom(
            criteria.oom_gib,
            problem,
            criteria.constraints,
            lambda tighter: search(Space(problem, tighter), profile, goal, should_continue),
        )

    try:
        answer = solved(Goal())
        accepts = criteria.accepts
        if accepts is None or accepts(problem, answer.layouts[0]):
            return _Found([answer.layouts[0]], is_exact=answer.certificate.exact)
        ranked = _ranked(solved(_MANY))
    except NoLegalLayout:
        contradicted = in_the_way(Space(problem, criteria.constraints))
        reason = contradicted.brief if contradicted else str(Infeasible(*blame(problem)))
        return _Found([], is_exact=True, reason=reason)
    except TooLarge as error:
        return _Found([], is_exact=False, reason=str(error))
    except Infeasible as error:
        return _Found([], is_exact=error.constraint != "time_limit_s", reason=error.brief)
    accepted = next((layout for layout in ranked if accepts(problem, layout)), None)
    if accepted is not None:
        return _Found([accepted], is_exact=False)
    reason = f"the framework has no words for any of the {len(ranked)} fastest layouts found"
    return _Found([], is_exact=False, reason=reason)


def _ranked(answer: SearchAnswer) -> list[Layout]:
    """Return the fastest layouts of an answer, and the fastest without a pipeline."""
    positions = answer.ranked if answer.without is None else [*answer.ranked, answer.without]
    return [answer.layouts[position] for position in dict.fromkeys(positions)]


def _gains(change: SingleChange) -> bool:
    return (change.gain or 0) >= LEAST_GAIN


def _is_slow(change: SingleChange | None, best: Prediction) -> bool:
    """Say whether the best layout is much faster than a change, or there is no change."""
    return change is None or change.outcome.step_time_s > (1 + _SLOW) * best.step_time_s


def _said_surely(change: SingleChange, criteria: _Criteria) -> SingleChange | None:
    """Return a change as the framework can be told it, if it surely fits so; None otherwise."""
    said = criteria.as_said(change)
    return said if said and criteria.is_sure(said.outcome.fit_probability) else None


def _cheapest(
    changes: Iterable[SingleChange],
    criteria: _Criteria,
    is_worth: Callable[[SingleChange], bool] = lambda change: True,
) -> SingleChange | None:
    """Return the change with the shortest step, from changes in that order. Among changes that are
    as good but for LEAST_GAIN, it is the one with the fewest settings."""
    found = list[SingleChange]()
    for change in islice(changes, _MOST_TRIED):
        if found and change.outcome.step_time_s > (1 + LEAST_GAIN) * found[0].outcome.step_time_s:
            break
        said = _said_surely(change, criteria)
        if said and is_worth(said):
            found.append(said)
    return min(found, key=lambda one: one.num_settings, default=None)


def _repair(
    broken: Sequence[BrokenRule], changes: Sequence[SingleChange], criteria: _Criteria
) -> SingleChange | None:
    """Return the least change that makes a layout legal: the one with the fewest settings, then of
    a knob that the rules blame, then to the nearest value. The rest of the job is as its submitter
    meant it."""
    blamed = {rule.knob for rule in broken}

    def how_far(change: SingleChange) -> tuple[bool, float, float]:
        return change.knob not in blamed, _distance(change), change.outcome.step_time_s

    nearest = islice(sorted(changes, key=how_far), _MOST_TRIED)
    said = [change for change in map(criteria.as_said, nearest) if change is not None]
    return min(said, key=lambda change: (change.num_settings, how_far(change)), default=None)


def _distance(change: SingleChange) -> float:
    """Return the distance of a change's new value from the old one: the logarithm of the ratio of
    two numbers, since degrees are halved and doubled. Other values count 1, which is a factor of
    e."""
    numbers = (change.before, change.after)
    if any(isinstance(each, bool) or not isinstance(each, (int, float)) for each in numbers):
        return 1.0
    if min(numbers) <= 0:
        return 1.0
    return abs(math.log(change.after / change.before))


def _surer(changes: Sequence[SingleChange], prediction: Prediction | None) -> list[SingleChange]:
    """Return the changes with which a layout is likelier to fit, the likeliest first."""
    probability = 0.0 if prediction is None else prediction.fit_probability
    surer = [change for change in changes if change.outcome.fit_probability > probability]
    return sorted(surer, key=lambda change: -change.outcome.fit_probability)


def _of_different_knobs(
    first: SingleChange | None, changes: Iterable[SingleChange], criteria: _Criteria
) -> list[SingleChange]:
    """Return the first change of each knob as the framework can be told it, up to _MOST_CURES.
    `first` comes before all others, where it surely fits and is a single change."""
    firsts = dict[str, SingleChange]()
    if first is not None and criteria.is_sure(first.outcome.fit_probability) and not first.is_whole:
        firsts[first.knob] = first
    others = (change for change in changes if change.knob not in firsts)
    for change in islice(others, _MOST_TRIED):
        if len(firsts) == _MOST_CURES:
            break
        said = None if change.knob in firsts else _said_surely(change, criteria)
        if said:
            firsts[said.knob] = said
    return list(firsts.values())


# -- warnings
# --------------------------------------------------------------------------------------------------


def _warnings(
    problem: Problem,
    profile: Profile,
    criteria: _Criteria,
    prediction: Prediction | None,
    best: Prediction | None,
) -> list[LayoutWarning]:
    if prediction is None:
        return []
    return [
        *_constraint_warnings(prediction, criteria),
        *layout_warnings(problem, profile, prediction),
        *_fit_warnings(prediction, criteria),
        *_low_mfu_warnings(prediction, best),
    ]


def _constraint_warnings(prediction: Prediction, criteria: _Criteria) -> list[LayoutWarning]:
    """Return a warning where the layout itself has values that the constraints rule out."""
    ruled_out = criteria.ruled_out(prediction.layout)
    if not ruled_out:
        return []
    allowed = criteria.constraints.allowed
    said = [
        f"{knob} {_shown(getattr(prediction.layout, knob))} where constraints.{knob} allows"
        f" {alternatives(allowed[knob])}"
        for knob in ruled_out
    ]
    return [
        LayoutWarning(
            code="outside_constraints", numbers={}, message=f"the job has {', and '.join(said)}"
        )
    ]


def _fit_warnings(prediction: Prediction, criteria: _Criteria) -> list[LayoutWarning]:
    """Return a warning where a layout fits by the median of its memory, but less surely than was
    asked."""
    fits = prediction.fits and _leaves(prediction, criteria.constraints.memory_reserve_gib)
    if not fits or criteria.is_sure(prediction.fit_probability):
        return []
    return [
        LayoutWarning(
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
    ]


def _low_mfu_warnings(prediction: Prediction, best: Prediction | None) -> list[LayoutWarning]:
    if best is None:
        return []
    gain = prediction.step_time_s / best.step_time_s - 1
    if gain < _LOW_MFU_GAIN:
        return []
    mfu = prediction.mfu["causal"]
    reached = best.mfu["causal"]
    return [
        LayoutWarning(
            code="low_mfu",
            numbers={"mfu": mfu, "best_mfu": reached, "gain": gain},
            message=(
                f"MFU is {mfu:.0%} where these chips reach {reached:.0%} with the best layout:"
                f" {gain:.0%} more steps an hour"
            ),
        )
    ]
