"""Timelines against an independent simulation, closed forms, and what no schedule may do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from models.cost.pipeline.schedules import run_schedule
from models.errors import Invalid
from models.layouts.defaults import with_stack_defaults
from models.layouts.rules import broken_rules
from models.prediction.timeline import MAX_OPERATIONS, Timeline, chrome_trace, timeline
from models.spec import catalogue
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.workload import Workload
from tests.long import examples, one_in
from tests.oracles.simulation import Op, afab, interleaved, one_f_one_b, simulate, zero_bubble

PROFILE = shipped_profile()
GENERIC = Problem(
    architecture=catalogue.architecture("llama-3-8b"),
    cluster=catalogue.cluster("h100", 32),
    workload=Workload(seq_len=4096, global_batch=64),
    stack=catalogue.stack("generic"),
)
LAYOUTS = [
    Layout(dp_shard=32, zero_stage=3),
    Layout(pp=4, dp_shard=8, zero_stage=1, schedule="afab"),
    Layout(pp=4, dp_shard=8, zero_stage=1),
    Layout(pp=4, dp_shard=4, cp=2, zero_stage=1, schedule="interleaved", virtual_stages=4),
    Layout(pp=4, dp_shard=8, zero_stage=1, schedule="zero_bubble"),
    Layout(pp=4, dp_shard=4, cp=2, zero_stage=1, schedule="zero_bubble_v", virtual_stages=2),
    Layout(pp=4, dp_shard=4, cp=2, zero_stage=1, schedule="dualpipe"),
]
times = st.lists(st.floats(0.1, 3.0), min_size=1, max_size=6)


def length(
    layout: Layout,
    m: int,
    forward: list[float],
    backward: list[float],
    weight: Sequence[float] = (0.0,),
) -> float:
    seconds = {
        "F": np.array(forward),
        "B": np.array(backward),
        "W": np.resize(weight, len(forward)),
    }
    return max(end for _, end in run_schedule(layout, m, seconds).values())


@given(times, st.integers(1, 12), st.data())
def test_plain_schedules_take_what_the_simulation_takes(
    forward: list[float], m: int, data: st.DataObject
) -> None:
    pp = len(forward)
    backward = data.draw(st.lists(st.floats(0.1, 3.0), min_size=pp, max_size=pp))

    def duration(op: Op) -> float:
        return forward[op[2]] if op[0] == "F" else backward[op[2]]

    for schedule, orders in (("1f1b", one_f_one_b(pp, m)), ("afab", afab(pp, m))):
        made = simulate(orders, duration, pp).makespan
        assert length(Layout(pp=pp, schedule=schedule), m, forward, backward) == pytest.approx(made)


@given(st.integers(2, 5), st.integers(2, 4), st.integers(0, 12), st.data())
def test_interleaving_takes_what_the_simulation_takes(
    pp: int, v: int, more: int, data: st.DataObject
) -> None:
    m = pp + more
    chunks = st.lists(st.floats(0.1, 3.0), min_size=pp * v, max_size=pp * v)
    forward, backward = data.draw(chunks), data.draw(chunks)

    def duration(op: Op) -> float:
        return forward[op[2]] if op[0] == "F" else backward[op[2]]

    layout = Layout(pp=pp, schedule="interleaved", virtual_stages=v)
    made = simulate(interleaved(pp, m, v), duration, pp * v).makespan
    assert length(layout, m, forward, backward) == pytest.approx(made)


@given(st.lists(st.tuples(*[st.floats(0.1, 3.0)] * 3), min_size=1, max_size=6), st.integers(1, 16))
def test_zero_bubble_takes_what_the_simulation_takes(
    seconds: list[tuple[float, float, float]], m: int
) -> None:
    forward, to_input, weight = ([*column] for column in zip(*seconds, strict=True))

    def duration(op: Op) -> float:
        return {"F": forward, "I": to_input, "W": weight}[op[0]][op[2]]

    backward = [i + w for i, w in zip(to_input, weight, strict=True)]
    made = simulate(zero_bubble(len(seconds), m), duration, len(seconds)).makespan
    layout = Layout(pp=len(seconds), schedule="zero_bubble")
    assert length(layout, m, forward, backward, weight) == pytest.approx(made)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.summary())
def test_a_stage_does_one_thing_at_a_time_and_nothing_before_what_it_needs(layout: Layout) -> None:
    found = timeline(GENERIC, PROFILE, with_stack_defaults(GENERIC, layout, ()))
    for stage in range(found.stages):
        mine = sorted(
            {(event.start_s, event.end_s) for event in found.events if event.stage == stage}
        )  # pairs overlap
        assert all(a[1] <= b[0] * (1 + 1e-12) for a, b in zip(mine, mine[1:], strict=False))
    names = {"input gradients": "backward"}
    passes = {
        (names.get(e.name, e.name), e.micro_batch, e.chunk): e
        for e in found.events
        if e.micro_batch is not None
    }
    chunks = 1 + max(chunk for _, _, chunk in passes if chunk is not None)
    for (name, micro_batch, chunk), event in passes.items():
        assert chunk is not None
        if name == "forward" and chunk:
            assert passes["forward", micro_batch, chunk - 1].end_s <= event.start_s
        if name == "backward":
            assert passes["forward", micro_batch, chunk].end_s <= event.start_s
            if chunk + 1 < chunks:
                assert passes["backward", micro_batch, chunk + 1].end_s <= event.start_s
    assert len([key for key in passes if key[0] == "forward"]) == found.micro_batches * chunks


def within(found: Timeline, low: float, high: float) -> bool:
    return found.closed_form_s is not None and low <= found.pipeline_s / found.closed_form_s <= high


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.summary())
def test_the_closed_form_is_about_as_long(layout: Layout) -> None:
    """Exact for plain schedules, of this model even with sends; an upper bound for interleaved
    chunks that differ; about as long for the rest."""
    found = timeline(GENERIC, PROFILE, with_stack_defaults(GENERIC, layout, ()))
    if layout.schedule in ("1f1b", "afab", "zero_bubble"):
        assert within(found, 1 - 1e-9, 1 + 1e-9)
    elif layout.schedule == "interleaved":
        assert within(found, 0.98, 1 + 1e-9)
    else:
        assert within(found, 0.95, 1.05)


@settings(max_examples=10)
@given(st.integers(1, 10**6))
def test_a_timeline_stays_small(micro_batches: int) -> None:
    found = timeline(GENERIC, PROFILE, Layout(pp=4, dp_shard=8, zero_stage=1), micro_batches)
    assert len(found.events) <= MAX_OPERATIONS + 4 * 4
    assert found.micro_batches == min(micro_batches, found.of_micro_batches)


def test_a_schedule_that_needs_too_many_operations_is_refused() -> None:
    """Interleaving needs as many micro-batches as stages, however few are asked for."""
    deep = replace(
        GENERIC,
        architecture=GENERIC.architecture.with_depth_scaled(
            1024 / len(GENERIC.architecture.layers)
        ),
    )
    large = replace(
        deep,
        cluster=catalogue.cluster("h100", 512),
        workload=replace(deep.workload, global_batch=512),
    )
    layout = Layout(pp=512, schedule="interleaved", virtual_stages=2)
    with pytest.raises(Invalid, match="above 60000"):
        timeline(large, PROFILE, layout, 1)


def test_a_trace_has_an_event_for_every_event() -> None:
    found = timeline(GENERIC, PROFILE, Layout(pp=4, dp_shard=8, zero_stage=1))
    events = chrome_trace(found)["traceEvents"]
    assert isinstance(events, list)
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(found.events)
    assert sum(span["dur"] for span in spans) / 1e6 == pytest.approx(
        sum(e.end_s - e.start_s for e in found.events)
    )


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.filter_too_much])
@given(st.data())
def test_whatever_is_legal_can_be_drawn(data: st.DataObject) -> None:
    schedule = data.draw(
        st.sampled_from(["1f1b", "afab", "interleaved", "zero_bubble", "zero_bubble_v", "dualpipe"])
    )
    pp, dp = data.draw(st.sampled_from([(2, 16), (4, 8), (8, 4), (16, 2)]))
    v = data.draw(
        {"interleaved": st.integers(2, 4), "zero_bubble_v": st.just(2)}.get(schedule, st.just(1))
    )
    workload = Workload(seq_len=1024, global_batch=dp * data.draw(st.integers(1, 40)))
    problem = replace(GENERIC, workload=workload)
    layout = Layout(pp=pp, dp_shard=dp, zero_stage=1, schedule=schedule, virtual_stages=v)
    assume(not broken_rules(problem, layout))
    asked = data.draw(st.none() | st.integers(1, 50))
    found = timeline(problem, PROFILE, layout, asked)
    assert found.micro_batches == found.of_micro_batches or asked is not None
    forwards = sum(event.name == "forward" for event in found.events)
    assert forwards == found.micro_batches * pp * v


@pytest.mark.parametrize(
    ("model", "pp", "virtual_stages"),
    one_in(2, [
        ("deepseek-v3", 8, 2), ("deepseek-v3", 8, 3), ("deepseek-v3", 8, 4), ("deepseek-v3", 4, 7),
        ("deepseek-v3", 16, 2), ("kimi-k2", 8, 6), ("qwen3-235b-a22b", 8, 8), ("llama-3.1-405b", 8,
        5),
        ("llama-3.1-405b", 10, 7), ("llama-3.1-405b", 15, 4), ("llama-3.1-405b", 14, 5),
        ("nemotron-4-340b", 14, 3),
        ("mistral-large-2", 10, 5), ("grok-1", 5, 7), ("llama-4-maverick", 7, 6),
        ("llama-4-maverick", 7, 7),
        ("llama-4-maverick", 5, 9), ("gemma-3-27b", 5, 6), ("gemma-3-27b", 3, 7), ("gpt-oss-120b",
        7, 5),
    ]),
)  # fmt: skip
def test_the_closed_form_is_near_the_timeline_where_layers_are_dealt_out_in_rounds(
    model: str, pp: int, virtual_stages: int
) -> None:
    """Where neither layers nor the head come out even, or where kinds of layers take turns."""
    architecture = catalogue.architecture(model)
    sparse = architecture.is_moe
    question = Problem(
        architecture=architecture,
        cluster=catalogue.cluster("h200", 8 * pp),
        workload=Workload(seq_len=4096, global_batch=6 * pp * (8 if sparse else 1)),
        stack=catalogue.stack("megatron"),
    )
    layout = Layout(
        pp=pp, dp_shard=8 if sparse else 1, tp=1 if sparse else 8, sequence_parallel=not sparse,
        ep=8 if sparse else 1, schedule="interleaved", virtual_stages=virtual_stages, balanced=True,
        zero_stage=1 if sparse else 0, recompute="full",
    )  # fmt: skip
    found = timeline(question, PROFILE, layout)
    assert found.closed_form_s is not None
    assert 0.95 <= found.pipeline_s / found.closed_form_s <= 1.03
