"""Models of which some parameters are frozen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from models.errors import Invalid
from models.spec import catalogue
from models.spec.adapters import Lora
from models.spec.architecture import Architecture
from models.spec.flops import model_flops
from models.spec.trained import as_trained, trains_embedding, trains_head
from models.spec.workload import Reference, Trained, Workload
from tests.models.cost.encoders import PROJECTOR_ALONE, with_encoder

MODEL = catalogue.architecture("llama-3-8b")


def workload(**fields: Any) -> Workload:
    return Workload(seq_len=4096, global_batch=8, **fields)


def gradients(model: Architecture, trained: Trained) -> list[str]:
    made = as_trained(model, workload(trained=trained))
    return [layer.gradients for layer in made.layers]


def test_backward_ends_at_the_first_layer_that_is_trained() -> None:
    assert gradients(MODEL, Trained(layers=(-1, -2))) == ["none"] * 30 + ["weights"] * 2
    found = gradients(MODEL, Trained(layers=(1, 31)))
    assert found == ["none", "weights", *["inputs"] * 29, "weights"]


def test_backward_reaches_an_embedding_that_is_trained() -> None:
    assert gradients(MODEL, Trained(layers=(), embedding=True)) == ["inputs"] * 32
    images = with_encoder(MODEL, PROJECTOR_ALONE)
    assert gradients(images, Trained(layers=(31,)))[0] == "inputs"


def test_a_tied_head_is_trained_with_the_embedding() -> None:
    tied = replace(MODEL, tie_word_embeddings=True)
    of_head, of_embedding = Trained(layers=(), head=True), Trained(layers=(), embedding=True)
    for one in (of_head, of_embedding):
        assert trains_embedding(tied, workload(trained=one))
        assert trains_head(tied, workload(trained=one))
    assert not trains_embedding(MODEL, workload(trained=of_head))
    assert not trains_head(MODEL, workload(trained=of_embedding))
    assert gradients(tied, of_head) == ["inputs"] * 32


def test_layers_that_a_model_does_not_have_are_of_no_account() -> None:
    assert gradients(MODEL, Trained(layers=(31, 32, 700, -900)))[-1] == "weights"
    with pytest.raises(Invalid, match="has 32"):
        gradients(MODEL, Trained(layers=(32, 700)))


def test_what_trains_nothing_is_refused() -> None:
    with pytest.raises(Invalid, match="trains nothing") as refused:
        gradients(MODEL, Trained(layers=()))
    assert refused.value.field == "workload.trained.layers"


def test_adapters_and_weights_of_one_layer_are_refused() -> None:
    assert workload(lora=Lora(), trained=Trained(layers=(), head=True)).trained
    with pytest.raises(Invalid, match=r"must be \[\]"):
        workload(lora=Lora(), trained=Trained(layers=(3,)))


def test_what_trains_everything_is_the_model_itself() -> None:
    everything = Trained(embedding=True, head=True)
    assert as_trained(MODEL, workload(trained=everything)) is MODEL
    assert as_trained(MODEL, workload()) is MODEL


def test_frozen_layers_take_two_passes_or_one() -> None:
    """Of a model without attention's products, whose layers are alike: 3 passes of all, 2 of those
    that gradients pass, 1 of those that they do not reach; the head is trained."""

    def flops(**fields: Any) -> float:
        work = workload(**fields)
        return model_flops(as_trained(MODEL, work), work, "none")

    whole = flops()
    head = 3 * 2 * 4096 * 128256 * 8 * 4096
    layers = whole - head
    assert flops(trained=Trained(layers=(0,), head=True)) == pytest.approx(
        head + layers * (1 / 32 + 31 / 32 * 2 / 3)
    )
    assert flops(trained=Trained(layers=(31,), head=True)) == pytest.approx(
        head + layers * (1 / 32 + 31 / 32 / 3)
    )
    assert flops(reference=Reference(forwards=3)) == pytest.approx(2 * whole)


def test_the_head_of_a_reward_model_makes_no_logits() -> None:
    score = as_trained(MODEL, workload(head="score"))
    assert score.parameters.lm_head == 4096
    whole, alone = (model_flops(model, workload(), "none") for model in (MODEL, score))
    assert whole - alone == pytest.approx(3 * 2 * 4096 * 128255 * 8 * 4096)
