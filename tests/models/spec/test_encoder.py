"""The encoder of images: parameters and FLOPs, against sums that are written out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.errors import Invalid
from models.spec import catalogue
from models.spec.flops import encoder_flops, model_flops, projector_forward_flops
from models.spec.problem import Problem
from models.spec.workload import Workload
from tests.models.cost.encoders import ENCODER, with_encoder

WORKLOAD = Workload(seq_len=4096, global_batch=64)


def test_flops_are_those_of_every_product_of_every_patch() -> None:
    """Multiply-adds of the matrices, patch by patch, and of each pair of patches of an image."""
    patches, hidden, width = 4 * 1024, 1024, 4096
    layer = sum(2 * a * b for a, b in [(hidden, hidden)] * 4 + [(hidden, width)] * 2)
    pairs = 4 * 512  # keys that every patch of an image sees
    attention = 2 * pairs * hidden * 2  # scores, and their product with the values
    tower = patches * (8 * (layer + attention) + 2 * 768 * hidden)
    projector = 1024 * 2 * (4096 * 4096 + 4096 * 4096)
    assert encoder_flops(ENCODER) == pytest.approx(3 * (tower + projector))
    assert encoder_flops(replace(ENCODER, trained=False)) == pytest.approx(tower + 3 * projector)
    frozen = replace(ENCODER, trained=False, projector_trained=False)
    assert encoder_flops(frozen) == pytest.approx(tower + projector)
    assert projector_forward_flops(ENCODER) == projector
    bare = tower - patches * 8 * attention + projector
    assert encoder_flops(ENCODER, "none") == pytest.approx(3 * bare)


def test_a_step_has_the_flops_of_both() -> None:
    text = catalogue.architecture("llama-3-8b")
    added = model_flops(with_encoder(text), WORKLOAD) - model_flops(text, WORKLOAD)
    assert added == pytest.approx(64 * encoder_flops(ENCODER), rel=1e-6)


def test_attention_of_an_image_sees_all_of_it_or_of_a_window() -> None:
    attention = ENCODER.layers[0].attention
    assert attention is not None
    assert attention.mean_keys(1000) == attention.most_keys(1000) == 1000
    windowed = replace(attention, sliding_window=64, chunked_attention=True)
    assert windowed.mean_keys(1000) == windowed.most_keys(1000) == 64
    assert windowed.mean_keys(40) == 40


def test_parameters_stand_beside_those_of_the_language_model() -> None:
    text = catalogue.architecture("llama-3-8b")
    both = with_encoder(text).parameters
    assert both.total == text.parameters.total
    assert text.parameters.encoder == 0
    layer = 4 * 1024 * 1024 + 2 * 1024 * 4096 + 2 * 1024
    projector = 2 * 4096 * 4096 + 10_000
    assert both.encoder == 8 * layer + 768 * 1024 + 500_000 + projector


def test_a_question_and_its_images_go_together() -> None:
    question = Problem(
        architecture=with_encoder(catalogue.architecture("llama-3-8b")),
        cluster=catalogue.cluster("h100", 8),
        workload=WORKLOAD,
        stack=catalogue.stack("generic"),
    )
    with pytest.raises(Invalid, match="seq_len = 512"):
        replace(question, workload=replace(WORKLOAD, seq_len=512))
    with pytest.raises(Invalid, match="gradients pass the projector"):
        replace(ENCODER, projector_trained=False)
