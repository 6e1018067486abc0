"""Workloads: documents in packed sequences, and what optimizers keep."""

from __future__ import annotations

import numpy as np
import pytest

from models.errors import Invalid
from models.spec import catalogue
from models.spec.adapters import Lora
from models.spec.flops import model_flops
from models.spec.workload import Optimizer, Packing, Workload


def test_a_token_of_packed_documents_sees_what_one_of_many_drawn_ones_does() -> None:
    mean, spread = 500.0, 0.8
    sigma = np.sqrt(np.log(1 + spread**2))
    lengths = np.random.default_rng(0).lognormal(np.log(mean) - sigma**2 / 2, sigma, 2_000_000)
    seen = np.sum(lengths * lengths / 2) / np.sum(lengths)
    packing = Packing(mean_length=mean, spread=spread)
    workload = Workload(seq_len=1_000_000, global_batch=1, packing=packing)
    assert workload.attended_length / 2 == pytest.approx(seen, rel=0.01)


def test_documents_as_long_as_sequences_are_no_packing() -> None:
    whole = Workload(seq_len=4096, global_batch=1, packing=Packing(mean_length=4096))
    assert whole.attended_length == 4096


def test_without_master_weights_nothing_has_32_bits() -> None:
    def kept(optimizer: str) -> Optimizer:
        narrow = Workload(seq_len=1, global_batch=1, optimizer=optimizer, master_weights=False)
        return narrow.optimizer_state

    assert kept("adamw") == Optimizer(0, 4)
    assert kept("adamw_bf16_moments") == Optimizer(0, 4)
    assert kept("adamw_8bit") == Optimizer(0, 2)
    assert kept("lion") == Optimizer(0, 2)


def test_frozen_weights_take_two_passes_for_three() -> None:
    """Attention without weights takes three all the same (num_floating_point_operations of
    Megatron-Bridge)."""
    model = catalogue.architecture("llama-3-70b")
    whole, adapters = (Workload(seq_len=4096, global_batch=8, lora=lora) for lora in (None, Lora()))
    products = model_flops(model, whole, "none")
    attention = model_flops(model, whole, "causal") - products
    assert model_flops(model, adapters, "causal") == pytest.approx(products * 2 / 3 + attention)


@pytest.mark.parametrize("values", [{"mean_length": 0}, {"mean_length": 10, "spread": -1}])
def test_what_breaks_a_rule_is_named(values: dict[str, float]) -> None:
    with pytest.raises(Invalid, match="packing"):
        Packing(**values)
