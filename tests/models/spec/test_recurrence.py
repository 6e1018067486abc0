"""Linear attention and state-space models: parameters and FLOPs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from models.spec.architecture import Architecture
from models.spec.flops import model_flops
from models.spec.layer import Layer
from models.spec.recurrence import (
    DeltaNet,
    LightningAttention,
    Mamba2,
    Recurrence,
    ShortConvolution,
)
from models.spec.workload import Workload
from service.formats import huggingface
from tests.paths import SHARED

MAMBA = Mamba2(num_heads=64, num_key_heads=8, key_head_dim=128, value_head_dim=64, conv_kernel=4)
DELTA = DeltaNet(
    num_heads=32, num_key_heads=16, key_head_dim=128, value_head_dim=128, conv_kernel=4
)
LIGHTNING = LightningAttention(num_heads=64, num_key_heads=64, key_head_dim=128, value_head_dim=128)
CONVOLUTION = ShortConvolution.of(2048, 3)


def test_mamba_2_has_one_projection_in_and_one_out() -> None:
    """Gate and values, B and C of every group, a step for every head; a convolution with biases
    over values, B and C; A, D and the step's bias for each head; a norm."""
    hidden, inner, groups = 2688, 64 * 64, 8 * 128
    into = hidden * (2 * inner + 2 * groups + 64)
    convolution = (inner + 2 * groups) * (4 + 1)
    assert MAMBA.parameters(hidden) == into + convolution + 3 * 64 + inner + inner * hidden


def test_a_gated_delta_net_has_two_numbers_for_every_head_beside_its_streams() -> None:
    """Queries and keys of 16 heads, values and gates of 32, a decay and a strength for each."""
    hidden, keys, values = 2048, 16 * 128, 32 * 128
    into = hidden * (2 * keys + 2 * values + 2 * 32)
    convolution = (2 * keys + values) * 4
    assert DELTA.parameters(hidden) == into + convolution + 2 * 32 + 128 + values * hidden


def test_kimi_delta_attention_decays_every_element_of_a_key() -> None:
    kimi = replace(DELTA, num_key_heads=32, decay_per_element=True, decay_rank=128, gate_rank=128)
    hidden, inner = 2304, 32 * 128
    through = 2 * (hidden * 128 + 128 * inner)
    into = 3 * hidden * inner + hidden * 32
    vectors = 32 + inner + 128
    assert kimi.parameters(hidden) == into + through + 3 * inner * 4 + vectors + inner * hidden


def test_lightning_attention_has_queries_keys_values_and_a_gate() -> None:
    hidden, inner = 6144, 64 * 128
    assert LIGHTNING.parameters(hidden) == 5 * hidden * inner + inner


def test_a_short_convolution_has_two_gates_beside_what_it_sees() -> None:
    """LFM2: three streams of the hidden size come in, one goes out, three tokens are seen."""
    hidden = 2048
    assert CONVOLUTION.parameters(hidden) == 4 * hidden * hidden + 3 * hidden
    biased = ShortConvolution.of(hidden, 3, bias=True)
    assert biased.parameters(hidden) - CONVOLUTION.parameters(hidden) == 5 * hidden
    assert CONVOLUTION.flops == 2 * 3 * hidden + 2 * hidden


@pytest.mark.parametrize("recurrence", [MAMBA, DELTA, LIGHTNING, CONVOLUTION])
def test_a_recurrence_takes_as_many_flops_in_any_sequence(recurrence: Recurrence) -> None:
    layer = Layer(recurrence=recurrence, num_norms=1)
    model = Architecture(name="one", hidden_size=1024, vocab_size=1000, layers=(layer,))
    short = model_flops(model, Workload(seq_len=1024, global_batch=64))
    assert model_flops(model, Workload(seq_len=65536, global_batch=1)) == short


def test_flops_of_a_delta_net_are_those_that_megatron_counts() -> None:
    """Of its training.py: products with the state of key dim x value dim are four, each of two
    FLOPs an element."""
    assert DELTA.flops == 8 * 32 * 128 * 128 + 2 * 4 * (2 * 16 * 128 + 32 * 128)


def _published() -> list[dict[str, object]]:
    file = SHARED / "runs" / "hybrid.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize("row", _published(), ids=lambda row: str(row["id"])[:60])
def test_flops_are_those_that_were_published(row: dict[str, object]) -> None:
    """Printed FLOP/s and tokens/s give the FLOPs of a token. For Mamba-2 the framework counts an
    inner width of twice the hidden size (mamba_layer_flops of Megatron-Bridge), whatever the heads;
    with as many heads as that makes, ours are the same."""
    model, measured, training = (
        dict(row[name])
        for name in ("model", "measured", "training")  # type: ignore[call-overload]
    )
    architecture = huggingface.read(json.loads((SHARED / model["hf_config"]).read_text()))
    printed = 1e12 * measured["tflops_per_chip"] / measured["tokens_per_s_per_chip"]
    counted = _as_counted(architecture)
    workload = Workload(seq_len=training["seq_len"], global_batch=1)
    assert model_flops(counted, workload) / workload.tokens == pytest.approx(printed, rel=0.03)


def _as_counted(model: Architecture) -> Architecture:
    layers = []
    for layer in model.layers:
        mamba = layer.recurrence
        if isinstance(mamba, Mamba2):
            heads = 2 * model.hidden_size // mamba.value_head_dim
            layers.append(replace(layer, recurrence=replace(mamba, num_heads=heads)))
        else:
            layers.append(layer)
    return replace(model, layers=tuple(layers))
