"""Steps of which some parameters are frozen, that run other forwards beside training, or whose head
gives one number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from models.cost.layout_parts import LayoutParts
from models.cost.predictions import Predictions, predict
from models.spec.adapters import Lora
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.trained import as_trained
from models.spec.workload import Reference, Trained
from tests.models.cost.examples import PROFILE, on_stack, question

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
    forward = float(parts.forward_s @ problem.architecture.trained_part_counts)
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
