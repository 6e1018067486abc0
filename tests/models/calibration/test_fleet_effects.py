"""A fleet learns its own offsets: the truth is recovered, bad reports are survived, and nobody else
pays for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from models.calibration.calibrate import Calibration, calibrate
from models.calibration.fleet_effects import (
    DRIFT_SHARE,
    drift_variance,
    with_fleet_offsets,
    without_fleet,
)
from models.calibration.observation import (
    MAX_SOURCE_WEIGHT,
    Observation,
    with_limited_sources,
)
from models.calibration.posterior import Posterior, shipped_posterior
from models.calibration.time_and_memory_fits import time_fit
from models.cost.predictions import Predictions, predict
from models.prediction.prediction import log_spreads
from models.spec import catalogue
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Neighbourhood, Profile, Term, shipped_profile
from tests.benchmarks.coverage import (
    Fleet,
    World,
    as_modelled,
    covered,
    questions,
    quiet,
    worlds,
)
from tests.benchmarks.problems import problem

QUIET = World(quiet, as_modelled)


@cache
def fleet() -> Fleet:
    return Fleet.shipped()


def reported(seed: int, count: int) -> tuple[Profile, list[Observation]]:
    generator = np.random.default_rng(seed)
    truth = fleet().truth(generator)
    return truth, fleet().reports(truth, count, generator, QUIET)


def learnt(observations: list[Observation]) -> Calibration:
    return calibrate(fleet().profile, with_limited_sources(observations), "x", fleet().posterior)


def seconds(profile: Profile) -> np.ndarray:
    return np.array(
        [
            predict(
                problem, Layouts.of([layout]), profile.coefficients(problem.scopes)
            ).step_time_s[0]
            for problem, layout in questions()
        ]
    )


def error(profile: Profile, truth: Profile) -> float:
    return float(np.median(np.abs(seconds(profile) / seconds(truth) - 1)))


@pytest.mark.long
def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """A few seeds here; tests.benchmarks.coverage takes a thousand."""
    world = worlds(fleet().profile)["as expected"]
    pooled = np.concatenate(
        [covered(fleet(), count, seed, world) for count in (20, 200) for seed in range(8)]
    )
    assert len(pooled) > 100
    assert 0.68 <= pooled.mean() <= 0.92


@pytest.mark.long
def test_more_reports_bring_predictions_closer_to_the_truth() -> None:
    """Of three fleets together: one may lie so near to the profile that little is left to learn."""
    before, after = [], []
    for seed in (1, 2, 3):
        truth, observations = reported(seed, 100)
        before.append(error(fleet().profile, truth))
        after.append(error(learnt(observations).profile, truth))
    assert np.mean(after) < 0.5 * np.mean(before) + 0.005


@cache
def error_without_a_fifth() -> float:
    truth, observations = reported(4, 100)
    return error(learnt([o for i, o in enumerate(observations) if i % 5]).profile, truth)


@pytest.mark.long
@pytest.mark.parametrize("factor", [10.0, 0.1, 1000.0])
def test_a_fifth_of_gross_outliers_is_survived_and_named(factor: float) -> None:
    truth, observations = reported(4, 100)
    bad = {o.key for o in observations[::5]}
    spoilt = [
        replace(o, step_time_s=(o.step_time_s or 0) * (factor if o.key in bad else 1))
        for o in observations
    ]
    found = learnt(spoilt)
    assert error(found.profile, truth) < error_without_a_fifth() + 0.01
    assert bad <= set(found.outliers)
    assert len(set(found.outliers) - bad) <= 3


@pytest.mark.long
def test_a_flood_of_one_source_drags_nobody() -> None:
    truth, observations = reported(5, 120)
    (problem, layout), usual = questions()[0], float(seconds(truth)[0])
    flood = [
        Observation(
            key=f"flood {i}",
            problem=problem,
            layout=layout,
            step_time_s=1.5 * usual,
            source="flood",
            group="flood",
        )
        for i in range(2000)
    ]
    largest = max(Counter(o.source for o in observations).values())
    assert sum(
        o.weight for o in with_limited_sources([*observations, *flood]) if o.source == "flood"
    ) == pytest.approx(min(MAX_SOURCE_WEIGHT, largest))
    assert sum(o.weight for o in with_limited_sources(flood)) == pytest.approx(
        MAX_SOURCE_WEIGHT
    )  # nobody else is dragged
    assert (
        error(learnt([*observations, *flood]).profile, truth)
        < error(learnt(observations).profile, truth) + 0.03
    )


def test_what_others_run_stays_where_it_was() -> None:
    """Reports of one stack: the fleet's offsets take them up, predictions for published machines
    move little."""
    usual = fleet().reports(fleet().profile, 60, np.random.default_rng(6), QUIET)
    slow = [
        replace(o, step_time_s=1.2 * (o.step_time_s or 0))
        for o in usual
        if o.problem.stack.id == "megatron"
    ]
    before, after = (seconds(without_fleet(p)) for p in (fleet().profile, learnt(slow).profile))
    others = [i for i, (problem, _) in enumerate(questions()) if problem.stack.id != "megatron"]
    assert np.abs(after / before - 1)[others].max() < 0.03


def test_a_first_report_is_trusted_less_than_one_of_a_fleet_that_is_known() -> None:
    """How far a fleet's runs scatter is not known from the first of them."""
    report = fleet().reports(fleet().profile, 1, np.random.default_rng(7), QUIET)[0]
    slow = replace(report, step_time_s=1.3 * (report.step_time_s or 0))
    pair = Neighbourhood(
        scope=slow.problem.fleet_scopes["pair"], spread=0.2, unidentified=0.0, runs=200
    )
    known = replace(fleet().profile, neighbourhoods=(*fleet().profile.neighbourhoods, pair))
    first, later = (calibrate(p, [slow], "x", fleet().posterior) for p in (fleet().profile, known))
    moved, further = (np.log(seconds(c.profile) / seconds(fleet().profile)) for c in (first, later))
    assert 0.01 < moved.max() < 0.9 * further.max()


def test_reports_of_a_sparse_model_move_it_most_and_dense_models_least() -> None:
    """What all sparse models of a fleet have in common, and each of them with itself, are offsets
    of their own: 30% more than predicted says less of a dense model on the same machines."""
    mixtral, layout = next(asked for asked in questions() if asked[0].architecture.is_moe)
    larger, llama = (
        replace(mixtral, architecture=catalogue.architecture(name))
        for name in ("mixtral-8x22b", "llama-3.1-8b")
    )
    slow = [
        Observation(
            key=f"{i}",
            problem=mixtral,
            layout=layout,
            step_time_s=1.3 * float(_predicted(mixtral, layout, fleet().profile).step_time_s[0]),
        )
        for i in range(5)
    ]
    profile = learnt(slow).profile

    def moved(problem: Problem) -> float:
        before, after = (
            _predicted(problem, layout, p).step_time_s[0] for p in (fleet().profile, profile)
        )
        return float(np.log(after / before))

    # Sequences are as long, so that what these have in common moves the dense model too.
    assert 0 < moved(llama) < 0.8 * moved(larger)
    assert moved(larger) < 0.9 * moved(mixtral)


def test_reports_of_one_sequence_length_move_that_length_most() -> None:
    asked, layout = next(asked for asked in questions() if not asked[0].architecture.is_moe)
    longer = replace(asked, workload=replace(asked.workload, seq_len=2 * asked.workload.seq_len))
    profile = with_fleet_offsets(fleet().profile, [asked, longer])
    slow = [
        Observation(
            key=f"{i}",
            problem=asked,
            layout=layout,
            step_time_s=1.3 * float(_predicted(asked, layout, profile).step_time_s[0]),
        )
        for i in range(5)
    ]
    after = calibrate(profile, slow, "x", fleet().posterior).profile

    def moved(problem: Problem) -> float:
        times = [_predicted(problem, layout, p).step_time_s[0] for p in (profile, after)]
        return float(np.log(times[1] / times[0]))

    assert 0 < moved(longer) < 0.9 * moved(asked)


def test_a_fleet_far_from_all_others_is_learnt_from_ten_reports() -> None:
    told = [
        replace(run, step_time_s=1.6 * (run.step_time_s or 0))
        for run in fleet().reports(fleet().profile, 10, np.random.default_rng(11), QUIET)
    ]
    profile = learnt(told).profile
    ratios = [
        float(_predicted(run.problem, run.layout, profile).step_time_s[0]) / (run.step_time_s or 1)
        for run in told
    ]
    assert np.median(ratios) > 0.9


def test_a_report_is_as_noisy_as_published_runs_that_are_as_sparse() -> None:
    """But for what all runs of a sparse model have in common, for which there is an offset."""
    observations = reported(9, 40)[1]
    fit = time_fit(fleet().profile, observations, fleet().posterior, new_fleet=True)
    of_model = next(
        term.spread
        for term in fleet().profile.terms
        if term.coefficient == "compute_overhead" and term.scope.startswith("fleet:model:")
    )
    for target, noise in zip(fit.targets, fit.prior_noise, strict=True):
        density = "sparse" if target.problem.architecture.is_moe else "dense"
        spread = fleet().profile.neighbourhood(("all", f"all/{density}")).spread
        common = of_model if density == "sparse" else 0.0
        assert np.hypot(noise, common) == pytest.approx(spread)


def test_a_fleet_begins_where_everybody_is() -> None:
    assert seconds(fleet().profile) == pytest.approx(seconds(shipped_profile()), rel=1e-12)
    widened = with_fleet_offsets(shipped_profile(), {problem for problem, _ in questions()})
    assert without_fleet(widened) == shipped_profile()
    assert with_fleet_offsets(fleet().profile, {questions()[0][0]}) == fleet().profile


def test_what_was_learnt_may_drift() -> None:
    known = learnt(reported(7, 100)[1])
    added = drift_variance(known.profile)
    assert added.keys() == {t.key for t in known.profile.terms if t.scope.startswith("fleet:")}
    key = ("compute_overhead", questions()[0][0].fleet_scopes["pair"])
    assert added[key] == pytest.approx((DRIFT_SHARE * 0.14) ** 2)
    loose = known.posterior.with_added_variance(added)
    at = loose.keys.index(key)
    before, after = (np.linalg.inv(p.precision)[at, at] for p in (known.posterior, loose))
    assert after == pytest.approx(before + added[key])


def test_an_offset_that_only_an_earlier_release_gave_is_not_known_to_drift() -> None:
    offset = Term(coefficient="compute_overhead", scope="fleet:all", mean=0.1, spread=0.05)
    stored = fleet().profile.with_terms({offset.key: offset})
    assert drift_variance(stored) == drift_variance(fleet().profile)


def _layout_that_just_fits() -> tuple[Problem, Layout]:
    asked = problem("llama-3.1-405b", ("h100", 2048), "megatron", seq_len=8192, global_batch=2048)
    return asked, Layout(
        pp=16, dp_shard=16, tp=8, sequence_parallel=True, zero_stage=1, micro_batch=2
    )


def test_that_a_layout_fitted_is_said_once_however_often_it_ran() -> None:
    """Fifty runs tell no more of what it needs than one does; that they ran shortens no measured
    peak."""
    asked, layout = _layout_that_just_fits()
    before = float(_predicted(asked, layout, shipped_profile()).needed_bytes[0])
    chip = asked.cluster.chip
    chip = replace(chip, memory_gb=chip.memory_gb * 1.01 * before / asked.cluster.usable_bytes)
    tight = replace(asked, cluster=replace(asked.cluster, chip=chip))

    def needed(runs: int) -> float:
        profile = with_fleet_offsets(shipped_profile(), {tight})
        seen = [
            Observation(key=f"{i:02d}", problem=tight, layout=layout, step_time_s=20.0)
            for i in range(runs)
        ]
        found = calibrate(profile, with_limited_sources(seen), "x", shipped_posterior()).profile
        return float(_predicted(tight, layout, found).needed_bytes[0])

    once, often, more = needed(1), needed(50), needed(400)
    assert often < before
    assert before - often < 2 * (before - once)
    assert more == pytest.approx(often, rel=0.01)


def test_one_report_makes_nothing_less_sure() -> None:
    """Not of its own kind, whose step it measured as predicted, and not of another stack."""
    asked, layout = _layout_that_just_fits()
    other = replace(asked, stack=catalogue.stack("torchtitan"))
    time = predict(
        asked, Layouts.of([layout]), shipped_profile().coefficients(asked.scopes)
    ).step_time_s[0]
    profile = with_fleet_offsets(shipped_profile(), {asked})
    seen = [Observation(key="0", problem=asked, layout=layout, step_time_s=float(time))]
    found = calibrate(profile, seen, "x", shipped_posterior()).profile
    for of, place in (
        (asked, layout),
        (other, Layout(dp_shard=256, tp=8, sequence_parallel=True, zero_stage=3)),
    ):
        before, after = (
            log_spreads(_predicted(of, place, p), p) for p in (shipped_profile(), found)
        )
        for one, then in zip(before, after, strict=True):
            assert then <= one * (1 + 1e-9)


def _predicted(asked: Problem, layout: Layout, profile: Profile) -> Predictions:
    return predict(asked, Layouts.of([layout]), profile.coefficients(asked.scopes))


def test_a_posterior_is_integrated_over_what_is_not_asked() -> None:
    posterior = shipped_posterior()
    keys = list(posterior.keys[5:15])
    found = np.linalg.inv(posterior.precision_of(keys, np.ones(len(keys))))
    assert found == pytest.approx(
        np.linalg.inv(posterior.precision)[5:15, 5:15], rel=1e-6, abs=1e-12
    )
    whole = posterior.precision_of(list(reversed(posterior.keys)), np.ones(len(posterior.keys)))
    assert whole == pytest.approx(posterior.precision[::-1, ::-1])
    strangers = Posterior.independent().precision_of(keys, np.full(len(keys), 0.5))
    assert strangers == pytest.approx(4 * np.eye(len(keys)))


def test_a_posterior_survives_being_written() -> None:
    posterior = shipped_posterior()
    again = Posterior.from_json(posterior.to_json())
    assert again.keys == posterior.keys
    assert again.precision == pytest.approx(posterior.precision, rel=1e-4, abs=1e-3)
    assert np.linalg.eigvalsh(again.precision).min() > 0
