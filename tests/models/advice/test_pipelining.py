"""Whether a pipeline is needed, and why."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from models.advice.frontier import frontier
from models.advice.recommendation import recommend
from models.advice.thresholds import thresholds
from models.spec import catalogue
from models.spec.constraints import Constraints
from tests.benchmarks.problems import problem
from tests.models.advice.problems import PROFILE


@pytest.mark.parametrize("cluster", [("h100", 64), ("gb200-nvl72", 64), ("tpu-v5p", 64)])
def test_verdicts_thresholds_and_frontiers_mean_the_same_by_needed(
    cluster: tuple[str, int],
) -> None:
    stack = "maxtext" if cluster[0].startswith("tpu") else "megatron"
    question = problem("llama-3-70b", cluster, stack, seq_len=8192, global_batch=64)
    gap = recommend(question, PROFILE).pipelining.gap
    assert gap is not None
    tolerances = {0.0: gap > 0, 1.0: gap > 1}
    if gap > 0:
        tolerances |= {0.9 * gap: True, 1.1 * gap: False}
    for tolerance, needed in tolerances.items():
        found = recommend(question, PROFILE, tolerance=tolerance).pipelining
        assert found.needed == needed
        assert found.verdict.startswith("needed: worth" if needed else "not needed: ")
        terms = re.findall(r"([+-][\d.e-]+) s", found.verdict) if gap > 0 else []
        assert not terms or float(terms[0]) == pytest.approx(
            sum(map(float, terms[1:])), rel=0.02, abs=0.01
        )
        (point,) = frontier(question, PROFILE, Constraints(), {"scale_out": [1.0]})
        assert point.is_simple(tolerance) != needed
        stopped = thresholds(question, PROFILE, Constraints(), tolerance, lambda: False)
        assert {one.needed for one in stopped} <= {needed}


def test_the_verdict_says_why_one_side_has_no_layout() -> None:
    question = problem("llama-3-8b", ("h100", 12), "megatron", seq_len=8192, global_batch=8)
    found = recommend(question, PROFILE).pipelining
    assert found.verdict.startswith("needed: of layouts without a pipeline none is legal")
    assert "dp(12)" in found.verdict
    assert found.needed
    even = replace(question, cluster=catalogue.cluster("h100", 8))
    one_sided = recommend(even, PROFILE, Constraints(allowed={"pp": (1,)})).pipelining
    assert one_sided.verdict == "not known: of layouts with a pipeline the constraints allow none"
    assert one_sided.needed is None
    assert recommend(even, PROFILE).pipelining.gap is not None


@pytest.mark.parametrize(("chips", "hides"), [(128, False), (1024, False), (32, True)])
def test_traffic_that_stays_exposed_is_held_against_the_roofline(chips: int, hides: bool) -> None:
    asked = problem("llama-3.1-8b", ("h100", chips), "torchtitan", seq_len=8192, global_batch=128)
    slowed = replace(asked, cluster=asked.cluster.with_changes(scale_out=0.1))
    found = recommend(slowed, PROFILE)
    line, told = (
        found.pipelining.roofline,
        [one for one in found.reasons if one.startswith("roofline")],
    )
    assert line is not None
    assert len(told) == 1
    assert (line.tokens >= line.tokens_needed) == ("all the same" in told[0]) == hides


def test_a_pipeline_that_only_the_batch_asks_for_is_told_apart() -> None:
    asked = problem("llama-3-70b", ("h100", 96), "megatron", seq_len=8192, global_batch=128)
    verdict = recommend(asked, PROFILE).pipelining.verdict
    assert verdict.startswith("needed: of layouts without a pipeline none is legal")
    assert verdict.endswith("neither bandwidth nor memory")
