"""The fit recovers what made the data, and survives what did not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from models.calibration.calibrate import calibrate
from models.calibration.observation import Observation
from models.columns import Array
from models.cost.compute import implied_imbalance
from models.cost.predictions import predict
from models.spec import catalogue
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile, shipped_profile
from models.spec.workload import Workload

PROFILE = shipped_profile()


def observations(truth: Profile, noise: float, seed: int = 0) -> list[Observation]:
    generator = np.random.default_rng(seed)
    made = []
    for chips in (8, 16, 64):
        for batch in (1, 2, 4):
            problem = Problem(
                architecture=catalogue.architecture("llama-3-8b"),
                cluster=catalogue.cluster("h100", chips),
                workload=Workload(seq_len=8192, global_batch=chips * batch),
                stack=catalogue.stack("torchtitan"),
            )
            for recompute in ("selective", "full"):
                layout = Layout(dp_shard=chips, zero_stage=3, recompute=recompute)
                c = truth.coefficients(problem.scopes)
                seconds = float(predict(problem, Layouts.of([layout]), c).step_time_s[0])
                seconds *= float(np.exp(noise * generator.standard_normal()))
                key = f"{chips}-{batch}-{recompute}"
                made.append(
                    Observation(key=key, problem=problem, layout=layout, step_time_s=seconds)
                )
    return made


def shifted(profile: Profile, coefficient: str, scope: str, by: float) -> Profile:
    term = profile.by_key[coefficient, scope]
    return profile.with_terms({term.key: replace(term, mean=term.mean + by * term.spread)})


def test_runs_made_by_a_slower_stack_move_the_profile_towards_it() -> None:
    truth = shifted(PROFILE, "compute_overhead", "stack:torchtitan", 3.0)
    found = calibrate(PROFILE, observations(truth, noise=0.01))
    assert found.error_after < 0.5 * found.error_before
    assert found.error_after < 0.02
    assert max(abs(m.shift_in_spreads) for m in found.moved) > 0.3


def test_runs_that_agree_with_the_profile_hardly_move_it() -> None:
    found = calibrate(PROFILE, observations(PROFILE, noise=0.01))
    assert max((abs(m.shift_in_spreads) for m in found.moved), default=0.0) < 0.5


def test_an_outlier_is_named_and_does_not_carry_the_fit() -> None:
    runs = observations(PROFILE, noise=0.01)
    spoiled = [replace(runs[0], step_time_s=10 * runs[0].step_time_s), *runs[1:]]
    clean, robust = calibrate(PROFILE, runs), calibrate(PROFILE, spoiled)
    assert robust.outliers == (runs[0].key,)
    assert abs(robust.error_after - clean.error_after) < 0.02


def sparse() -> Observation:
    """A run that is as fast as predicted."""
    problem = Problem(
        architecture=catalogue.architecture("mixtral-8x7b"),
        cluster=catalogue.cluster("h100", 64),
        workload=Workload(seq_len=8192, global_batch=128),
        stack=catalogue.stack("torchtitan"),
    )
    layout = Layout(dp_shard=64, zero_stage=3, recompute="selective", ep=8)
    return Observation(
        key="sparse", problem=problem, layout=layout, step_time_s=took(PROFILE, problem, layout)
    )


def took(profile: Profile, problem: Problem, layout: Layout) -> float:
    found = predict(problem, Layouts.of([layout]), profile.coefficients(problem.scopes))
    return float(found.step_time_s[0])


@pytest.mark.parametrize(("runs", "imbalance"), [(1, 1.0), (5, 3.0)])
def test_an_imbalance_that_the_speed_contradicts_carries_it_nowhere(
    runs: int, imbalance: float
) -> None:
    run = sparse()
    measured = {"imbalance": implied_imbalance(run.problem, 8, imbalance) or 0.0}
    odd = [replace(run, key=f"sparse {i}", coefficients=measured) for i in range(runs)]
    found = calibrate(
        PROFILE,
        [*odd, replace(odd[0], key="part", step_time_s=None, coefficients={"gemm_16": 0.7})],
    )
    assert {*found.outliers} == {o.key for o in odd}
    assert took(found.profile, run.problem, run.layout) == pytest.approx(run.step_time_s, rel=0.05)


def test_an_imbalance_that_explains_the_speed_is_learnt() -> None:
    run = sparse()
    measured = {"imbalance": implied_imbalance(run.problem, 8, 1.0) or 0.0}
    slow = replace(run, step_time_s=1.5 * (run.step_time_s or 0), coefficients=measured)
    found = calibrate(PROFILE, [slow])
    assert not found.outliers
    assert took(found.profile, run.problem, run.layout) == pytest.approx(slow.step_time_s, rel=0.1)


def test_outliers_do_not_widen_what_is_expected_of_others() -> None:
    clean = observations(PROFILE, noise=0.01)
    odd = [
        replace(o, step_time_s=8 * (o.step_time_s or 0)) if i % 4 == 0 else o
        for i, o in enumerate(clean)
    ]
    kinds = clean[0].problem.neighbourhood_scopes
    without, with_odd = (
        calibrate(PROFILE, runs).profile.neighbourhood(kinds).spread for runs in (clean, odd)
    )
    assert with_odd == pytest.approx(without, rel=0.2)


def test_outliers_of_memory_are_named_and_widen_nothing() -> None:
    clean = [replace(o, memory_bytes=_reserved(o)) for o in observations(PROFILE, noise=0.01)]
    odd = [
        replace(o, memory_bytes=8 * (o.memory_bytes or 0)) if i % 4 == 0 else o
        for i, o in enumerate(clean)
    ]
    found = calibrate(PROFILE, odd)
    assert set(found.outliers) == {o.key for o in odd[::4]}
    pair = clean[0].problem.neighbourhood_scopes[-1]
    without, with_odd = (
        {one.scope: one.spread for one in made.memory_neighbourhoods}[pair]
        for made in (calibrate(PROFILE, clean).profile, found.profile)
    )
    assert with_odd == pytest.approx(without, rel=0.2)


def _reserved(o: Observation) -> float:
    return float(
        predict(
            o.problem, Layouts.of([o.layout]), PROFILE.coefficients(o.problem.scopes)
        ).reserved_bytes[0]
    )


def test_benchmarks_of_parts_change_nothing_in_how_a_fit_is_judged() -> None:
    """One model, chip and stack is judged by stretches of time, with however many benchmarks beside
    it."""
    runs = [replace(o, group="one") for o in observations(PROFILE, noise=0.05)]
    about = runs[0]
    told = [
        Observation(
            key=f"z{i}", problem=about.problem, layout=about.layout, coefficients={"gemm_16": 0.7}
        )
        for i in range(3)
    ]
    alone, beside = calibrate(PROFILE, runs).held_out, calibrate(PROFILE, [*runs, *told]).held_out
    assert alone is not None
    assert beside is not None
    assert len(beside.measured) == len(alone.measured)
    assert beside.error_after == pytest.approx(alone.error_after, abs=0.02)


def test_scopes_without_runs_keep_their_prior() -> None:
    found = calibrate(PROFILE, observations(PROFILE, noise=0.05))
    for key, term in PROFILE.by_key.items():
        if key[1] in ("generation:tpu", "stack:maxtext", "chip:mi300x"):
            assert found.profile.by_key[key] == term


def test_the_order_of_the_runs_does_not_matter() -> None:
    runs = observations(PROFILE, noise=0.05)
    assert calibrate(PROFILE, runs).profile == calibrate(PROFILE, runs[::-1]).profile


def test_the_posterior_is_never_wider_than_the_prior() -> None:
    found = calibrate(PROFILE, observations(PROFILE, noise=0.05))
    for key, term in found.profile.by_key.items():
        assert term.spread <= PROFILE.by_key[key].spread * (1 + 1e-9)


@pytest.mark.parametrize("coefficient", ["gemm_16", "memory"])
def test_a_profile_survives_its_written_form(coefficient: str) -> None:
    again = Profile.from_json(PROFILE.to_json())
    assert again == PROFILE
    assert (coefficient, "all") in again.by_key


@pytest.mark.parametrize("false_alarms", [1, 3, 10])
def test_runs_said_to_be_out_of_memory_that_need_little_are_named_and_move_little(
    false_alarms: int,
) -> None:
    """Beside many that fitted with as much as predicted; whatever filled the devices was not
    described."""
    problem = replace(observations(PROFILE, 0.0)[0].problem, cluster=catalogue.cluster("h100", 64))
    layouts = [
        Layout(dp_shard=64, zero_stage=3, recompute=policy) for policy in ("full", "selective")
    ]
    found = predict(problem, Layouts.of(layouts), PROFILE.coefficients(problem.scopes))
    needed, generator = found.needed_bytes, np.random.default_rng(0)
    assert needed.max() < 0.5 * problem.cluster.usable_bytes
    fine = [
        Observation(
            key=f"fine {i:02d}",
            problem=problem,
            layout=layouts[i % 2],
            memory_bytes=float(
                found.reserved_bytes[i % 2] * np.exp(0.01 * generator.standard_normal())
            ),
            source="a",
        )
        for i in range(40)
    ]
    alarms = [
        Observation(
            key=f"alarm {i}", problem=problem, layout=layouts[0], out_of_memory=True, source="b"
        )
        for i in range(false_alarms)
    ]
    learnt = calibrate(PROFILE, [*fine, *alarms])
    after = predict(problem, Layouts.of(layouts), learnt.profile.coefficients(problem.scopes))
    assert after.needed_bytes == pytest.approx(needed, rel=0.1)
    assert {alarm.key for alarm in alarms} <= set(learnt.outliers)


def on_one_node(global_batch: int) -> Problem:
    return Problem(
        architecture=catalogue.architecture("llama-3-8b"),
        cluster=catalogue.cluster("h100", 8),
        workload=Workload(seq_len=8192, global_batch=global_batch),
        stack=catalogue.stack("torchtitan"),
    )


def test_runs_that_did_not_fit_raise_the_memory_of_their_kind() -> None:
    problem = on_one_node(16)
    layout = Layout(dp_shard=8, zero_stage=3, recompute="full", micro_batch=2)

    def reserved(profile: Profile) -> float:
        return float(
            predict(
                problem, Layouts.of([layout]), profile.coefficients(problem.scopes)
            ).reserved_bytes[0]
        )

    failed = [
        Observation(key=str(i), problem=problem, layout=layout, out_of_memory=True)
        for i in range(20)
    ]
    assert reserved(PROFILE) < problem.cluster.usable_bytes
    assert reserved(calibrate(PROFILE, failed).profile) > reserved(PROFILE)


def test_layouts_that_all_hold_half_as_much_again_are_believed() -> None:
    problem = on_one_node(64)
    layouts = [
        Layout(
            dp_shard=8 // tp,
            tp=tp,
            zero_stage=3,
            recompute=policy,
            micro_batch=size,
            sequence_parallel=tp > 1,
        )
        for tp, policy, size in product((1, 2, 4), ("none", "full"), (1, 2, 4))
    ]

    def reserved(profile: Profile) -> Array:
        return predict(
            problem, Layouts.of(layouts), profile.coefficients(problem.scopes)
        ).reserved_bytes

    before = reserved(PROFILE)
    measured = [
        Observation(key=str(i), problem=problem, layout=layout, memory_bytes=1.5 * float(held))
        for i, (layout, held) in enumerate(zip(layouts, before, strict=True))
    ]
    learnt = calibrate(PROFILE, measured)
    assert reserved(learnt.profile) == pytest.approx(1.5 * before, rel=0.1)
    assert (learnt.memory_error_after or 1.0) < (learnt.memory_error_before or 0.0)
