"""Unknown names: what they may have meant, what they never mean, which known ones are nearest."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from models.spec import catalogue
from service.formats import huggingface
from service.formats.megatron.flags import table as megatron_table
from service.nearest_names import misspelt, nearest, nearest_setting, unknown_name

KNOWN = [*catalogue.chips(), *catalogue.fabrics()]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("h100-sxn-80gb", "h100-sxm-80gb"),
        ("h1000", "h100"),
        ("h100sxm", "h100-sxm"),
        ("dxg-h100", "dgx-h100"),
        ("DGX H100 SuperPD", "dgx-h100-superpod"),
        ("tranium2", "trainium2"),
        ("guadi3", "gaudi3"),
        ("ironwod", "ironwood"),
    ],
)
def test_a_near_misspelling_is_told(name: str, meant: str) -> None:
    assert misspelt(name, KNOWN)[0] == meant


@pytest.mark.parametrize(
    "name",
    ["P100", "A16", "B310", "B350", "H10", "L2", "L60", "T40", "MI300", "MI300C", "MI450", "v6p",
     "gaudi4", "trainium4", "910d", "ascend-960", "VR300", "p5x.48xlarge", "p7-b200.48xlarge",
     "a5-highgpu-8g", "RTX-PRO-5000", "RTX 5070", "RTX 3070", "groq"],
)  # fmt: skip
def test_another_number_or_letter_is_another_chip(name: str) -> None:
    assert misspelt(name, KNOWN) == []


@pytest.mark.parametrize(
    "chip",
    ["B200", "B300", "GB200", "GB300", "H200", "VR200", "MI355X", "MI455X", "MI300A", "A10G"],
)
def test_a_known_chip_that_is_not_among_the_names_is_not_taken_for_another(chip: str) -> None:
    others = [name for name in KNOWN if chip.lower() not in name.lower()]
    assert misspelt(chip, others) == []


@pytest.mark.parametrize(
    ("name", "known", "first"),
    [
        ("h10", catalogue.chips(), {"h100", "h20"}),
        ("rtx-3900", catalogue.chips(), {"rtx-3090"}),
        ("gb20", catalogue.chips(), {"gb200"}),
        ("lama3-8b", catalogue.architectures(), {"llama-3-8b", "llama3-8b"}),
        (
            "meta-llama/Meta-Llama-3-8B-Instruct",
            catalogue.architectures(),
            {"meta-llama/Meta-Llama-3-8B"},
        ),
        ("Qwen/Qwen3-32B-AWQ", catalogue.architectures(), {"qwen3-32b"}),
        ("megatrom", catalogue.stacks(), {"megatron"}),
        ("mimo_v2", huggingface.FAMILIES, {"mimo"}),
        ("!", catalogue.stacks(), {*catalogue.stacks()}),
    ],
)
def test_every_unknown_name_has_a_nearest_one(
    name: str, known: Iterable[str], first: set[str]
) -> None:
    assert nearest(name, known)[0] in first


def test_an_error_offers_a_misspelling_alone_or_else_the_nearest() -> None:
    meant = unknown_name("stack", "megatronn", ["megatron", "nemo"], "ask")
    assert meant.rule == "unknown name; did you mean megatron? Else ask"
    other = unknown_name("stack", "x", ["megatron", "nemo"], "ask", what="a stack")
    assert other.rule.startswith("unknown name of a stack; the nearest known are megatron, nemo; a")
    assert unknown_name("stack", "x", [], "ask").rule == "unknown name; ask"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("--tensor-model-paralel-size", "--tensor-model-parallel-size"),
        ("--tensor_model_parallel_size", "--tensor-model-parallel-size"),
        ("--moe-token-dispatcher", "--moe-token-dispatcher-type"),
        ("--seq", None),
        ("--puzzle", None),
    ],
)
def test_a_misspelt_setting_has_the_nearest_and_another_setting_has_none(
    written: str, meant: str | None
) -> None:
    assert nearest_setting(written, megatron_table().fields) == meant


def test_a_setting_about_something_else_is_not_meant() -> None:
    assert nearest_setting("--lora-rank", ["--q-lora-rank"]) is None
