"""Unknown names of chips and machines: what they may have meant, and what they never mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.spec import catalogue
from service.resolve.hardware_names import chip_named_in, misspelt
from tests.paths import SHARED
from tests.service.asking import QUESTION, assert_problem, changed

KNOWN = [*catalogue.chips(), *catalogue.fabrics()]
CHIPS = {name: chip.id for name, chip in catalogue.chips().items()}


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
    ["A10", "A30", "B310", "B350", "H10", "L2", "L40", "T4", "MI300", "MI300C", "MI450", "v6p",
     "gaudi4", "trainium4", "910d", "ascend-960", "VR300", "p5x.48xlarge", "p7-b200.48xlarge",
     "a5-highgpu-8g", "RTX-PRO-5000", "RTX 5090", "RTX 3090", "groq"],
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
        ("p3.2xlarge", None),
        ("A10", None),
        ("", None),
    ],
)
def test_the_chip_within_the_name_of_a_machine(name: str, chip: str | None) -> None:
    assert chip_named_in(name, CHIPS) == chip


@pytest.mark.parametrize(
    ("preset", "says"),
    [
        ("A10", "unknown name of a chip or machine: give cluster.chip and its links in"),
        ("RTX-PRO-5000", "the explicit fields of its data sheet, or registered by POST"),
        ("BM.GPU.H100.4", "if its chip is h100-sxm-80gb, give cluster.chip = 'h100-sxm-80gb' and"),
        ("dxg-h100", "did you mean dgx-h100?"),
    ],
)
def test_the_refusal_says_how_to_describe_it(shared_client, preset: str, says: str) -> None:
    body = changed(QUESTION, "cluster.preset", preset)
    refused = shared_client.post("/v1/recommendations", json=body)
    (error,) = assert_problem(refused, "unknown-name", "/cluster/preset")["errors"]
    assert says in error["rule"]


@pytest.mark.parametrize("preset", ["A10", "RTX-PRO-5000", "B310"])
def test_no_other_chip_is_offered(shared_client, preset: str) -> None:
    body = changed(QUESTION, "cluster", {"chip": preset, "num_chips": 8})
    refused = shared_client.post("/v1/recommendations", json=body)
    (error,) = assert_problem(refused, "unknown-name", "/cluster/chip")["errors"]
    assert "did you mean" not in error["rule"]
    assert not any(name in error["rule"] for name in catalogue.chips())


def requests_by_name() -> list[Path]:
    folder = SHARED / "cases" / "d"
    return sorted(path for path in folder.glob("name-*.json") if ".expected" not in path.name)


@pytest.mark.parametrize("file", requests_by_name(), ids=lambda path: path.stem)
def test_names_of_machines_that_people_use_are_known(shared_client, file: Path) -> None:
    asked = json.loads(file.read_text())
    answer = shared_client.post(asked["path"], json=asked["body"])
    assert answer.is_success, answer.text
