"""Compute of a layer and of the ends of a model: launches, experts, losses and software age."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.cost.compute import (
    SETTLED_YEARS,
    body_traffic,
    busiest_deviations,
    head_time,
    layer_time,
    overhead,
)
from models.cost.facts import ALL_PIECES, coefficient_records
from models.cost.kernels import linear
from models.cost.predictions import predict
from models.cost.problem_records import policy_numbers
from models.cost.problem_records import question as asked
from models.cost.recomputation import recompute_seconds
from models.cost.shard import Shard
from models.spec import catalogue
from models.spec.architecture import Architecture, MoeShape
from models.spec.feed_forward import Moe
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients
from models.spec.recompute import FULL, NONE, policy_code
from models.spec.switches import as_of
from models.spec.workload import Workload
from tests.models.cost.examples import PROFILE, faster_link, on_stack, question, step_times


def test_older_software_is_slower() -> None:
    new, old = question(), question()
    old = replace(old, stack=replace(old.stack, age_years=2.0))
    assert (step_times(old) > step_times(new)).all()


@pytest.mark.parametrize("cp", [1, 2, 4, 8])
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_a_faster_chip_that_waits_for_its_host_is_not_slower(cp: int, tp: int) -> None:
    """Tensor-parallel traffic runs beside products, context-parallel traffic beside attention, and
    both beside the gaps that faster kernels leave, one after the other."""
    small = replace(
        catalogue.architecture("llama-3.2-1b"),
        layers=catalogue.architecture("llama-3.2-1b").layers[:3],
    )
    problem = replace(question(seq_len=4096, global_batch=4), architecture=small)
    problem = faster_link(problem, 0, 0.05)
    layouts = Layouts.of(
        [Layout(cp=cp, tp=tp, dp_shard=64 // cp // tp, zero_stage=1, sequence_parallel=tp > 1)]
    )
    times = []
    for factor in (1, 1.1, 1.5, 2, 5, 10, 30):
        chip = problem.cluster.chip
        peaks = {dtype: peak * factor for dtype, peak in chip.peak_tflops.items()}
        faster = replace(
            problem, cluster=replace(problem.cluster, chip=replace(chip, peak_tflops=peaks))
        )
        times.append(predict(faster, layouts, PROFILE.coefficients(faster.scopes)).step_time_s[0])
    assert times == sorted(times, reverse=True)


def test_fp8_operands_are_quantised_in_experts_too() -> None:
    base = question(model="qwen3-235b-a22b", chips=64)
    layout = Layouts.of([Layout(dp_shard=64, ep=8, zero_stage=1)])
    compute = []
    for precision in ("bf16", "fp8"):
        problem = replace(base, workload=replace(base.workload, precision=precision))
        c = replace(PROFILE.coefficients(problem.scopes), gemm_8=0.5, gemm_16=0.5, launch_s=0.0)
        compute.append(predict(problem, layout, c).time["compute_s"][0])
    assert compute[1] > compute[0] / 2


def test_a_host_launches_kernels_and_waits_for_collectives_one_after_the_other() -> None:
    problem = replace(question(seq_len=2048, global_batch=256), stack=catalogue.stack("nanotron"))
    layout = Layouts.of([Layout(tp=8, pp=2, dp_shard=4, balanced=True)])
    c = replace(PROFILE.coefficients(problem.scopes), jitter=0.0)
    nothing, launches, waits, both = (
        float(predict(problem, layout, replace(c, launch_s=launch, stall_s=stall)).step_time_s[0])
        for launch, stall in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0))
    )
    assert both == pytest.approx(launches + waits, rel=1e-3)
    assert nothing < 1e-2 * min(launches, waits)


def test_a_head_ages_with_the_layers() -> None:
    problem = question()
    tokens = float(problem.workload.seq_len)
    shard = Shard(tokens, tokens, 1.0, 1.0, 1.0)
    old = replace(problem, stack=replace(problem.stack, age_years=2.0))
    c = replace(PROFILE.coefficients(problem.scopes), launch_ageing=0.0)
    record = coefficient_records(c)[0]
    now, then = (
        head_time(asked(p, np.array([NONE])).facts[0], shard, record).forward
        for p in (problem, old)
    )
    assert then / now == pytest.approx(float(np.exp(c.ageing * (2.0 - SETTLED_YEARS))))


@pytest.mark.parametrize(("experts", "ep"), [(8, 8), (64, 8), (256, 64), (256, 8), (128, 1)])
def test_the_busiest_device_is_the_largest_of_random_shares(experts: int, ep: int) -> None:
    """Against drawn shares of experts, 2,000 times."""
    shares = np.random.default_rng(0).standard_normal((2000, ep, experts // ep)).mean(axis=2)
    drawn = float((shares.max(axis=1) - shares.mean(axis=1)).mean())
    assert busiest_deviations(float(experts), float(ep)) == pytest.approx(drawn, rel=0.05, abs=1e-9)


def test_natural_routing_is_free_where_every_device_has_all_experts() -> None:
    base = question(model="qwen3-30b-a3b", chips=64)
    rows = Layouts.of([Layout(dp_shard=64, ep=ep, zero_stage=1) for ep in (1, 8, 64)])
    natural, forced = (
        predict(p, rows, PROFILE.coefficients(p.scopes)).step_time_s
        for p in (
            replace(base, workload=replace(base.workload, routing=r))
            for r in ("natural", "balanced")
        )
    )
    cost = natural / forced - 1
    assert cost[0] == pytest.approx(0.0, abs=1e-9)
    assert 0 < cost[1] < cost[2]


def test_experts_of_a_fixed_capacity_work_on_as_much_however_tokens_are_routed() -> None:
    """A factor of 1 is forced balance; padding to a factor of 2 costs the experts' work again, and
    neither routing nor the degree of expert parallelism changes it."""
    base = question(model="qwen3-30b-a3b", chips=64)
    rows = Layouts.of([Layout(dp_shard=64, ep=8, zero_stage=1)])

    def seconds(**changes: Any) -> float:
        p = replace(base, workload=replace(base.workload, **changes))
        c = replace(PROFILE.coefficients(p.scopes), launch_s=0.0, expert_launch_s=0.0)
        return float(predict(p, rows, c).time["compute_s"][0])

    balanced = seconds(routing="balanced")
    once, twice, thrice = (seconds(capacity_factor=factor) for factor in (1.0, 2.0, 3.0))
    assert once == pytest.approx(balanced)
    assert balanced < twice < thrice
    assert seconds(routing="balanced", capacity_factor=2.0) == pytest.approx(twice)


@pytest.mark.parametrize(
    ("model", "left_out"),
    [
        ("llama-3-8b", True),
        (
            "deepseek-v3",
            True,
        ),  # of the shared expert; the experts' own is there for the router's gradient
        ("mixtral-8x7b", False),
        ("gemma-2-9b", False),  # a norm follows
    ],
)
def test_a_last_product_that_nothing_needs_is_not_computed_again(
    model: str, left_out: bool
) -> None:
    """The down-projection, of a whole layer and of its MLP alone."""
    base = on_stack("torchtitan", question(model=model, chips=8, global_batch=8))
    whole = on_stack("torchtitan", base, recomputes_last=True)
    policies = [NONE, policy_code("selective", ["moe", "mlp"]), FULL]
    shard = Shard(8192.0, 8192.0, 1.0, 1.0, 1.0)
    c, layer = PROFILE.coefficients(base.scopes), base.architecture.kinds[-1]
    less, more = (seconds_again(p, shard, c, policies) for p in (base, whole))
    down = 0.0
    if left_out:
        assert layer.dense is not None
        f, record = asked(base, np.array([NONE])).facts[0], coefficient_records(c)[0]
        width, hidden = layer.dense.intermediate_size, base.architecture.hidden_size
        product = linear(f, record, shard.tokens, float(width), float(hidden))
        down = product.forward * overhead(f, record)
    assert more - less == pytest.approx([0.0, down, down])


def seconds_again(
    problem: Problem, shard: Shard, c: Coefficients, policies: list[int]
) -> np.ndarray:
    """What each policy adds to backward of a layer of the last kind."""
    numbers = np.array(policies)
    q, record = asked(problem, numbers), coefficient_records(c)[0]
    pieces = np.empty(len(ALL_PIECES))
    wanted = q.repeated_pieces
    forward = layer_time(q.facts[0], q.layers[-1], shard, record, wanted, pieces).forward
    rows = np.searchsorted(policy_numbers(numbers), numbers)
    return np.array([recompute_seconds(q.policies[row, -1], forward, pieces) for row in rows])


def test_fusing_norms_and_then_the_rest_saves_time() -> None:
    problem = question()
    eager, norms, fused = (
        step_times(replace(problem, stack=replace(problem.stack, launch="graph", **switches)))
        for switches in ({"fused": False}, {"fused": False, "fused_norm": True}, {"fused": True})
    )
    assert (eager > norms).all()
    assert (eager > fused).all()


def test_a_kernel_for_all_experts_saves_a_launch_for_each_but_one() -> None:
    """With an expert on every device there is none to save."""
    problem = question("qwen3-30b-a3b", chips=128, seq_len=512)
    rows = Layouts.of([Layout(dp_shard=128, ep=ep, zero_stage=1) for ep in (8, 32, 128)])
    loop, once = (
        predict(p, rows, PROFILE.coefficients(p.scopes)).step_time_s
        for p in (
            replace(problem, stack=replace(problem.stack, experts_at_once=one))
            for one in (False, True)
        )
    )
    saved = loop - once
    assert saved[0] > saved[1] > 0
    assert saved[2] == pytest.approx(0.0, abs=1e-12)


def published_loop(**changes: object) -> Problem:
    """Qwen3-30B-A3B under ZeRO 3 on 16 A800s in June 2025: 91.2 s a step (ms-swift
    docs/source_en/Megatron-SWIFT/Quick-start.md)."""
    base = question("qwen3-30b-a3b", chips=16, global_batch=16)
    stack = as_of(catalogue.stack("deepspeed"), 2025.4)
    cluster = catalogue.cluster("a800", 16)
    return replace(base, cluster=cluster, stack=replace(stack, age_years=1.3, **changes))  # type: ignore[arg-type]


def seconds_of_loop(problem: Problem, **degrees: object) -> float:
    fields: dict[str, object] = {"dp_shard": 16, "zero_stage": 3, "recompute": "full", **degrees}
    rows = Layouts.of([Layout(**fields)])  # type: ignore[arg-type]
    return float(predict(problem, rows, PROFILE.coefficients(problem.scopes)).step_time_s[0])


def test_experts_that_python_gathers_one_by_one_take_what_was_published() -> None:
    """Within a factor of two, of 30 that it was without. Leaf modules and grouped products are
    remedies, the second more so."""
    apart = seconds_of_loop(published_loop())
    leaves = seconds_of_loop(published_loop(expert_loop="modules"))
    in_c = seconds_of_loop(published_loop(expert_loop="kernels"))
    at_once = seconds_of_loop(published_loop(experts_at_once=True))
    assert 91.2 / 2 < apart < 91.2 * 2
    assert apart > 1.5 * leaves
    assert leaves > 2 * in_c
    assert in_c >= at_once


def test_hooks_cost_their_time_for_every_matrix_and_pass() -> None:
    """Once in forward and in recompute, twice in backward, of 48 layers of 128 experts of three
    matrices; and as often a gather that nothing hides."""
    apart, leaves = published_loop(), published_loop(expert_loop="modules")
    hook_s = PROFILE.coefficients(apart.scopes).hook_s
    passes = 48 * 128 * 3 * 4
    added = seconds_of_loop(apart) - seconds_of_loop(leaves)
    assert passes * hook_s < added < 1.5 * passes * hook_s
    kept = [seconds_of_loop(one, recompute="none") for one in (apart, leaves)]
    assert kept[0] - kept[1] == pytest.approx(added * 3 / 4, rel=0.02)
    wide = [
        replace(
            one,
            cluster=catalogue.cluster("a800", 256),
            workload=Workload(seq_len=8192, global_batch=256),
        )
        for one in (apart, leaves)
    ]
    far = [seconds_of_loop(one, dp_shard=256) for one in wide]
    assert far[0] - far[1] > added + passes * 100e-6  # 30 hops between nodes more


@pytest.mark.parametrize("loop", ["modules", "gathered_modules"])
def test_loops_in_python_cost_nothing_where_there_are_none(loop: str) -> None:
    dense = on_stack("deepspeed", question("llama-3.1-8b", chips=16), experts_at_once=False)
    in_python = replace(dense, stack=replace(dense.stack, expert_loop=loop))
    grouped = published_loop(experts_at_once=True, expert_loop=loop)
    assert seconds_of_loop(in_python) == seconds_of_loop(dense)
    assert seconds_of_loop(grouped) == seconds_of_loop(published_loop(experts_at_once=True))


def test_only_zero_3_gathers_and_only_local_experts_are_looped_over() -> None:
    apart, leaves = published_loop(), published_loop(expert_loop="modules")
    assert seconds_of_loop(apart, zero_stage=2) == seconds_of_loop(leaves, zero_stage=2)
    few, all_of_them = (
        seconds_of_loop(leaves, zero_stage=2, ep=ep)
        - seconds_of_loop(replace(leaves, stack=replace(leaves.stack, expert_loop="kernels")),
                          zero_stage=2, ep=ep)
        for ep in (8, 1)
    )  # fmt: skip
    assert few < all_of_them / 4


@pytest.mark.parametrize(("model", "saves"), [("qwen3-30b-a3b", True), ("llama-3.1-8b", False)])
def test_fused_routing_saves_launches_where_there_is_routing(model: str, saves: bool) -> None:
    problem = question(model, seq_len=512)
    layout = Layouts.of([Layout(dp_shard=64, zero_stage=1)])
    separate, fused = (
        float(predict(p, layout, PROFILE.coefficients(p.scopes)).step_time_s[0])
        for p in (
            replace(problem, stack=replace(problem.stack, fused_routing=one))
            for one in (False, True)
        )
    )
    assert (fused < separate) == saves
    assert fused <= separate


@pytest.mark.parametrize(("kernel", "least"), [("pytorch", "fused"), ("stepwise", "pytorch")])
def test_a_loss_of_more_kernels_takes_longer(kernel: str, least: str) -> None:
    problem = question("llama-3.2-1b")
    slower, faster = (
        step_times(replace(problem, stack=replace(problem.stack, loss=loss)))[0]
        for loss in (kernel, least)
    )
    assert slower > faster


def test_biases_of_experts_are_work_and_parameters() -> None:
    problem = replace(question("gpt-oss-20b"), stack=catalogue.stack("nemo"))
    moe = problem.architecture.layers[0].feed_forward
    assert isinstance(moe, Moe)
    plain = replace(moe, bias=False, router_bias=False)
    without = replace(
        problem.architecture,
        layers=tuple(replace(layer, feed_forward=plain) for layer in problem.architecture.layers),
    )
    layouts = Layouts.of([Layout(dp_shard=64, ep=8, zero_stage=1)])
    c = PROFILE.coefficients(problem.scopes)
    times = [
        predict(p, layouts, c).step_time_s[0]
        for p in (problem, replace(problem, architecture=without))
    ]
    assert times[0] > times[1]
    # 32 experts of 24 layers: a bias for each output of up (2 x 2,880) and down (2,880), and the
    # router's
    added = problem.architecture.parameters.total - without.parameters.total
    assert added == 24 * (32 * 3 * 2880 + 32)


def test_a_run_has_the_biases_of_the_shipped_model_of_its_shape() -> None:
    shape = {
        "num_layers": 24, "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "full_attention_period": 2,
        "moe": MoeShape(num_experts=32, experts_per_token=4, moe_intermediate_size=2880),
    }  # fmt: skip
    told = Architecture.from_shape(name="run", vocab_size=201216, **shape)  # type: ignore[arg-type]
    alike = catalogue.with_known_biases(told)
    block = alike.layers[0].feed_forward
    assert isinstance(block, Moe)
    assert block.bias
    assert (alike.name, alike.vocab_size) == ("run", 201216)
    other = Architecture.from_shape(name="run", vocab_size=201216, **{**shape, "num_layers": 23})  # type: ignore[arg-type]
    assert catalogue.with_known_biases(other) == other


def test_scales_of_rows_cost_a_second_pass_and_casts_of_weights() -> None:
    """Inputs of 16 bits take 4 bytes with one scale and 6 with two, and weights a third of 10, as
    torchao's roofline counts. What is cast before it is gathered over tp = 4 is cast on the device
    whose tokens they are, and transposed on all; what is cast behind that is read once more."""
    tokens, hidden, width, weights = 8192.0, 4096, 14336, 218112000
    expected = {
        ("tensorwise", 1): 4 * (3 * hidden + width) * tokens,
        ("rowwise", 1): 6 * (3 * hidden + width) * tokens + weights * 10 / 3,
        ("tensorwise", 4): ((3 / 4 + 2) * 2 * hidden + 4 * (hidden + width) / 4) * tokens,
        ("rowwise", 4): (8 * 2 * hidden + 6 * (hidden + width) / 4) * tokens + weights * 10 / 3 / 4,
    }
    for (scaling, tp), size in expected.items():
        shard = Shard(tokens, tokens / tp, float(tp), 1.0, 1.0)
        seconds = []
        for precision in ("bf16", "fp8"):
            asked_of = question("llama-3.1-8b", precision=precision)
            problem = on_stack("torchtitan", asked_of, fp8_scaling=scaling)
            of_question = asked(problem, np.array([NONE]))
            counted = replace(PROFILE.coefficients(problem.scopes), elementwise_traffic=1.0)
            c = coefficient_records(counted)[0]
            facts, pieces = of_question.facts[0], np.empty(len(ALL_PIECES))
            traffic = body_traffic(facts, of_question.layers[0], shard, c, pieces)
            seconds.append(traffic * facts["memory_bytes_s"] * c["memory"])
        assert seconds[1] - seconds[0] == pytest.approx(size, rel=1e-3)


def test_graphs_save_the_launches_of_what_they_capture() -> None:
    """A host that needs a second a launch sets the pace of a step. Captured in part, it still
    launches experts and what sends tokens to them; a dense model has nothing of that."""

    def seconds(model: str, graphs: str) -> float:
        problem = on_stack("megatron", question(model, global_batch=64), moe_graphs=graphs)
        c = replace(PROFILE.coefficients(problem.scopes), launch_s=1.0, expert_launch_s=0.1)
        layout = Layouts.of([Layout(dp_shard=64, zero_stage=1)])
        return float(predict(problem, layout, c).step_time_s[0])

    assert seconds("mixtral-8x7b", "partial") < 0.9 * seconds("mixtral-8x7b", "none")
    assert seconds("mixtral-8x7b", "partial") > 0.1 * seconds("mixtral-8x7b", "none")
    assert seconds("llama-3.1-8b", "partial") == seconds("llama-3.1-8b", "none")


def test_a_padded_vocabulary_has_whole_tiles_on_every_rank() -> None:
    """GPT-2's 50,257 entries are padded to 50,304 (Megatron-LM), or leave rows that are slow."""
    gpt = replace(catalogue.architecture("llama-3.2-1b"), vocab_size=50257)
    heads = []
    for pads in ("vocabulary", "nothing"):
        problem = on_stack("megatron", replace(question(), architecture=gpt), pads=pads)
        c = replace(PROFILE.coefficients(problem.scopes), ragged_rows=0.5)
        facts, record = asked(problem, np.array([NONE])).facts[0], coefficient_records(c)[0]
        heads.append(head_time(facts, Shard(8192.0, 8192.0, 1.0, 1.0, 1.0), record).forward)
    padded, raw = heads
    assert padded < raw < 2 * padded


def test_experts_of_a_fixed_size_are_sent_their_tokens_without_a_wait_for_the_host() -> None:
    problem = question("qwen3-30b-a3b", seq_len=512)
    layout = Layouts.of([Layout(dp_shard=64, zero_stage=1)])
    counted, padded = (
        float(predict(p, layout, PROFILE.coefficients(p.scopes)).step_time_s[0])
        for p in (
            replace(problem, workload=replace(problem.workload, capacity_factor=factor))
            for factor in (None, 1.0)
        )
    )
    assert padded < counted
