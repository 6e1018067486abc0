"""The switches of the training stacks by release: their names in each framework, what it does when
nobody sets them, and the values that tuned recipes set.

A switch is a choice of the software that no layout makes: which dispatcher sends tokens to experts,
whether gradients are reduced beside compute, which kernel computes the loss. Each is one field of
:class:`models.spec.stack.Stack`. A *setting* is one value of a switch with the launch arguments for
it, and a *condition* says under which layouts a switch has an effect. The tables are data, one file
a stack (data/switches).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import starmap
from typing import Any

from models.errors import Invalid
from models.spec import catalogue
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.stack import Stack

Condition = str
"""The condition under which a switch means something.

"always" and "never" depend on nothing; with "never" the framework has no words, and only dates are
known. "dp", "tp", "pp", "cp" and "ep" need an axis longer than 1. "sp" needs tensor and sequence
parallelism in a format in which their traffic may overlap, and "sp_compiled" compiled kernels too.
"ep_beside" holds where all-to-alls may run beside another micro-batch, and "interleaved" with
virtual stages. "moe" is a sparse model, "uncapped_moe" one whose experts have no capacity, and
"dense" a dense model. "zero_3" shards parameters, "offloaded_zero_3" does so with the optimizer on
the host, and "zero_1_2" shards only what is updated. "compiled" needs compiled kernels.
"low_precision_zero" needs GEMMs in fewer than 16 bits and a ZeRO stage above 0. "fp16" is the
precision of the workload, and "not_fp16" any other.
"""

NOTHING = "(nothing)"
"""The words of a setting without arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value of a switch, and the arguments that set it in the framework's own words."""

    value: Any
    """The value of the field of the stack."""
    arguments: Mapping[str, Any]
    """Arguments by name, as `launch_arguments` returns them; a flag without a value is True. It is
    empty where the value is what the framework does when it is told nothing."""
    words: str
    """The arguments as somebody would write them."""
    with_zero: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments that go with `arguments` where a ZeRO stage shards something."""
    needs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments that the framework needs beside `arguments`. They are written, and passed
    over where arguments are read."""
    any_value: tuple[str, ...] = ()
    """Arguments that are read as this setting whatever value they have."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the stack that the same arguments decide."""
    brings: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the stack that change with this value in practice, though the same arguments
    do not set them. `changed` sets them, and read_switches does not."""
    in_code: str = ""
    """A sentence on what the training script does in its own code for this value, where no argument
    of the framework says it. `arguments` are then those of programs around the framework, which are
    read and not written."""
    only_read: bool = False
    """The framework raises an error at these arguments. They are understood where somebody gave
    them, and never offered or written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dated:
    """A value that holds from a release on."""

    value: Any
    release: str | None
    """The first release with this value; None where the table reaches no farther back."""
    since: float
    """The year of the first release with this value, with a fraction; 0 where no release is
    known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One switch of one stack."""

    field: str
    """The field of the stack that it sets."""
    name: str
    """The name of the switch in the framework: a flag or a key."""
    condition: Condition = "always"
    settings: tuple[Setting, ...] = ()
    """The values of the switch. Where several settings have one value, the first is written, and
    the others are read too."""
    defaults: tuple[Dated, ...]
    """The behaviour of the framework when it is told nothing, oldest first."""
    taken: tuple[Dated, ...]
    """The values that tuned recipes of the stack set, oldest first. Predictions and recommendations
    use them unless the request says otherwise."""
    source: str
    published: tuple[Dated, ...] = ()
    """The value in published runs of the framework that do not state it, where that is not the
    value of tuned recipes."""
    of_script: bool = False
    """Its arguments are those of the training script, by the names of transformers'
    TrainingArguments and TRL, and none is the launcher's."""
    numerics: bool = False
    """It changes what is computed. The person who trains decides about it, whatever it would
    gain."""
    rarely_set: bool = False
    """Few set it but the makers of the framework, in the recipes that they publish."""

    def default_at(self, year: float | None = None) -> Dated:
        """Return what the framework did that year when it was told nothing; without a year, what it
        does now."""
        return _value_at(self.defaults, year)

    def recipe_value_at(self, year: float | None = None) -> Dated:
        """Return what tuned recipes set that year; without a year, what they set now."""
        return _value_at(self.taken, year)

    @property
    def arguments(self) -> frozenset[str]:
        """The names of all arguments that set it to some value, with those that must go beside
        them."""
        names = set[str]()
        for setting in self.settings:
            names.update(setting.arguments, setting.with_zero, setting.needs)
        return frozenset(names)


def switches_of(stack: Stack) -> tuple[Switch, ...]:
    """Return the switches of a stack: those of its own table, or else of the stack that it is
    `like`. Return none where neither has a table."""
    return _tables().get(stack.id, _NO_TABLE).switches


def releases(stack_id: str) -> Mapping[str, float]:
    """Return the releases of a stack whose dates are known, oldest first, and the year of each with
    a fraction."""
    return _tables().get(stack_id, _NO_TABLE).releases


def release_year(stack_id: str, release: str) -> float:
    """Return the year of a release, with a fraction. A patch that is not listed has the year of its
    minor release. Raise Invalid, with the known releases, where the release is unknown."""
    known = releases(stack_id)
    number = release.strip().removeprefix("v")
    minor = next((name for name in known if _minor(name) == _minor(number)), None)
    listed = number if number in known else minor
    if listed is None:
        rule = f"must be a release of {stack_id} whose date is known"
        raise Invalid("stack.version", release, f"{rule}: {', '.join(known) or 'there is none'}")
    return known[listed]


def _minor(release: str) -> tuple[str, ...]:
    return tuple(release.split(".")[:2])


def release_of(stack_id: str, year: float) -> str | None:
    """Return the newest release that was out in that year (a number with a fraction); None where
    none is known."""
    newest = None
    for name, since in releases(stack_id).items():  # oldest first
        newest = name if _has_come(since, year) else newest
    return newest


def changed_since(stack: Stack, year: float) -> tuple[Switch, ...]:
    """Return the switches of a stack whose framework default in that year (a number with a
    fraction) differs from today's, so that who launches an older release can be told. Switches that
    no argument sets are left out."""
    return tuple(
        switch
        for switch in switches_of(stack)
        if switch.settings and switch.default_at(year).value != switch.default_at().value
    )


def as_of(stack: Stack, year: float) -> Stack:
    """Return the stack with its switches as tuned recipes set them in that year (a number with a
    fraction). Fields that recipes set in the same way today keep the stack's values."""
    earlier = {
        switch.field: switch.recipe_value_at(year).value
        for switch in switches_of(stack)
        if switch.recipe_value_at(year) != switch.recipe_value_at()
    }
    return replace(stack, **earlier)


def as_usually_run(stack: Stack, organisation: str, year: float | None) -> Stack:
    """Return the stack as an organisation that does not state its switches presumably ran it in
    that year, or now without a year. Switches get the values that published runs usually have,
    where these are known. Switches that few people set get the framework's defaults, unless the
    organisation makes the framework."""
    table = _tables().get(stack.id, _NO_TABLE)
    published = {
        switch.field: _value_at(switch.published, year).value
        for switch in table.switches
        if switch.published
    }
    stack = changed(stack, published)
    if organisation in table.makers:
        return stack
    rare = [switch for switch in table.switches if switch.rarely_set]
    return replace(stack, **{switch.field: switch.default_at(year).value for switch in rare})


def changed(stack: Stack, changes: Mapping[str, Any]) -> Stack:
    """Return the stack with these fields changed. Other fields that the same launch arguments set
    (Setting.also), or that change with the value in practice though no argument sets them
    (Setting.brings), change too, unless `changes` names them."""
    implied: dict[str, Any] = {}
    for switch in switches_of(stack):
        if switch.field in changes:
            value = changes[switch.field]
            setting = next((known for known in switch.settings if known.value == value), None)
            implied |= {**setting.also, **setting.brings} if setting else {}
    implied = {name: catalogue.as_tuples(value) for name, value in implied.items()}
    return replace(stack, **{**implied, **changes})


def applies(switch: Switch, problem: Problem, layout: Layout) -> bool:
    """Say whether a switch has an effect under a layout, by the condition of the switch."""
    return _CONDITIONS[switch.condition](problem, layout)


def setting_of(switch: Switch, value: Any) -> Setting:
    """Return the setting of a switch that has this value, with the arguments for it. Raise Invalid
    where no arguments of the framework set the value."""
    for setting in switch.settings:
        if setting.value == value:
            return setting
    known = ", ".join(dict.fromkeys(str(setting.value) for setting in switch.settings))
    rule = f"is no value that {switch.name} sets; it sets {known or 'none'}"
    raise Invalid(f"stack.{switch.field}", value, rule)


def launch_arguments(
    problem: Problem, layout: Layout, *, of_script: bool = False
) -> dict[str, Any]:
    """Return the launch arguments, by name, that set the problem's stack for a layout. Switches
    without an effect under the layout are left out. The arguments are the framework's or, with
    `of_script`, those of the training script. Raise Invalid where the framework has no argument for
    a value, or raises an error at it."""
    arguments: dict[str, Any] = {}
    for switch, setting in _settings_of(problem, layout):
        if setting.only_read:
            rule = f"the framework stops at {setting.words}"
            raise Invalid(f"stack.{switch.field}", setting.value, rule)
        # Code of the training script makes settings with `in_code` (launch_code returns these).
        if switch.of_script != of_script or setting.in_code:
            continue
        arguments |= {**setting.arguments, **setting.needs}
        if layout.zero_stage:  # some settings take further arguments where ZeRO shards
            arguments |= setting.with_zero
    return arguments


def launch_code(problem: Problem, layout: Layout) -> list[str]:
    """Return a sentence for each setting of a layout that no argument sets, and that the training
    script must make in its own code."""
    sentences = (setting.in_code for _, setting in _settings_of(problem, layout))
    return [sentence for sentence in sentences if sentence]


def _settings_of(problem: Problem, layout: Layout) -> Iterator[tuple[Switch, Setting]]:
    """Yield every switch that arguments can set and that has an effect under a layout, with the
    setting that the problem's stack has."""
    for switch in switches_of(problem.stack):
        if switch.settings and applies(switch, problem, layout):
            yield switch, setting_of(switch, getattr(problem.stack, switch.field))


def as_launched(problem: Problem, layout: Layout, software_year: float) -> Stack:
    """Return the stack that results from launching a layout with the arguments that we write for
    it, which may differ from the stack that the caller asked about. Switches that have an effect
    under the layout are set as the problem has them, with all that their arguments imply. All else
    is the catalogue's stack as recipes set it `age_years` before `software_year`."""
    base = catalogue.stack(problem.stack.id)
    if problem.stack.age_years:
        base = as_of(base, software_year - problem.stack.age_years)
    # The launch has no argument for switches without an effect, so these keep the base's values.
    fields = [
        switch.field
        for switch in switches_of(problem.stack)
        if switch.settings and applies(switch, problem, layout)
    ]
    return changed(base, {name: getattr(problem.stack, name) for name in fields})


def read_switches(
    stack_id: str,
    arguments: Mapping[str, Any],
    release: str | None,
    holds: Callable[[Condition], bool] = lambda condition: True,
) -> dict[str, Any]:
    """Return the fields of a stack, by name, that launch arguments set. Switches that no argument
    names have the default of the framework's release, or of the newest one without a release.

    `arguments` (values by name) may hold others than those of switches, which are ignored. `holds`
    says whether a condition is known to hold. Switches whose condition does not hold are left out,
    because several switches may share one argument under different conditions. Raise Invalid where
    an argument has a value that no setting of its switch has.
    """
    year = None if release is None else release_year(stack_id, release)
    values: dict[str, Any] = {}
    implied: dict[str, Any] = {}
    for switch in _tables().get(stack_id, _NO_TABLE).switches:
        if not switch.settings or not holds(switch.condition):
            continue
        own = {name: arguments[name] for name in switch.arguments if name in arguments}
        default = switch.default_at(year).value
        setting = _read_setting(switch, own) if own else setting_of(switch, default)
        values[switch.field] = setting.value
        implied |= setting.also  # other fields of the stack that the same arguments decide
    # What one switch decides of another's field overrides that switch's own value.
    return {**values, **implied}


def _read_setting(switch: Switch, arguments: Mapping[str, Any]) -> Setting:
    """Return the setting of a switch that fits these arguments (values by name), and of several the
    one with most arguments, which is the most specific. Raise Invalid where none fits."""
    fitting = [setting for setting in switch.settings if _fits(setting, arguments)]
    if not fitting:
        written = ", ".join(f"{name} {value}" for name, value in arguments.items())
        known = "; ".join(setting.words for setting in switch.settings)
        raise Invalid(switch.name, written, f"must be one of: {known}")
    return max(fitting, key=lambda setting: len(setting.arguments))


def _fits(setting: Setting, arguments: Mapping[str, Any]) -> bool:
    """Say whether these arguments (values by name) include all arguments of a setting."""
    return all(
        _has_value(arguments.get(name), value) or (name in setting.any_value and name in arguments)
        for name, value in setting.arguments.items()
    )


def _has_value(given: Any, value: Any) -> bool:
    """Say whether an argument as given equals a value, whether it is text or not: "true" equals
    True. An argument that is not given (None) equals False, since a missing flag is off."""
    if isinstance(value, (list, tuple)):
        return isinstance(given, (list, tuple)) and [*map(str, given)] == [*map(str, value)]
    if given is None:
        return value is None or value is False
    return str(given).lower() == str(value).lower()


def _value_at(values: Sequence[Dated], year: float | None) -> Dated:
    """Return the value that held in a year: the last that was introduced by then, or the first if
    none was; without a year, the last of all. `values` ascend in time."""
    if year is None:
        return values[-1]
    return next((value for value in reversed(values) if _has_come(value.since, year)), values[0])


def _has_come(since: float, year: float) -> bool:
    return since <= year + 1e-9  # callers subtract ages from years, which rounds


def _may_overlap_tensor(problem: Problem, layout: Layout) -> bool:
    """Say whether a switch that lets tensor-parallel traffic run beside compute has an effect. That
    needs sequence parallelism, and a precision in which the stack can overlap."""
    precision = problem.workload.precision
    return (
        layout.tp > 1
        and layout.sequence_parallel
        and precision not in problem.stack.overlap_tensor_not_in
    )


def _may_overlap_experts(problem: Problem, layout: Layout) -> bool:
    """Say whether a switch that lets all-to-alls run beside compute has an effect. That needs
    all-to-alls that recompute does not repeat, another micro-batch at hand, and at most one module
    of multi-token prediction (Megatron-Core transformer_config.py,
    overlap_moe_expert_parallel_comm)."""
    # A pipeline has two micro-batches at hand only with interleaved chunks.
    has_another = layout.pp == 1 or layout.virtual_stages > 1
    is_repeated = layout.recompute == "full" or "moe" in layout.recompute_modules
    has_all_to_all = layout.ep > 1 and problem.stack.dispatcher != "allgather"
    # Frameworks run hybrid models with other code, which may lack the overlap.
    has_code = problem.stack.overlap_expert_of_hybrids or not problem.architecture.is_hybrid
    return (
        has_all_to_all
        and has_another
        and has_code
        and not is_repeated
        and problem.architecture.mtp_layers <= 1
    )


def _is_compiled(problem: Problem, layout: Layout) -> bool:
    return problem.stack.launch != "eager"


_CONDITIONS: dict[Condition, Callable[[Problem, Layout], bool]] = {
    "always": lambda problem, layout: True,
    "never": lambda problem, layout: False,
    "dp": lambda problem, layout: layout.dp * layout.cp > 1,
    "tp": lambda problem, layout: layout.tp > 1,
    "sp": _may_overlap_tensor,
    "pp": lambda problem, layout: layout.pp > 1,
    "cp": lambda problem, layout: layout.cp > 1,
    "ep": lambda problem, layout: layout.ep > 1,
    "ep_beside": _may_overlap_experts,
    "interleaved": lambda problem, layout: layout.virtual_stages > 1,
    "moe": lambda problem, layout: problem.architecture.is_moe,
    "uncapped_moe": lambda problem, layout: (
        problem.architecture.is_moe and problem.workload.capacity_factor is None
    ),
    "dense": lambda problem, layout: not problem.architecture.is_moe,
    "zero_1_2": lambda problem, layout: layout.zero_stage in (1, 2),
    "zero_3": lambda problem, layout: layout.zero_stage == 3,
    "offloaded_zero_3": lambda problem, layout: layout.zero_stage == 3 and layout.offload_optimizer,
    "compiled": _is_compiled,
    "sp_compiled": lambda problem, layout: (
        _is_compiled(problem, layout) and _may_overlap_tensor(problem, layout)
    ),
    "fp16": lambda problem, layout: problem.workload.precision == "fp16",
    "not_fp16": lambda problem, layout: problem.workload.precision != "fp16",
    "low_precision_zero": lambda problem, layout: (
        problem.workload.number_format.gemm_bytes < 2 and layout.zero_stage > 0
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    releases: Mapping[str, float]
    switches: tuple[Switch, ...]
    makers: tuple[str, ...] = ()
    """The organisations that make the framework and publish tuned recipes for it."""


_NO_TABLE = _Table(releases={}, switches=())


@cache
def _tables() -> Mapping[str, _Table]:
    """Return the tables of switches (data/switches) by the id of the stack. A stack without a table
    of its own has that of the stack which it is `like`; others are left out."""
    documents = {
        file.name.removesuffix(".json"): json.loads(file.read_text())
        for file in (files("models") / "data/switches").iterdir()
        if file.name.endswith(".json")
    }
    tables: dict[str, _Table] = {}
    # The catalogue lists a stack under each of its aliases too; here it comes once.
    for stack in {stack.id: stack for stack in catalogue.stacks().values()}.values():
        document = documents.get(stack.id) or documents.get(stack.like or "")
        if document:
            tables[stack.id] = _table_from(document, documents, stack)
    return tables


def _table_from(
    document: Mapping[str, Any], documents: Mapping[str, Mapping[str, Any]], stack: Stack
) -> _Table:
    """Return the table of a stack from its document (data/switches). For fields that the document
    leaves out, it takes the switches of the document that this one is `like`."""
    inherited = documents.get(document.get("like", ""), {"releases": {}, "switches": ()})
    own_fields = {entry["field"] for entry in document["switches"]}
    rest = [entry for entry in inherited["switches"] if entry["field"] not in own_fields]
    # Inherited switches date their values by the releases of the document that they come from.
    years = {**inherited["releases"], **document["releases"]}
    entries = (*document["switches"], *rest)
    return _Table(
        # Only releases of its own: the versions that a request may name.
        releases=dict(sorted(document["releases"].items(), key=lambda item: float(item[1]))),
        switches=tuple(_switch_from(entry, stack, years) for entry in entries),
        makers=tuple(document.get("makers", ())),
    )


def _switch_from(entry: Mapping[str, Any], stack: Stack, years: Mapping[str, float]) -> Switch:
    """Return a switch from an entry of a document. `years` has the year of each release. Where the
    entry gives no `defaults`, or no values that recipes set (`taken`), the value that the stack has
    in the catalogue stands for them."""
    in_catalogue = [{"value": getattr(stack, entry["field"])}]
    parsed = {
        "settings": tuple(map(_setting_from, entry.get("settings", ()))),
        "defaults": _dated_values(entry.get("defaults", in_catalogue), years),
        "taken": _dated_values(entry.get("taken", in_catalogue), years),
        "published": _dated_values(entry.get("published", ()), years),
    }
    return Switch(**{**entry, **parsed})


def _setting_from(entry: Mapping[str, Any]) -> Setting:
    """Return a setting from an entry of a document. Its words are its arguments as people write
    them."""
    parsed = {
        "value": catalogue.as_tuples(entry["value"]),
        "words": _arguments_as_written({**entry["arguments"], **entry.get("needs", {})}),
        "any_value": tuple(entry.get("any_value", ())),
    }
    return Setting(**{**entry, **parsed})


def _arguments_as_written(arguments: Mapping[str, Any]) -> str:
    """Return arguments as people write them: "--overlap-grad-reduce --seed 1" for names with
    dashes, "trainer.seed=1" for others, and NOTHING for none."""
    return " ".join(starmap(_argument_as_written, arguments.items())) or NOTHING


def _argument_as_written(name: str, value: Any) -> str:
    """Return one argument as people write it: "--seed 1", "trainer.seed=1", or a flag's name alone
    where its value is True."""
    is_flag = name.startswith("--")
    if isinstance(value, list):
        value = (" " if is_flag else ",").join(map(str, value))
    if is_flag:
        return name if value is True else f"{name} {value}"
    text = str(value).lower() if isinstance(value, bool) else value
    return f"{name}={text}"


def _dated_values(
    entries: Iterable[Mapping[str, Any]], years: Mapping[str, float]
) -> tuple[Dated, ...]:
    """Return the values of these entries, each with the year from which it holds, in order of time.
    That year is the entry's own, or that of its release in `years`; 0 where it has neither."""
    values = []
    for entry in entries:
        release = entry.get("release")
        since = entry.get("since")
        if since is None:
            since = years[release] if release else 0.0
        value = catalogue.as_tuples(entry["value"])
        values.append(Dated(value=value, release=release, since=float(since)))
    return tuple(sorted(values, key=lambda value: value.since))
