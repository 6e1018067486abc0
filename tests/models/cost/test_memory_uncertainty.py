"""How sure a layout is to fit, by the spread of measured memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.prediction.prediction import predict_layouts
from models.spec.layout import Layout
from tests.benchmarks.problems import problem
from tests.models.advice.problems import PROFILE


def test_memory_has_an_interval_and_a_chance_to_fit() -> None:
    """Even where it is predicted to need what there is, nine in ten where the upper end of the
    interval fits."""
    base = problem("llama-3-8b", ("h100", 8), "megatron", seq_len=8192, global_batch=64)
    layout = Layout(dp_shard=8, zero_stage=1)
    (found,) = predict_layouts(base, [layout], PROFILE)
    assert found.needed_low_gib < found.needed_gib < found.needed_high_gib

    def chance(usable_gib: float) -> float:
        cluster = replace(
            base.cluster, chip=replace(base.cluster.chip, usable_memory_gib=usable_gib)
        )
        return predict_layouts(replace(base, cluster=cluster), [layout], PROFILE)[0].fit_probability

    assert chance(found.needed_gib) == pytest.approx(0.5)
    assert chance(found.needed_high_gib) == pytest.approx(0.9)
    assert chance(found.needed_low_gib) == pytest.approx(0.1)
    assert chance(0.1) == 0
