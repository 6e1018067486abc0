"""Runs that are reported, for tests of the pages and for their pictures."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.service.asking import LAYOUT, QUESTION

_KINDS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (QUESTION, LAYOUT),
    (
        {
            **QUESTION,
            "model": "llama-3.1-70b",
            "cluster": {"preset": "h100", "num_chips": 256},
            "stack": "megatron",
        },
        {"tp": 8, "pp": 4, "dp_shard": 8, "sequence_parallel": True},
    ),
    (
        {**QUESTION, "cluster": {"preset": "mi300x", "num_chips": 32}},
        {**LAYOUT, "dp_shard": 32, "recompute": "full"},
    ),
)
RUNS_OF_A_KIND = 16
SLOWER_FROM = 9
"""The run of the second kind from which on they are slower, for good."""
_BEGIN = datetime(2026, 9, 1, 5, tzinfo=UTC)
_LEVELS = (0.03, 0.08, -0.1)  # of ln(measured / predicted), one a kind


def calibrated(post: Callable[..., Any]) -> None:
    """Makes two versions of the profile: one of the reports of the first months, one of all."""
    for body in ({"until": "2026-10-01T00:00:00Z"}, {}):
        made = post("/v1/profiles/default/calibrations", json=body)
        assert made.status_code == 201, made.text


def reported_runs(post: Callable[..., Any]) -> None:
    """Posts runs of three kinds, one of which becomes 13% slower, and one that ran out of memory.
    `post` is that of a client."""
    drawn = random.Random(3)
    reports = []
    for kind, ((question, layout), level) in enumerate(zip(_KINDS, _LEVELS, strict=True)):
        run = {**question, "layout": layout}
        answer = post("/v1/predictions", json=run).json()
        predicted = answer["layouts"][0]["step_time_s"]
        for i in range(RUNS_OF_A_KIND):
            residual = level + drawn.gauss(0, 0.02)
            residual += 0.12 * (kind == 1 and i >= SLOWER_FROM)
            reports.append(
                {
                    **run,
                    "outcome": "ok",
                    "measured": {"step_time_s": predicted * math.exp(residual)},
                    "measured_at": (_BEGIN + timedelta(days=4 * i + kind)).isoformat(),
                    "source": ("cluster a", "cluster b")[i % 2],
                    "labels": {"team": "research"},
                }
            )
    question, _ = _KINDS[1]
    reports.append({**question, "layout": {"tp": 2, "dp_shard": 128}, "outcome": "out_of_memory"})
    taken = post("/v1/reports", json={"reports": reports, "all_or_nothing": True})
    assert taken.json()["refused"] == 0, taken.text
