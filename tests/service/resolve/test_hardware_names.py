"""Unknown names of chips and machines: how a refusal says what they may have meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.spec import catalogue
from service.resolve.hardware_names import chip_named_in
from tests.paths import SHARED
from tests.service.asking import QUESTION, assert_problem, changed

CHIPS = {name: chip.id for name, chip in catalogue.chips().items()}


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("BM.GPU.H100.4", "h100-sxm-80gb"),
        ("Standard_NC80adis_H100_v5", "h100-sxm-80gb"),
        ("h100-nvl-2x", "h100-nvl-94gb"),
        ("8xH100", "h100-sxm-80gb"),
        ("u-p6e-gb200x36", "gb200-nvl72"),
        ("p5.4xlarge", "h100-sxm-80gb"),
        ("H200:8", "h200-sxm-141gb"),
        ("Standard_NC24s_v3", None),
        ("g5.2xlarge", "a10g"),
        ("gh200-nvl4", "gh200-96gb"),
        ("h100-64gb-x4", "h100-sxm-64gb"),
        ("8x RTX 4090", "rtx-4090"),
        ("a100-40g", "a100-sxm-40gb"),
        ("dgx-a100-40gb", "a100-sxm-40gb"),
        ("A100 40GB PCIe", "a100-pcie-40gb"),
        ("H100 SXM5 96GB", "h100-sxm-96gb"),
        ("H100 94GB", "h100-nvl-94gb"),
        ("V100 PCIe 16 GB", "v100-pcie-16gb"),
        ("p3.2xlarge", None),
        ("P100", None),
        ("", None),
    ],
)
def test_the_chip_within_the_name_of_a_machine(name: str, chip: str | None) -> None:
    assert chip_named_in(name, CHIPS) == chip


@pytest.mark.parametrize(
    ("preset", "says"),
    [
        ("P100", "unknown name of a chip or machine; the nearest known are a100, "),
        ("RTX-PRO-5000", "the explicit fields of its data sheet, or registered by POST"),
        ("BM.GPU.H100.4", "if its chip is h100-sxm-80gb, give cluster.chip = 'h100-sxm-80gb' and"),
        ("8xH100", "give cluster.preset = 'h100-sxm-80gb' with num_chips;"),
        ("gpu:h100:8", "give cluster.preset = 'h100-sxm-80gb' with num_chips;"),
        ("gpu_8x_h100_sxm5", "give cluster.preset = 'h100-sxm-80gb' with num_chips;"),
        ("own-tpu-v5p", "give cluster.chip = 'tpu-v5p' and its links in cluster.torus;"),
        ("dxg-h100", "did you mean dgx-h100?"),
    ],
)
def test_the_refusal_says_how_to_describe_it(shared_client, preset: str, says: str) -> None:
    body = changed(QUESTION, "cluster.preset", preset)
    refused = shared_client.post("/v1/recommendations", json=body)
    (error,) = assert_problem(refused, "unknown-name", "/cluster/preset")["errors"]
    assert says in error["rule"]


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("Gaudi 3", "gaudi3"),
        ("H 100", "h100-sxm-80gb"),
        ("MI-300X", "mi300x"),
        ("TPUv4", "tpu-v4"),
        ("NVIDIA H100", "h100-sxm-80gb"),
        ("A6000 Ada", "rtx-6000-ada"),
    ],
)
def test_a_chip_is_known_in_any_spelling(shared_client, name: str, chip: str) -> None:
    assert shared_client.get(f"/v1/catalog/chips/{name}").json()["name"] == chip
    assert catalogue.chip(name).id == chip


def test_a_slice_is_known_with_a_space_too(shared_client) -> None:
    asked = {**QUESTION, "stack": "maxtext", "cluster": {"preset": "TPU v5p-256"}}
    answer = shared_client.post("/v1/recommendations", json=asked)
    assert answer.json()["request"]["cluster"]["num_chips"] == 128


@pytest.mark.parametrize("preset", ["P100", "RTX-PRO-5000", "B310"])
def test_another_chip_is_never_said_to_be_meant(shared_client, preset: str) -> None:
    body = changed(QUESTION, "cluster", {"chip": preset, "num_chips": 8})
    refused = shared_client.post("/v1/recommendations", json=body)
    (error,) = assert_problem(refused, "unknown-name", "/cluster/chip")["errors"]
    assert "did you mean" not in error["rule"]
    assert "the nearest known are" in error["rule"]


def requests_by_name() -> list[Path]:
    folder = SHARED / "cases" / "d"
    return sorted(path for path in folder.glob("name-*.json") if ".expected" not in path.name)


@pytest.mark.parametrize("file", requests_by_name(), ids=lambda path: path.stem)
def test_names_of_machines_that_people_use_are_known(shared_client, file: Path) -> None:
    asked = json.loads(file.read_text())
    answer = shared_client.post(asked["path"], json=asked["body"])
    assert answer.is_success, answer.text
