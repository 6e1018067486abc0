"""Kernel times: shapes, attention kernels and number formats."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.cost.facts import coefficient_records
from models.cost.kernels import attention, linear
from models.cost.predictions import predict
from models.cost.problem_records import question as asked
from models.spec import catalogue
from models.spec.attention import Indexer
from models.spec.layer import Layer
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import NewestSoftware
from models.spec.recompute import NONE
from models.spec.recurrence import DeltaNet
from models.spec.workload import Packing
from tests.models.cost.examples import LAYOUTS, PROFILE, question


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


@pytest.mark.parametrize(
    ("precision", "sides", "whole"),
    [
        ("bf16", (4096, 50264), True),
        ("bf16", (4096, 50257), False),
        ("bf16", (4100, 50264), False),
        ("fp8", (4096, 50264), False),
        ("fp8", (4096, 50272), True),
    ],
)
def test_rows_that_are_no_whole_vectors_cost_rate_unless_they_are_padded(
    precision: str, sides: tuple[int, int], whole: bool
) -> None:
    """16 bytes are 8 elements of 16 bits and 16 of 8."""
    seconds = []
    for pads in ("products", "nothing"):
        problem = question(precision=precision)
        stack = replace(problem.stack, pads=pads, launch="compiled")
        problem = replace(problem, stack=stack)
        c = replace(PROFILE.coefficients(problem.scopes), ragged_rows=0.5)
        products = linear(
            asked(problem, np.array([NONE])).facts[0], coefficient_records(c)[0], 8192.0, *sides
        )
        seconds.append(np.array(products))
    padded, raw = seconds
    assert raw == pytest.approx(padded * (1 if whole else 2))


def test_a_compiler_pads_only_what_it_compiles() -> None:
    problem = question()
    for launch, pads in (("eager", False), ("compiled", True), ("graph", True)):
        stack = replace(problem.stack, pads="products", launch=launch)
        assert replace(problem, stack=stack).pads_products == pads


def test_kernels_are_no_newer_than_the_newest_that_ran_on_the_generation() -> None:
    def compute(age_years: float, known: tuple[NewestSoftware, ...]) -> float:
        problem = question()
        problem = replace(problem, stack=replace(problem.stack, age_years=age_years))
        c = replace(PROFILE, newest=known).coefficients(problem.scopes)
        same_host = replace(c, launch_ageing=0.0)
        return float(predict(problem, Layouts.of(LAYOUTS[1:2]), same_host).time["compute_s"][0])

    known = (NewestSoftware(scope="generation:hopper", year=PROFILE.software_year - 2.0),)
    other = (NewestSoftware(scope="generation:ampere", year=PROFILE.software_year - 2.0),)
    assert compute(0.0, known) == compute(2.0, ()) > compute(0.0, other)
    assert compute(2.5, known) == compute(2.5, ()) > compute(2.0, ())


def test_heads_of_64_are_as_much_slower_as_was_measured() -> None:
    """FlashAttention-2 on A100, causal, forward and backward, 8,192 tokens: 165 and 182 TFLOP/s."""
    problem = replace(question(), cluster=catalogue.cluster("a100", 64))
    problem = replace(problem, stack=replace(problem.stack, attention_kernel="flash2"))
    c = coefficient_records(PROFILE.coefficients(problem.scopes))[0]
    seconds = {}
    for dim in (64, 128, 256):
        q = asked(with_heads_of(problem, dim), np.array([NONE]))
        seconds[dim] = attention(q.facts[0], q.layers[0], c, 8192.0, 2048 / dim).forward
    assert seconds[128] / seconds[64] == pytest.approx(165 / 182, abs=0.02)
    assert seconds[256] == pytest.approx(seconds[128])


def with_heads_of(problem: Problem, dim: int) -> Problem:
    layer = problem.architecture.layers[0]
    narrow = replace(layer, attention=replace(layer.attention, head_dim=dim, v_head_dim=dim))
    return replace(problem, architecture=replace(problem.architecture, layers=(narrow,)))


def test_without_tf32_products_of_fp32_run_at_the_peak_of_fp32() -> None:
    old, new = (catalogue.chip(name) for name in ("v100", "h100"))
    assert "tf32" not in old.peak_tflops
    assert old.peak_flops("tf32") == old.peak_flops("fp32") == old.peak_tflops["fp32"] * 1e12
    assert new.peak_flops("tf32") > new.peak_flops("fp32")


def test_fewer_chosen_keys_take_less_time_and_scoring_takes_some() -> None:
    """Attention over 64 of 8,192 keys, beside that over all."""
    problem = question()
    layers = problem.architecture.layers
    times = []
    for top_k in (None, 4096, 64):
        chosen = None if top_k is None else Indexer(num_heads=4, head_dim=64, top_k=top_k)
        changed = tuple(
            replace(each, attention=replace(each.attention, indexer=chosen)) for each in layers
        )
        model = replace(problem.architecture, layers=changed)
        c = replace(PROFILE.coefficients(problem.scopes), chosen_keys=1.0)
        rows = Layouts.of([Layout(dp_shard=64, zero_stage=3, recompute="full")])
        times.append(float(predict(replace(problem, architecture=model), rows, c).step_time_s[0]))
    whole, many, few = times
    assert few < many
    assert few < whole


def test_a_recurrence_takes_as_long_for_as_many_tokens() -> None:
    delta = DeltaNet(
        num_heads=32, num_key_heads=16, key_head_dim=128, value_head_dim=128, conv_kernel=4
    )
    layer = Layer(recurrence=delta, feed_forward=question().architecture.layers[0].feed_forward)
    model = replace(question().architecture, layers=(layer,) * 8)
    seconds = []
    for seq_len, micro_batch in ((2048, 16), (32768, 1)):
        problem = replace(question(seq_len=seq_len), architecture=model)
        rows = Layouts.of([Layout(dp_shard=8, micro_batch=micro_batch, zero_stage=1)])
        found = predict(problem, rows, PROFILE.coefficients(problem.scopes))
        seconds.append(float(found.time["compute_s"][0]) / problem.workload.tokens)
    assert seconds[0] == pytest.approx(seconds[1])


def test_longer_documents_of_one_rank_are_waited_for() -> None:
    problem = question()

    def step(spread: float, mean: float = 500.0) -> float:
        packing = Packing(mean_length=mean, spread=spread)
        workload = replace(problem.workload, packing=packing)
        rows = Layouts.of([Layout(dp_shard=64, zero_stage=3, recompute="full")])
        c = PROFILE.coefficients(problem.scopes)
        found = predict(replace(problem, workload=workload), rows, c)
        return float(found.time["jitter_s"][0])

    assert step(0.0) < step(0.5) < step(2.0)
    assert step(0.0) == pytest.approx(step(0.0, 8000.0), rel=0.2)
