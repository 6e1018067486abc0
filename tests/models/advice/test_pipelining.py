"""Whether a pipeline is needed, and why."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from models.advice.frontier import frontier
from models.advice.pipelining import need_by_gap
from models.advice.recommendation import recommend
from models.advice.thresholds import thresholds
from models.cost.predictions import predict
from models.prediction.prediction import log_ratio_spread, log_spreads
from models.spec import catalogue
from models.spec.constraints import Constraints
from models.spec.layout import Layout, Layouts
from tests.benchmarks.problems import problem
from tests.models.advice.problems import PROFILE
from tests.models.advice.told import told


@pytest.mark.parametrize("cluster", [("h100", 64), ("gb200-nvl72", 64), ("tpu-v5p", 64)])
def test_verdicts_thresholds_and_frontiers_mean_the_same_by_needed(
    cluster: tuple[str, int],
) -> None:
    stack = "maxtext" if cluster[0].startswith("tpu") else "megatron"
    question = problem("llama-3-70b", cluster, stack, seq_len=8192, global_batch=64)
    plain = recommend(question, PROFILE).pipelining
    gap, low, high = plain.gap, plain.gap_low, plain.gap_high
    assert gap is not None
    assert low is not None
    assert high is not None
    assert low < gap < high
    near = {0.9 * low + 0.1 * high, gap, 0.1 * low + 0.9 * high}
    tolerances: dict[float, str] = dict.fromkeys(near, "undecided")
    tolerances[high + 0.01] = "no"
    if low > 0.01:
        tolerances[low - 0.01] = "yes"
    tolerances = {tolerance: need for tolerance, need in tolerances.items() if 0 <= tolerance <= 1}
    words: dict[str, str | tuple[str, ...]] = {
        "yes": "A pipeline pays here. ",
        "no": "No pipeline is needed. ",
        "undecided": ("A pipeline probably ", "Whether a pipeline pays here is a toss-up "),
    }
    for tolerance, needed in tolerances.items():
        found = recommend(question, PROFILE, tolerance=tolerance).pipelining
        assert found.needed == needed
        assert found.needed_probability is not None
        low_odds, high_odds = {"no": (0, 0.1), "undecided": (0.1, 0.9), "yes": (0.9, 1)}[needed]
        assert low_odds <= found.needed_probability <= high_odds
        assert found.verdict.startswith(words[needed])
        if found.verdict.startswith("Whether"):
            assert 0.4 <= found.needed_probability <= 0.6
        elif found.needed == "undecided":
            says_it_pays = found.verdict.startswith("A pipeline probably pays here")
            assert says_it_pays == (found.needed_probability > 0.5)
        for term, seconds in re.findall(r"(\S+) traffic \+([\d.e-]+) s", found.verdict):
            name = {"data-parallel": "data_s", "tensor-parallel": "tensor_s"}.get(term)
            assert name is None or found.split[name] == pytest.approx(float(seconds), rel=0.06)
        (point,) = frontier(question, PROFILE, Constraints(), {"scale_out": [1.0]})
        assert point.need(tolerance) == needed
        stopped = thresholds(question, PROFILE, Constraints(), tolerance, lambda: False)
        assert {one.is_above for one in stopped} <= {gap > tolerance}


def test_what_is_uncertain_of_both_layouts_alike_cancels() -> None:
    """The ratio of two step times is known as well as one of them within a source, not as two
    errors of their own would have it; and a chip that nobody ran on makes it less uncertain than
    either."""
    profile = replace(PROFILE, between_sources=0.0)
    known = problem("llama-3-70b", ("h100", 64), "megatron", seq_len=8192, global_batch=64)
    chip = replace(known.cluster.chip, id="h100-of-tomorrow")
    unknown = replace(known, cluster=replace(known.cluster, chip=chip))
    layouts = [Layout(dp_shard=8, tp=8, zero_stage=3), Layout(dp_shard=4, tp=8, pp=2, zero_stage=1)]
    ratio, alone = [], []
    for question in (known, unknown):
        coefficients = profile.coefficients(question.scopes)
        pair = predict(question, Layouts.of(layouts), coefficients)
        ratio.append(log_ratio_spread(pair, profile))
        alone.append(log_spreads(pair, profile).slower.max())
        assert log_ratio_spread(pair, replace(profile, between_sources=0.4)) == ratio[-1]
    assert ratio[0] == pytest.approx(alone[0], rel=0.01)
    assert ratio[0] < ratio[1] < alone[1]


@pytest.mark.parametrize(
    ("gap", "spread", "needed"),
    [
        (0.2, 0.01, "yes"),
        (0.2, 0.2, "undecided"),
        (0.031, 1e-6, "yes"),
        (0.03, 0.0, "no"),
        (-0.2, 0.01, "no"),
        (-0.01, 0.05, "undecided"),
        (math.inf, 0.3, "yes"),
        (-1.0, 0.3, "no"),
    ],
)
def test_a_gap_decides_where_its_interval_leaves_the_tolerance_out(
    gap: float, spread: float, needed: str
) -> None:
    assert need_by_gap(gap, spread, 0.03) == needed


def test_the_verdict_says_why_one_side_has_no_layout() -> None:
    question = problem("llama-3-8b", ("h100", 12), "megatron", seq_len=8192, global_batch=8)
    found = recommend(question, PROFILE).pipelining
    assert "No layout without a pipeline is legal here. " in found.verdict
    assert "dp(12)" in found.verdict
    even = replace(question, cluster=catalogue.cluster("h100", 8))
    one_sided = recommend(even, PROFILE, Constraints(allowed={"pp": (1,)})).pipelining
    assert one_sided.verdict == (
        "No layout with a pipeline is left by the constraints. So it is not known whether one is"
        " needed."
    )
    assert one_sided.needed == "unknown"
    assert recommend(even, PROFILE).pipelining.gap is not None


@pytest.mark.parametrize(("chips", "hides"), [(128, False), (1024, False), (32, True)])
def test_traffic_that_stays_exposed_is_held_against_the_roofline(chips: int, hides: bool) -> None:
    asked = problem("llama-3.1-8b", ("h100", chips), "torchtitan", seq_len=8192, global_batch=128)
    slowed = replace(asked, cluster=asked.cluster.with_changes(scale_out=0.1))
    found = recommend(slowed, PROFILE)
    line = found.pipelining.roofline
    assert line is not None
    (sentence,) = told(found.reasons, "data_traffic")
    assert (line.tokens >= line.tokens_needed) == ("would not help" in sentence) == hides


def test_a_pipeline_that_only_the_batch_asks_for_is_told_apart() -> None:
    asked = problem("llama-3-70b", ("h100", 96), "megatron", seq_len=8192, global_batch=128)
    verdict = recommend(asked, PROFILE, Constraints(use_all_chips=True)).pipelining.verdict
    assert verdict.startswith("No layout without a pipeline is legal here. ")
    assert verdict.endswith("neither bandwidth nor memory does.")
