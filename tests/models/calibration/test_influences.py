"""Influences add up to what a fit learnt, and each group has its own part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.calibration.calibrate import calibrate
from models.calibration.fleet_effects import with_fleet_offsets
from models.calibration.influences import group_shifts, influences, joined
from models.calibration.map_fit import Estimate, Fit
from models.calibration.observation import Observation
from models.calibration.posterior import Posterior, shipped_posterior
from models.calibration.time_and_memory_fits import solve_time_fit
from models.columns import Array
from models.cost.predictions import predict
from models.spec import catalogue
from models.spec.influences import Influences
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile, shipped_profile
from models.spec.workload import Workload

PROFILE = shipped_profile()


def run(
    key: str,
    factor: float,
    model: str = "llama-3-8b",
    *,
    chip: str = "h100",
    stack: str = "torchtitan",
    batch: int = 32,
) -> Observation:
    """A run that took `factor` times what the shipped profile predicts."""
    problem = Problem(
        architecture=catalogue.architecture(model),
        cluster=catalogue.cluster(chip, 16),
        workload=Workload(seq_len=8192, global_batch=batch),
        stack=catalogue.stack(stack),
    )
    layout = Layout(dp_shard=16, zero_stage=3, recompute="selective")
    predicted = predict(problem, Layouts.of([layout]), PROFILE.coefficients(problem.scopes))
    step_time_s = factor * float(predicted.step_time_s[0])
    return Observation(
        key=key, problem=problem, layout=layout, step_time_s=step_time_s, source="a", group=model
    )


def runs(name: str, count: int, factor: float, model: str, **where: str) -> list[Observation]:
    """Runs of several sizes, with a noise of 1%."""
    noise = np.exp(np.random.default_rng(count).normal(0, 0.01, count))
    return [
        run(f"{name}-{i:02}", factor * float(away), model, batch=16 * (1 + i % 3), **where)
        for i, away in enumerate(noise)
    ]


def fit_of(observations: list[Observation], posterior: Posterior) -> tuple[Fit, Estimate]:
    profile = with_fleet_offsets(PROFILE, [o.problem for o in observations])
    fit, estimate, _ = solve_time_fit(profile, observations, posterior, new_fleet=True)
    return fit, estimate


def shifts_in_spreads(
    groups: list[list[Observation]], posterior: Posterior | None = None
) -> tuple[Array, Array]:
    """The shifts of the groups, (groups, terms), and those of the whole fit, (terms,), in spreads
    of the prior."""
    everything = [o for group in groups for o in group]
    fit, estimate = fit_of(everything, posterior or Posterior.independent())
    shifts = group_shifts(fit, estimate, [[o.key for o in group] for group in groups])
    return shifts / fit.prior_spread, (estimate.theta - fit.prior_mean) / fit.prior_spread


LLAMA = runs("a", 6, 1.15, "llama-3-8b")
QWEN = runs("b", 4, 0.9, "qwen3-8b", stack="megatron")
ON_A100 = runs("c", 3, 1.3, "llama-3-8b", chip="a100")
OUTLIER = [run("d", 6.0, "qwen3-8b")]
BENCHMARK = [replace(run("e", 1.0), step_time_s=None, coefficients={"gemm_16": 0.5})]


@pytest.mark.parametrize("posterior", [Posterior.independent(), shipped_posterior()])
@pytest.mark.parametrize(
    "groups",
    [
        [LLAMA],
        [LLAMA, QWEN],
        [LLAMA, QWEN, ON_A100],
        [LLAMA, OUTLIER],
        [LLAMA, BENCHMARK],
        [LLAMA, QWEN, ON_A100, OUTLIER, BENCHMARK],
    ],
)
def test_the_shifts_of_the_groups_add_up_to_what_was_learnt(
    groups: list[list[Observation]], posterior: Posterior
) -> None:
    shifts, whole = shifts_in_spreads(groups, posterior)
    assert np.abs(whole).max() > 0.1
    # A fit ends with a step of 0.02 spreads or less.
    assert shifts.sum(axis=0) == pytest.approx(whole, abs=0.02)


def test_runs_that_are_as_fast_as_predicted_have_no_part_in_what_others_moved() -> None:
    expected = [run(f"e-{i}", 1.0, "qwen3-8b", batch=16 * (1 + i)) for i in range(3)]
    (of_slow, of_expected), _ = shifts_in_spreads([runs("s", 6, 1.15, "llama-3-8b"), expected])
    assert np.abs(of_slow).max() > 0.1
    assert np.abs(of_expected).max() < 0.02 * np.abs(of_slow).max()


def test_groups_that_measured_the_same_have_equal_parts() -> None:
    twin = [replace(o, key=f"twin-{o.key}") for o in LLAMA]
    (of_one, of_other), whole = shifts_in_spreads([LLAMA, twin])
    assert of_one == pytest.approx(of_other)
    assert 2 * of_one == pytest.approx(whole, abs=0.02)


def test_a_slow_group_and_a_quick_one_pull_what_they_share_apart() -> None:
    (of_llama, of_qwen), _ = shifts_in_spreads([LLAMA, QWEN])
    fit, _ = fit_of([*LLAMA, *QWEN], Posterior.independent())
    shared = fit.column["compute_overhead", "fleet:chip:h100-sxm-80gb"]
    assert of_llama[shared] > 0.05
    assert of_qwen[shared] < -0.05


def told(observations: list[Observation]) -> Influences:
    profile = with_fleet_offsets(PROFILE, [o.problem for o in observations])
    found = calibrate(profile, observations, posterior=shipped_posterior()).profile.influences
    assert found is not None
    return found


def test_a_profile_names_its_groups_the_largest_first_with_their_latest_runs() -> None:
    found = told([*QWEN, *LLAMA, *BENCHMARK])
    llama, qwen, benchmark = sorted(found.groups, key=lambda group: -group.runs)
    assert found.groups[0] is llama
    assert (llama.model, llama.stack, llama.runs) == ("llama-3-8b", "torchtitan", 6)
    assert llama.latest == ("a-05", "a-04", "a-03")
    assert (qwen.model, qwen.stack, qwen.runs) == ("qwen3-8b", "megatron", 4)
    assert (benchmark.model, benchmark.runs, benchmark.benchmarks) == (None, 0, 1)
    assert found.against_version == PROFILE.version


def test_the_order_of_the_runs_changes_no_influence() -> None:
    observations = [*LLAMA, *QWEN, *ON_A100]
    assert told(observations) == told(observations[::-1])


def test_many_groups_are_kept_as_forty_and_the_rest_together() -> None:
    made = list[Observation]()
    for i in range(45):
        one = run(f"g-{i}", 1.1, batch=16 * (1 + i))
        architecture = replace(one.problem.architecture, name=f"model-{i}")
        made.append(replace(one, problem=replace(one.problem, architecture=architecture)))
    found = told(made)
    assert len(found.groups) == 41
    rest = found.groups[-1]
    assert (rest.chip, rest.stack, rest.model) == ("h100-sxm-80gb", "torchtitan", None)
    assert sum(group.runs for group in found.groups) == len(made)


def test_joined_groups_keep_the_names_that_they_share_and_add_their_shifts() -> None:
    first, second = told([*LLAMA, *QWEN]).groups
    both = joined([first, second])
    assert (both.chip, both.stack, both.model) == (first.chip, None, None)
    assert both.runs == first.runs + second.runs
    assert both.shift == pytest.approx(np.add(first.shift, second.shift))
    assert both.latest == ("b-03", "b-02", "b-01")


def test_a_fit_of_published_runs_has_no_influences() -> None:
    assert calibrate(PROFILE, LLAMA, published=True).profile.influences is None


def test_a_profile_keeps_its_influences_in_its_written_form() -> None:
    profile = calibrate(PROFILE, [*LLAMA, *QWEN]).profile
    again = Profile.from_json(profile.to_json())
    assert again.influences == profile.influences
    assert again == profile


def test_a_profile_that_was_written_without_influences_has_none() -> None:
    document = calibrate(PROFILE, LLAMA).profile.to_json()
    del document["influences"]
    assert Profile.from_json(document).influences is None
    assert "influences" not in PROFILE.to_json()


def test_every_calibration_names_its_own_measurements_alone() -> None:
    first = calibrate(PROFILE, LLAMA).profile
    second = calibrate(replace(first, version=2), QWEN).profile.influences
    assert second is not None
    assert second.against_version == 2
    assert [group.model for group in second.groups] == ["qwen3-8b"]


def test_terms_of_memory_have_no_influences() -> None:
    fit, estimate = fit_of(LLAMA, Posterior.independent())
    terms = [*fit.column, ("fragmentation", "all")]
    found = influences(fit, estimate, LLAMA, terms)
    assert found is not None
    assert "fragmentation" not in {coefficient for coefficient, _ in found.terms}
