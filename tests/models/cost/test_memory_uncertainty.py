"""How sure a layout is to fit, by the spread of measured memory."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from models.cost.fit import fits
from models.cost.memory_uncertainty import MemoryUncertainty, percent
from models.cost.predictions import predict
from models.prediction.prediction import predict_layouts
from models.spec.layout import Layout, Layouts
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


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9, 0.99])
def test_what_is_asked_to_fit_with_a_probability_does_so_often(probability: float) -> None:
    """Counted in draws: what a layout reserves is log-normal around its prediction."""
    base = problem("llama-3-8b", ("h100", 8), "megatron", seq_len=8192, global_batch=64)
    found = predict(
        base, Layouts.of([Layout(dp_shard=8, zero_stage=1)]), PROFILE.coefficients(base.scopes)
    )
    uncertainty = MemoryUncertainty.of(base, PROFILE, probability)
    runtime = found.memory["context_bytes"][0]
    reserved = found.needed_bytes[0] - runtime
    spread = float(uncertainty.spreads(found)[0])
    capacity = runtime + reserved * math.exp(uncertainty.deviations_asked * spread)

    def has_room(usable_bytes: float) -> bool:
        chip = replace(base.cluster.chip, usable_memory_gib=float(usable_bytes / 2**30))
        cluster = replace(base.cluster, chip=chip)
        margin = uncertainty.margin(cluster, np.inf)
        return bool(fits(margin, found.memory_terms, found.host_bytes)[0])

    assert has_room(1.0001 * capacity)
    assert not has_room(0.9999 * capacity)
    drawn = reserved * np.exp(np.random.default_rng(0).normal(0, spread, 100_000)) + runtime
    assert np.mean(drawn <= capacity) == pytest.approx(probability, abs=0.01)


@pytest.mark.parametrize(
    ("probability", "shown"),
    [
        (0.978, "97.8%"),
        (0.9, "90%"),
        (0.8999999, "89.9%"),
        (0.29, "29%"),
        (0.995, "more than 99%"),
        (0.001, "less than 1%"),
    ],
)
def test_a_probability_is_shown_rounded_down(probability: float, shown: str) -> None:
    assert percent(probability) == shown
