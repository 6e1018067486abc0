"""What a prediction rests on: counted from the runs behind a profile, and never better than they
are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from models.prediction.coverage import FittedRun, with_coverage
from models.prediction.nearest_runs import (
    DISTANCE_PER_DOUBLING,
    KIND_DISTANCES,
    RunIndex,
    RunTraits,
)
from models.prediction.prediction import Prediction, predict_layouts
from models.spec import catalogue
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile, priors, shipped_profile
from models.spec.workload import Workload

BARE = replace(shipped_profile(), seen=(), spans=())
FSDP = Layout(dp_shard=64, zero_stage=3, recompute="full")


def problem(chip: str = "h100", stack: str = "torchtitan", seq_len: int = 8192) -> Problem:
    return Problem(
        architecture=catalogue.architecture("llama-3.1-8b"),
        cluster=catalogue.cluster(chip, 64),
        workload=Workload(seq_len=seq_len, global_batch=128),
        stack=catalogue.stack(stack),
    )


def predicted(
    profile: Profile, *question: str, layout: Layout = FSDP, seq_len: int = 8192
) -> Prediction:
    return predict_layouts(problem(*question, seq_len=seq_len), [layout], profile)[0]


def taught(*question: str) -> Profile:
    return with_coverage(
        BARE, [FittedRun(problem(*question), FSDP, has_step_time=True, has_memory=False)]
    )


def test_a_profile_without_runs_is_the_data_sheet() -> None:
    found = predicted(BARE).provenance
    assert found.grade == "data_sheet"
    assert {basis.ground for basis in found.terms.values()} == {"data_sheet"}
    assert found.outside == ()


def test_a_run_is_a_measurement_where_it_ran_and_a_relative_elsewhere() -> None:
    profile = taught("h100", "torchtitan")
    grounds = {
        ("h100", "torchtitan"): "measured",
        ("h200", "torchtitan"): "inherited",
        ("h100", "megatron"): "inherited",
        ("a100", "torchtitan"): "data_sheet",
        ("a100", "megatron"): "data_sheet",
    }
    for question, ground in grounds.items():
        assert predicted(profile, *question).provenance.terms["compute_s"].ground == ground, (
            question
        )
    assert predicted(profile, "h200").provenance.terms["compute_s"].scope == "generation:hopper"
    assert predicted(profile, "a100").provenance.terms["data_s"].scope == "stack:torchtitan"


def test_only_what_a_run_exercised_is_measured() -> None:
    """Full recompute by FSDP says nothing of tensor-parallel traffic, and a step time nothing of
    memory."""
    layout = Layout(tp=8, dp_shard=8, zero_stage=3, sequence_parallel=True)
    found = predicted(taught(), layout=layout).provenance
    assert found.terms["compute_s"].ground == "measured"
    assert found.terms["tensor_s"].ground == "data_sheet"
    assert found.terms["activations_gib"].ground == "data_sheet"
    assert found.grade == "data_sheet"
    has_memory = with_coverage(
        BARE, [FittedRun(problem(), FSDP, has_step_time=False, has_memory=True)]
    )
    assert predicted(has_memory).provenance.terms["parameters_gib"].ground == "measured"


def test_terms_that_are_nothing_have_no_ground() -> None:
    found = predicted(BARE)
    everything = {**found.time, **found.memory_gib}
    assert found.provenance.terms.keys() == {
        name for name, value in everything.items() if value > 0
    }


def test_a_generation_on_which_nothing_ran_is_named_and_its_interval_wider() -> None:
    profile = replace(taught("h100", "torchtitan"), unseen_widening=2.0)
    there = predicted(profile, "mi300x", "torchtitan")
    assert "no run behind the profile is on cdna3 chips" in there.provenance.outside
    alike = predicted(replace(profile, unseen_widening=1.0), "mi300x", "torchtitan")
    assert there.step_time_high_s > alike.step_time_high_s
    assert there.step_time_s == alike.step_time_s


def test_runs_on_a_generation_say_less_of_a_chip_that_is_announced() -> None:
    """TPU 8t is of the generation of TPU v6e, and its peaks are partly guessed."""
    profile = replace(taught("tpu-v6e", "maxtext"), unseen_widening=2.0)
    announced = predicted(profile, "tpu-v8t", "maxtext")
    assert announced.provenance.terms["compute_s"].ground == "data_sheet"
    assert "nothing has been measured on tpu-v8t" in announced.provenance.outside
    alike = predicted(replace(profile, unseen_widening=1.0), "tpu-v8t", "maxtext")
    assert announced.step_time_high_s > alike.step_time_high_s
    sold = predicted(profile, "tpu-v7x", "maxtext", layout=replace(FSDP, dp_shard=128))
    assert sold.provenance.terms["compute_s"].ground == "inherited"
    assert not any("nothing has been measured" in line for line in sold.provenance.outside)


def test_what_lies_beyond_every_run_is_named() -> None:
    profile = taught()
    assert predicted(profile).provenance.outside == ()
    (line, tokens) = predicted(profile, seq_len=16384).provenance.outside
    assert line == "seq_len = 16384 is beyond the 8192 of any run"
    assert tokens.startswith("tokens_per_step")
    other = with_coverage(
        profile,
        [FittedRun(problem("a100", seq_len=16384), FSDP, has_step_time=True, has_memory=False)],
    )
    assert (
        "seq_len = 16384 is beyond the 8192 of any run on hopper"
        in predicted(other, seq_len=16384).provenance.outside
    )


@pytest.mark.parametrize(("seq_len", "times"), [(8192, 1), (16384, 2)])
def test_a_prediction_where_no_run_has_been_is_wider(seq_len: int, times: int) -> None:
    def width(beyond: float) -> float:
        found = predicted(replace(taught(), unseen_widening=beyond), seq_len=seq_len)
        return math.log(found.step_time_high_s / found.step_time_low_s)

    assert width(2.0) == pytest.approx(times * width(1.0))


def test_coverage_of_the_same_run_adds_up() -> None:
    run = FittedRun(problem(), FSDP, has_step_time=True, has_memory=True)
    once, twice = with_coverage(BARE, [run]), with_coverage(BARE, [run, run])
    assert with_coverage(once, [run]) == twice
    assert {one.runs for one in once.seen} == {1}
    assert {one.runs for one in twice.seen} == {2}


def test_sources_are_counted_once_however_many_runs_they_have() -> None:
    def run(source: str, chip: str = "h100") -> FittedRun:
        return FittedRun(problem(chip), FSDP, has_step_time=True, has_memory=False, source=source)

    def counted(profile: Profile, chip: str) -> tuple[int, int | None]:
        basis = predicted(profile, chip).provenance.terms["compute_s"]
        return basis.runs, basis.sources

    once = with_coverage(BARE, [run("a"), run("a"), run("b")])
    assert counted(once, "h100") == (3, 2)
    later = with_coverage(once, [run("b"), run("c"), run("c", "h200")])
    assert counted(later, "h100") == (5, 3)
    assert counted(later, "h200") == (1, 1)
    assert counted(once, "h200") == (3, 2)  # of the generation
    assert counted(once, "a100") == (0, 0)


def test_a_profile_that_does_not_say_whose_its_runs_are_has_no_number_of_sources() -> None:
    data = taught().to_json()
    for one in data["seen"]:
        del one["sources"]
    basis = predicted(Profile.from_json(data)).provenance.terms["compute_s"]
    assert (basis.runs, basis.sources) == (1, None)


def test_the_shipped_profile_says_how_many_sources_it_has() -> None:
    for one in shipped_profile().seen:
        assert 1 <= len({*one.sources}) == len(one.sources) <= one.runs, one


def test_profiles_keep_what_they_have_seen() -> None:
    profile = taught()
    assert Profile.from_json(profile.to_json()) == profile
    assert shipped_profile().seen
    assert shipped_profile().spans


def test_a_profile_older_than_a_coefficient_has_it_as_measured() -> None:
    profile = shipped_profile()
    data = profile.to_json()
    data["terms"] = [term for term in data["terms"] if term["coefficient"] != "expert_launch_s"]
    old, prior = Profile.from_json(data), priors()
    assert old.by_key["expert_launch_s", "all"] == prior.by_key["expert_launch_s", "all"]
    assert old.by_key["launch_s", "all"] == profile.by_key["launch_s", "all"]
    scopes = problem().scopes
    assert old.coefficients(scopes).expert_launch_s == pytest.approx(
        prior.coefficients(scopes).expert_launch_s
    )


def test_nearness_counts_what_differs_and_only_what_is_asked() -> None:
    here = RunTraits.of(problem(), FSDP)
    far = RunTraits.of(problem("a100", "megatron", seq_len=16384), FSDP)
    library = RunIndex([here, far])
    assert library.distances(RunTraits()).tolist() == [0, 0]
    apart = (
        KIND_DISTANCES["generation"]
        + KIND_DISTANCES["chip"]
        + KIND_DISTANCES["stack"]
        + 2 * DISTANCE_PER_DOUBLING
    )  # twice the tokens of a step as well
    assert library.distances(here).tolist() == [0, pytest.approx(apart)]
    assert library.distances(RunTraits(stack="megatron")).tolist() == [KIND_DISTANCES["stack"], 0]
    assert RunTraits(stack="megatron", seq_len=8192).differences_from(here) == {
        "stack": ("megatron", "torchtitan")
    }
