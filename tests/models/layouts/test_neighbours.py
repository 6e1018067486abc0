"""The layouts that are one knob away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache

import pytest

from models.layouts.defaults import with_stack_defaults
from models.layouts.neighbours import KNOBS, neighbours
from models.layouts.rules import require_legal
from models.spec import catalogue
from models.spec.architecture import Architecture, MoeShape
from models.spec.constraints import KNOBS as CONSTRAINED
from models.spec.constraints import Constraints
from models.spec.layout import PLACEMENTS, Layout, Layouts, active_axes, equivalent_placements
from models.spec.problem import Problem
from models.spec.workload import Workload
from tests.oracles import brute_force

FOLLOWING_DEGREES = {"pp", "cp", "tp"}
"""The degrees for which data parallelism makes room."""


@cache
def problem(stack: str, cluster: str, *, sparse: bool, chips: int = 8) -> Problem:
    shape = {"num_experts": 4, "experts_per_token": 2, "num_groups": 2, "groups_per_token": 1}
    moe = MoeShape(**shape, moe_intermediate_size=512, first_k_dense=1) if sparse else None
    return Problem(
        architecture=Architecture.from_shape(
            name="small",
            num_layers=4,
            hidden_size=1024,
            intermediate_size=2816,
            num_attention_heads=8,
            num_key_value_heads=4,
            vocab_size=32000,
            moe=moe,
        ),
        cluster=catalogue.cluster(cluster, chips),
        workload=Workload(seq_len=4096, global_batch=16),
        stack=replace(catalogue.stack(stack), max_virtual_stages=2),
    )


def settled(asked: Problem, **given: object) -> Layout:
    layout = with_stack_defaults(asked, Layout(**given), given)  # type: ignore[arg-type]
    require_legal(asked, layout)
    return layout


CASES = [
    ("megatron", "h100", True, {"pp": 2, "dp_shard": 4, "ep": 2, "zero_stage": 1}),
    ("megatron", "h100", False, {"tp": 2, "dp_replicate": 4}),
    ("megatron", "h100", False, {"dp_shard": 8, "zero_stage": 1, "recompute": "full"}),
    ("megatron", "h100", False, {"tp": 2, "cp": 2, "pp": 2, "zero_stage": 1}),
    ("torchtitan", "h100", True, {"dp_shard": 4, "tp": 2}),
    ("torchtitan", "h100", False, {"dp_shard": 4, "dp_replicate": 2}),
    ("nanotron", "h100", False, {"pp": 2, "dp_replicate": 4}),
    ("deepspeed", "h100", False, {"dp_shard": 8, "zero_stage": 2}),
    ("maxtext", "tpu-v5p", True, {"dp_shard": 4, "tp": 2}),
    ("maxtext", "tpu-v5p", False, {"dp_shard": 8}),
]


@pytest.mark.parametrize(("stack", "cluster", "sparse", "given"), CASES)
def test_a_neighbour_is_legal_and_differs_in_one_knob_and_what_follows_it(
    stack: str, cluster: str, sparse: bool, given: dict[str, object]
) -> None:
    asked = problem(stack, cluster, sparse=sparse)
    layout = settled(asked, **given)
    found = neighbours(asked, layout)
    assert len({(name, KNOBS[name].value(other)) for name, other in found}) == len(found)
    for name, other in found:
        require_legal(asked, other)
        knob = KNOBS[name]
        assert knob.value(other) != knob.value(layout)
        differing = {
            field.name
            for field in fields(Layout)
            if getattr(other, field.name) != getattr(layout, field.name)
        }
        assert differing <= {*knob.fields, *knob.followers}, name


def legal_by_brute_force(asked: Problem, layout: Layout, name: str) -> Iterator[Layout]:
    """Every legal layout with other values of one knob. Of a degree, as many devices as it sets
    free or needs are shards or, without any, replicas."""
    free = {*KNOBS[name].fields}
    if name in FOLLOWING_DEGREES:
        free.add("dp_shard" if layout.zero_stage else "dp_replicate")
    pinned = {
        knob: (getattr(layout, knob),)
        for knob in {field.name for field in fields(Layout)} & {*CONSTRAINED}
        if knob not in free | {"recompute_modules", "recompute_layers"}
    }
    for block in brute_force.legal(asked, Constraints(allowed=pinned)):
        for row in range(len(block)):
            other = block[row]
            same = replace(other, **{field: getattr(layout, field) for field in free})
            if same == layout and KNOBS[name].value(other) != KNOBS[name].value(layout):
                yield other


@pytest.mark.parametrize(("stack", "cluster", "sparse", "given"), CASES)
def test_every_legal_layout_that_differs_in_nothing_else_is_a_neighbour(
    stack: str, cluster: str, sparse: bool, given: dict[str, object]
) -> None:
    asked = problem(stack, cluster, sparse=sparse)
    layout = settled(asked, **given)
    found = {(name, choice(name, other)) for name, other in neighbours(asked, layout)}
    fillings = asked.cluster.device_orders.distinct_fillings.tolist()
    for name in KNOBS.keys() - {"layers_per_chunk"}:  # brute force states no layers
        for other in legal_by_brute_force(asked, layout, name):
            rows = Layouts.of([other])
            if [rows.torus_axes[0], rows.torus_block[0]] not in fillings:
                continue  # it is the same as one of these
            if name == "recompute" and layout.recompute == other.recompute == "full":
                continue  # that is recompute_layers
            if choice(name, other) != choice(name, layout):
                assert (name, choice(name, other)) in found


def choice(name: str, layout: Layout) -> object:
    """The value of a knob; for placements that are the same, one of them."""
    if name != "placement":
        return KNOBS[name].value(layout)
    pattern = active_axes(Layouts.of([layout]))[0]
    return equivalent_placements()[pattern, PLACEMENTS.index(layout.placement)]


def test_a_layout_that_does_not_fill_the_cluster_is_made_legal() -> None:
    asked = problem("megatron", "h100", sparse=False)
    layout = Layout(tp=2, dp_shard=2, zero_stage=1, sequence_parallel=True)
    found = dict(neighbours(asked, layout))
    assert found["dp"].dp_shard == 4
    assert replace(found["dp"], dp_shard=2) == layout


def test_what_follows_a_knob_is_what_the_framework_derives() -> None:
    asked = problem("megatron", "h100", sparse=False)
    found = {
        (name, KNOBS[name].value(other)): other
        for name, other in neighbours(asked, settled(asked, dp_shard=8, zero_stage=1))
    }
    tensor = found["tp", 4]
    assert (tensor.dp_shard, tensor.sequence_parallel) == (2, True)
    assert found["pp", 2].schedule == "1f1b"
    assert found["zero_stage", 0].dp_replicate == 8
    piped = settled(asked, pp=2, dp_shard=4, zero_stage=1, schedule="interleaved", virtual_stages=2)
    alone = next(other for name, other in neighbours(asked, piped) if (name, other.pp) == ("pp", 1))
    assert (alone.schedule, alone.virtual_stages, alone.dp_shard) == ("1f1b", 1, 8)
