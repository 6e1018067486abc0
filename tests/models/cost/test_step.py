"""Properties a prediction must have whatever the coefficients: conservation, monotonicity,
consistency."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.cost.predictions import TIME_TERMS, predict
from models.layouts.defaults import with_stack_defaults
from models.layouts.rules import require_legal
from models.prediction.prediction import predict_layouts
from models.spec import catalogue
from models.spec.flops import model_flops
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.workload import Workload
from tests.models.cost.examples import LAYOUTS, PROFILE, faster_link, question, step_times


def test_the_terms_add_up_to_the_step() -> None:
    problem = question()
    found = predict(problem, Layouts.of(LAYOUTS), PROFILE.coefficients(problem.scopes))
    assert set(found.time) == set(TIME_TERMS)
    assert sum(found.time.values()) == pytest.approx(found.step_time_s)
    assert sum(found.memory.values()) == pytest.approx(found.needed_bytes)
    assert all((value >= 0).all() for value in found.time.values())


def test_many_layouts_at_once_are_each_as_if_alone() -> None:
    problem = question()
    together = step_times(problem)
    c = PROFILE.coefficients(problem.scopes)
    alone = [float(predict(problem, Layouts.of([layout]), c).step_time_s[0]) for layout in LAYOUTS]
    assert alone == pytest.approx(list(together), rel=1e-12)


def test_a_layout_takes_as_long_beside_others_with_more_kinds_of_stages() -> None:
    """Stages of 13, 13 and 9 layers in rounds of 3 to 0, and beside them seven stages that all
    differ."""
    problem, c = question("qwen3-30b-a3b", 56), shipped_profile().coefficients(())
    few = Layout(
        pp=4, dp_shard=14, zero_stage=3, schedule="interleaved", virtual_stages=5, balanced=True
    )
    many = Layout(
        pp=7, dp_shard=8, zero_stage=3, schedule="interleaved", virtual_stages=4, balanced=True
    )
    alone, beside = (
        predict(problem, Layouts.of(layouts), c).step_time_s[0] for layouts in ([few], [few, many])
    )
    assert beside == pytest.approx(alone, rel=1e-12)


def test_mfu_and_step_time_say_the_same() -> None:
    problem = question()
    for found in predict_layouts(problem, LAYOUTS, PROFILE):
        flops = model_flops(problem.architecture, problem.workload, "causal")
        assert found.mfu["causal"] == pytest.approx(flops / found.step_time_s / 64 / 989.4e12)
        assert found.step_time_low_s < found.step_time_s < found.step_time_high_s


@settings(max_examples=20)
@given(st.floats(1.0, 20.0), st.sampled_from([0, 1]))
def test_more_bandwidth_never_makes_a_layout_slower(factor: float, level: int) -> None:
    problem = question()
    assert (
        step_times(faster_link(problem, level, factor)) <= step_times(problem) * (1 + 1e-12)
    ).all()


SPARSE_LAYOUTS = [
    Layout(dp_shard=64, ep=32, zero_stage=1),
    Layout(dp_shard=64, ep=64, zero_stage=3, recompute="full"),
    Layout(tp=4, cp=2, dp_shard=8, ep=64, zero_stage=3, sequence_parallel=True),
    Layout(tp=2, pp=2, dp_shard=16, ep=32, zero_stage=1, sequence_parallel=True,
           schedule="interleaved", virtual_stages=2, balanced=True),
]  # fmt: skip


@settings(max_examples=60)
@given(
    st.floats(1.0, 8.0),
    st.floats(-2.0, 0.0),
    st.floats(-2.0, 0.0),
    st.sampled_from([64, 128, 1024]),
)
def test_a_higher_peak_never_makes_a_layout_slower(
    factor: float, inside: float, outside: float, batch: int
) -> None:
    """Nor where links are so slow that all traffic is hidden that can be."""
    for model, layouts in (("llama-3.1-70b", LAYOUTS), ("qwen3-235b-a22b", SPARSE_LAYOUTS)):
        problem = question(model, global_batch=batch)
        problem = faster_link(faster_link(problem, 0, 10**inside), 1, 10**outside)
        chip = problem.cluster.chip
        peaks = {dtype: value * factor for dtype, value in chip.peak_tflops.items()}
        faster = replace(
            problem, cluster=replace(problem.cluster, chip=replace(chip, peak_tflops=peaks))
        )
        slow, fast = (
            predict(p, Layouts.of(layouts), PROFILE.coefficients(p.scopes)).step_time_s
            for p in (problem, faster)
        )
        assert (fast <= slow * (1 + 1e-12)).all()


@pytest.mark.parametrize("micro_batches", [16, 33, 65])
def test_nor_with_sends_beside_stages_that_wait_for_others(micro_batches: int) -> None:
    """Interleaved chunks that differ, where sends hide beside what stages compute and links are
    slow."""
    cluster = catalogue.cluster("mi300x", 32).with_changes(scale_up=0.1, scale_out=0.02)
    problem = Problem(
        architecture=catalogue.architecture("nemotron-4-15b"),
        cluster=cluster,
        workload=Workload(seq_len=1024, global_batch=micro_batches),
        stack=catalogue.stack("megatron-bridge"),
    )
    shape = Layout(pp=16, tp=2, schedule="interleaved", virtual_stages=2, balanced=True)
    layouts = Layouts.of(
        [with_stack_defaults(problem, shape, ("schedule", "virtual_stages", "balanced"))]
    )
    chip = cluster.chip
    peaks = {dtype: 1.3 * value for dtype, value in chip.peak_tflops.items()}
    faster = replace(problem, cluster=replace(cluster, chip=replace(chip, peak_tflops=peaks)))
    slow, fast = (
        predict(p, layouts, PROFILE.coefficients(p.scopes)).step_time_s[0]
        for p in (problem, faster)
    )
    assert fast <= slow


def wire(problem: Problem, layout: Layout) -> float:
    """Seconds that the traffic within layers takes at full bandwidth, of a model with one kind of
    layer: tensor parallelism in one domain of its size, or all-to-alls from domain to domain, each
    copy once."""
    architecture, workload = problem.architecture, problem.workload
    x, levels = layout, problem.cluster.fabric.levels
    tokens = workload.seq_len * workload.global_batch / (x.dp_shard * x.tp)
    size = tokens * architecture.hidden_size * 2
    if x.tp > 1:
        return architecture.num_layers * 8 * size * (x.tp - 1) / (levels[0].gb_s_per_chip * 1e9)
    domains = x.ep // problem.cluster.scale_up_domain
    moe = architecture.kinds[0].moe
    assert moe is not None
    copies = (domains - 1) * (1 - (1 - 1 / domains) ** moe.experts_per_token)
    return architecture.num_layers * 4 * size * copies / (levels[1].gb_s_per_chip * 1e9)


@settings(max_examples=40)
@given(st.floats(-3.0, 0.0), st.sampled_from([64, 128, 1024]))
def test_no_step_is_shorter_than_its_traffic(slower: float, batch: int) -> None:
    dense = faster_link(question(chips=8, global_batch=batch // 8), 0, 10**slower)
    sparse = faster_link(question("qwen3-235b-a22b", global_batch=batch), 1, 10**slower)
    for problem, layout in (
        (dense, Layout(tp=8, zero_stage=0, sequence_parallel=True)),
        (sparse, Layout(dp_shard=64, ep=64, zero_stage=1)),
    ):
        (took,) = predict(
            problem, Layouts.of([layout]), PROFILE.coefficients(problem.scopes)
        ).step_time_s
        assert took >= wire(problem, layout)


def test_a_larger_batch_never_takes_less_time() -> None:
    """Of one micro-batch no all-to-all is hidden, of two that of one at most."""
    times = []
    for batch in (64, 128, 256, 512):
        problem = question("qwen3-235b-a22b", global_batch=batch)
        found = predict(
            problem, Layouts.of(SPARSE_LAYOUTS[:2]), PROFILE.coefficients(problem.scopes)
        )
        times.append(found.step_time_s)
    assert (np.diff(times, axis=0) > 0).all()


def test_twice_the_batch_takes_at_most_twice_the_time() -> None:
    once, twice = step_times(question()), step_times(question(global_batch=256))
    assert (twice > 1.5 * once).all()
    assert (twice <= 2 * once).all()


def test_recompute_costs_time_and_saves_memory() -> None:
    """The more modules, and the more layers, the more of both."""
    problem = question()
    base = Layout(tp=8, dp_shard=8, zero_stage=1, sequence_parallel=True)
    modules = [("layernorm",), ("layernorm", "mlp_act"), ("layernorm", "mlp_act", "mlp")]
    sets = [replace(base, recompute="selective", recompute_modules=names) for names in modules]
    layers = [replace(base, recompute="full", recompute_layers=n) for n in (1, 5, 20, 0)]
    for policies in ([base, *sets, layers[-1]], [base, *layers]):
        found = predict(problem, Layouts.of(policies), PROFILE.coefficients(problem.scopes))
        assert (np.diff(found.step_time_s) > 0).all()
    assert (np.diff(found.memory["activations_bytes"][1:]) < 0).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layouts_of_these_tests_are_legal(layout: Layout) -> None:
    require_legal(question(), layout)


def test_layers_of_multi_token_prediction_are_layers() -> None:
    """One more sparse layer than 58, in traffic, activations and compute, beside a head and a
    projection."""
    found = []
    for modules in (0, 1):
        problem = question(model="deepseek-v3", chips=64, global_batch=256)
        problem = replace(problem, architecture=replace(problem.architecture, mtp_layers=modules))
        found.append(
            predict(
                problem,
                Layouts.of([Layout(dp_shard=64, ep=64, zero_stage=1)]),
                PROFILE.coefficients(problem.scopes),
            )
        )
    without, with_one = found
    assert with_one.time["expert_s"][0] == pytest.approx(
        without.time["expert_s"][0] * 59 / 58, rel=1e-3
    )
    more = with_one.memory["activations_bytes"][0] - without.memory["activations_bytes"][0]
    assert more == pytest.approx(without.memory["activations_bytes"][0] / 61, rel=0.1)
