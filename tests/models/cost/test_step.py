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
from tests.long import examples
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


@settings(max_examples=examples(60))
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


@settings(max_examples=examples(40))
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


def test_what_the_host_updates_is_moved_there_and_back() -> None:
    """Master and moments are read and written in its memory; gradients and parameters there, and
    over its link."""
    layout = Layout(dp_shard=8, zero_stage=1, offload_optimizer=True)
    calls = {"collective_s": 0.0, "scaleout_hop_s": 0.0}
    found = terms(dense(), layout, host_gb_s=10.0, **calls)
    owned = dense().architecture.parameters.total / 8
    assert found["optimizer_s"] == pytest.approx(owned * (2 * 12 + 2 * (4 + 2)) / 10e9)


def test_a_pipeline_fills_and_drains_over_its_sends() -> None:
    layout = Layout(pp=4, dp_shard=2, zero_stage=1)
    fast, slow = (terms(dense(), layout, send_s=seconds) for seconds in (1e-5, 3e-5))
    assert slow["bubble_s"] - fast["bubble_s"] == pytest.approx(2 * 3 * 2e-5)
    assert slow["pipeline_s"] - fast["pipeline_s"] == pytest.approx(2 * 64 * 2e-5)


def test_sends_hide_beside_all_that_a_pipeline_takes_but_one_micro_batch() -> None:
    """Sends of two chunks that take longer than all passes and waiting together."""
    layout = Layout(pp=2, dp_shard=4, zero_stage=1, schedule="interleaved", virtual_stages=2)
    sends, slow = 2 * 32 * 2, {"send_s": 1.0, "pipeline_overlap": 1.0}
    sent = terms(dense(overlap_pipeline=False), layout, **slow)["pipeline_s"]
    found = terms(dense(), layout, **slow)
    passes = found["compute_s"] + found["bubble_s"] - 2 * sent / sends
    assert sent > sends
    assert found["pipeline_s"] == pytest.approx(sent - (1 - 1 / 32) * passes)


def layer_of(problem: Problem, layout: Layout, **changes: float) -> dict[str, float]:
    """What a layer takes as its kernels take it, traffic that is not hidden, and its forward with
    what is exposed there."""
    as_counted = {"compute_overhead": 1.0, "ageing": 0.0, **changes}
    c = replace(PROFILE.coefficients(problem.scopes), **as_counted)
    parts = LayoutParts.of(problem, layout, c)
    (first, *_) = parts.costs
    named = {name: float(first[name]) for name in first.dtype.names}
    return {**named, "exposed_forward": float(parts.forward_s[0])}


FAST_LINKS = {"collective_s": 1e-12, "scaleup_hop_s": 1e-12, "scaleup": 1.0}


@pytest.mark.parametrize("cp", [2, 4])
def test_attention_in_a_ring_is_slower_in_each_of_its_passes(cp: int) -> None:
    """Its kernels see 8,192 / cp tokens at a time. Full recompute has one more forward."""
    layout = Layout(cp=cp, dp_shard=8 // cp, zero_stage=1)
    changes = {**FAST_LINKS, "context_overlap": 1.0}
    layer, micro_batches = layer_of(dense(), layout, **changes), 128 * cp // 8
    half = 500
    slower = (8192 / cp + half) / (8192 / cp) / ((8192 + half) / 8192) - 1
    for recompute, forwards in (("none", 1), ("full", 2)):
        found = terms(dense(), replace(layout, recompute=recompute), **changes)
        kernels = forwards * layer["attention_forward"] + layer["attention_backward"]
        assert found["context_s"] == pytest.approx(micro_batches * 32 * slower * kernels)
    ahead = layer["forward"] + slower * layer["attention_forward"]
    assert layer["exposed_forward"] == pytest.approx(ahead)


def test_what_a_ring_has_hidden_behind_hides_no_data() -> None:
    """Parameters take so long that all of a layer's compute hides some; a ring takes its share."""
    layout = Layout(cp=4, dp_shard=2, zero_stage=3)
    slow = {"collective_s": 1.0, "data_overlap": 0.5, "interference": 0.25}
    layer = layer_of(dense(), layout, **slow)
    beside, alone = (terms(dense(context=of), layout, **slow) for of in ("ring", "allgather"))
    half, chunk = 500, 8192 / 4
    slower = (chunk + half) / chunk / ((8192 + half) / 8192) - 1
    kernels = layer["attention_forward"] + layer["attention_backward"]
    hidden = alone["context_s"] + 64 * 32 * slower * kernels - beside["context_s"]
    assert hidden > 0
    assert beside["data_s"] - alone["data_s"] == pytest.approx(0.5 * 0.75 * hidden)


def test_traffic_to_the_host_hides_beside_its_own_layer() -> None:
    """What a layer keeps leaves beside its forward, and comes back beside its backward."""
    layout = Layout(dp_shard=8, zero_stage=1, offload_activations=True)
    layer = layer_of(dense(), layout)
    kept = terms(dense(), layout)["host_bytes"] / 32
    for seconds in (0.5 * layer["forward"], 1.5 * layer["forward"], 5 * layer["forward"]):
        found = terms(dense(), layout, host_gb_s=kept / seconds / 1e9)
        left = max(seconds - layer["forward"], 0) + max(seconds - layer["backward"], 0)
        assert found["offload_s"] == pytest.approx(16 * 32 * left)


def test_no_more_layers_are_computed_again_than_a_stage_has() -> None:
    layout = Layout(pp=4, dp_shard=2, zero_stage=1, recompute="full")
    every, all_eight, most = (
        terms(dense(), replace(layout, recompute_layers=n))["recompute_s"] for n in (0, 8, 12)
    )
    assert every == pytest.approx(all_eight)
    assert every == pytest.approx(most)


def test_a_host_that_is_late_is_late_again_where_layers_are_repeated() -> None:
    """It launches forward twice and stalls at the same hops, 2 x 2 of a layer: three times in all.
    It takes so long that neither the device nor its links count."""
    layout = Layout(
        tp=2, pp=2, dp_shard=2, zero_stage=1, sequence_parallel=True, recompute="full"
    )  # fmt: skip
    found = terms(dense(), layout, launch_s=1.0, stall_s=1e-2)
    assert found["tensor_s"] == pytest.approx(64 * 16 * 3 * (2 * 2 * 1e-2))


@pytest.mark.parametrize("batch", [8, 16, 64])
def test_tokens_hide_beside_another_micro_batch(batch: int) -> None:
    """But not in the first forward and the last backward; half of them at all, with this
    coefficient."""
    problem = question("mixtral-8x7b", chips=8, global_batch=batch)
    problem = replace(problem, stack=replace(catalogue.stack("generic"), overlap_expert=True))
    layout, overlap = Layout(dp_shard=8, ep=8, zero_stage=1), {"expert_overlap": 0.5}
    dispatch, micro_batches = layer_of(problem, layout, **overlap)["dispatch"], batch // 8
    exposed = micro_batches - 0.5 * (micro_batches - 1)
    found = terms(problem, layout, **overlap)["expert_s"]
    assert found == pytest.approx(32 * 2 * dispatch * exposed)


@pytest.mark.parametrize(("stage", "hides"), [(1, False), (2, True)])
def test_only_zero_1_may_be_without_overlap_by_itself(stage: int, hides: bool) -> None:
    layout = Layout(dp_shard=8, zero_stage=stage)
    beside, after = (terms(dense(overlap_zero1=of), layout)["data_s"] for of in (True, False))
    assert (beside == after) == hides


def test_a_loss_that_is_not_parallel_sees_all_words_on_every_rank() -> None:
    """16 bytes of each logit, for half of them more."""
    layout = Layout(tp=2, dp_shard=4, sequence_parallel=True)
    shared, whole = (terms(dense(parallel_loss=of), layout)["compute_s"] for of in (True, False))
    bytes_s = dense().cluster.memory_bytes_s * PROFILE.coefficients(dense().scopes).memory
    assert whole - shared == pytest.approx(32 * 8192 * 128256 / 2 * 16 / bytes_s)


def test_fewer_rows_than_a_tile_take_as_long_as_a_tile() -> None:
    """Of one row less than a tile, a product is as long as of a whole one."""
    c = PROFILE.coefficients(dense().scopes)
    rows, same = np.array([8191, 8192]), np.array([8192, 8192])
    one, whole = gemm_seconds(dense(), rows, same, same, c)
    busy = [tiles / (tiles + c.gemm_tail_waves * 132) for tiles in rows / 128 * 32]
    assert one / whole == pytest.approx(busy[1] / busy[0], rel=1e-9)


def test_slices_of_experts_are_a_part_of_each() -> None:
    """Eight experts over ep = 2, in halves; all else in quarters, but norms and routers."""
    problem = question("mixtral-8x7b", chips=8)
    found = terms(problem, Layout(tp=4, dp_shard=2, ep=2, etp=2, zero_stage=0), **HEAD_IS_FULLEST)
    count = problem.architecture.parameters
    whole = 32 * (2 * 4096 + 8 * 4096) + 4096
    held = (count.total - count.experts - whole) / 4 + whole + count.experts / (2 * 2)
    assert found["parameters_bytes"] == pytest.approx(2 * held)


@pytest.mark.parametrize("fused", [True, False])
def test_a_layer_keeps_operands_in_the_format_of_products(fused: bool) -> None:
    """In fp8 the outputs of two norms and of the activation function take a byte an element.
    Without fused kernels the activated gate stays too, in 16 bits."""
    problem = dense(fused=fused, fused_norm=True)
    low = replace(problem, workload=replace(problem.workload, precision="fp8"))
    layout = Layout(dp_shard=8, zero_stage=1)
    wide, narrow = (terms(of, layout, **NO_LOGITS)["activations_bytes"] for of in (problem, low))
    assert wide - narrow == pytest.approx(32 * 8192 * (2 * 4096 + 14336))


def test_weight_gradients_of_a_module_of_multi_token_prediction_can_be_moved() -> None:
    """Those of another head and of its projection, where a schedule moves them."""
    layout, weights = Layout(pp=2, dp_shard=4, zero_stage=1, schedule="zero_bubble"), []
    for modules in (0, 1):
        problem = dense()
        architecture = replace(problem.architecture, mtp_layers=modules)
        problem = replace(problem, architecture=architecture)
        c = replace(PROFILE.coefficients(problem.scopes), compute_overhead=1.0, ageing=0.0)
        weights.append(LayoutParts.of(problem, layout, c).weights_s[-1])
    (projection,) = gemm_seconds(
        dense(), np.array([2 * 4096]), np.array([8192]), np.array([4096]), c
    )
    assert weights[1] - 2 * weights[0] == pytest.approx(projection)


def test_weight_gradients_that_a_host_hides_add_nothing() -> None:
    """Launches take so long that backward takes as long without them."""
    layout = Layout(pp=2, dp_shard=4, zero_stage=1, schedule="zero_bubble")
    assert layer_of(dense(), layout, launch_s=1.0)["weight"] == pytest.approx(0.0, abs=1e-9)
    assert layer_of(dense(), layout, launch_s=1e-9)["weight"] > 1e-4


def test_scores_that_are_written_out_travel_in_both_passes() -> None:
    """Two products in forward and four in backward, all over every key; scores of two bytes are
    read or written ten times in each."""
    problem = dense(attention_kernel="unfused")
    layer = layer_of(problem, Layout(dp_shard=8), launch_s=1e-12, memory=0.5, gemm_16=0.5)
    scores = 8192 * 8192 * 32
    products = 2 * scores * (128 + 128) / (989.4e12 * 0.5)
    traffic = scores * 2 * 10 / (problem.cluster.memory_bytes_s * 0.5)
    assert layer["attention_forward"] == pytest.approx(products + traffic)
    assert layer["attention_backward"] == pytest.approx(2 * products + traffic)


def test_what_comes_once_a_step_hides_beside_one_pass_of_the_pipeline() -> None:
    """Of 64 micro-batches, and three more that fill and drain it."""
    layout = Layout(pp=4, dp_shard=2, zero_stage=1)
    slow = {"collective_s": 1.0, "data_overlap": 0.5, "interference": 0.25, "send_s": 1e-12}
    beside, after = (terms(dense(overlap_data=of), layout, **slow) for of in (True, False))
    sends = after["pipeline_s"] / (2 * 64)
    one = (after["compute_s"] + after["bubble_s"] - 2 * 3 * sends) / (64 + 3)
    assert after["data_s"] - beside["data_s"] == pytest.approx(0.5 * 0.75 * one)


def test_a_ring_runs_beside_a_device_that_waits_for_its_host() -> None:
    """Activations leave and come back so slowly that nothing is left of messages of 10 ms."""
    layout = Layout(cp=4, dp_shard=2, zero_stage=1)
    slow = {"collective_s": 1e-2, "context_overlap": 1.0, "host_gb_s": 0.1}
    kernels = layer_of(dense(), layout)
    half, chunk = 500, 8192 / 4
    slower = (chunk + half) / chunk / ((8192 + half) / 8192) - 1
    attention = kernels["attention_forward"] + kernels["attention_backward"]
    stays = terms(dense(), layout, **slow)
    leaves = terms(dense(), replace(layout, offload_activations=True), **slow)
    assert leaves["context_s"] == pytest.approx(64 * 32 * slower * attention)
    assert stays["context_s"] > leaves["context_s"]
