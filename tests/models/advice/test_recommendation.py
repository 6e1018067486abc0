"""What an answer is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.advice.recommendation import recommend
from models.cost.memory_uncertainty import percent
from models.errors import Infeasible
from models.layouts.complexity import TERM_WORDS
from models.prediction.prediction import predict_layouts
from models.spec.constraints import SAFE_FIT_PROBABILITY, Constraints
from models.spec.layout import Layout
from tests.benchmarks.problems import NAMED, problem
from tests.models.advice.problems import PROFILE, llama
from tests.models.advice.told import told


def test_offload_fills_no_more_than_there_is_on_the_host() -> None:
    """405B on 512 v5p would keep 374 GiB a chip in hosts of 112 GB a chip."""
    question = problem(
        "llama-3.1-405b", ("tpu-v5p", 512), "maxtext", seq_len=8192, global_batch=512
    )
    limited = recommend(question, PROFILE).fastest.prediction
    assert limited.host_usable_gib == pytest.approx(112e9 / 2**30)
    assert limited.host_gib <= 112e9 / 2**30
    unknown = replace(question.cluster, chip=replace(question.cluster.chip, host_memory_gb=None))
    free = recommend(replace(question, cluster=unknown), PROFILE).fastest.prediction
    assert free.host_usable_gib is None
    assert free.host_gib > 2 * 112e9 / 2**30
    assert free.step_time_s < limited.step_time_s


def test_what_no_host_can_hold_is_told() -> None:
    question = problem("llama-3-8b", ("h100", 8), "megatron", seq_len=8192, global_batch=8)
    little = replace(question.cluster, chip=replace(question.cluster.chip, host_memory_gb=0.001))
    with pytest.raises(Infeasible, match="GiB of host memory"):
        recommend(
            replace(question, cluster=little),
            PROFILE,
            Constraints(allowed={"offload_activations": (True,)}),
        )


def test_a_stopped_search_claims_nothing_it_does_not_know() -> None:
    found = recommend(NAMED["llama-3.1-405b"](), PROFILE, should_continue=lambda: False)
    assert not found.certificate.exact
    assert found.pipelining.needed == "unknown"
    assert found.pipelining.verdict.startswith("The search was stopped, so it is not known")


def test_a_chip_that_nobody_ran_on_has_a_wider_interval() -> None:
    known = llama(16, 64)
    chip = replace(known.cluster.chip, id="my-chip", generation="of-my-own")
    unknown = replace(known, cluster=replace(known.cluster, chip=chip))
    layout = [Layout(dp_shard=16, zero_stage=1)]
    widths = []
    for one in (
        known,
        replace(known, cluster=replace(known.cluster, chip=replace(chip, generation="hopper"))),
        unknown,
    ):
        found = predict_layouts(one, layout, PROFILE)[0]
        widths.append(found.step_time_high_s / found.step_time_low_s)
    assert widths[0] < widths[1] < widths[2]


def test_what_no_run_supports_is_said_and_can_be_left_out() -> None:
    question = problem("deepseek-v3", ("tpu-v5p", 2048), "maxtext", seq_len=4096, global_batch=8192)
    without = replace(PROFILE, seen=tuple(one for one in PROFILE.seen if one.term != "expert_s"))
    fastest = recommend(question, without, tolerance=0.0)  # the simplest within 3% has no ep
    (sentence,) = told(fastest.reasons, "unsupported")
    assert "expert traffic" in sentence
    assert "constraints.ep = 1" in sentence
    found = recommend(question, without, Constraints(allowed={"ep": (1,)}))
    assert found.fastest.prediction.layout.ep == 1
    assert found.fastest.prediction.provenance.grade == "measured"
    assert not told(found.reasons, "unsupported")


def test_what_simplicity_costs_is_a_number() -> None:
    found = recommend(NAMED["gpt3-175b 1600"](), PROFILE)
    times = [one.prediction.step_time_s for one in (found.fastest, found.simplest)]
    assert 0 < found.simplest_gap == times[1] / times[0] - 1 <= 0.03
    (named,) = told(found.reasons, "recommended")
    assert f"{found.simplest_gap:.1%} more" in named
    found = recommend(NAMED["gpt3-175b 1600"](), PROFILE, tolerance=1.0)
    dropped = found.fastest.complexity_terms.keys() - found.simplest.complexity_terms.keys()
    assert dropped
    (named,) = told(found.reasons, "recommended")
    for name in dropped:
        assert TERM_WORDS[name] in named
    assert "_" not in named.split(" harder to run: it has ")[1]


def test_memory_is_told_of_the_layout_to_launch() -> None:
    found = recommend(NAMED["gpt3-175b 1600"](), PROFILE)
    recommended = found.recommended.prediction
    assert recommended.layout != found.fastest.prediction.layout
    (sentence,) = told(found.reasons, "memory")
    whose, _, fastest = sentence.partition(". The fastest needs ")
    assert f"The recommended layout needs {recommended.needed_gib:.1f} " in whose
    assert whose.endswith(percent(recommended.fit_probability))
    assert fastest.startswith(f"{found.fastest.prediction.needed_gib:.1f} GiB and fits with ")


def test_that_the_layout_to_launch_may_not_fit_is_told_of_that_layout() -> None:
    """Whether it is the fastest one or a simpler one."""
    for chips in (8, 16, 24):
        found = recommend(llama(chips, 96), PROFILE, Constraints(min_fit_probability=0.5))
        is_told = bool(told(found.reasons, "fit"))
        assert is_told == (found.recommended.prediction.fit_probability < SAFE_FIT_PROBABILITY)


def test_of_layouts_that_differ_by_rounding_the_plain_schedule_is_taken() -> None:
    """All forwards first takes as long as 1f1b where the last stage is slowest, to the last digit
    but one, and holds 29 GiB more."""
    plain = Constraints(
        allowed={"schedule": ("1f1b", "afab"), "balanced": (False,), "pp": (2, 4, 8)}
    )
    found = recommend(
        problem("llama-3-70b", ("h100", 64), "generic", seq_len=2048, global_batch=64),
        PROFILE,
        plain,
    )
    assert found.fastest.prediction.layout.schedule == "1f1b"
    other = replace(found.fastest.prediction.layout, schedule="afab")
    (afab,) = predict_layouts(found.problem, [other], PROFILE)
    assert afab.step_time_s == pytest.approx(found.fastest.prediction.step_time_s, rel=1e-12)
    assert afab.needed_gib > found.fastest.prediction.needed_gib + 29


@pytest.mark.parametrize("tolerance", [0.005, 0.01, 0.02, 0.03, 0.05])
@pytest.mark.parametrize(
    ("model", "chips", "batch"),
    [("llama-3.1-8b", 8, 64), ("llama-3.1-70b", 64, 128), ("qwen3-30b-a3b", 64, 256)],
)
def test_where_the_worth_of_a_pipeline_is_undecided_doing_without_may_cost_twice_the_tolerance(
    model: str, chips: int, batch: int, tolerance: float
) -> None:
    asked = problem(model, ("h100", chips), "megatron", seq_len=8192, global_batch=batch)
    found = recommend(asked, PROFILE, tolerance=tolerance)
    recommended = found.recommended.prediction
    without = found.pipelining.without
    assert without is not None
    fastest_s = found.fastest.prediction.step_time_s
    costs = without.prediction.step_time_s / fastest_s - 1
    may_do_without = costs <= (2 if found.pipelining.needed == "undecided" else 1) * tolerance
    assert (recommended.layout.pp == 1) == may_do_without
    assert recommended.step_time_s <= fastest_s * (1 + 2 * tolerance)
    assert found.layouts[0] == found.recommended
