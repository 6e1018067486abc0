"""Properties a prediction must have whatever the coefficients: conservation, monotonicity,
consistency."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.cost.compute import SETTLED_YEARS, Compute, busiest
from models.cost.kernels import Kernels
from models.cost.memory import kept_bytes, layer_bytes
from models.cost.mesh_costs import MeshCosts
from models.cost.shard import Shards
from models.cost.step import TIME_TERMS, predict
from models.errors import Invalid
from models.layouts.defaults import usual
from models.layouts.rules import require_legal
from models.prediction.prediction import predict_layouts
from models.spec import catalogue
from models.spec.architecture import Architecture, Moe, MoeShape
from models.spec.flops import model_flops
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Newest, shipped_profile
from models.spec.recompute import FULL, NONE, policy
from models.spec.workload import Workload

PROFILE = shipped_profile()


def question(model: str = "llama-3.1-70b", chips: int = 64, **workload: object) -> Problem:
    fields: dict[str, object] = {"seq_len": 8192, "global_batch": 128, **workload}
    return Problem(
        architecture=catalogue.architecture(model),
        cluster=catalogue.cluster("h100", chips),
        workload=Workload(**fields),  # type: ignore[arg-type]
        stack=catalogue.stack("megatron"),
    )


LAYOUTS = [
    Layout(dp_shard=64, zero_stage=3, recompute="full"),
    Layout(tp=8, dp_shard=8, zero_stage=1, sequence_parallel=True),
    Layout(
        tp=4,
        pp=4,
        dp_shard=4,
        zero_stage=1,
        sequence_parallel=True,
        schedule="interleaved",
        virtual_stages=5,
    ),
    Layout(
        tp=2, cp=2, pp=2, dp_shard=8, zero_stage=1, sequence_parallel=True, recompute="selective"
    ),
]


def step_times(problem: Problem) -> np.ndarray:
    return predict(problem, Layouts.of(LAYOUTS), PROFILE.coefficients(problem.scopes)).step_time_s


def faster_link(problem: Problem, level: int, factor: float) -> Problem:
    fabric = problem.cluster.fabric
    levels = list(fabric.levels)
    levels[level] = replace(levels[level], gb_s_per_chip=levels[level].gb_s_per_chip * factor)
    cluster = replace(problem.cluster, fabric=replace(fabric, levels=tuple(levels)))
    return replace(problem, cluster=cluster)


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
    cluster = catalogue.cluster("mi300x", 32).changed(scale_up=0.1, scale_out=0.02)
    problem = Problem(
        architecture=catalogue.architecture("nemotron-4-15b"),
        cluster=cluster,
        workload=Workload(seq_len=1024, global_batch=micro_batches),
        stack=catalogue.stack("megatron-bridge"),
    )
    shape = Layout(pp=16, tp=2, schedule="interleaved", virtual_stages=2, balanced=True)
    layouts = Layouts.of([usual(problem, shape, ("schedule", "virtual_stages", "balanced"))])
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


def test_what_is_computed_again_is_kept_no_longer() -> None:
    """Bytes a token and hidden unit of a GPT layer (Korthikanti et al., arXiv 2205.05198, table 2
    and §4.1): 8 for the input of GeLU and 8 for its output, 2 for the output of each norm, 5as/h
    for the scores of attention."""
    gpt = catalogue.architecture("gpt-3-175b")
    problem = replace(
        question(), architecture=gpt, stack=replace(question().stack, attention_kernel="unfused")
    )
    x = Shards.of(Layouts.of([Layout()]), problem.workload.seq_len).table
    modules = [(), ("mlp",), ("mlp_act",), ("core_attn",), ("layernorm",)]
    policies = [
        problem.repeated(policy("selective", names) if names else NONE, gpt.kinds[0])
        for names in modules
    ]
    kept = kept_bytes(problem, gpt.kinds[0], x, policies)[:, 0] / (
        problem.workload.seq_len * gpt.hidden_size
    )
    scores = 5 * gpt.kinds[0].attention.num_heads * problem.workload.seq_len / gpt.hidden_size
    assert (kept[0] - kept).tolist() == pytest.approx([0, 16, 8, scores, 4])


def test_sharding_more_needs_less_memory() -> None:
    problem = question()
    stages = [Layout(tp=8, dp_replicate=8, sequence_parallel=True)]
    stages += [
        Layout(tp=8, dp_shard=8, zero_stage=stage, sequence_parallel=True) for stage in (1, 2, 3)
    ]
    found = predict(problem, Layouts.of(stages), PROFILE.coefficients(problem.scopes))
    assert (np.diff(found.needed_bytes) < 0).all()


@pytest.mark.parametrize("model", ["llama-3-8b", "llama-3.2-1b", "qwen3-0.6b", "gemma-2-2b"])
def test_every_parameter_byte_is_somewhere(model: str) -> None:
    """Plain data parallelism on one device holds 2 + 4 + 12 bytes of every parameter, a tied
    embedding's once."""
    problem = question(model=model, chips=1, global_batch=1)
    found = predict(problem, Layouts.of([Layout()]), PROFILE.coefficients(problem.scopes))
    held = sum(
        found.memory[name][0] for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes")
    )
    assert held == pytest.approx(18 * problem.architecture.parameters.total, rel=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layouts_of_these_tests_are_legal(layout: Layout) -> None:
    require_legal(question(), layout)


def held_bytes(problem: Problem, layout: Layout) -> float:
    found = predict(problem, Layouts.of([layout]), PROFILE.coefficients(problem.scopes))
    return float(
        sum(
            found.memory[name][0]
            for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes")
        )
    )


def test_in_fp32_there_is_no_second_copy() -> None:
    """4 + 4 + 8 bytes: parameters, gradients, two moments."""
    problem = question(model="llama-3-8b", chips=1, global_batch=1, precision="fp32")
    assert held_bytes(problem, Layout()) == pytest.approx(
        16 * problem.architecture.parameters.total, rel=1e-3
    )


def test_zero_3_shards_as_much_as_its_paper_says() -> None:
    """16 bytes of a parameter (Rajbhandari et al., arXiv 1910.02054 §5.3), beside two layers that
    are gathered and one that is reduced at a time, from 16 bits into what is sent where that is
    wider; PyTorch's FSDP has 4 bytes of gradient there, and gathers from its fp32 parameters."""
    of_model = question(model="llama-3-8b")
    parameters = of_model.architecture.parameters
    layer = (parameters.total - parameters.embedding - parameters.lm_head) / 32
    for stack, states, reduced in (
        ("deepspeed", 16, 2),
        ("megatron", 18, 6),
        ("fsdp", 16, 6),
        ("fms-fsdp", 14, 2),
    ):
        held = held_bytes(
            replace(of_model, stack=catalogue.stack(stack)), Layout(dp_shard=64, zero_stage=3)
        )
        assert held == pytest.approx(
            states * parameters.total / 64 + (2 * 2 + reduced) * layer, rel=1e-3
        )


def test_key_value_heads_repeat_where_tensor_parallelism_exceeds_them() -> None:
    problem = question(model="llama-3.1-70b", chips=32)
    eight, thirty_two = (held_bytes(problem, Layout(tp=tp, pp=32 // tp)) for tp in (8, 32))
    architecture = problem.architecture
    repeated = (
        18
        * 80
        * architecture.hidden_size
        * architecture.kinds[0].attention.kv_dim
        * (1 / 8 - 1 / 32)
    )
    whole = 18 * architecture.parameters.total
    assert thirty_two == pytest.approx(whole / 32 + repeated, rel=0.01)
    assert eight == pytest.approx(whole / 32, rel=0.15)


def test_a_tied_embedding_is_where_the_head_is_too() -> None:
    """Both ends of a pipeline hold it, and each reduces its gradients."""
    tied = question(model="llama-3.2-1b", chips=2, global_batch=2)
    apart = replace(tied, architecture=replace(tied.architecture, tie_word_embeddings=False))
    for layout in (Layout(pp=2), Layout(pp=2, zero_stage=1)):
        both = (
            predict(p, Layouts.of([layout]), PROFILE.coefficients(p.scopes)) for p in (tied, apart)
        )
        first, second = both
        for name in ("gradients_bytes", "optimizer_bytes"):
            assert first.memory[name][0] == second.memory[name][0]
        assert first.time["optimizer_s"][0] == pytest.approx(second.time["optimizer_s"][0])


def test_tensor_parallelism_leaves_routers_norms_and_down_projections_whole() -> None:
    """Of a sparse layer of DeepSeek-V3: 44 million dense parameters on each of eight ranks, not
    29."""
    problem = question(model="deepseek-v3")
    layer, h = problem.architecture.kinds[1], 7168
    whole = h * (1536 + 512 + 64) + 1536 + 512 + 2 * h + h * 256
    rows = [
        Shards.of(Layouts.of([Layout(tp=tp, sequence_parallel=tp > 1)]), 4096).table
        for tp in (1, 8)
    ]
    one, eight = (float(layer_bytes(problem, layer, x).dense[0]) for x in rows)
    assert eight == pytest.approx((one - whole) / 8 + whole)


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


def test_dualpipe_updates_what_it_holds() -> None:
    problem = replace(question(model="llama-3.1-70b", chips=64), stack=catalogue.stack("deepseek"))
    layouts = [
        Layout(pp=4, tp=2, dp_shard=8, zero_stage=1, schedule=name) for name in ("1f1b", "dualpipe")
    ]
    plain, dual = predict(problem, Layouts.of(layouts), PROFILE.coefficients(problem.scopes)).time[
        "optimizer_s"
    ]
    assert 1.8 < dual / plain < 2.2


def test_a_ring_passes_repeated_key_value_heads() -> None:
    """Four heads on eight ranks: each passes one, as on four."""
    problem = question(model="qwen3-30b-a3b", chips=64)
    innermost = ("cp", "tp", "dp_shard", "dp_replicate", "pp")
    rows = Layouts.of(
        [Layout(tp=tp, cp=4, dp_shard=16 // tp, placement=innermost) for tp in (4, 8)]
    )
    costs = MeshCosts.of(problem, rows, PROFILE.coefficients(problem.scopes))
    four, eight = costs.context_traffic(problem.architecture.kinds[0])
    assert four == pytest.approx(eight)


def test_parallel_blocks_are_reduced_once() -> None:
    problem = question(model="gpt-neox-20b", chips=8)
    layers = tuple(replace(layer, parallel=False) for layer in problem.architecture.layers)
    serial = replace(problem, architecture=replace(problem.architecture, layers=layers))
    rows = Layouts.of([Layout(tp=8)])
    once, twice = (
        MeshCosts.of(p, rows, PROFILE.coefficients(p.scopes)).layer_traffic[0][0]
        for p in (problem, serial)
    )
    assert twice == pytest.approx(2 * once)


def test_muon_costs_its_orthogonalisation_and_saves_a_moment() -> None:
    layout = Layout(tp=8, dp_shard=8, zero_stage=1, sequence_parallel=True)
    found = []
    for optimizer in ("adamw", "muon"):
        problem = question(optimizer=optimizer)
        found.append(predict(problem, Layouts.of([layout]), PROFILE.coefficients(problem.scopes)))
    adamw, muon = found
    assert muon.time["optimizer_s"][0] > adamw.time["optimizer_s"][0]
    assert muon.memory["optimizer_bytes"][0] == pytest.approx(
        adamw.memory["optimizer_bytes"][0] * 8 / 12
    )


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_of_offloaded_activations_two_layers_worth_stay(recompute: str) -> None:
    """Whatever a layer keeps of them: with full recompute its input, 2 bytes of each element."""
    problem = replace(question(seq_len=65536, global_batch=64), stack=catalogue.stack("maxtext"))
    layouts = [
        Layout(dp_shard=64, zero_stage=3, recompute=recompute, offload_activations=o)
        for o in (False, True)
    ]  # type: ignore[arg-type]
    c = PROFILE.coefficients(problem.scopes)
    found = predict(problem, Layouts.of(layouts), c)
    freed = -np.diff(found.memory["activations_bytes"])[0]
    assert found.host_bytes[1] == pytest.approx(freed * 80 / 78)
    if recompute == "full":
        assert found.host_bytes[1] == pytest.approx(80 * 65536 * 8192 * 2 * c.activation_memory)


def test_an_offloaded_update_runs_at_the_speed_of_the_host() -> None:
    problem = question()
    layouts = [
        Layout(dp_shard=64, zero_stage=3, recompute="full", offload_optimizer=o)
        for o in (False, True)
    ]
    found = predict(problem, Layouts.of(layouts), PROFILE.coefficients(problem.scopes))
    device, host = found.time["optimizer_s"]
    assert host > 10 * device


def test_older_software_is_slower() -> None:
    new, old = question(), question()
    old = replace(old, stack=replace(old.stack, age_years=2.0))
    assert (step_times(old) > step_times(new)).all()


def test_tensor_traffic_hides_within_a_domain_only() -> None:
    problem = question()
    apart = replace(problem, stack=replace(problem.stack, overlap_tensor=False))
    layouts = Layouts.of(
        [Layout(tp=tp, dp_shard=64 // tp, zero_stage=1, sequence_parallel=True) for tp in (8, 16)]
    )
    hidden, exposed = (
        predict(asked, layouts, PROFILE.coefficients(problem.scopes)).time["tensor_s"]
        for asked in (problem, apart)
    )
    assert hidden[0] < exposed[0]
    assert hidden[1] == exposed[1]


def test_a_ring_of_chunks_has_shorter_kernels_than_the_whole_sequence() -> None:
    """As many tokens a device, in one sequence or in halves of two; gathered keys are met at
    once."""
    longer = []
    for context in ("ring", "allgather"):
        problem = question()
        problem = replace(problem, stack=replace(problem.stack, context=context))
        layouts = [
            Layout(dp_shard=64, zero_stage=1),
            Layout(dp_shard=32, cp=2, micro_batch=2, zero_stage=1),
        ]
        found = predict(
            problem,
            Layouts.of(layouts),
            replace(PROFILE.coefficients(problem.scopes), context_overlap=1.0),
        )
        longer.append(np.diff(found.time["context_s"])[0])
    ring, gathered = longer
    assert ring > gathered >= 0


def test_kernels_are_no_newer_than_the_newest_that_ran_on_the_generation() -> None:
    def compute(age_years: float, known: tuple[Newest, ...]) -> float:
        problem = question()
        problem = replace(problem, stack=replace(problem.stack, age_years=age_years))
        c = replace(PROFILE, newest=known).coefficients(problem.scopes)
        same_host = replace(c, launch_ageing=0.0)
        return float(predict(problem, Layouts.of(LAYOUTS[1:2]), same_host).time["compute_s"][0])

    known = (Newest(scope="generation:hopper", year=PROFILE.software_year - 2.0),)
    other = (Newest(scope="generation:ampere", year=PROFILE.software_year - 2.0),)
    assert compute(0.0, known) == compute(2.0, ()) > compute(0.0, other)
    assert compute(2.5, known) == compute(2.5, ()) > compute(2.0, ())


def test_the_shipped_profile_knows_the_newest_software_of_each_generation() -> None:
    newest = {one.scope: one.year for one in PROFILE.newest}
    assert newest["generation:volta"] < newest["generation:ampere"] < newest["generation:hopper"]
    assert max(newest.values()) <= PROFILE.software_year


def test_the_interval_of_a_chip_that_no_run_informed_is_wider() -> None:
    layout = Layout(dp_shard=64, zero_stage=3, recompute="full")
    widths = {}
    for chip in ("h100", "mi300x"):
        problem = replace(
            question(), cluster=catalogue.cluster(chip, 64), stack=catalogue.stack("torchtitan")
        )
        found = predict_layouts(problem, [layout], PROFILE)[0]
        widths[chip] = found.step_time_high_s / found.step_time_low_s
    assert widths["mi300x"] > 1.1 * widths["h100"]


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


def on_stack(name: str, problem: Problem, **changes: object) -> Problem:
    return replace(problem, stack=replace(catalogue.stack(name), **changes))  # type: ignore[arg-type]


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


def test_what_a_stack_shards_after_backward_hides_behind_nothing() -> None:
    """What nanotron's ZeRO 1 scatters and gathers takes as long as if no data-parallel traffic hid;
    plain data parallelism hides what it reduces."""
    base = question(model="llama-3-8b", chips=64, global_batch=64)
    stages = Layouts.of([Layout(tp=8, dp_shard=8, zero_stage=1), Layout(tp=8, dp_replicate=8)])
    switches = ((True, True), (True, False), (False, False))
    ways = [
        on_stack("nanotron", base, overlap_data=data, overlap_zero1=zero1)
        for data, zero1 in switches
    ]
    c = PROFILE.coefficients(ways[0].scopes)
    hidden, apart, nothing = (predict(p, stages, c).time["data_s"] for p in ways)
    assert hidden[0] < apart[0] == nothing[0]
    assert hidden[1] == apart[1] < nothing[1]


def test_what_the_device_must_have_is_what_is_reserved_and_the_runtime() -> None:
    problem = question()
    found = predict(problem, Layouts.of(LAYOUTS), PROFILE.coefficients(problem.scopes))
    assert found.reserved_bytes + found.memory["context_bytes"] == pytest.approx(found.needed_bytes)
    assert found.allocated_bytes + found.memory["fragmentation_bytes"] == pytest.approx(
        found.reserved_bytes
    )


def test_eager_kernels_keep_more_than_fused_ones() -> None:
    """Of each token and layer of Llama-3-8B: two norms of 6 bytes an element, queries and keys, the
    activated gate."""
    base = question(model="llama-3-8b", chips=1, global_batch=1)
    fused, eager = (on_stack("torchtitan", base, fused=fused) for fused in (True, False))
    c = PROFILE.coefficients(fused.scopes)
    kept = [
        predict(p, Layouts.of([Layout()]), c).memory["activations_bytes"][0] for p in (fused, eager)
    ]
    more = 32 * 8192 * (2 * 4096 * 6 + (4096 + 1024 * 2) * 2 + 14336 * 2)
    assert kept[1] - kept[0] == pytest.approx(more * c.activation_memory, rel=1e-3)


def test_a_loss_keeps_what_its_kernels_leave_of_the_logits() -> None:
    """6 bytes of each; under PyTorch's cross_entropy 16, which are 20 of a device's part where the
    loss is sharded."""
    base = question(model="llama-3-8b", chips=4)
    layout = Layouts.of([Layout(tp=4)])
    ways = [
        {"parallel_loss": p, "loss": f}
        for p, f in ((True, "fused"), (True, "pytorch"), (False, "pytorch"))
    ]
    problems = [on_stack("aa-scaling", base, **way) for way in ways]
    c = PROFILE.coefficients(problems[0].scopes)
    logits = [predict(p, layout, c).memory["logits_bytes"][0] for p in problems]
    assert logits[1] == pytest.approx(logits[0] * 20 / 6)
    assert logits[2] == pytest.approx(logits[0] * 4 * 16 / 6)


@pytest.mark.parametrize("stack", ["fsdp", "torchtitan", "fms-fsdp", "llm-foundry", "megatron"])
def test_gradients_are_there_when_activations_are(stack: str) -> None:
    """However few micro-batches there are."""
    problem = on_stack(stack, question(model="llama-3-8b", chips=8))
    layouts = Layouts.of([Layout(dp_shard=8, zero_stage=3, micro_batch=m) for m in (16, 8, 1)])
    held = predict(problem, layouts, PROFILE.coefficients(problem.scopes)).memory
    gradients = problem.gradient_bytes * problem.architecture.parameters.total / 8
    assert len(set(held["gradients_bytes"])) == 1
    assert held["gradients_bytes"][0] > gradients


def test_fp8_operands_are_quantised_in_experts_too() -> None:
    base = question(model="qwen3-235b-a22b", chips=64)
    layout = Layouts.of([Layout(dp_shard=64, ep=8, zero_stage=1)])
    compute = []
    for precision in ("bf16", "fp8"):
        problem = replace(base, workload=replace(base.workload, precision=precision))
        c = replace(PROFILE.coefficients(problem.scopes), gemm_8=0.5, gemm_16=0.5, launch_s=0.0)
        compute.append(predict(problem, layout, c).time["compute_s"][0])
    assert compute[1] > compute[0] / 2


def test_a_job_of_most_of_a_cluster_waits_for_its_slowest_node() -> None:
    """With every send and receipt: a stage has four of a micro-batch where it has two neighbours,
    two where it has one, and a hop has two to fill and drain the pipeline. Not where half of the
    nodes do without it."""
    layouts = [
        Layout(tp=8, pp=pp, dp_shard=64 // pp, sequence_parallel=True, balanced=True)
        for pp in (4, 2)
    ]
    added = []
    for chips, layout in zip(
        (256, 512, 512), (replace(layouts[0], dp_shard=8), *layouts), strict=True
    ):
        cluster = catalogue.cluster("hf-science", chips)
        problem = replace(question(chips=chips), cluster=cluster, stack=catalogue.stack("nanotron"))
        c = replace(PROFILE.coefficients(problem.scopes), jitter=0.0)
        slow, sound = (
            predict(problem, Layouts.of([layout]), replace(c, slow_node_s=s)) for s in (0.5, 0.0)
        )
        added.append(float(slow.step_time_s[0] - sound.step_time_s[0]))
    assert added == pytest.approx([0.0, 0.5 * (4 * 8 + 2 * 3), 0.5 * (2 * 4 + 2 * 1)])


@pytest.mark.parametrize("micro_batch", [1, 4, 16])
def test_the_host_s_collectives_hide_beside_what_the_device_does(micro_batch: int) -> None:
    """A pass takes as long as the host, here of no launches, or the device, whichever takes longer;
    without a pipeline the host is fast."""
    problem = replace(question(seq_len=2048, global_batch=256), stack=catalogue.stack("nanotron"))
    layouts = [
        Layout(tp=8, pp=pp, dp_shard=8 // pp, micro_batch=micro_batch, balanced=True)
        for pp in (1, 2)
    ]
    c = replace(PROFILE.coefficients(problem.scopes), launch_s=0.0)
    hop = 2e-4
    free, held = (predict(problem, Layouts.of(layouts), replace(c, stall_s=s)) for s in (0.0, hop))
    host = (
        2 * 2 * 7 * hop * (40 * 2) / 2
    )  # forward and backward, two reductions a layer, to and fro over 7 hops
    passes = problem.workload.global_batch // (4 * micro_batch)
    device = np.asarray(free.time["compute_s"] + free.time["tensor_s"])[1] / passes
    extra = (held.time["tensor_s"] - free.time["tensor_s"]) / passes
    assert extra[0] == 0
    assert extra[1] <= host
    assert extra[1] == pytest.approx(max(host - device, 0.0), abs=0.1 * device)


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
    shards = Shards.of(Layouts.of([Layout()]), problem.workload.seq_len).table
    old = replace(problem, stack=replace(problem.stack, age_years=2.0))
    c = replace(PROFILE.coefficients(problem.scopes), launch_ageing=0.0)
    now, then = (Compute(p, shards, c, [NONE]).head().once.forward[0] for p in (problem, old))
    assert then / now == pytest.approx(float(np.exp(c.ageing * (2.0 - SETTLED_YEARS))))


@pytest.mark.parametrize(("experts", "ep"), [(8, 8), (64, 8), (256, 64), (256, 8), (128, 1)])
def test_the_busiest_device_is_the_largest_of_random_shares(experts: int, ep: int) -> None:
    """Against drawn shares of experts, 2,000 times."""
    moe = next(kind.moe for kind in catalogue.architecture("mixtral-8x7b").kinds if kind.moe)
    shares = np.random.default_rng(0).standard_normal((2000, ep, experts // ep)).mean(axis=2)
    drawn = float((shares.max(axis=1) - shares.mean(axis=1)).mean())
    assert float(busiest(replace(moe, num_experts=experts), ep)) == pytest.approx(
        drawn, rel=0.05, abs=1e-9
    )


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


@pytest.mark.parametrize(
    ("stack", "generation", "kernel"),
    [
        ("torchtitan", "hopper", "cudnn"),
        ("torchtitan", "blackwell", "cudnn"),
        ("fsdp", "hopper", "flash2"),
        ("megatron", "hopper", "cudnn"),
        ("megatron", "cdna3", "flash2"),
        ("maxtext", "tpu", "splash"),
        ("nanotron", "blackwell", "flash2"),
        ("llm-foundry", "ampere", "flash1"),
        ("llm-foundry", "hopper", "flash2"),
    ],
)
def test_a_stack_or_pytorch_picks_the_attention_kernel(
    stack: str, generation: str, kernel: str
) -> None:
    assert catalogue.stack(stack).kernel_on(generation) == kernel


@pytest.mark.parametrize(
    ("kernel", "chip", "runs"),
    [("splash", "h100", False), ("cudnn", "v5p", False), ("flash2", "v5p", False), ("flash3",
     "a100", False),
     ("cudnn", "mi300x", False), ("splash", "trn2", False), ("flash3", "gaudi3", False),
     ("flash3", "h100", True), ("flash2", "mi300x", True), ("cudnn", "b200", True), ("unfused",
     "v5p", True)],
)  # fmt: skip
def test_an_attention_kernel_runs_on_the_chips_that_it_is_written_for(
    kernel: str, chip: str, runs: bool
) -> None:
    base = question(model="llama-3-8b", chips=64)
    cluster = catalogue.cluster(chip, 64)
    if runs:
        assert (
            replace(on_stack("generic", base, attention_kernel=kernel), cluster=cluster).kernel
            == kernel
        )
    else:
        with pytest.raises(Invalid, match=f"stack.attention_kernel.*{kernel}"):
            replace(
                base,
                cluster=cluster,
                stack=replace(catalogue.stack("generic"), attention_kernel=kernel),
            )


def test_torchtitan_is_what_it_was_at_the_time() -> None:
    """Of its releases 0.2.0 brought cuDNN's attention, 0.2.1 stages without all logits, 0.3.0 a
    loss in parts."""
    ever = catalogue.stack("torchtitan")
    then = {year: ever.as_of(year) for year in (2025.0, 2025.85, 2026.0, 2026.75)}
    assert [stack.kernel_on("hopper") for stack in then.values()] == [
        "flash2",
        "cudnn",
        "cudnn",
        "cudnn",
    ]
    assert [stack.keeps_logits for stack in then.values()] == [True, True, False, False]
    assert [stack.loss_chunks for stack in then.values()] == [1, 1, 1, 8]


def test_a_loss_in_parts_keeps_a_part_of_the_logits() -> None:
    base = question(model="llama-3-8b", chips=8)
    rows = Layouts.of([Layout(dp_shard=8, zero_stage=3, recompute="full", micro_batch=4)])
    problems = [on_stack("torchtitan", base, loss_chunks=chunks) for chunks in (1, 2)]
    c = PROFILE.coefficients(problems[0].scopes)
    whole, half = (predict(p, rows, c).memory["logits_bytes"][0] for p in problems)
    assert half == pytest.approx(whole / 2)


def test_a_last_stage_that_keeps_logits_has_those_of_all_micro_batches() -> None:
    """In 16 bits, a device's part of the vocabulary."""
    base = question(model="llama-3-8b", chips=16, global_batch=64)
    rows = Layouts.of(
        [Layout(pp=2, tp=2, dp_shard=4, zero_stage=2, sequence_parallel=True), Layout(dp_shard=16)]
    )
    problems = [on_stack("torchtitan", base, keeps_logits=keeps) for keeps in (False, True)]
    c = PROFILE.coefficients(problems[0].scopes)
    without, kept = (predict(p, rows, c) for p in problems)
    assert kept.memory_stage[0] == 1
    assert kept.memory["logits_bytes"][0] >= 16 * 8192 * 128256 / 2 * 2
    assert kept.allocated_bytes[1] == without.allocated_bytes[1]


def test_gathered_keys_and_values_are_whole_while_a_layer_runs() -> None:
    """And so are their gradients: 2 x 2 bytes for each of 8 x 2 x 128 elements of 131,072 tokens. A
    small vocabulary, or the logits before them would be more."""
    base = question(model="llama-3-8b", chips=16, seq_len=131072, global_batch=1)
    base = replace(base, architecture=replace(base.architecture, vocab_size=1024))
    rows = Layouts.of([Layout(cp=16, recompute="full"), Layout(dp_shard=16)])
    ways = [on_stack("axlearn", base, context=context) for context in ("ring", "allgather")]
    c = PROFILE.coefficients(ways[0].scopes)
    ring, gathered = (predict(p, rows, c).memory["activations_bytes"] for p in ways)
    assert gathered[0] - ring[0] == pytest.approx(131072 * 2048 * 4 * c.activation_memory)
    assert gathered[1] == ring[1]


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
        rows = Layouts.of([Layout(cp=cp, dp_shard=32 // cp)])
        c = PROFILE.coefficients(base.scopes)
        sent[cp] = [
            MeshCosts.of(p, rows, c).context_traffic(p.architecture.kinds[0])[0]
            for p in (base, many)
        ]
    assert sent[32][0] == pytest.approx(sent[32][1])
    assert sent[8][0] < sent[8][1]


@pytest.mark.parametrize("seq_len", [256, 1024, 8192])
def test_no_more_is_exposed_of_sends_than_there_is(seq_len: int) -> None:
    """However much of a layer FSDP's copies take, beside which its collectives run too."""
    problem = on_stack(
        "torchtitan", question(model="llama-3-8b", chips=64, seq_len=seq_len, global_batch=512)
    )
    knobs: dict[str, object] = {
        "pp": 2,
        "dp_shard": 32,
        "schedule": "interleaved",
        "virtual_stages": 2,
        "zero_stage": 3,
    }
    rows = Layouts.of([Layout(**knobs)])  # type: ignore[arg-type]
    c = PROFILE.coefficients(problem.scopes)
    meshes = MeshCosts.of(problem, rows, c)
    every = 2 * rows.num_micro_batches(512) * 2 * meshes.send
    exposed = predict(problem, rows, c).time["pipeline_s"]
    assert 0 <= exposed[0] <= every[0] * (1 + 1e-9)


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
    policies = [NONE, policy("selective", ["moe", "mlp"]), FULL]
    shards = Shards.of(Layouts.of([Layout(dp_shard=8, zero_stage=3)]), 8192).table
    c, layer = PROFILE.coefficients(base.scopes), base.architecture.kinds[-1]
    less, more = (Compute(p, shards, c, policies).layer(layer).again[:, 0] for p in (base, whole))
    down = 0.0
    if left_out:
        assert layer.dense is not None
        product = Kernels(base, c).linear(
            shards.tokens, layer.dense.intermediate_size, base.architecture.hidden_size
        )
        down = float(product.forward[0] * Compute(base, shards, c, policies).slower)
    assert more - less == pytest.approx([0.0, down, down])


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


def test_copies_of_weights_for_gemms_take_memory_with_fp8_only() -> None:
    """Two bytes a parameter of a layer, beside those of the one in use; none where it is itself in
    fp8."""
    rows = Layouts.of([Layout(tp=8, dp_shard=8, zero_stage=1, sequence_parallel=True)])
    held = {}
    for precision in ("bf16", "fp8"):
        for stack in ("megatron", "megatron-bridge"):
            problem = on_stack(stack, question(model="llama-3-8b", precision=precision))
            c = PROFILE.coefficients(problem.scopes)
            held[precision, stack] = predict(problem, rows, c).memory["parameters_bytes"][0]
    more = held["fp8", "megatron"] - held["bf16", "megatron"]
    layers = catalogue.architecture("llama-3-8b").parameters.total - 2 * 128256 * 4096
    assert more == pytest.approx(2 * layers / 8, rel=1e-3)
    assert held["fp8", "megatron-bridge"] == held["bf16", "megatron-bridge"]


def test_tensor_parallel_traffic_hides_beside_no_nvfp4() -> None:
    """Transformer Engine's userbuffers take 16 bits, fp8 and mxfp8."""
    rows = Layouts.of([Layout(tp=8, sequence_parallel=True)])
    for precision, hides in (("mxfp8", True), ("nvfp4", False)):
        base = replace(
            question(model="llama-3-8b", global_batch=8), cluster=catalogue.cluster("b200", 8)
        )
        base = replace(base, workload=replace(base.workload, precision=precision))
        apart = replace(base, stack=replace(base.stack, overlap_tensor=False))
        seconds = [
            predict(p, rows, PROFILE.coefficients(p.scopes)).time["tensor_s"][0]
            for p in (base, apart)
        ]
        assert (seconds[0] < 0.9 * seconds[1]) == hides


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


def test_heads_of_64_are_as_much_slower_as_was_measured() -> None:
    """FlashAttention-2 on A100, causal, forward and backward, 8,192 tokens: 165 and 182 TFLOP/s."""
    problem = replace(question(), cluster=catalogue.cluster("a100", 64))
    problem = replace(problem, stack=replace(problem.stack, attention_kernel="flash2"))
    kernels = Kernels(problem, PROFILE.coefficients(problem.scopes))
    attention = problem.architecture.layers[0].attention
    seconds = {
        dim: float(
            kernels.attention(
                replace(attention, head_dim=dim, v_head_dim=dim),
                np.array([8192.0]),
                np.array([2048 / dim]),
            ).forward[0]
        )
        for dim in (64, 128, 256)
    }
    assert seconds[128] / seconds[64] == pytest.approx(165 / 182, abs=0.02)
    assert seconds[256] == pytest.approx(seconds[128])


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
    alike = catalogue.likeness(told)
    block = alike.layers[0].feed_forward
    assert isinstance(block, Moe)
    assert block.bias
    assert (alike.name, alike.vocab_size) == ("run", 201216)
    other = Architecture.from_shape(name="run", vocab_size=201216, **{**shape, "num_layers": 23})  # type: ignore[arg-type]
    assert catalogue.likeness(other) == other


def test_without_tf32_products_of_fp32_run_at_the_peak_of_fp32() -> None:
    old, new = (catalogue.chip(name) for name in ("v100", "h100"))
    assert "tf32" not in old.peak_tflops
    assert old.peak_flops("tf32") == old.peak_flops("fp32") == old.peak_tflops["fp32"] * 1e12
    assert new.peak_flops("tf32") > new.peak_flops("fp32")
