"""How many bytes a layer sends along each axis of the mesh."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.cost.layout_parts import LayoutParts
from models.cost.predictions import predict
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients
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
    wide = replace(base.architecture.kinds[0].attention, num_key_value_heads=32)
    layers = tuple(replace(layer, attention=wide) for layer in base.architecture.layers)
    many = replace(base, architecture=replace(base.architecture, layers=layers))
    sent = {}
    for cp in (8, 32):
        layout = Layout(cp=cp, dp_shard=32 // cp)
        sent[cp] = [traffic(p, layout, "context") for p in (base, many)]
    assert sent[32][0] == pytest.approx(sent[32][1])
    assert sent[8][0] < sent[8][1]


@pytest.mark.parametrize(
    ("stack", "copied"), [("torchtitan", 2 * 4 + 6), ("llm-foundry", 10), ("fsdp", 4)]
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


# -- bytes by hand, on nodes of eight H100 whose links have their rate and no latency


NVLINK, NIC = 450e9, 50e9
"""Bytes a second of one device."""
TOKENS, HIDDEN, WIDTH = 8192, 4096, 14336


def ideal(problem: Problem, **changes: float) -> Coefficients:
    perfect = dict.fromkeys(("scaleup", "scaleout", "alltoall"), 1.0)
    none = dict.fromkeys(("collective_s", "scaleup_hop_s", "scaleout_hop_s", "ring_step_s"), 0.0)
    return replace(PROFILE.coefficients(problem.scopes), **{**perfect, **none, **changes})


def seconds_of(problem: Problem, layout: Layout, **changes: float) -> dict[str, float]:
    """Of the traffic of a layer of the first kind, nothing hidden."""
    (first, *_) = LayoutParts.of(problem, layout, ideal(problem, **changes)).costs
    return {name: float(first[name]) for name in first.dtype.names}


def gathered(size: float, members: int, per_node: int) -> float:
    missing = size * (1 - 1 / members)
    within = missing / NVLINK if per_node > 1 else 0.0
    return max(within, missing / (per_node * NIC)) if members > per_node else within


def test_gradients_are_scattered_over_shards_and_a_shard_of_them_reduced_over_replicas() -> None:
    """Shards in a node, and a replica in each of two: 2 bytes of a parameter gathered, 4 of its
    gradient scattered, and an all-reduce of an eighth of those over the network."""
    problem = question("llama-3-8b", chips=16)
    parameters = (problem.architecture.parameters.total - 2 * 128256 * HIDDEN - HIDDEN) / 32
    found = seconds_of(problem, Layout(dp_shard=8, dp_replicate=2, zero_stage=3))
    assert found["gather"] == pytest.approx(gathered(2 * parameters, 8, 8))
    reduced = 2 * gathered(4 * parameters / 8, 2, 1)
    assert found["scatter"] == pytest.approx(gathered(4 * parameters, 8, 8) + reduced)
    assert found["reduce"] == pytest.approx(2 * gathered(4 * parameters, 16, 8))


@pytest.mark.parametrize("shards", [1, 2, 16])
def test_experts_have_data_parallelism_of_their_own(shards: int) -> None:
    """Eight experts over ep = 4, Mixtral's: of 16 devices four have the same. Where nothing is
    sharded, or all of it is, they are one group, two in each node; else two shards, and replicas
    of both."""
    problem = question("mixtral-8x7b", chips=16)
    replicas = 16 // shards
    layout = Layout(dp_shard=shards, dp_replicate=replicas, ep=4 if shards != 2 else 2)
    expert = 3 * HIDDEN * WIDTH * 8 / layout.ep
    total, experts = problem.architecture.parameters.total, problem.architecture.parameters.experts
    dense = (total - experts - 2 * 32000 * HIDDEN - HIDDEN) / 32
    found = seconds_of(problem, layout, expert_prefetch=0.25)
    if shards == 2:  # experts of two devices that are side by side
        of_experts = {2: 0.0, 4: 0.0}
        replicated = 2 * gathered(4 * (dense / 2 + expert), 8, 4)
    else:
        of_experts = {size: gathered(size * expert, 4, 2) for size in (2, 4)}
        replicated = 2 * gathered(4 * dense, 16, 8) if shards == 1 else 0.0
    per_node = min(shards, 8)
    assert found["gather"] == pytest.approx(gathered(2 * dense, shards, per_node) + of_experts[2])
    assert found["stuck"] == pytest.approx(0.75 * of_experts[2])
    scattered = gathered(4 * dense, shards, per_node) + of_experts[4]
    assert found["scatter"] == pytest.approx(scattered + replicated)
    reduced = 2 * gathered(4 * dense, 16, 8) + 2 * of_experts[4]
    assert found["reduce"] == pytest.approx(reduced)


def test_a_block_is_gathered_and_scattered_or_reduced() -> None:
    """Twice a layer, of the activations of all tokens; without sequence parallelism in one call
    instead of two."""
    problem = question("llama-3-8b", chips=8)
    block = 2 * gathered(2 * TOKENS * HIDDEN, 8, 8)
    for sharded, calls in ((True, 2), (False, 1)):
        layout = Layout(tp=8, sequence_parallel=sharded)
        found = seconds_of(problem, layout, collective_s=1e-3)
        assert found["tensor"] == pytest.approx(2 * (block + calls * 1e-3))


@pytest.mark.parametrize(
    ("precision", "scaling", "element"),
    [("fp8", "tensorwise", 1), ("fp8", "rowwise", 2), ("bf16", "tensorwise", 2)],
)
def test_what_is_cast_before_it_is_gathered_takes_a_byte_an_element(
    precision: str, scaling: str, element: int
) -> None:
    """Outputs of products are scattered in 16 bits in any case, and reduced so where tokens are not
    divided."""
    problem = on_stack(
        "torchtitan",
        question("llama-3-8b", chips=8, precision=precision),
        fp8_scaling=scaling,
    )
    block = gathered((element + 2) * TOKENS * HIDDEN, 8, 8)
    found = seconds_of(problem, Layout(tp=8, sequence_parallel=True))
    assert found["tensor"] == pytest.approx(2 * block)
    found = seconds_of(problem, Layout(tp=8, sequence_parallel=False))
    assert found["tensor"] == pytest.approx(2 * 2 * gathered(2 * TOKENS * HIDDEN, 8, 8))


def test_slices_of_experts_gather_tokens_and_scatter_them() -> None:
    """Two copies of each token of the group, over NVLink; attention's block is cut as well."""
    problem = question("mixtral-8x7b", chips=8)
    found = seconds_of(problem, Layout(tp=4, dp_shard=2, etp=4, sequence_parallel=True))
    tokens = 2 * gathered(2 * TOKENS / 4 * 2 * 4 * HIDDEN, 4, 4)
    block = 2 * gathered(2 * TOKENS * HIDDEN, 4, 4)
    assert found["tensor"] == pytest.approx(block + tokens)


@pytest.mark.parametrize(("window", "share"), [(None, 4.0), (1024, 0.5), (4096, 2.0)])
def test_a_ring_passes_on_the_keys_that_queries_see(window: int | None, share: float) -> None:
    """Of 2,048 tokens on each of four ranks: those of all, or of a window."""
    problem = question("llama-3-8b", chips=4)
    layers = tuple(
        replace(layer, attention=replace(layer.attention, sliding_window=window))
        for layer in problem.architecture.layers
        if layer.attention
    )
    problem = replace(problem, architecture=replace(problem.architecture, layers=layers))
    found = seconds_of(problem, Layout(cp=4))
    keys = 2 * 8 * 128
    assert found["context"] == pytest.approx(gathered(2 * TOKENS / 4 * share * keys, 4, 4))


@pytest.mark.parametrize(
    ("dispatcher", "elements"),
    [("alltoall", 2 * 2 + 2 * 2), ("deduplicated", 2 * 1 + 2 * 2), ("allgather", 8 * 2 * 2)],
)
def test_tokens_go_to_experts_and_come_back(dispatcher: str, elements: int) -> None:
    """Two copies of each, the first time in fp8 where a dispatcher knows it; or all tokens of
    all ranks, twice."""
    problem = question("mixtral-8x7b", chips=8, precision="fp8", routing="balanced")
    problem = on_stack("generic", problem, dispatcher=dispatcher)
    found = seconds_of(problem, Layout(dp_shard=8, ep=8), alltoall=1.0)
    assert found["dispatch"] == pytest.approx(gathered(TOKENS * HIDDEN * elements, 8, 8))


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_stages_send_the_tokens_that_a_rank_has(sequence_parallel: bool) -> None:
    """One activation of a token forward, one back, for each of 128 micro-batches; and once more
    while the pipeline fills and drains."""
    problem = question("llama-3-8b", chips=16)
    layout = Layout(tp=8, pp=2, sequence_parallel=sequence_parallel)
    c = ideal(problem, send_s=2e-5, stall_s=0.0)
    found = predict(problem, Layouts.of([layout]), c)
    tokens = TOKENS / 8 if sequence_parallel else TOKENS
    assert found.time["pipeline_s"][0] == pytest.approx(
        2 * 128 * (2e-5 + 2 * tokens * HIDDEN / NIC)
    )


@pytest.mark.parametrize(("sequence_parallel", "hops"), [(True, 2 * 3), (False, 3)])
def test_the_host_stalls_at_every_hop_beside_sends(sequence_parallel: bool, hops: int) -> None:
    problem = question("llama-3-8b", chips=8)
    for pp, stalls in ((1, 0.0), (2, 2 * hops * 1e-3)):
        layout = Layout(tp=4, pp=pp, dp_shard=2 // pp, sequence_parallel=sequence_parallel)
        assert seconds_of(problem, layout, stall_s=1e-3)["stall"] == pytest.approx(stalls)


@pytest.mark.parametrize("shards", [1, 8])
def test_nothing_is_copied_that_is_not_sharded(shards: int) -> None:
    problem = on_stack("torchtitan", question("llama-3-8b", chips=8))
    found = seconds_of(problem, Layout(dp_shard=shards, dp_replicate=8 // shards, zero_stage=3))
    assert (found["gather_copy"] > 0) == (shards > 1)
    assert (found["reduce_copy"] > 0) == (shards > 1)
