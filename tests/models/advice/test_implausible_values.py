"""What almost surely was not meant is told by field and value, with what was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.advice.implausible_values import implausible_values
from models.spec import catalogue
from models.spec.problem import Problem
from tests.models.advice.problems import llama

PLAIN = llama(64, 128)


def with_workload(**changes: object) -> Problem:
    return replace(PLAIN, workload=replace(PLAIN.workload, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "seq_len", "meant"),
    [(4_194_304, 8192, 512), (1_048_576, 4096, 256), (131_072, 2048 * 2, 32)],
)
def test_a_batch_in_tokens_is_told_in_sequences(batch: int, seq_len: int, meant: int) -> None:
    (told,) = implausible_values(with_workload(global_batch=batch, seq_len=seq_len), 1e6)
    assert told.startswith(f"check workload.global_batch = {batch}: it counts sequences")
    assert told.endswith(f"would be workload.global_batch = {meant}")


@pytest.mark.parametrize(("batch", "seq_len"), [(128, 8192), (15_360, 4096), (16_384, 4096)])
def test_large_batches_that_were_trained_are_plausible(batch: int, seq_len: int) -> None:
    assert implausible_values(with_workload(global_batch=batch, seq_len=seq_len), 30.0) == []


def test_a_step_of_hours_is_told() -> None:
    (told,) = implausible_values(PLAIN, 7300.0)
    assert "workload.global_batch = 128 and cluster.num_chips = 64" in told
    assert "2.03 hours" in told
    assert implausible_values(PLAIN, 3000.0) == []


@pytest.mark.parametrize(
    ("seq_len", "meant"),
    [(8191, 8192), (4095, 4096), (131_071, 131_072), (6143, 6144), (255, 256), (8193, 8192)],
)
def test_a_length_beside_a_round_one_is_told(seq_len: int, meant: int) -> None:
    (told,) = implausible_values(with_workload(seq_len=seq_len), 1.0)
    assert told.startswith(f"check workload.seq_len = {seq_len}: it is one ")
    assert f" {meant}, which was probably meant" in told


@pytest.mark.parametrize("seq_len", [1, 2, 127, 1000, 4000, 8192, 12_288])
def test_other_lengths_are_plausible(seq_len: int) -> None:
    assert implausible_values(with_workload(seq_len=seq_len), 1.0) == []


def test_a_network_in_bits_is_told_in_bytes() -> None:
    cluster = PLAIN.cluster
    inner, outer = cluster.fabric.levels

    def told(gb_s: float) -> list[str]:
        levels = (inner, replace(outer, gb_s_per_chip=gb_s))
        fabric = replace(cluster.fabric, levels=levels)
        return implausible_values(replace(PLAIN, cluster=replace(cluster, fabric=fabric)), 1.0)

    assert told(50.0) == []
    (sentence,) = told(3200.0)
    assert "3200 Gb/s are 400 GB/s" in sentence


def test_a_budget_below_a_step_is_told_with_the_unit_that_was_meant() -> None:
    (told,) = implausible_values(with_workload(token_budget=15.0), 1.0)
    assert told.startswith("check workload.token_budget = 15: ")
    assert told.endswith("; 15e9 or 15e12 was probably meant")
    (told,) = implausible_values(with_workload(token_budget=5e5), 1.0)
    assert told.endswith("less than one step of 524,288")
    assert implausible_values(with_workload(token_budget=1e12), 1.0) == []


def test_a_micro_batch_that_does_not_divide_is_told_with_its_neighbours() -> None:
    assert implausible_values(PLAIN, 1.0, (1, 2, 4)) == []
    three, many = implausible_values(PLAIN, 1.0, (3, 4, 1000))
    assert three.endswith("over no data-parallel ranks; 2 or 4 was probably meant")
    assert many.startswith("check constraints.micro_batch = 1000: ")
    assert many.endswith("; 128 was probably meant")


def test_graphs_of_experts_that_there_are_not_are_told() -> None:
    def asked(graphs: str, model: str = "llama-3-8b") -> list[str]:
        software = replace(catalogue.stack("megatron"), moe_graphs=graphs)
        architecture = catalogue.architecture(model)
        return implausible_values(replace(PLAIN, stack=software, architecture=architecture), 1.0)

    (told,) = asked("partial")
    assert told.startswith("check stack.moe_graphs = partial: ")
    assert told.endswith("stack.launch = graph was probably meant")
    assert asked("none") == []
    assert asked("full", model="mixtral-8x7b") == []
