"""The neighbours of a layout: the legal layouts that differ from it in one knob.

A change of a degree leaves the number of devices as it is: data parallelism takes what the change
sets free, or gives what it needs, as it does in frameworks that work it out themselves. Where a
knob means nothing without another (virtual stages without a pipeline), or a framework derives it
from another (sequence parallelism from tp), it *follows*: a change of the one changes the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from models.layouts.defaults import torus_axes_covering_dims, with_stack_defaults
from models.layouts.factors import divisors
from models.layouts.rules import first_broken
from models.layouts.space import common_expert_divisors
from models.spec.layout import (
    PLACEMENTS,
    TORUS_AXES,
    Layout,
    Layouts,
    active_axes,
    equivalent_placements,
)
from models.spec.problem import Problem
from models.spec.recompute import MODULES

_PIPELINE_KNOBS = {"schedule", "virtual_stages", "balanced"}
_WITHOUT_PIPELINE: dict[str, Any] = {
    "schedule": "1f1b",
    "virtual_stages": 1,
    "balanced": False,
    "layers_per_chunk": (),
}


@dataclass(frozen=True, slots=True)
class Knob:
    """One choice in a layout: the fields that make it, and those that may follow a change of it."""

    fields: tuple[str, ...]
    variants: Callable[[Problem, Layout], Iterable[Layout]]
    """Yields layouts with other values of the knob, legal or not. The given value may be among
    them."""
    followers: tuple[str, ...] = ()

    def value(self, layout: Layout) -> Any:
        """Return a layout's value of this knob: that of its field, or a tuple for several."""
        values = tuple(getattr(layout, name) for name in self.fields)
        return values[0] if len(values) == 1 else values


def neighbours(problem: Problem, layout: Layout) -> list[tuple[str, Layout]]:
    """Return every legal layout that differs from the given one in one knob, with the name of that
    knob in KNOBS. The given layout must state all knobs (models.layouts.defaults), and need not be
    legal.

    Several layouts may have one value of a knob and differ in the fields that follow it. The first
    legal one of each value is taken.
    """
    named = [
        (name, variant)
        for name, knob in KNOBS.items()
        for variant in knob.variants(problem, layout)
        if knob.value(variant) != knob.value(layout)
    ]
    broken = first_broken(problem, Layouts.of([variant for _, variant in named])).tolist()
    kept: dict[tuple[str, Any], Layout] = {}
    for (name, variant), rule in zip(named, broken, strict=True):
        # -1 stands for no broken rule.
        if rule < 0:
            kept.setdefault((name, KNOBS[name].value(variant)), variant)
    return [(name, variant) for (name, _), variant in kept.items()]


# -- degrees


def _vary_tp(problem: Problem, layout: Layout) -> Iterator[Layout]:
    """Yield other degrees of tp. Sequence parallelism stays as it is, or with a change from tp 1 is
    on if the stack has it. In a stack that cuts experts by tp, etp becomes equal to tp."""
    sequence_parallel = layout.sequence_parallel
    if layout.tp == 1:
        sequence_parallel = True in problem.stack.sequence_parallel
    for tp in divisors(problem.cluster.num_devices):
        yield from _on_all_devices(
            problem,
            layout,
            tp=tp,
            etp=tp if problem.experts_keep_tensor else layout.etp,
            sequence_parallel=sequence_parallel and tp > 1,
        )


def _vary_cp(problem: Problem, layout: Layout) -> Iterator[Layout]:
    for cp in divisors(problem.cluster.num_devices):
        yield from _on_all_devices(problem, layout, cp=cp)


def _vary_pp(problem: Problem, layout: Layout) -> Iterator[Layout]:
    """Yield other numbers of pipeline stages. Between two pipelines the schedule stays. From or to
    a layout without one, schedule and virtual stages become the stack's defaults."""
    # All other knobs stay as they are.
    given = {field.name for field in fields(Layout)} - _PIPELINE_KNOBS
    for pp in divisors(problem.cluster.num_devices):
        if pp > 1 and layout.pp > 1:
            chunks = _chunk_fields(problem, layout, pp * layout.virtual_stages)
            yield from _on_all_devices(problem, layout, pp=pp, **chunks)
            continue
        for variant in _on_all_devices(problem, layout, pp=pp, **_WITHOUT_PIPELINE):
            settled = with_stack_defaults(problem, variant, given)
            chunks = _chunk_fields(problem, settled, settled.pp * settled.virtual_stages)
            yield replace(settled, **chunks)


def _on_all_devices(problem: Problem, layout: Layout, **changes: Any) -> Iterator[Layout]:
    """Yield the layout with these changes of degrees on all devices of the cluster. Under ZeRO
    dp_shard gets the degree that fills the devices, and otherwise dp_replicate does. Nothing is
    yielded where none fills them. On a torus, yield the layout once more with devices numbered such
    that its axes cover whole dims."""
    degrees = [changes.get(name, getattr(layout, name)) for name in ("pp", "cp", "tp")]
    dp, idle_devices = divmod(problem.cluster.num_devices, math.prod(degrees))
    if layout.zero_stage:
        kept, filling = "dp_replicate", "dp_shard"
    else:
        kept, filling = "dp_shard", "dp_replicate"
    degree, idle_ranks = divmod(dp, getattr(layout, kept))
    if idle_devices or idle_ranks or not degree:
        return
    variant = replace(layout, **{filling: degree}, **changes)
    yield variant
    if problem.cluster.device_orders.has_choice:
        yield replace(variant, torus_axes=torus_axes_covering_dims(problem, variant))


def _vary_dp(problem: Problem, layout: Layout) -> Iterator[Layout]:
    """Yield other ways to divide data parallelism into replicas and shards, on all devices."""
    dp = problem.cluster.num_devices // (layout.pp * layout.cp * layout.tp)
    # dp is 0 where an illegal layout's other degrees need more devices than there are.
    for shard in divisors(dp) if dp else []:
        yield replace(layout, dp_shard=shard, dp_replicate=dp // shard)


def _micro_batches(problem: Problem, layout: Layout) -> list[int]:
    """Return the sizes of a micro-batch that divide the sequences of a data-parallel rank."""
    return divisors(max(problem.workload.global_batch // layout.dp, 1))


# -- the pipeline


def _vary_schedule(problem: Problem, layout: Layout) -> Iterator[Layout]:
    """Yield other schedules, each with one virtual stage and with two, of which some schedules need
    one and some the other. Illegal layouts are dropped in `neighbours`."""
    # Without a pipeline 1f1b and afab are plain gradient accumulation, which every stack runs.
    offered = problem.stack.schedules if layout.pp > 1 else ("1f1b", "afab")
    for schedule in offered:
        for virtual_stages in (1, 2):
            chunks = _chunk_fields(problem, layout, layout.pp * virtual_stages)
            yield replace(layout, schedule=schedule, virtual_stages=virtual_stages, **chunks)


def _vary_virtual_stages(problem: Problem, layout: Layout) -> Iterator[Layout]:
    """Yield the layout with other numbers of virtual stages, and with the split of layers and the
    recompute that go with as many chunks."""
    for virtual_stages in range(1, problem.stack.max_virtual_stages + 1):
        chunks = _chunk_fields(problem, layout, layout.pp * virtual_stages)
        yield replace(layout, virtual_stages=virtual_stages, **chunks)


def _chunk_fields(problem: Problem, layout: Layout, chunks: int) -> dict[str, Any]:
    """Return the fields that follow from a change to `chunks` chunks (pp · virtual_stages) in the
    pipeline. Where the number changes, a stated split is dropped, and layers that do not divide are
    split unevenly. recompute_layers becomes 0 (all) where chunks have no more layers than it
    says."""
    layers = problem.architecture.num_layers
    recomputed = layout.recompute_layers
    stated_split = layout.layers_per_chunk
    balanced = layout.balanced
    if chunks != layout.pp * layout.virtual_stages:
        stated_split = ()
        # Only some stacks can split layers unevenly ("balanced": by their cost).
        balanced |= layers % chunks > 0 and problem.stack.partition == "balanced"
    return {
        "layers_per_chunk": stated_split,
        "balanced": balanced,
        "recompute_layers": recomputed if recomputed * chunks < layers else 0,
    }


def _vary_split(problem: Problem, layout: Layout) -> Iterator[Layout]:
    """Yield the layout with an even split of its layers, and with the balanced one, in which the
    slowest stage is fastest."""
    for balanced in (False, True):
        # () drops a stated split, which would take precedence.
        yield replace(layout, balanced=balanced, layers_per_chunk=())


# -- memory


def _vary_recompute(problem: Problem, layout: Layout) -> Iterator[Layout]:
    """Yield the layout under other recompute policies: none, the stack's own sets of modules, one
    module more or fewer than now, and full recompute of all layers or any smaller number."""
    plain = replace(layout, recompute="none", recompute_modules=(), recompute_layers=0)
    yield plain
    stack = problem.stack
    now = set(layout.recompute_modules)
    if layout.recompute == "selective" and not now:
        now = set(problem.effective_modules(stack.selective[0]))
    sets = [set(problem.effective_modules(modules)) for modules in stack.selective]
    # The present modules with one more, or without one of them.
    sets += [now ^ {name} for name in stack.recomputable_modules if problem.has_module(name)]
    for modules in sets:
        if modules and modules != now:
            in_order = tuple(name for name in MODULES if name in modules)
            yield replace(plain, recompute="selective", recompute_modules=in_order)
    # From full recompute, the knob recompute_layers changes the number of layers.
    if layout.recompute != "full":
        full = replace(plain, recompute="full")
        yield full
        yield from _vary_recompute_layers(problem, full)


def _vary_recompute_layers(problem: Problem, layout: Layout) -> Iterator[Layout]:
    """Yield other numbers of layers of a chunk to recompute, 0 for all. Nothing is yielded without
    full recompute, or where the stack takes no number."""
    if layout.recompute != "full" or not problem.stack.recompute_layers:
        return
    chunk = problem.architecture.num_layers // (layout.pp * layout.virtual_stages)
    for layers in range(chunk):
        yield replace(layout, recompute_layers=layers)


def _vary_zero_stage(problem: Problem, layout: Layout) -> Iterator[Layout]:
    """Yield other ZeRO stages, each with either value of `reshard`. With a change to stage 0 all of
    data parallelism becomes replicas, and with one from stage 0 all of it becomes shards."""
    for stage in problem.stack.zero_stages:
        variant = replace(layout, zero_stage=stage)
        if stage == 0:
            yield replace(variant, dp_replicate=layout.dp, dp_shard=1)
            continue
        if layout.zero_stage == 0:
            variant = replace(variant, dp_replicate=1, dp_shard=layout.dp)
        yield variant
        yield replace(variant, reshard=not layout.reshard)


def _reshards(problem: Problem, layout: Layout) -> tuple[bool, ...]:
    """Return both values of `reshard` under ZeRO 3, and none otherwise, where it does nothing."""
    return (False, True) if layout.zero_stage == 3 else ()


# -- the fabric


def _vary_placement(problem: Problem, layout: Layout) -> Iterator[Layout]:
    """Yield the layout in other placements that the stack offers. Placements that differ only in
    where axes of degree 1 stand are the same on the fabric, so one of them is yielded."""
    pattern = int(active_axes(Layouts.of([layout]))[0])
    first_alike = equivalent_placements()[pattern].tolist()
    # The given placement, which is left out, by the first one that is the same on the fabric.
    own = first_alike[PLACEMENTS.index(tuple(layout.placement))]
    orders = problem.stack.placements or PLACEMENTS
    # Later entries replace earlier ones: backwards, the first of equivalent placements stays.
    distinct = {first_alike[PLACEMENTS.index(order)]: order for order in reversed(orders)}
    for number in sorted(distinct.keys() - {own}):
        yield replace(layout, placement=distinct[number])


def _vary_torus_axes(problem: Problem, layout: Layout) -> Iterator[Layout]:
    """Yield the layout with devices numbered along the dims of a torus in every order, its own
    among them. The size of the blocks, torus_block, is a knob of its own and stays."""
    # A filling is an order of the dims together with a size of blocks. Distinct fillings join
    # devices differently: an order is missing here if another, or smaller blocks, does the same.
    for order, block in problem.cluster.device_orders.distinct_fillings.tolist():
        if block == layout.torus_block:
            yield replace(layout, torus_axes=TORUS_AXES[order])


def _vary_torus_block(problem: Problem, layout: Layout) -> Iterator[Layout]:
    """Yield the layout with devices of a torus numbered in blocks of other sizes."""
    for order, block in problem.cluster.device_orders.distinct_fillings.tolist():
        # Only the blocks change: torus_axes, the order of the dims, is a knob of its own.
        if TORUS_AXES[order] == tuple(layout.torus_axes):
            yield replace(layout, torus_block=block)


_DATA = ("dp_replicate", "dp_shard")
_CHUNKS = ("balanced", "layers_per_chunk", "recompute_layers")


def _knob_of(field: str, values: Callable[[Problem, Layout], Iterable[Any]]) -> Knob:
    """Return the knob of a single field that no other follows, given the field's name and a
    function that returns its possible values."""

    def variants(problem: Problem, layout: Layout) -> Iterator[Layout]:
        """Yield the layout with each possible value of the field."""
        for value in values(problem, layout):
            yield replace(layout, **{field: value})

    return Knob((field,), variants)


def _on_and_off(problem: Problem, layout: Layout) -> tuple[bool, bool]:
    return False, True


KNOBS: dict[str, Knob] = {
    "tp": Knob(("tp",), _vary_tp, (*_DATA, "sequence_parallel", "etp", "torus_axes")),
    "pp": Knob(("pp",), _vary_pp, (*_DATA, "schedule", "virtual_stages", *_CHUNKS, "torus_axes")),
    "cp": Knob(("cp",), _vary_cp, (*_DATA, "torus_axes")),
    "ep": _knob_of("ep", lambda problem, _: common_expert_divisors(problem, "num_experts")),
    "etp": _knob_of("etp", lambda problem, _: common_expert_divisors(problem, "intermediate_size")),
    "dp": Knob(_DATA, _vary_dp),
    "micro_batch": _knob_of("micro_batch", _micro_batches),
    "schedule": Knob(("schedule",), _vary_schedule, ("virtual_stages", *_CHUNKS)),
    "virtual_stages": Knob(("virtual_stages",), _vary_virtual_stages, _CHUNKS),
    "layers_per_chunk": Knob(("balanced", "layers_per_chunk"), _vary_split),
    "recompute": Knob(("recompute", "recompute_modules", "recompute_layers"), _vary_recompute),
    "recompute_layers": Knob(("recompute_layers",), _vary_recompute_layers),
    "zero_stage": Knob(("zero_stage",), _vary_zero_stage, (*_DATA, "reshard")),
    "reshard": _knob_of("reshard", _reshards),
    "sequence_parallel": _knob_of("sequence_parallel", _on_and_off),
    "offload_activations": _knob_of("offload_activations", _on_and_off),
    "offload_optimizer": _knob_of("offload_optimizer", _on_and_off),
    "placement": Knob(("placement",), _vary_placement),
    "torus_axes": Knob(("torus_axes",), _vary_torus_axes),
    "torus_block": Knob(("torus_block",), _vary_torus_block),
}
"""Every choice in a layout, by the name under which it changes."""
