"""Predictions of many layouts at once, and two steps worked out by hand from docs/model.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from math import ceil, log2, sqrt
from statistics import NormalDist

import numpy as np
import pytest

from models.columns import Array
from models.cost.facts import coefficient_records
from models.cost.pipeline.stage_partition import layers_of_chunks
from models.cost.predictions import (
    MEMORY_TERMS,
    TIME_TERMS,
    LayoutRows,
    Predictions,
    predict,
    step_costs_under_each,
)
from models.spec import catalogue
from models.spec.hardware import Cluster
from models.spec.layout import PLACEMENTS, TORUS_AXES, Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients, shipped_profile
from models.spec.workload import Workload
from tests.oracles.random_questions import random_coefficients, random_layouts, random_problem

GIB = 2**30
SEEDS = range(4)
PROBLEMS = 4
"""Of a seed."""
LAYOUTS = 20
"""Of a problem, at most."""


@dataclass(frozen=True)
class Question:
    problem: Problem
    layouts: Layouts
    c: Coefficients


@cache
def random_questions(seed: int) -> list[Question]:
    rng, found = np.random.default_rng(seed), []
    while len(found) < PROBLEMS:
        problem = random_problem(rng)
        layouts = random_layouts(problem, rng, LAYOUTS)
        if len(layouts) > 1:
            found.append(Question(problem, layouts, random_coefficients(problem, rng)))
    return found


def columns(found: Predictions) -> dict[str, Array]:
    return {
        **found.time,
        **found.memory,
        "step_time_s": found.step_time_s,
        "needed_bytes": found.needed_bytes,
        "memory_stage": found.memory_stage,
        "host_bytes": found.host_bytes,
        "once_s": found.once_s,
    }


def require_same(found: Predictions, expected: Predictions) -> None:
    own, other = columns(found), columns(expected)
    for name, values in other.items():
        np.testing.assert_allclose(own[name], values, rtol=1e-9, atol=1e-15, err_msg=name)


# -- many layouts at once


@pytest.mark.parametrize("seed", SEEDS)
def test_a_layout_is_predicted_as_if_alone(seed: int) -> None:
    """Whatever it has in common with the one before it."""
    for asked in random_questions(seed):
        together = predict(asked.problem, asked.layouts, asked.c)
        for row in range(len(asked.layouts)):
            alone = predict(asked.problem, asked.layouts.take(np.array([row])), asked.c)
            require_same(alone, together.take(np.array([row])))


SHARED = Layout(
    tp=2, pp=2, dp_shard=8, zero_stage=1, sequence_parallel=True, micro_batch=2,
    schedule="interleaved", virtual_stages=2,
)  # fmt: skip
GATHERED = replace(SHARED, zero_stage=3, recompute="full")
CHANGES: list[tuple[Layout, dict[str, object]]] = [
    (SHARED, {"tp": 4, "dp_shard": 4}), (SHARED, {"pp": 4, "dp_shard": 4}),
    (SHARED, {"cp": 2, "dp_shard": 4}), (SHARED, {"dp_shard": 2, "dp_replicate": 4}),
    (SHARED, {"ep": 4}), (SHARED, {"etp": 2}), (SHARED, {"micro_batch": 1}),
    (SHARED, {"sequence_parallel": False}), (SHARED, {"zero_stage": 0}),
    (replace(SHARED, pp=1, schedule="1f1b", virtual_stages=1, dp_shard=16), {"zero_stage": 2}),
    (SHARED, {"recompute": "full"}),
    (SHARED, {"recompute": "selective"}), (SHARED, {"offload_activations": True}),
    (SHARED, {"offload_optimizer": True}), (SHARED, {"virtual_stages": 4}),
    (SHARED, {"schedule": "1f1b", "virtual_stages": 1}), (SHARED, {"schedule": "dualpipe"}),
    (SHARED, {"schedule": "zero_bubble_v"}), (SHARED, {"placement": PLACEMENTS[-1]}),
    (replace(SHARED, ep=8), {"schedule": "1f1b", "virtual_stages": 1}),
    (GATHERED, {"reshard": False}), (GATHERED, {"recompute_layers": 3}),
    (replace(GATHERED, recompute_layers=3), {"virtual_stages": 4}),
    (replace(SHARED, schedule="1f1b", virtual_stages=1), {"schedule": "zero_bubble"}),
]  # fmt: skip


@pytest.mark.parametrize(("base", "change"), CHANGES)
def test_layouts_that_differ_in_one_knob_are_each_as_if_alone(
    base: Layout, change: dict[str, object]
) -> None:
    """One after the other, so that what they have in common is not worked out again."""
    problem = sparse_problem(chips=32)
    problem = replace(problem, stack=replace(problem.stack, overlap_expert=True))
    c, other = told_apart(problem), replace(base, **change)  # type: ignore[arg-type]
    together = predict(problem, Layouts.of([base, other]), c)
    for row, layout in enumerate((base, other)):
        alone = predict(problem, Layouts.of([layout]), c)
        require_same(alone, together.take(np.array([row])))
    one, two = np.hstack([together.time_terms, together.memory_terms])
    assert (one != two).any()


def test_layouts_that_fill_a_torus_in_different_ways_are_each_as_if_alone() -> None:
    problem = dense_problem()
    chip = catalogue.chip("tpu-v5p")
    cluster = Cluster(chip=chip, fabric=chip.fabric, num_chips=64, torus_shape=(2, 4, 8))
    problem = replace(problem, cluster=cluster, stack=catalogue.stack("generic"))
    layout = Layout(tp=4, dp_shard=16, zero_stage=3, sequence_parallel=True)
    c, layouts = told_apart(problem), [layout, replace(layout, torus_axes=TORUS_AXES[-1])]
    together = predict(problem, Layouts.of(layouts), c)
    for row, one in enumerate(layouts):
        require_same(predict(problem, Layouts.of([one]), c), together.take(np.array([row])))
    assert together.step_time_s[0] != together.step_time_s[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_of_layouts_is_kept(seed: int) -> None:
    for asked in random_questions(seed):
        order = np.random.default_rng(seed).permutation(len(asked.layouts))
        one = predict(asked.problem, asked.layouts, asked.c)
        other = predict(asked.problem, asked.layouts.take(order), asked.c)
        require_same(other, one.take(order))


@pytest.mark.parametrize("seed", SEEDS)
def test_terms_sum_to_the_whole_and_none_is_negative(seed: int) -> None:
    for asked in random_questions(seed):
        found = predict(asked.problem, asked.layouts, asked.c)
        assert list(found.time) == list(TIME_TERMS)
        assert list(found.memory) == list(MEMORY_TERMS)
        np.testing.assert_allclose(found.step_time_s, sum(found.time.values()))
        np.testing.assert_allclose(found.needed_bytes, sum(found.memory.values()))
        in_use = sum(found.memory[name] for name in list(MEMORY_TERMS)[:5])
        np.testing.assert_allclose(found.allocated_bytes, in_use)
        reserved = in_use + found.memory["fragmentation_bytes"]
        np.testing.assert_allclose(found.reserved_bytes, reserved)
        assert all((values >= 0).all() for values in columns(found).values())


@pytest.mark.parametrize("seed", SEEDS)
def test_coefficients_drawn_for_each_layout_are_predictions_of_their_own(seed: int) -> None:
    for asked in random_questions(seed):
        rng, n = np.random.default_rng(seed), len(asked.layouts)
        draws = [random_coefficients(asked.problem, rng) for _ in range(n)]
        together = Coefficients(
            **{
                field.name: np.array([getattr(one, field.name) for one in draws])
                for field in fields(Coefficients)
            }
        )
        found = columns(predict(asked.problem, asked.layouts, together))
        for row, c in enumerate(draws):
            alone = columns(predict(asked.problem, asked.layouts.take(np.array([row])), c))
            for name, values in alone.items():
                assert found[name][row] == pytest.approx(values[0], rel=1e-9), name


def test_one_layout_under_many_draws_is_that_layout_under_each() -> None:
    """Layouts that are alike share no work where coefficients differ."""
    problem = dense_problem()
    c = told_apart(problem)
    draws = replace(c, gemm_16=np.array([0.4, 0.6, 0.8]))
    many = predict(problem, Layouts.of([DENSE] * 3), draws).step_time_s
    each = [
        predict(problem, Layouts.of([DENSE]), replace(c, gemm_16=of)).step_time_s[0]
        for of in (0.4, 0.6, 0.8)
    ]
    assert many.tolist() == pytest.approx(each, rel=1e-12)
    assert len(set(each)) == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_layout_that_is_taken_or_splits_layers_as_known_is_the_same(seed: int) -> None:
    for asked in random_questions(seed):
        found = predict(asked.problem, asked.layouts, asked.c)
        some = np.arange(len(asked.layouts))[::-2]
        taken = found.take(some)
        require_same(taken, predict(asked.problem, asked.layouts.take(some), asked.c))
        require_same(taken.with_stack(asked.problem, asked.c), taken)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_kinds_of_layers_that_are_alike_are_one(seed: int) -> None:
    """A window as long as the sequence is none: layers with one are a kind of their own, though
    they take as long."""
    rng = np.random.default_rng(seed)
    for model in ("llama-3-8b", "qwen3-30b-a3b"):
        one = replace(dense_problem(), architecture=catalogue.architecture(model))
        layers = list(one.architecture.layers)
        for at in range(len(layers) // 3):
            attention = layers[at].attention
            assert attention is not None
            layers[at] = replace(
                layers[at], attention=replace(attention, sliding_window=one.workload.seq_len)
            )
        two = replace(one, architecture=replace(one.architecture, layers=tuple(layers)))
        assert len(two.architecture.kinds) == 2
        layouts, c = random_layouts(one, rng, LAYOUTS), random_coefficients(one, rng)
        same = np.flatnonzero(~(layouts.recompute_layers > 0))
        merged, apart = (predict(problem, layouts.take(same), c) for problem in (one, two))
        require_same(apart, merged)


def test_a_layout_fits_where_device_and_host_have_what_it_needs() -> None:
    problem = dense_problem()
    offloads = replace(DENSE, offload_optimizer=True)
    found = predict(problem, Layouts.of([DENSE, offloads]), told_apart(problem))
    needed, usable = found.needed_bytes, problem.cluster.usable_bytes
    assert found.fits(usable - needed.max() - 1).tolist() == [True, True]
    assert found.fits(usable - needed.max() + 1).tolist() == [False, True]
    chip = replace(problem.cluster.chip, host_memory_gb=found.host_bytes[1] / 1e9 * 0.99)
    poor = replace(problem, cluster=replace(problem.cluster, chip=chip))
    found = predict(poor, Layouts.of([DENSE, offloads]), told_apart(problem))
    assert found.fits().tolist() == [True, False]


def test_rates_are_those_of_the_whole_job() -> None:
    problem = dense_problem()
    found = predict(problem, Layouts.of([DENSE]), told_apart(problem))
    (seconds,) = found.step_time_s
    assert found.tokens_per_s[0] == pytest.approx(64 * 4096 / seconds)
    weights = problem.architecture.parameters.total - 128256 * 4096
    flops = 6 * weights * 64 * 4096
    assert found.tflops_per_chip("none")[0] == pytest.approx(flops / seconds / 16 / 1e12, rel=1e-3)
    assert found.mfu("none")[0] == pytest.approx(flops / seconds / 16 / 989.4e12, rel=1e-3)


# -- two steps by hand


SEQ_LEN, BATCH = 4096, 64
PEAK, MEMORY_S, UNITS = 989.4e12, 3352e9, 132
"""Of an H100: FLOP/s in 16 bits, bytes a second, streaming multiprocessors."""
NVLINK, NIC = 450e9, 50e9
"""Bytes a second."""
DENSE = Layout(tp=2, dp_shard=8, zero_stage=1, sequence_parallel=True)
SPARSE = Layout(dp_shard=16, ep=8, zero_stage=3, recompute="full")


def dense_problem() -> Problem:
    return Problem(
        architecture=catalogue.architecture("llama-3-8b"),
        cluster=catalogue.cluster("h100", 16),
        workload=Workload(seq_len=SEQ_LEN, global_batch=BATCH),
        stack=catalogue.stack("megatron"),
    )


def sparse_problem(chips: int = 16) -> Problem:
    return Problem(
        architecture=catalogue.architecture("qwen3-30b-a3b"),
        cluster=catalogue.cluster("h100", chips),
        workload=Workload(seq_len=SEQ_LEN, global_batch=BATCH),
        stack=replace(catalogue.stack("generic"), dispatcher="alltoall", overlap_expert=False),
    )


def told_apart(problem: Problem) -> Coefficients:
    """Coefficients none of which is 0 or 1."""
    c = shipped_profile().coefficients(problem.scopes)
    changed = {
        "scaleup": 0.8, "scaleout": 0.7, "alltoall": 0.6, "collective_s": 7e-6,
        "scaleup_hop_s": 1e-6, "scaleout_hop_s": 6e-6, "ring_step_s": 3e-6,
        "tensor_overlap": 0.5, "data_overlap": 0.3, "interference": 0.2, "expert_prefetch": 0.6,
        "imbalance": 0.4, "expert_serialisation": 0.1, "grouped_gemm": 0.9, "jitter": 0.004,
        "ageing": 0.1, "step_fixed_s": 0.03, "activation_memory": 1.1, "logit_memory": 1.2,
        "fragmentation": 0.05, "elementwise_traffic": 1.3, "routing_traffic": 1.7,
        "compute_overhead": 1.05, "kernel_age": 0.8, "launch_s": 5e-6, "gemm_tail_waves": 0.3,
        "expert_launch_s": 1e-6, "routing_launches": 20.0,
    }  # fmt: skip
    return replace(c, **changed)


@dataclass(frozen=True)
class Kernels:
    """What kernels of an H100 take by the formulas of the section on kernel time."""

    c: Coefficients

    def product(self, m: float, k: float, n: float, groups: int = 1) -> float:
        """Output tiles of 128 x 256; whole tiles of 128 rows and columns are computed."""
        c = self.c
        tiles = groups * max(m / 128, 1) * max(n / 256, 1)
        tails = 1 + (groups - 1) * c.expert_serialisation
        busy = tiles / (tiles + c.gemm_tail_waves * UNITS * tails)
        rate = PEAK * c.gemm_16 * (c.grouped_gemm if groups > 1 else 1) * busy
        flops = groups * 2 * ceil(m / 128) * 128 * k * ceil(n / 128) * 128
        moved = groups * 2 * (m * k + k * n + m * n)
        return max(flops / rate, moved / (MEMORY_S * c.memory))

    def linear(self, m: float, k: float, n: float, groups: int = 1) -> tuple[float, float]:
        """Forward; and the gradients of its input and of its weights."""
        back = self.product(m, n, k, groups) + self.product(k, m, n, groups)
        return self.product(m, k, n, groups), back

    def attention(self, tokens: float, heads: float) -> tuple[float, float]:
        """Of heads of 128, over half of the sequence; backward has five products instead of
        two."""
        flops = 2 * tokens * (SEQ_LEN / 2) * heads * (128 + 128)
        forward = flops / (PEAK * self.c.attention * SEQ_LEN / (SEQ_LEN + 500))
        return forward, 2.5 * forward

    def light(self, elements: float) -> tuple[float, float]:
        """Elements of two bytes that element-wise kernels read or write; twice as many in
        backward."""
        forward = elements * 2 * self.c.elementwise_traffic / (MEMORY_S * self.c.memory)
        return forward, 2 * forward

    def move(self, size: float) -> float:
        return size / (MEMORY_S * self.c.memory)

    @property
    def slower(self) -> float:
        """Kernels of 0.8 years ago; those of the last half year are equally fast."""
        return self.c.compute_overhead * np.exp(self.c.ageing * (0.8 - 0.5))

    def layer(self, device: Sequence[tuple[float, float]], host: float) -> tuple[float, float]:
        """Forward and backward of these kernels, no less than the host needs to launch them."""
        forward, backward = (sum(each) for each in zip(*device, strict=True))
        forward = (forward**4 + host**4) ** 0.25
        backward = (backward**4 + (2 * host) ** 4) ** 0.25
        return forward * self.slower, backward * self.slower


def ring_s(c: Coefficients, members: int, nodes: int) -> float:
    """A call, and once round a ring."""
    step = c.ring_step_s if nodes > 1 else 0.0
    near = (members // nodes - 1) * nodes * (c.scaleup_hop_s + step)
    return c.collective_s + near + (nodes - 1) * (c.scaleout_hop_s + step)


def gather_s(c: Coefficients, size: float, members: int, nodes: int) -> float:
    """All but a member's own part over NVLink, and over as many network cards as there are members
    in a node."""
    missing = 1 - 1 / members
    byte_s = missing / (NVLINK * c.scaleup) if members > nodes else 0.0
    if nodes > 1:
        byte_s = max(byte_s, missing / (members / nodes * NIC * c.scaleout))
    return size * byte_s + ring_s(c, members, nodes)


def exposed(c: Coefficients, traffic: float, window: float) -> float:
    """What is not hidden, and what hidden traffic slows compute by."""
    return traffic - min(traffic, c.data_overlap * window) * (1 - c.interference)


def update_s(c: Coefficients, owned: float) -> float:
    """Gradients are read for their norm; master, two moments, gradient and parameter read, and the
    first three and the parameter written: 4 + 2 (4 + 8) + 4 + 2 bytes. Two reductions over 16
    devices give the norm."""
    norm = 2 * (c.collective_s + c.scaleout_hop_s * log2(16))
    return owned * (4 + 24 + 4 + 2) / (MEMORY_S * c.memory) + norm


def require(
    found: Predictions, time: dict[str, float], memory: dict[str, float], c: Coefficients
) -> None:
    """The terms, none of which is named that is 0. Stragglers take a share of all for every
    doubling beyond a node, and fragmentation one of all that is allocated."""
    time = {**dict.fromkeys(TIME_TERMS, 0.0), **time, "fixed_s": c.step_fixed_s}
    time["jitter_s"] = sum(time.values()) * c.jitter * log2(16 / 8)
    memory = {**dict.fromkeys(MEMORY_TERMS, 0.0), **memory}
    memory["fragmentation_bytes"] = sum(memory.values()) * c.fragmentation
    memory["context_bytes"] = c.context_gib * GIB
    assert {name: of[0] for name, of in found.time.items()} == pytest.approx(time, rel=1e-9)
    assert {name: of[0] for name, of in found.memory.items()} == pytest.approx(memory, rel=1e-9)


def test_a_dense_step_is_what_it_is_by_hand() -> None:
    """Llama-3-8B: 32 layers of 4,096, with 32 heads of 128, 8 of keys and values, and an MLP of
    14,336; 128,256 words. tp = 2 within a node; 8 ranks of data parallelism, 4 in each node."""
    problem = dense_problem()
    c = told_apart(problem)
    k, hidden, width, words, tokens = Kernels(c), 4096, 14336, 128256, SEQ_LEN
    local, micro_batches = tokens / 2, BATCH // 8

    # kernels of one micro-batch; the activation function reads gate and input and writes one
    attention = k.attention(tokens, 16)
    norms, residuals = 2 * 2 * local * hidden, 2 * 3 * local * hidden
    rotary, activation = 2 * tokens * (16 + 4) * 128, 3 * tokens * width / 2
    device = [
        k.linear(tokens, hidden, (32 + 2 * 8) * 128 / 2),
        k.linear(tokens, hidden / 2, hidden),
        k.linear(tokens, hidden, 2 * width / 2),
        k.linear(tokens, width / 2, hidden),
        attention,
        k.light(norms + residuals + rotary + activation),
    ]
    launches = 4 + 2 + 2 + 4  # products, attention, norms, and other element-wise kernels
    forward, backward = k.layer(device, launches * c.launch_s)
    looked_up = k.move(3 * local * hidden * 2) * k.slower
    head = [of * k.slower for of in k.linear(tokens, hidden, words / 2)]
    loss = k.move(tokens * words / 2 * 16) / 2 * k.slower
    ends = [looked_up + head[0] + loss, looked_up + head[1] + loss]
    compute = micro_batches * (32 * (forward + backward) + sum(ends))

    # a gather and a scatter for each of two blocks, beside all but attention
    block = gather_s(c, tokens * hidden * 2, 2, 1) * 2
    tensor = [
        2 * block - min(c.tensor_overlap * 2 * block, each - kernel * k.slower)
        for each, kernel in zip((forward, backward), attention, strict=True)
    ]

    # parameters once a step beside one forward, gradients beside one backward, part by part
    whole, cut = 2 * hidden, (problem.architecture.parameters.total - hidden) / 32
    of_layer = (cut - 2 * words * hidden / 32 - whole) / 2 + whole
    parts = [of_layer] * 32 + [words * hidden / 2, words * hidden / 2 + hidden]
    passes = [
        32 * (each + sent) + end
        for each, sent, end in zip((forward, backward), tensor, ends, strict=True)
    ]
    gathered = sum(gather_s(c, 2 * part, 8, 2) for part in parts)
    scattered = sum(gather_s(c, 4 * part, 8, 2) for part in parts)
    data = exposed(c, gathered, passes[0]) + exposed(c, scattered, passes[1])

    # memory: all of one micro-batch is in flight
    owned = sum(parts)
    stream = local * hidden
    kept = (
        stream * (1 + 1 + 2) * 2
    )  # the layer's input, that between its blocks, two norms' outputs
    kept += tokens / 2 * (32 + 32 + 2 * 8) * 128 * 2  # attention's output, queries, keys, values
    kept += tokens / 2 * (2 + 1) * width * 2
    require(
        predict(problem, Layouts.of([DENSE]), c),
        {
            "compute_s": compute,
            "tensor_s": micro_batches * 32 * sum(tensor),
            "data_s": data,
            "optimizer_s": update_s(c, owned / 8),
        },
        {
            "parameters_bytes": 2 * owned,
            "gradients_bytes": 4 * owned,
            "optimizer_bytes": 12 * owned / 8,
            "activations_bytes": 32 * kept * c.activation_memory,
            "logits_bytes": 6 * tokens * words / 2 * c.logit_memory,
        },
        c,
    )


def test_a_sparse_step_is_what_it_is_by_hand() -> None:
    """Qwen3-30B-A3B: 48 layers of 2,048, with 32 heads of 128, 4 of keys and values, and 8 of 128
    experts of 768 for each token; 151,936 words. 16 of the experts are on a device, twice in all;
    the rest is sharded over 16."""
    problem = sparse_problem()
    c = told_apart(problem)
    k, hidden, width, words, tokens = Kernels(c), 2048, 768, 151936, SEQ_LEN
    micro_batches = BATCH // 16

    # the busiest of 8 devices (Blom's largest of 8 normal values) sets the pace of experts
    largest = NormalDist().inv_cdf((8 - 0.375) / (8 + 0.25))
    skew = 1 + c.imbalance * largest * sqrt(8 / 128)
    copies = tokens * 8
    experts = [
        k.linear(copies / 16, hidden, 2 * width, groups=16),
        k.linear(copies / 16, width, hidden, groups=16),
    ]
    norms, residuals = 2 * 2 * tokens * hidden, 2 * 3 * tokens * hidden
    rotary, activation = 2 * tokens * (32 + 4) * 128, 3 * copies * width
    sorting = 4 * copies * hidden * c.routing_traffic
    device = [
        k.linear(tokens, hidden, (32 + 2 * 4) * 128),
        k.linear(tokens, 32 * 128, hidden),
        *((forward * skew, backward * skew) for forward, backward in experts),
        k.linear(tokens, hidden, 128),
        k.attention(tokens, 32),
        k.light(norms + residuals + rotary + activation + sorting),
    ]
    launches = 2 + 2 + 2 + 4 + c.routing_launches
    forward, backward = k.layer(device, launches * c.launch_s + 16 * 2 * c.expert_launch_s)
    looked_up = k.move(3 * tokens * hidden * 2) * k.slower
    head = [of * k.slower for of in k.linear(tokens, hidden, words)]
    loss = k.move(tokens * words * 16) / 2 * k.slower
    last = [head[0] + loss, head[1] + loss]
    compute = micro_batches * (48 * (forward + backward) + 2 * looked_up + sum(last))
    recompute = micro_batches * 48 * forward

    # tokens go to their experts and back: in forward, when it is repeated, and in backward
    sent = copies * hidden * 2 * (1 - 1 / 8) / (NVLINK * c.scaleup * c.alltoall)
    dispatch = 2 * (sent + c.collective_s + 7 * c.scaleup_hop_s) * skew

    # gathered before forward and before backward, and gradients scattered, beside one layer
    count = problem.architecture.parameters
    inside = count.experts / 48 / 8
    outside = (count.total - count.experts - 2 * words * hidden - hidden) / 48
    of_experts = gather_s(c, 2 * inside, 2, 2)
    awaited = of_experts * (1 - c.expert_prefetch)
    movable = gather_s(c, 2 * outside, 16, 2) + of_experts - awaited
    scatter = gather_s(c, 4 * outside, 16, 2) + gather_s(c, 4 * inside, 2, 2)
    of_layer = 2 * awaited + exposed(c, movable, forward)
    of_layer += exposed(c, movable + scatter, backward + forward)
    data = 48 * of_layer
    for size, ahead, back in (
        (words * hidden, looked_up, looked_up),
        (words * hidden + hidden, *last),
    ):
        gathers, scatters = gather_s(c, 2 * size, 16, 2), gather_s(c, 4 * size, 16, 2)
        data += exposed(c, gathers, ahead) + exposed(c, gathers + scatters, back)

    # memory: inputs of layers, and the loss, which is over before a layer is computed again
    ends = 2 * words * hidden + hidden
    owned = (48 * outside + ends) / 16 + 48 * inside / 2
    unit = outside + inside
    require(
        predict(problem, Layouts.of([SPARSE]), c),
        {
            "compute_s": compute,
            "recompute_s": recompute,
            "expert_s": micro_batches * 48 * 3 * dispatch,
            "data_s": micro_batches * data,
            "optimizer_s": update_s(c, owned),
        },
        {
            "parameters_bytes": 2 * 2 * unit,
            "gradients_bytes": 4 * owned + (2 + 4) * unit,
            "optimizer_bytes": 12 * owned,
            "activations_bytes": 48 * tokens * hidden * 2 * c.activation_memory,
            "logits_bytes": 6 * tokens * words * c.logit_memory,
        },
        c,
    )


# -- every layout under every record of coefficients


@pytest.mark.parametrize("seed", SEEDS)
def test_every_layout_under_every_record_costs_what_it_costs_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for asked in random_questions(seed):
        some = [asked.c, random_coefficients(asked.problem, rng)]
        records = np.concatenate([coefficient_records(c) for c in some])
        rows = LayoutRows.of(asked.problem, asked.layouts)
        together = step_costs_under_each(rows, records)
        for i, c in enumerate(some):
            alone = predict(asked.problem, asked.layouts, c)
            for name in ("time_terms", "memory_terms", "memory_stage", "host_bytes", "once_s"):
                of_record = getattr(together, name)[i :: len(some)]
                np.testing.assert_allclose(of_record, getattr(alone, name), rtol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_know_the_layers_of_their_chunks(seed: int) -> None:
    for asked in random_questions(seed):
        rows = LayoutRows.of(asked.problem, asked.layouts)
        chunks = layers_of_chunks(asked.problem, asked.layouts)
        expected = [tuple(map(len, of_layout)) for of_layout in chunks]
        found = [rows.layers_per_chunk(row) for row in range(len(asked.layouts))]
        assert found == expected
        reversed_rows = rows.take(np.arange(len(expected))[::-1])
        assert reversed_rows.layers_per_chunk(0) == expected[-1]
