"""Names of accelerators in logs."""

from __future__ import annotations

import pytest

from models.spec import catalogue
from service.formats.logs.devices import printed_devices

IDS = {chip.id for chip in catalogue.chips().values()}


@pytest.mark.parametrize(
    ("line", "chips"),
    [
        ("|   0  NVIDIA A100-SXM4-80GB       On  | 00000000:07:00.0 Off |", {"a100-sxm-80gb"}),
        ("A100-SXM4-40GB", {"a100-sxm-40gb"}),
        ("GPU 0: NVIDIA A100 80GB PCIe (UUID: GPU-12)", {"a100-pcie-80gb"}),
        ("#  Rank  0 on n0 device  0 [0x19] NVIDIA H200", {"h200-sxm-141gb", "h200-nvl-141gb"}),
        ("CUDA capacity: NVIDIA H100 NVL with 93.0GiB memory", {"h100-nvl-94gb"}),
        ("Tesla V100-SXM2-16GB", {"v100-sxm2-16gb"}),
        ("NVIDIA GH200 480GB", {"gh200-96gb", "gh200-96gb-120gb", "gh200-144gb"}),
        ("NVIDIA GH200 120GB", {"gh200-96gb-120gb"}),
        ("NVIDIA A100-SXM-64GB", {"a100-sxm-64gb"}),
        ("NVIDIA VR200", {"vr200-nvl72"}),
        ("NVIDIA L4", {"l4"}),
        ("NVIDIA A10G", {"a10g"}),
        ("AMD Instinct MI300X", {"mi300x"}),
        ("TPU v5 lite", {"tpu-v5e"}),
        ("TPU v5p", {"tpu-v5p"}),
        ("AMD Instinct MI300A", {"mi300a"}),
        ("NVIDIA GeForce RTX 4090", {"rtx-4090"}),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", {"rtx-pro-6000"}),
        ("NVIDIA GeForce RTX 5090", set()),
    ],
)
def test_a_printed_name_is_of_these_chips(line: str, chips: set[str]) -> None:
    (device, *rest) = printed_devices(line)
    assert {*device.matching(IDS)} == chips
    assert all({*other.matching(IDS)} == chips for other in rest)


@pytest.mark.parametrize(
    "line",
    ["NVIDIA-SMI 535.104.05  Driver Version: 535", "nvidia-cublas-cu12 12.4", "loss: 2.0 H100"],
)
def test_other_words_are_no_devices(line: str) -> None:
    assert printed_devices(line) == []
