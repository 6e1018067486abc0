"""Names of accelerators in logs."""

from __future__ import annotations

import pytest

from models.spec import catalogue
from models.spec.hardware import Chip
from service.formats.logs.devices import printed_devices

CHIPS = {chip.id: chip for chip in catalogue.chips().values()}.values()


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
        ("NVIDIA GeForce RTX 2060", set()),
        ("XPU capacity: Intel(R) Data Center GPU Max 1550 with 63.98GiB memory", {"pvc-tile-64gb"}),
        ("| HL-225               N/A  | 0000:34:00.0", {"gaudi2"}),
        ("HPU capacity: GAUDI3 with 125.00GiB memory", {"gaudi3"}),
        ("Ascend910B3", {"ascend-910b"}),
        ("NPU capacity: Ascend910_9392 with 61.27GiB memory", {"ascend-910c"}),
        ("NVIDIA H20", {"h20-sxm-96gb"}),
        ("NVIDIA H20-3e", {"h20-3e-sxm-141gb"}),
        ("NVIDIA RTX A6000", {"rtx-a6000"}),
        ("NVIDIA RTX 6000 Ada Generation", {"rtx-6000-ada"}),
        ("Quadro RTX 6000", set()),
        ("GeForce RTX 3090", {"rtx-3090"}),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", set()),
        ("Tesla T4", {"t4"}),
    ],
)
def test_a_printed_name_is_of_these_chips(line: str, chips: set[str]) -> None:
    (device, *rest) = printed_devices(line)
    for each in (device, *rest):
        assert {chip.id for chip in each.matching(CHIPS)} == chips


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.id)
def test_every_chip_of_the_catalogue_is_known_by_its_name(chip: Chip) -> None:
    assert chip in [one for device in printed_devices(chip.name) for one in device.matching(CHIPS)]


@pytest.mark.parametrize(
    "line",
    ["NVIDIA-SMI 535.104.05  Driver Version: 535", "nvidia-cublas-cu12 12.4", "loss: 2.0 H100"],
)
def test_other_words_are_no_devices(line: str) -> None:
    assert printed_devices(line) == []
