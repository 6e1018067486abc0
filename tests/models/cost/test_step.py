"""Properties a prediction must have whatever the coefficients: conservation, monotonicity,
consistency."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.cost.layout_parts import LayoutParts
from models.cost.predictions import TIME_TERMS, predict
from models.cost.single_operations import gemm_seconds
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


# -- terms by hand


def dense(chips: int = 8, **switches: object) -> Problem:
    """Llama-3-8B: 32 layers of 4,096, and 128,256 words."""
    problem = question("llama-3-8b", chips=chips, global_batch=128)
    stack = replace(catalogue.stack("generic"), **switches)  # type: ignore[arg-type]
    return replace(problem, stack=stack)


def terms(problem: Problem, layout: Layout, **changes: float) -> dict[str, float]:
    """Where compute takes what its kernels take, with these coefficients."""
    as_counted = {"compute_overhead": 1.0, "ageing": 0.0, "activation_memory": 1.0, **changes}
    c = replace(PROFILE.coefficients(problem.scopes), **as_counted)
    found = predict(problem, Layouts.of([layout]), c)
    named = {**found.time, **found.memory, "host_bytes": found.host_bytes}
    return {name: float(value) for name, (value,) in named.items()}


NO_LOGITS = {"logit_memory": 1e-9}
HEAD_IS_FULLEST = {"logit_memory": 1e3}
WHOLE_LAYERS = Layout(dp_shard=8, zero_stage=1, recompute="full")
PARAMETERS_OF_LAYER = 2 * 4096**2 * (1 + 1 / 4) + 3 * 4096 * 14336 + 2 * 4096


def test_the_last_product_of_a_layer_need_not_be_computed_again() -> None:
    whole, without = (
        terms(dense(recomputes_last=last), WHOLE_LAYERS)["recompute_s"] for last in (True, False)
    )
    c = PROFILE.coefficients(dense().scopes)
    (down,) = gemm_seconds(dense(), np.array([8192]), np.array([14336]), np.array([4096]), c)
    assert whole - without == pytest.approx(16 * 32 * down)


def test_a_module_of_multi_token_prediction_repeats_its_projection() -> None:
    """From 2 x 7,168 elements, for each of four micro-batches."""
    problem = question("deepseek-v3", chips=64, global_batch=256)
    problem = replace(
        problem,
        architecture=replace(problem.architecture, mtp_layers=1),
        stack=catalogue.stack("generic"),
    )
    layout = Layout(dp_shard=64, ep=64, zero_stage=1, recompute="full")
    c = replace(PROFILE.coefficients(problem.scopes), compute_overhead=1.0, ageing=0.0)
    parts = LayoutParts.of(problem, layout, c)
    layers = parts.counts[:-2] @ parts.costs["forward"][:-2]
    (projection,) = gemm_seconds(
        problem, np.array([8192]), np.array([2 * 7168]), np.array([7168]), c
    )
    assert terms(problem, layout)["recompute_s"] == pytest.approx(4 * (layers + projection))


def test_the_largest_layer_is_whole_again_while_it_is_computed() -> None:
    """Unless the loss before it took more: then logits count, and not the layer."""
    kept = terms(dense(), replace(WHOLE_LAYERS, recompute="none"), **NO_LOGITS)
    layer, stream = kept["activations_bytes"] / 32, 8192 * 4096 * 2
    without, with_loss = (terms(dense(), WHOLE_LAYERS, **of) for of in (NO_LOGITS, HEAD_IS_FULLEST))
    assert without["activations_bytes"] == pytest.approx(32 * stream + layer - stream)
    assert without["logits_bytes"] == 0
    assert with_loss["activations_bytes"] == pytest.approx(32 * stream)
    assert with_loss["logits_bytes"] == pytest.approx(1e3 * 6 * 8192 * 128256)


def test_keys_that_are_gathered_are_held_whole_with_their_gradients() -> None:
    """Keys and values of 8 heads of 128, of 8,192 tokens; a ring holds its own."""
    layout = Layout(cp=8)
    passed, gathered = (
        terms(dense(context=context), layout, **NO_LOGITS)["activations_bytes"]
        for context in ("ring", "allgather")
    )
    assert gathered - passed == pytest.approx(2 * 8192 * 2 * 8 * 128 * 2)


def test_parameters_that_stay_gathered_are_moved_and_held_as_in_zero_1() -> None:
    """ZeRO 3 in a pipeline, without resharding."""
    shape = Layout(pp=2, dp_shard=4, zero_stage=1)
    one, stays = (
        terms(dense(), shape),
        terms(dense(), replace(shape, zero_stage=3, reshard=False)),
    )
    assert one["data_s"] > 0
    for name in ("data_s", "parameters_bytes", "gradients_bytes", "optimizer_bytes"):
        assert stays[name] == pytest.approx(one[name]), name


def test_a_tied_embedding_is_where_the_head_is_too() -> None:
    """16 layers and the final norm, and the embedding on the last stage as on the first."""
    problem = dense()
    tied = replace(problem.architecture, tie_word_embeddings=True)
    layout = Layout(pp=2, dp_shard=4, zero_stage=0)
    found = terms(replace(problem, architecture=tied), layout, **HEAD_IS_FULLEST)
    held = 16 * PARAMETERS_OF_LAYER + 128256 * 4096 + 4096
    assert found["parameters_bytes"] == pytest.approx(2 * held)


def test_offloaded_activations_leave_two_layers_behind() -> None:
    """One on its way to the host and one that is computed; in a pipeline the first stage has most
    on its host, two micro-batches of 16 layers."""
    for layout in (Layout(dp_shard=8, zero_stage=1), Layout(pp=2, dp_shard=4, zero_stage=1)):
        kept = terms(dense(), layout, **NO_LOGITS)["activations_bytes"]
        found = terms(dense(), replace(layout, offload_activations=True), **NO_LOGITS)
        assert found["activations_bytes"] == pytest.approx(2 * kept / 32)
        assert found["host_bytes"] == pytest.approx(kept)


@pytest.mark.parametrize(("pp", "kept"), [(1, 0), (2, 128 // 4)])
def test_the_last_stage_may_keep_the_logits_of_all_micro_batches(pp: int, kept: int) -> None:
    layout = Layout(pp=pp, dp_shard=8 // pp, zero_stage=1)
    frees, keeps = (
        terms(dense(keeps_logits=of), layout, **HEAD_IS_FULLEST)["logits_bytes"]
        for of in (False, True)
    )
    assert keeps - frees == pytest.approx(kept * 8192 * 128256 * 2)


def test_what_the_host_updates_comes_back_as_shards() -> None:
    """Beside two layers that are gathered, which FSDP has anyway."""
    layout = Layout(dp_shard=8, zero_stage=3)
    owned = dense().architecture.parameters.total / 8
    stays, offloads = (
        terms(dense(), replace(layout, offload_optimizer=of))["parameters_bytes"]
        for of in (False, True)
    )
    assert stays == pytest.approx(2 * 2 * PARAMETERS_OF_LAYER)
    assert offloads - stays == pytest.approx(2 * owned)
    found = terms(dense(), replace(layout, offload_optimizer=True))
    assert found["optimizer_bytes"] == 0
    assert found["host_bytes"] == pytest.approx(12 * owned)


def test_fsdp_shards_the_master_copy_whatever_parameters_are() -> None:
    """In fp32 training a parameter in use is its own master copy, unless it is gathered."""
    problem = dense()
    problem = replace(problem, workload=replace(problem.workload, precision="fp32"))
    owned = problem.architecture.parameters.total / 8
    whole, gathered = (
        terms(problem, Layout(dp_shard=8, zero_stage=stage))["optimizer_bytes"] for stage in (1, 3)
    )
    assert (whole, gathered) == (pytest.approx(8 * owned), pytest.approx(12 * owned))
