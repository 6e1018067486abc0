"""The rules that a layout breaks, and its *cures*: values of one knob (a field of the layout), or
of the batch, that obey a rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from models.layouts.factors import divisors
from models.layouts.mesh_rules import BATCH_FIELD, nearest_batches
from models.layouts.neighbours import KNOBS
from models.layouts.rule import Rule
from models.layouts.rules import broken_by_each, broken_rules
from models.spec.layout import DEGREES, Layout
from models.spec.problem import Problem

BATCH = "global_batch"
_MOST_VALUES = 4  # in the cure of a broken rule: more are not read
_BESIDE_DATA = ", with data parallelism over the other devices"

Express = Callable[[str, Sequence[Any]], str | None]
"""Returns values of a knob, or of the global batch, in words; None where the reader cannot set
it."""


@dataclass(frozen=True, slots=True)
class Cure:
    """Values of a knob, or of the global batch, that obey a rule. Where values of a knob need
    another global batch too, any of `batches` will do for each of them."""

    name: str
    values: tuple[Any, ...]
    note: str = ""
    batches: tuple[int, ...] = ()

    @property
    def is_of_batch(self) -> bool:
        return self.name == BATCH

    def words(self, express: Express) -> str | None:
        """Return the cure as a sentence names it, such as "tp = 1, 2 or 4"; None where the reader
        cannot set all of it."""
        values = express(self.name, self.values)
        batches = express(BATCH, self.batches) if self.batches else ""
        if values is None or batches is None:
            return None
        return f"{values}{self.note}, and {batches}" if batches else f"{values}{self.note}"


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
        return nearest_cures_in_words(self.cures, _in_knobs) or (
            "the values of the best layout: no other value of one knob obeys it"
        )


def nearest_cures_in_words(cures: Iterable[Cure], express: Express) -> str:
    """Return the cures that a sentence names, joined by "or": of those that the reader can set, the
    first one of a knob and that of the batch, in the order of `cures`. The text is empty where
    there are none."""
    in_words = [(cure, words) for cure in cures if (words := cure.words(express)) is not None]
    of_knob = next((cure for cure, _ in in_words if not cure.is_of_batch), None)
    return ", or ".join(words for cure, words in in_words if cure.is_of_batch or cure is of_knob)


def _in_knobs(name: str, values: Sequence[Any]) -> str:
    """Return values of a knob in words, such as "tp = 1, 2 or 4"."""
    return f"{name} = {alternatives(values)}"


@dataclass(frozen=True, slots=True)
class _Change:
    """Another value of a knob, or of the global batch, with the layout that has it and the rules
    that this layout then breaks."""

    value: Any
    layout: Layout
    broken: frozenset[Rule]


_Changes = Mapping[tuple[str, str], Sequence[_Change]]
"""Changes by the name and the note of the cure that has their values. Those of the global batch
come last."""


def broken_rules_of(problem: Problem, layout: Layout | None) -> tuple[BrokenRule, ...]:
    """Return every rule that a layout breaks, with its cures; none where the layout is None,
    because it is not known."""
    if layout is None or not (broken := broken_rules(problem, layout)):
        return ()
    changes = {**_changes_of_knobs(problem, layout), **_changes_of_batch(problem, layout)}
    return tuple(_broken_rule(problem, layout, rule, broken, changes) for rule in broken)


def _broken_rule(
    problem: Problem, layout: Layout, rule: Rule, broken: Sequence[Rule], changes: _Changes
) -> BrokenRule:
    """Return a broken rule with the field to blame and all cures, those of that field first.
    `broken` are all rules that the layout breaks."""
    is_of_batch = rule.blamed_field(problem, layout) == BATCH_FIELD
    knob = rule.blamed_knob(problem, layout)
    blamed = BATCH if is_of_batch else knob
    obeying = {
        (name, note): [change for change in changes[name, note] if rule not in change.broken]
        for name, note in sorted(changes, key=lambda cure: cure[0] != blamed)
        # A micro-batch is to blame only where the data-parallel ranks divide the batch as it is:
        # the batch can then stay.
        if not (name == BATCH and knob == "micro_batch")
    }
    return BrokenRule(
        rule=rule,
        knob=knob,
        is_of_batch=is_of_batch,
        message=rule.message(problem, layout),
        cures=tuple(_cures(problem, obeying, frozenset(broken))),
    )


def _cures(problem: Problem, changes: _Changes, broken: frozenset[Rule]) -> list[Cure]:
    """Return the cures among `changes`, all of which obey the rule to cure: those that make the
    layout legal. Where there are none, return those that break no rule beyond the `broken` ones,
    since these have cures of their own. Where there are none either, return those that are legal
    with another global batch."""
    return (
        [*_cures_where(problem, changes, lambda change: not change.broken)]
        or [*_cures_where(problem, changes, lambda change: change.broken < broken)]
        or [*_cures_with_batch(problem, changes)]
    )


def _cures_where(
    problem: Problem, changes: _Changes, is_cure: Callable[[_Change], bool]
) -> Iterator[Cure]:
    """Yield the cures with the values of those changes for which `is_cure` is true."""
    for (name, note), of_cure in changes.items():
        values = tuple(dict.fromkeys(change.value for change in of_cure if is_cure(change)))
        if values:
            nearest = _nearest(problem, values) if name == BATCH else values[:_MOST_VALUES]
            yield Cure(name, nearest, note)


def _cures_with_batch(problem: Problem, changes: _Changes) -> Iterator[Cure]:
    """Yield the cures that are legal with another global batch only. Such are degrees that leave
    data parallelism another degree, over which the batch does not divide."""
    for (name, note), of_cure in changes.items():
        if note != _BESIDE_DATA:
            continue
        layouts = [change.layout for change in of_cure]
        near = {batch for layout in layouts for batch in _near_batches(problem, layout)}
        legal = dict[int, set[int]]()
        for batch in near:
            broken = broken_by_each(_with_batch(problem, batch), layouts)
            of_batch = zip(of_cure, broken, strict=True)
            legal[batch] = {change.value for change, rules in of_batch if not rules}
        values = set().union(*legal.values())
        # Any of the batches has to do for each of the values.
        batches = [batch for batch, with_it in legal.items() if with_it == values]
        if values and batches:
            yield Cure(name, (*sorted(values),)[:_MOST_VALUES], note, _nearest(problem, batches))


# -- changes


def _changes_of_batch(problem: Problem, layout: Layout) -> _Changes:
    """Return the changes of the global batch to those near it. There are none where the mesh does
    not fill the cluster, since it is not known over how many ranks the batch is then divided."""
    if layout.num_devices != problem.cluster.num_devices:
        return {}
    changes = []
    for batch in _near_batches(problem, layout):
        broken = broken_rules(_with_batch(problem, batch), layout)
        changes.append(_Change(batch, layout, frozenset(broken)))
    return {(BATCH, ""): changes}


def _near_batches(problem: Problem, layout: Layout) -> list[int]:
    """Return other global batches near that of the problem, which divide over data parallelism."""
    batch = problem.workload.global_batch
    # A schedule may demand a multiple of pp micro-batches (models.layouts.pipeline_rules), and
    # other rules are content with any number. So the nearest multiples for both are tried.
    near = {*nearest_batches(batch, layout, 1), *nearest_batches(batch, layout, layout.pp)}
    return sorted(near - {batch})


def _nearest(problem: Problem, batches: Iterable[int]) -> tuple[int, ...]:
    """Return the nearest of these global batches below that of the problem, and the nearest
    above."""
    batch = problem.workload.global_batch
    in_order = sorted(batches)
    below = [other for other in in_order if other < batch][-1:]
    above = [other for other in in_order if other > batch][:1]
    return (*below, *above)


def _with_batch(problem: Problem, batch: int) -> Problem:
    """Return the problem with another global batch."""
    return replace(problem, workload=replace(problem.workload, global_batch=batch))


def _changes_of_knobs(problem: Problem, layout: Layout) -> _Changes:
    """Return the changes of each knob by itself, and then those of degrees that leave data
    parallelism another degree."""
    variants = {(name, ""): vary(problem, layout, name) for name, vary in _CURES.items()}
    for name in ("tp", "pp", "cp"):
        variants[name, _BESIDE_DATA] = _vary_knob(problem, layout, name)
    changed = [
        (cure, variant)
        for cure, layouts in variants.items()
        for variant in layouts
        if getattr(variant, cure[0]) != getattr(layout, cure[0])
    ]
    broken_by_variant = broken_by_each(problem, [variant for _, variant in changed])
    changes: dict[tuple[str, str], list[_Change]] = {cure: [] for cure in variants}
    for (cure, variant), broken in zip(changed, broken_by_variant, strict=True):
        changes[cure].append(_Change(getattr(variant, cure[0]), variant, frozenset(broken)))
    return changes


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
