"""Moments of projected gradients."""

from __future__ import annotations

import pytest

from models.spec import catalogue
from models.spec.moments import mean_moment_bytes
from models.spec.workload import Workload


def moments(model: str, rank: int | None, optimizer: str = "adamw") -> float:
    workload = Workload(seq_len=1, global_batch=1, moment_rank=rank, optimizer=optimizer)
    return mean_moment_bytes(catalogue.architecture(model), workload)


def test_without_a_rank_moments_are_those_of_the_optimizer() -> None:
    assert moments("llama-3-8b", None) == 8
    assert moments("llama-3-8b", None, "adamw_8bit") == 2


def test_a_higher_rank_keeps_more_up_to_whole_matrices() -> None:
    ranks = (1, 64, 512, 1024, 2**20)
    found = [moments("qwen3-30b-a3b", rank) for rank in ranks]
    assert found == sorted(found)
    assert found[-1] == 8


def test_a_matrix_keeps_the_rank_of_its_longer_side_and_a_projection() -> None:
    """A layer of Llama 3 8B: queries and output 4096 x 4096, keys with values 4096 x 2048, gate
    with up 4096 x 28672, down 14336 x 4096. All else has moments of its own size."""
    rank, total = 128, catalogue.architecture("llama-3-8b").parameters.total
    sides = [(4096, 4096), (2048, 4096), (4096, 4096), (4096, 28672), (4096, 14336)]
    projected = 32 * sum(short * long for short, long in sides)
    kept = 32 * sum(rank * (8 * long + 4 * short) for short, long in sides)
    expected = (kept + 8 * (total - projected)) / total
    assert moments("llama-3-8b", rank) == pytest.approx(expected)
