"""What the encoder of images adds to a step: against sums written out, and as it must behave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.cost.predictions import Predictions, predict
from models.spec.encoder import Encoder
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients
from tests.models.cost.encoders import ENCODER, FROZEN, PROJECTOR_ALONE
from tests.models.cost.examples import LAYOUTS, PROFILE, question
from tests.oracles.random_problems import random_encoder

PATCHES, IMAGE, HIDDEN, WIDTH = 4096, 2048, 1024, 4096
"""Of one sequence, of one image; of ENCODER."""


def encoding(encoder: Encoder | None, **changes: object) -> Problem:
    problem = question(model="llama-3-8b", **changes)  # type: ignore[arg-type]
    return replace(problem, architecture=replace(problem.architecture, encoder=encoder))


def predicted(
    problem: Problem, layouts: list[Layout], c: Coefficients | None = None
) -> Predictions:
    c = c or PROFILE.coefficients(problem.scopes)
    return predict(problem, Layouts.of(layouts), c)


def added(
    encoder: Encoder, layout: Layout, c: Coefficients, **changes: object
) -> tuple[float, ...]:
    """Seconds of compute and of recompute, bytes of parameters, gradients, states and activations
    that an encoder adds."""
    with_it, without = (
        predicted(encoding(each, **changes), [layout], c) for each in (encoder, None)
    )
    times = [with_it.time[name] - without.time[name] for name in ("compute_s", "recompute_s")]
    names = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes")
    sizes = [with_it.memory[name] - without.memory[name] for name in names]
    return tuple(float(one[0]) for one in (*times, *sizes))


def plain_coefficients(problem: Problem) -> Coefficients:
    """Kernels that reach a share of the peak whatever their shape, and nothing beside them."""
    return replace(
        PROFILE.coefficients(problem.scopes),
        gemm_16=0.5, attention=0.25, gemm_tail_waves=0.0, elementwise_traffic=0.0,
        memory=1.0, launch_s=0.0, compute_overhead=1.0, ageing=0.0, activation_memory=1.0,
    )  # fmt: skip


def hand_seconds(peak: float) -> tuple[float, float, float, float]:
    """Forward of the layers' products, of their attention, of the patch embedding and of the
    projector, on the images of one sequence."""
    products = 8 * PATCHES * 2 * (4 * HIDDEN * HIDDEN + 2 * HIDDEN * WIDTH)
    attention = 8 * PATCHES * IMAGE * 2 * 2 * HIDDEN
    embedding, projector = PATCHES * 2 * 768 * HIDDEN, 1024 * 2 * 2 * 4096 * 4096
    rate = 0.25 * peak * IMAGE / (IMAGE + 500)  # half of it at 500 tokens
    return (
        products / (0.5 * peak),
        attention / rate,
        embedding / (0.5 * peak),
        projector / (0.5 * peak),
    )


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_seconds_are_those_of_the_sum_by_hand(micro_batch: int) -> None:
    """On one device: forward, input gradients and weight gradients of products, none of the input
    of the patch embedding; five products of attention backward where forward has two."""
    problem = encoding(ENCODER, chips=1, global_batch=4)
    c = plain_coefficients(problem)
    products, attention, embedding, projector = hand_seconds(989.4e12)
    layout = Layout(micro_batch=micro_batch)
    trained = 3 * products + 3.5 * attention + 2 * embedding + 3 * projector
    frozen = products + attention + embedding
    for encoder, seconds in (
        (ENCODER, trained),
        (PROJECTOR_ALONE, frozen + 3 * projector),
        (FROZEN, frozen + projector),
    ):
        found = added(encoder, layout, c, chips=1, global_batch=4)
        assert found[0] == pytest.approx(4 * seconds, rel=1e-6)
    again = added(ENCODER, replace(layout, recompute="full"), c, chips=1, global_batch=4)[1]
    assert again == pytest.approx(4 * (products + attention), rel=1e-6)
    assert added(FROZEN, replace(layout, recompute="full"), c, chips=1, global_batch=4)[1] == 0


def test_bytes_are_those_of_the_sum_by_hand() -> None:
    """2 + 4 + 12 bytes of a parameter that is trained, 2 of one that is not. A layer keeps 16 bytes
    a hidden element of a patch, and 4 of its network's width: both inputs, both norms, queries,
    keys, values, and the output of heads; before and behind the activation function."""
    c = plain_coefficients(encoding(ENCODER, chips=1, global_batch=4))
    layer = 4 * HIDDEN * HIDDEN + 2 * HIDDEN * WIDTH + 2 * HIDDEN
    tower, projector = 8 * layer + 768 * HIDDEN + 500_000, 2 * 4096 * 4096 + 10_000
    of_layers = 8 * PATCHES * (16 * HIDDEN + 4 * WIDTH)
    read_by_projector, patch = 1024 * 2 * 2 * 4096, PATCHES * 2 * 768
    for encoder, trained, kept in (
        (ENCODER, tower + projector, of_layers + read_by_projector + patch),
        (PROJECTOR_ALONE, projector, read_by_projector),
        (FROZEN, 0, 0),
    ):
        found = added(encoder, Layout(), c, chips=1, global_batch=4)[2:]
        whole = tower + projector
        assert found == pytest.approx((2 * whole, 4 * trained, 12 * trained, kept), rel=1e-6)
    inputs = 8 * PATCHES * 2 * HIDDEN
    repeated = added(ENCODER, Layout(recompute="full"), c, chips=1, global_batch=4)[5]
    assert repeated == pytest.approx(inputs + read_by_projector + patch, rel=1e-6)


def test_tensor_parallelism_divides_an_encoder_where_it_divides_its_heads() -> None:
    problem = encoding(ENCODER)
    c = plain_coefficients(problem)
    divided = added(ENCODER, LAYOUTS[1], c)
    heads_of_six = replace(
        ENCODER.layers[0].attention,
        num_attention_heads=6,
        num_key_value_heads=6,
        head_dim=128,
        v_head_dim=128,
    )
    odd = replace(
        ENCODER, layers=tuple(replace(layer, attention=heads_of_six) for layer in ENCODER.layers)
    )
    replicated = added(odd, LAYOUTS[1], c)
    assert replicated[0] > 4 * divided[0]
    assert replicated[2] > 4 * divided[2]


def test_the_encoder_is_on_the_first_stage_alone() -> None:
    """Memory of other stages does not grow, nor does a tied embedding bring a copy of it."""
    problem = encoding(None, chips=16, global_batch=64)
    tied = replace(problem.architecture, tie_word_embeddings=True)
    layout = Layout(pp=2, dp_shard=8, zero_stage=1)
    c = PROFILE.coefficients(problem.scopes)
    states = []
    for encoder in (None, ENCODER):
        asked = replace(problem, architecture=replace(tied, encoder=encoder))
        found = predicted(asked, [layout], c)
        states.append((found.memory_stage[0], found.memory["parameters_bytes"][0]))
    (first, bare), (second, more) = states
    assert (first, second) == (0, 0)
    assert more - bare == pytest.approx(2 * ENCODER.parameters, rel=1e-6)
    last = replace(tied, vocab_size=tied.vocab_size * 16)  # the last stage is the fullest
    seen = [
        predicted(replace(problem, architecture=replace(last, encoder=encoder)), [layout], c)
        for encoder in (None, ENCODER)
    ]
    assert [int(found.memory_stage[0]) for found in seen] == [1, 1]
    assert seen[0].needed_bytes == pytest.approx(seen[1].needed_bytes)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_frozen_takes_no_longer_and_no_more(seed: int) -> None:
    problem = encoding(None)
    rng = np.random.default_rng(seed)
    encoder = random_encoder(rng, problem.architecture.hidden_size, problem.workload)
    found = [
        predicted(encoding(replace(encoder, trained=tower, projector_trained=projector)), LAYOUTS)
        for tower, projector in ((False, False), (False, True), (True, True))
    ]
    bare = predicted(problem, LAYOUTS)
    for less, more in zip([bare, *found], found, strict=False):
        assert (less.step_time_s <= more.step_time_s).all()
        assert (less.needed_bytes <= more.needed_bytes).all()


@pytest.mark.parametrize("encoder", [ENCODER, PROJECTOR_ALONE, FROZEN])
def test_more_tokens_of_images_are_never_faster(encoder: Encoder) -> None:
    times = [
        predicted(encoding(replace(encoder, tokens_per_sequence=tokens)), LAYOUTS).step_time_s
        for tokens in (1, 64, 65, 256, 300, 1024, 2048, 8192)
    ]
    assert (np.diff(times, axis=0) >= 0).all()
    text = predicted(encoding(None), LAYOUTS).step_time_s
    assert (times[0] >= text).all()
