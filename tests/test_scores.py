"""The figures of the fidelity benchmark, on cases small enough to work out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.spec.layout import Layout
from models.spec.profile import shipped_profile
from service.formats import published
from tests.benchmarks import scores
from tests.benchmarks.scores import Scored

ROW: dict[str, Any] = {
    "source": {"title": "a sweep"}, "family": "one", "stack": "megatron", "outcome": "ok",
    "date": "2025-01",
    "model": {
        "num_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
    },
    "cluster": {"chip": "h100-sxm-80gb", "num_chips": 8, "scaleup_domain": 8,
    "scaleout_gbps_per_chip": 400}, "training": {"seq_len": 8192, "global_batch_sequences": 64,
    "micro_batch_size": 1, "compute_dtype": "bf16",
                 "recompute": "none", "data_parallel_kind": "zero1"},
    "measured": {"step_time_s": 1.0},
}  # fmt: skip


def scored(measured: float, predicted: float, micro_batch: int = 1, **fields: Any) -> Scored:
    row = json.loads(json.dumps({**ROW, **fields}))
    row["measured"]["step_time_s"] = measured
    run = published.read(row, shipped_profile().software_year)
    return Scored(
        row=row,
        run=run,
        layout=Layout(dp_shard=8, micro_batch=micro_batch),
        step_time_s=predicted,
        spread=0.1,
        memory_bytes=50e9,
        memory_spread=0.05,
        fits=True,
        fit_probability=0.95,
    )


def test_errors_are_medians_and_bias_keeps_its_sign() -> None:
    found = scores.statistics([scored(1.0, 1.1), scored(1.0, 0.8), scored(1.0, 1.3)])
    assert found["median_abs_error"] == pytest.approx(0.2)
    assert found["bias"] == pytest.approx(0.1)
    assert found["n"] == 3


def test_a_run_is_covered_within_its_interval() -> None:
    inside, outside = scored(1.0, float(np.exp(0.12))), scored(1.0, float(np.exp(0.14)))
    assert inside.covered
    assert not outside.covered


def test_repeats_of_a_layout_tell_the_noise() -> None:
    repeats = [scored(1.0, 1.0), scored(1.0, 1.0, date="2026-01"), scored(1.2, 1.0)]
    assert scores.repeat_noise(repeats) == pytest.approx(0.0)
    assert scores.repeat_noise(
        [scored(1.0, 1.0), scored(float(np.exp(0.2)), 1.0)]
    ) == pytest.approx(0.1)
    assert scores.repeat_noise([scored(1.0, 1.0), scored(2.0, 1.0, micro_batch=2)]) is None


def test_a_sweep_is_ranked_but_not_on_near_ties() -> None:
    """Five layouts, measured 1, 2, 3, 4 and 4.05: nine pairs count; predictions swap the first
    two."""
    measured, predicted = [1.0, 2.0, 3.0, 4.0, 4.05], [2.0, 1.0, 3.0, 5.0, 4.0]
    sweep = [
        scored(m, p, micro_batch=2**i)
        for i, (m, p) in enumerate(zip(measured, predicted, strict=True))
    ]
    found = scores.ranking(sweep)
    assert found["kendall_tau"] == pytest.approx((8 - 1) / 9)
    assert found["top1_regret"] == pytest.approx(0.5)
    assert scores.ranking(sweep[:4])["kendall_tau"] is None


def test_small_families_count_together_and_the_macro_figure_is_a_mean() -> None:
    large = [scored(1.0, 1.1) for _ in range(5)]
    by_family = scores.families(
        [*large, scored(1.0, 1.3, family="two"), scored(1.0, 1.5, family="three")]
    )
    assert set(by_family) == {"one", "small"}
    assert scores.overall(by_family)["median_abs_error"] == pytest.approx((0.1 + 0.4) / 2)
    assert scores.overall(by_family)["n"] == 7


def test_out_of_memory_points_have_a_verdict_and_no_error() -> None:
    failed = scored(1.0, 1.0, outcome="failed", failure="out_of_memory")
    found = scores.statistics([scored(1.0, 1.1), failed])
    assert found["oom_recall"] == 0.0
    assert found["fit_precision"] == 1.0
    assert found["n"] == 1
    assert found["oom_called_sure"] == 1.0
    assert scores.called_sure([replace(failed, fit_probability=0.89)]) == 0.0
