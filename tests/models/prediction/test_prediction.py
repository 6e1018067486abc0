"""A prediction and its interval."""

from __future__ import annotations

from dataclasses import replace

from models.prediction.prediction import predict_layouts
from models.spec import catalogue
from models.spec.layout import Layout
from tests.models.cost.examples import PROFILE, question


def test_the_interval_of_a_chip_that_no_run_informed_is_wider() -> None:
    layout = Layout(dp_shard=64, zero_stage=3, recompute="full")
    widths = {}
    for chip in ("h100", "mi300x"):
        problem = replace(
            question(), cluster=catalogue.cluster(chip, 64), stack=catalogue.stack("torchtitan")
        )
        found = predict_layouts(problem, [layout], PROFILE)[0]
        widths[chip] = found.step_time_high_s / found.step_time_low_s
    assert widths["mi300x"] > 1.1 * widths["h100"]
