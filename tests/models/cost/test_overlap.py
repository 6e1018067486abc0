"""What communication hides behind, and what stays exposed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.cost import facts, problem_records
from models.cost.collectives import collective_seconds, links_of
from models.cost.layout_parts import LayoutParts
from models.cost.predictions import Predictions, predict
from models.cost.rows import rows_of
from models.layouts.groups import groups_for
from models.spec import catalogue
from models.spec.adapters import Lora
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients
from models.spec.recompute import NONE
from models.spec.trained import as_trained
from models.spec.workload import Reference, Trained
from tests.models.cost.examples import PROFILE, on_stack, question


def test_dualpipe_updates_what_it_holds() -> None:
    problem = replace(question(model="llama-3.1-70b", chips=64), stack=catalogue.stack("deepseek"))
    layouts = [
        Layout(pp=4, tp=2, dp_shard=8, zero_stage=1, schedule=name) for name in ("1f1b", "dualpipe")
    ]
    plain, dual = predict(problem, Layouts.of(layouts), PROFILE.coefficients(problem.scopes)).time[
        "optimizer_s"
    ]
    assert 1.8 < dual / plain < 2.2


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


def test_an_offloaded_update_runs_at_the_speed_of_the_host() -> None:
    problem = question()
    layouts = [
        Layout(dp_shard=64, zero_stage=3, recompute="full", offload_optimizer=o)
        for o in (False, True)
    ]
    found = predict(problem, Layouts.of(layouts), PROFILE.coefficients(problem.scopes))
    device, host = found.time["optimizer_s"]
    assert host > 10 * device


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


def send_seconds(problem: Problem, rows: Layouts, c: Coefficients) -> float:
    """Of the activations of a micro-batch of the only layout, whose tokens no axis divides."""
    q, of_c = problem_records.question(problem, np.array([NONE])), facts.coefficient_records(c)[0]
    (row,) = rows_of(rows, np.array([NONE]), np.zeros(1))
    room, dispatch = groups_for(q.order), np.empty((len(q.layers), 2))
    links = links_of(q.facts[0], q.layers, q.dims, q.order, row, of_c, room, dispatch)
    tokens = problem.workload.seq_len * int(rows.micro_batch[0])
    size = tokens * problem.architecture.hidden_size * 2.0
    return collective_seconds(links.send, size) + float(c.send_s)


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
    every = 2 * rows.num_micro_batches(512) * 2 * send_seconds(problem, rows, c)
    exposed = predict(problem, rows, c).time["pipeline_s"]
    assert 0 <= exposed[0] <= every[0] * (1 + 1e-9)


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


# -- frozen parameters, references and scores

ZERO_3 = Layout(dp_shard=64, zero_stage=3, recompute="full")


def tuned(problem: Problem, **workload: Any) -> Problem:
    work = replace(problem.workload, **workload)
    return replace(problem, workload=work, architecture=as_trained(problem.architecture, work))


def costs_of(problem: Problem, layout: Layout = ZERO_3) -> Predictions:
    return predict(problem, Layouts.of([layout]), PROFILE.coefficients(problem.scopes))


@pytest.mark.parametrize("forwards", [1, 3])
@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-30b-a3b"])
def test_a_reference_takes_the_time_of_so_many_forwards(model: str, forwards: int) -> None:
    problem = on_stack("fsdp", question(model))
    with_reference = tuned(problem, reference=Reference(forwards=forwards))
    plain, found = (costs_of(one).time for one in (problem, with_reference))
    more = found["compute_s"] - plain["compute_s"]
    parts = LayoutParts.of(problem, ZERO_3, PROFILE.coefficients(problem.scopes))
    # Embedding and head occur once.
    forward = float(parts.forward_s @ [*problem.architecture.layers_per_kind_with_mtp, 1, 1])
    assert forwards * forward * 2 >= more[0] > forwards * plain["recompute_s"][0]


def test_a_reference_of_its_own_lies_beside_the_model_sharded_alike() -> None:
    problem = on_stack("deepspeed", question())
    shared, own = (
        costs_of(tuned(problem, reference=Reference(own_weights=own))) for own in (False, True)
    )
    more = own.memory["parameters_bytes"] - shared.memory["parameters_bytes"]
    total = problem.architecture.parameters.total
    assert more[0] == pytest.approx(2 * total / 64, rel=1e-3)
    whole = Layout(dp_replicate=64, zero_stage=0)
    shared, own = (
        costs_of(tuned(problem, reference=Reference(own_weights=own)), whole)
        for own in (False, True)
    )
    more = own.memory["parameters_bytes"] - shared.memory["parameters_bytes"]
    assert more[0] == pytest.approx(2 * total, rel=1e-3)


def test_layers_before_all_that_is_trained_take_one_pass_and_keep_nothing() -> None:
    problem = on_stack("fsdp", question("llama-3-8b"))
    last = costs_of(tuned(problem, trained=Trained(layers=(-1,))))
    first = costs_of(tuned(problem, trained=Trained(layers=(0,))))
    whole = costs_of(problem)
    assert last.step_time_s < 0.5 * first.step_time_s < 0.5 * whole.step_time_s
    assert last.memory["activations_bytes"] < first.memory["activations_bytes"]
    assert last.time["recompute_s"] == pytest.approx(whole.time["recompute_s"] / 32)


def test_states_and_gradients_are_those_of_what_is_trained() -> None:
    problem = on_stack("deepspeed", question("llama-3-8b"))
    some = tuned(problem, trained=Trained(layers=(0, 1), head=True))
    found = costs_of(some).memory
    layer = problem.architecture.layers[0].parameters(4096)
    trained = 2 * layer + 128256 * 4096 + 4096
    assert found["optimizer_bytes"][0] == pytest.approx(12 * trained / 64)
    assert found["gradients_bytes"][0] == pytest.approx(
        2 * trained / 64 + some.gradient_reduction_bytes * layer, rel=1e-6
    )


def test_modules_beside_adapters_have_states_of_their_own() -> None:
    problem = on_stack("deepspeed", question("llama-3-8b"))
    alone = tuned(problem, lora=Lora())
    beside = tuned(problem, lora=Lora(), trained=Trained(layers=(), embedding=True, head=True))
    more = costs_of(beside).memory["optimizer_bytes"] - costs_of(alone).memory["optimizer_bytes"]
    assert more[0] == pytest.approx(12 * (2 * 128256 * 4096 + 4096) / 64)


def test_a_score_takes_no_logits() -> None:
    problem = on_stack("fsdp", question("llama-3-8b"))
    score = costs_of(tuned(problem, head="score"))
    assert score.memory["logits_bytes"][0] < 1e-3 * costs_of(problem).memory["logits_bytes"][0]
    assert score.step_time_s < costs_of(problem).step_time_s


def test_projected_gradients_leave_small_moments() -> None:
    problem = on_stack("deepspeed", question("llama-3-8b"))
    whole, projected = (costs_of(tuned(problem, moment_rank=rank)) for rank in (None, 128))
    optimizer = projected.memory["optimizer_bytes"] / whole.memory["optimizer_bytes"]
    assert 4 / 12 < optimizer[0] < 0.5


@pytest.mark.parametrize("reduces_every_time", [True, False])
def test_a_pipeline_reduces_the_gradients_of_zero_2_once_a_step(reduces_every_time: bool) -> None:
    """torch distributed/pipelining/stage.py syncs FSDP's gradients with the last micro-batch, and
    MegaScale (arXiv 2402.15627 §3.2) reduces those of a chunk once."""
    problem = on_stack("generic", question("llama-3.1-70b", chips=64), overlap_data=False)
    pp = 1 if reduces_every_time else 4
    layouts = [
        Layout(pp=pp, tp=4, dp_shard=16 // pp, zero_stage=stage, micro_batch=micro_batch)
        for stage in (1, 2)
        for micro_batch in (1, 2)
    ]
    found = predict(problem, Layouts.of(layouts), PROFILE.coefficients(problem.scopes))
    zero_1, fewer_1, zero_2, fewer_2 = found.time["data_s"]
    assert zero_1 == pytest.approx(fewer_1)
    assert (zero_2 > 1.5 * fewer_2) == reduces_every_time
    gradients = found.memory["gradients_bytes"]
    assert (gradients[2] < gradients[0] / 2) == reduces_every_time


def test_recompute_hides_no_more_of_a_reference_models_forward() -> None:
    """A forward of a frozen copy has no backward in which more could hide, whatever is recomputed
    in the trained model's."""
    problem = on_stack(
        "generic",
        question(
            "qwen3-30b-a3b", seq_len=2048, reference=Reference(forwards=3.0, own_weights=True)
        ),
        overlap_expert=True,
    )
    layouts = [
        Layout(dp_shard=64, ep=32, zero_stage=3, recompute=policy, recompute_modules=modules)
        for policy, modules in (("none", ()), ("selective", ("layernorm", "moe_act")))
    ]
    found = predict(problem, Layouts.of(layouts), PROFILE.coefficients(problem.scopes))
    assert found.time["recompute_s"][1] > 0
    assert found.step_time_s[0] < found.step_time_s[1]


@pytest.mark.parametrize(
    ("knobs", "gathers", "reductions"),
    [
        ({"zero_stage": 0, "dp_replicate": 8, "dp_shard": 1}, 0, 1),
        ({"zero_stage": 1}, 1, 1),
        ({"zero_stage": 2}, 1, 4),
        ({"zero_stage": 3}, 8, 4),
        ({"zero_stage": 3, "reshard": False}, 4, 4),
        ({"zero_stage": 2, "pp": 2, "dp_shard": 4}, 1, 1),
        ({"zero_stage": 3, "pp": 2, "dp_shard": 4}, 16, 8),
        ({"zero_stage": 3, "pp": 2, "dp_shard": 4, "reshard": False}, 1, 1),
    ],
)
def test_parameters_and_gradients_travel_once_a_step_unless_each_micro_batch_needs_them(
    knobs: dict[str, Any], gathers: int, reductions: int
) -> None:
    problem = tuned(question("llama-3-8b", chips=8), global_batch=32)
    layout = Layout(**{"dp_shard": 8, **knobs})
    parts = LayoutParts.of(problem, layout, PROFILE.coefficients(problem.scopes))
    assert (parts.gathers, parts.reductions) == (gathers, reductions)
