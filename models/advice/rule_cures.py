"""The rules that a layout breaks, and its *cures*: values of one knob (a field of the layout), or
of the batch, that obey a rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from models.layouts.factors import divisors
from models.layouts.mesh_rules import BATCH_FIELD, nearest_batches
from models.layouts.neighbours import KNOBS
from models.layouts.rule import Rule
from models.layouts.rules import broken_rules
from models.spec.layout import DEGREES, Layout, Layouts
from models.spec.problem import Problem

BATCH = "global_batch"
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
        """Return the cure as a sentence names it, such as "tp = 1, 2 or 4"."""
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
        """Return the values that obey the rule, in words."""
        return cure_in_words([cure.words for cure in nearest_cures(self.cures)])


def nearest_cures(cures: Sequence[Cure]) -> list[Cure]:
    """Return the cures that a sentence names: the first one of a knob and that of the batch, in the
    order of `cures`."""
    of_knob = next((cure for cure in cures if not cure.is_of_batch), None)
    return [cure for cure in cures if cure.is_of_batch or cure is of_knob]


def cure_in_words(cures: Sequence[str]) -> str:
    """Return cures in words joined by "or"; a pointer to the best layout where there are none."""
    if not cures:
        return "no other value of one knob obeys it: take those of the best layout"
    return ", or ".join(cures)


def broken_rules_of(problem: Problem, layout: Layout | None) -> tuple[BrokenRule, ...]:
    """Return every rule that a layout breaks, with its cures; none where the layout is None,
    because it is not known."""
    if layout is None:
        return ()
    return tuple(_broken_rule(problem, layout, rule) for rule in broken_rules(problem, layout))


def _broken_rule(problem: Problem, layout: Layout, rule: Rule) -> BrokenRule:
    """Return a broken rule with the field to blame and all cures, those of that field first."""
    field = rule.blamed_field(problem, layout)
    is_of_batch = field == BATCH_FIELD
    knob = rule.blamed_knob(problem, layout)
    # A micro-batch is to blame only where the data-parallel ranks divide the batch as it is: the
    # batch can then stay.
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
    """Return the cure of changing the global batch: the nearest batches below and above that obey
    the rule. The list is empty where there are none, or where the mesh does not fill the
    cluster."""
    batch = problem.workload.global_batch
    if layout.num_devices != problem.cluster.num_devices:
        return []  # it is not known over how many data-parallel ranks the batch is divided
    # A schedule may demand a multiple of pp micro-batches (models.layouts.pipeline_rules), and
    # other rules are content with any number. So the nearest multiples for both are tried.
    near = {*nearest_batches(batch, layout, 1), *nearest_batches(batch, layout, layout.pp)}

    def obeys(other: int) -> bool:
        """Return whether the layout obeys the rule with another global batch."""
        workload = replace(problem.workload, global_batch=other)
        return bool(np.all(rule.test(replace(problem, workload=workload), Layouts.of([layout]))))

    obeying = [other for other in sorted(near) if other != batch and obeys(other)]
    nearest_below = [other for other in obeying if other < batch][-1:]
    nearest_above = [other for other in obeying if other > batch][:1]
    values = (*nearest_below, *nearest_above)
    return [Cure(BATCH, values)] if values else []


def _cures_of_knobs(
    problem: Problem, layout: Layout, rule: Rule, blamed: str | None
) -> Iterator[Cure]:
    """Yield a cure for each knob that can obey the rule by itself. The knob `blamed` comes
    first."""
    for name in sorted(_CURES, key=lambda name: name != blamed):
        if values := _values_that_obey(problem, layout, rule, name, _CURES[name]):
            yield Cure(name, values)
    # Other values of these degrees may need another degree of data parallelism.
    for name in ("tp", "pp", "cp"):
        if values := _values_that_obey(problem, layout, rule, name, _vary_knob):
            yield Cure(name, values, ", with data parallelism over the other devices")


def _values_that_obey(
    problem: Problem,
    layout: Layout,
    rule: Rule,
    name: str,
    vary: Callable[[Problem, Layout, str], list[Layout]],
) -> tuple[Any, ...]:
    """Return the values of the knob `name`, other than the layout's, with which a variant obeys the
    rule: the first _MOST_VALUES, in the order in which `vary` returns the variants."""
    # With the layout itself there is a row to test even without variants.
    variants = [layout, *vary(problem, layout, name)]
    obeys = np.broadcast_to(rule.test(problem, Layouts.of(variants)), len(variants))
    values = dict.fromkeys(
        getattr(variant, name)
        for variant, is_obeying in zip(variants, obeys, strict=True)
        if is_obeying and getattr(variant, name) != getattr(layout, name)
    )
    return (*values,)[:_MOST_VALUES]


def _vary_degree(problem: Problem, layout: Layout, name: str) -> list[Layout]:
    """Return layouts with other values of a degree. Values divide the devices or, for a
    micro-batch, the global batch. Those near the layout's own value come first."""
    total = problem.cluster.num_devices
    if name == "micro_batch":
        total = problem.workload.global_batch
    given = getattr(layout, name)
    near = sorted(divisors(total), key=lambda value: abs(math.log(value / given)))
    # A list of layers per chunk fits one number of stages, so it is dropped with the old pp.
    freed: dict[str, Any] = {"layers_per_chunk": ()} if name == "pp" else {}
    return [replace(layout, **{**freed, name: value}) for value in near]


def _vary_knob(problem: Problem, layout: Layout, name: str) -> list[Layout]:
    """Return layouts with other values of a knob (models.layouts.neighbours)."""
    return [*KNOBS[name].variants(problem, layout)]


_CURES = {
    **dict.fromkeys((*DEGREES, "micro_batch"), _vary_degree),
    **{
        name: _vary_knob
        for name, knob in KNOBS.items()
        if knob.fields[0] == name and name not in (*DEGREES, "micro_batch")
    },
}
"""Functions by knob that return layouts which differ from a given one in that knob, with the values
that may obey a rule."""


def alternatives(values: Sequence[Any]) -> str:
    """Return alternative values in words, such as "1, 2 or 4"."""
    in_order = sorted(values) if all(isinstance(value, int) for value in values) else values
    *others, last = map(format_value, in_order)
    return f"{', '.join(others)}{' or ' if others else ''}{last}"


def format_value(value: object) -> str:
    """Return the value of a knob in words, such as "8" or "true"; a placement as "tp < cp < pp"."""
    if isinstance(value, tuple):
        return " < ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
