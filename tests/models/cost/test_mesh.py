"""How many bytes a layer sends along each axis of the mesh."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.cost.layout_parts import LayoutParts
from models.cost.predictions import predict
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from tests.models.cost.examples import PROFILE, on_stack, question


def traffic(problem: Problem, layout: Layout, name: str) -> float:
    """Seconds of a layer of the first kind, nothing hidden."""
    parts = LayoutParts.of(problem, layout, PROFILE.coefficients(problem.scopes))
    return float(parts.costs[name][0])


def test_a_ring_passes_repeated_key_value_heads() -> None:
    """Four heads on eight ranks: each passes one, as on four."""
    problem = question(model="qwen3-30b-a3b", chips=64)
    innermost = ("cp", "tp", "dp_shard", "dp_replicate", "pp")
    four, eight = (
        traffic(problem, Layout(tp=tp, cp=4, dp_shard=16 // tp, placement=innermost), "context")
        for tp in (4, 8)
    )
    assert four > 0
    assert four == pytest.approx(eight)


def test_parallel_blocks_are_reduced_once() -> None:
    problem = question(model="gpt-neox-20b", chips=8)
    layers = tuple(replace(layer, parallel=False) for layer in problem.architecture.layers)
    serial = replace(problem, architecture=replace(problem.architecture, layers=layers))
    once, twice = (traffic(p, Layout(tp=8), "tensor") for p in (problem, serial))
    assert once > 0
    assert twice == pytest.approx(2 * once)


def test_gradients_reduced_whole_travel_twice_as_far() -> None:
    """Two bytes gathered and two scattered of each parameter, or two and twice two; at other stages
    no difference."""
    base = question(model="llama-3-8b", chips=64)
    stages = Layouts.of([Layout(dp_shard=64, zero_stage=z) for z in (1, 3)])
    ways = [
        on_stack("aa-scaling", base, whole_gradients=whole, zero_stages=(1, 3))
        for whole in (False, True)
    ]
    c = PROFILE.coefficients(ways[0].scopes)
    scattered, whole = (predict(p, stages, c).time["data_s"] for p in ways)
    assert (
        1.35 < whole[0] / scattered[0] <= 1.5
    )  # an all-reduce has less latency than what it is made of
    assert whole[1] == scattered[1]


def test_ulysses_repeats_key_value_heads_that_are_fewer_than_ranks() -> None:
    """Llama-3-8B has 8: of 32 ranks each needs one, so that as much is sent as of a model with
    32."""
    base = on_stack(
        "deepspeed", question(model="llama-3-8b", chips=32, global_batch=1, seq_len=32768)
    )
    wide = replace(base.architecture.kinds[0].attention, num_kv_heads=32)
    layers = tuple(replace(layer, attention=wide) for layer in base.architecture.layers)
    many = replace(base, architecture=replace(base.architecture, layers=layers))
    sent = {}
    for cp in (8, 32):
        layout = Layout(cp=cp, dp_shard=32 // cp)
        sent[cp] = [traffic(p, layout, "context") for p in (base, many)]
    assert sent[32][0] == pytest.approx(sent[32][1])
    assert sent[8][0] < sent[8][1]


@pytest.mark.parametrize(
    ("stack", "copied"), [("torchtitan", 2 * 4 + 6), ("fsdp", 10), ("fms-fsdp", 4)]
)
def test_fsdp_copies_what_it_gathers_and_reduces(stack: str, copied: int) -> None:
    """fully_shard out of what it gathered, twice (2 + 2 bytes), and into what it reduces (2 + 4);
    one flat tensor joins gradients (2 + 2), and casts them where they are sent wider (2 + 4).
    Beside any amount of compute."""
    base = on_stack(stack, question(model="llama-3-8b", chips=64, global_batch=256))
    rows = Layouts.of([Layout(dp_shard=64, zero_stage=3, micro_batch=4, recompute="full")])
    c = PROFILE.coefficients(base.scopes)
    copying, in_place = (
        predict(p, rows, c).time["data_s"][0]
        for p in (base, replace(base, stack=replace(base.stack, shards="in_place")))
    )
    bytes_s = base.cluster.memory_bytes_s * c.memory
    layers = base.architecture.parameters.total - 2 * 128256 * 4096
    ends = copying - in_place - copied * layers / bytes_s
    assert 0 <= ends <= copied * 2 * 128256 * 4096 / bytes_s * 1.001


def test_products_computed_again_gather_again_and_scatter_nothing() -> None:
    """torchtitan's selective recompute, of half the tensor-parallel traffic of forward."""
    base = on_stack(
        "torchtitan", question(model="llama-3-8b", chips=8, global_batch=8), overlap_tensor=False
    )
    knobs = ({}, {"recompute": "selective"}, {"recompute": "full"})
    rows = Layouts.of([Layout(tp=8, sequence_parallel=True, **knob) for knob in knobs])  # type: ignore[arg-type]
    none, selective, full = predict(base, rows, PROFILE.coefficients(base.scopes)).time["tensor_s"]
    assert selective / none == pytest.approx(1.25)
    assert full / none == pytest.approx(
        1.375
    )  # what the last product would give is not scattered again
