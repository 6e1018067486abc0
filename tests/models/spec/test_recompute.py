"""What the modules of recompute repeat of a layer, and what that costs and saves."""

from __future__ import annotations

import pytest

from models.prediction.prediction import predict_layouts
from models.spec import catalogue
from models.spec.layout import Layout
from models.spec.profile import shipped_profile
from models.spec.recompute import policy_code, recomputed
from tests.benchmarks.problems import problem

LAYER = catalogue.architecture("llama-3-8b").kinds[0]


@pytest.mark.parametrize(
    ("modules", "share"),
    [
        (["layernorm"], 0.0),
        (["mlp_gate"], 0.25),
        (["out_proj"], 0.25),
        (["mlp"], 0.5),
        (["mlp", "mlp_gate"], 0.5),
        (["mlp", "out_proj"], 0.75),
        (["alternate_mm"], 0.5),
    ],
)
def test_traffic_that_a_policy_brings_again(modules: list[str], share: float) -> None:
    assert recomputed(policy_code("selective", modules), LAYER).tensor == share


def test_more_recomputed_modules_take_longer_and_keep_less() -> None:
    asked = problem(
        model="llama-2-7b",
        cluster=("tpu-v5p", 64),
        seq_len=4096,
        global_batch=256,
        stack="maxtext",
    )
    always = ("layernorm", "mlp_act", "core_attn")
    sets = [always, (*always, "mlp_gate"), (*always, "mlp"), (*always, "mlp", "out_proj")]
    layouts = [
        Layout(
            dp_shard=64,
            zero_stage=3,
            micro_batch=4,
            recompute="selective",
            recompute_modules=modules,
        )
        for modules in sets
    ]
    layouts.append(Layout(dp_shard=64, zero_stage=3, micro_batch=4, recompute="full"))
    found = predict_layouts(asked, layouts, shipped_profile())
    seconds = [one.step_time_s for one in found]
    memory = [one.needed_gib for one in found]
    assert seconds == sorted(seconds)
    assert memory == sorted(memory, reverse=True)
    assert len({*seconds}) == len({*memory}) == len(sets) + 1
