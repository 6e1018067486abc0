"""The shipped catalogue: every entry builds, has a source, and is found by each of its names."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest

from models.errors import UnknownName
from models.spec import catalogue


def entries(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((files("models") / f"data/{name}.json").read_text())
    return found


CHIPS = entries("chips")
NUMBERS = {
    "memory_gb", "usable_memory_gib", "memory_bandwidth_gb_s", "compute_units", "devices_per_chip",
}  # fmt: skip
REQUIRED = NUMBERS | {
    "id", "name", "vendor", "generation", "year", "aliases", "peak_tflops", "scale_up",
    "scale_out_gb_s", "tdp_w", "usd_per_chip_hour", "price_source", "sources", "confidence",
    "caveats",
}  # fmt: skip
OPTIONAL = {"host_memory_gb", "host_memory_source", "usable_memory_source", "gemm_tile"}
PRIORS = json.loads((files("models") / "data/priors.json").read_text())["terms"]
MEASURED_GENERATIONS = {
    term["scope"].removeprefix("generation:")
    for term in PRIORS
    if term["scope"].startswith("generation:")
}
UNMEASURED_GENERATIONS: set[str] = {"ada", "ascend", "cdna2", "gaudi"}
"""Of which no prior is known: a name that is in neither set is likely to be misspelt."""


@pytest.mark.parametrize("entry", CHIPS, ids=lambda entry: entry.get("id", "without an id"))
def test_an_entry_has_the_fields_of_a_chip_and_no_others(entry: dict[str, Any]) -> None:
    assert entry.keys() >= REQUIRED
    assert entry.keys() <= REQUIRED | OPTIONAL
    assert all(entry[name] > 0 for name in NUMBERS)
    assert all(peak > 0 for peak in entry["peak_tflops"].values())
    assert entry["generation"] in MEASURED_GENERATIONS | UNMEASURED_GENERATIONS


@pytest.mark.parametrize("entry", CHIPS, ids=lambda entry: entry["id"])
def test_a_chip_is_found_by_its_id_and_aliases_and_says_where_its_figures_are_from(
    entry: dict[str, Any],
) -> None:
    chip = catalogue.chip(entry["id"])
    assert chip.sources
    assert all(catalogue.chip(alias) is chip for alias in entry["aliases"])
    assert catalogue.chip(entry["id"].upper().replace("-", "_")) is chip


@pytest.mark.parametrize("entry", CHIPS, ids=lambda entry: entry["id"])
def test_a_chip_has_no_more_usable_memory_than_memory(entry: dict[str, Any]) -> None:
    chip = catalogue.chip(entry["id"])
    # A "GB" of a data sheet may be 2**30 bytes.
    assert 0 < chip.usable_memory_gib * 2**30 <= chip.memory_gb * 1.08e9
    assert all(rate > 0 for rate in chip.peak_tflops.values())


def test_no_name_means_two_chips() -> None:
    names = [name.lower() for entry in CHIPS for name in {entry["id"], *entry["aliases"]}]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("entry", entries("fabrics"), ids=lambda entry: entry["id"])
def test_a_fabric_makes_a_cluster_of_its_chip(entry: dict[str, Any]) -> None:
    cluster = catalogue.cluster(entry["id"], 64)
    assert cluster.fabric.id == entry["id"]
    assert cluster.chip is catalogue.chip(catalogue.fabric_chip(entry["id"]))


@pytest.mark.parametrize(
    ("name", "chip", "domain", "network_gb_s"),
    [
        ("A100-SXM4-80GB", "a100-sxm-80gb", 8, 25),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb", 8, 50),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb", 8, 6.25),
        ("AMD Instinct MI300X", "mi300x", 8, 50),
        ("NVIDIA GH200 480GB", "gh200-96gb", 1, 50),
        ("DGX B200", "b200-sxm", 8, 50),
        ("HGX_B300", "b300-sxm", 8, 100),
        ("dgx-gb200", "gb200-nvl72", 72, 50),
        ("p3dn.24xlarge", "v100-sxm2-32gb", 8, 1.5625),
        ("p4d.24xlarge", "a100-sxm-40gb", 8, 6.25),
        ("p5.48xlarge", "h100-sxm-80gb", 8, 50),
        ("p5e.48xlarge", "h200-sxm-141gb", 8, 50),
        ("p5en.48xlarge", "h200-sxm-141gb", 8, 50),
        ("ml.p5en.48xlarge", "h200-sxm-141gb", 8, 50),
        ("p6-b200.48xlarge", "b200-sxm", 8, 50),
        ("p6-b300.48xlarge", "b300-sxm", 8, 100),
        ("a2-megagpu-16g", "a100-sxm-40gb", 16, 0.78125),
        ("a3-highgpu-8g", "h100-sxm-80gb", 8, 12.5),
        ("a3-megagpu-8g", "h100-sxm-80gb", 8, 25),
        ("a3-ultragpu-8g", "h200-sxm-141gb", 8, 50),
        ("a4-highgpu-8g", "b200-sxm", 8, 50),
        ("a4x-highgpu-4g", "gb200-nvl72", 72, 50),
        ("Standard_ND96asr_v4", "a100-sxm-40gb", 8, 25),
        ("Standard_ND_H200_v5", "h200-sxm-141gb", 8, 50),
        ("ND96isr_H100_v5", "h100-sxm-80gb", 8, 50),
        ("standard nd96isr mi300x v5", "mi300x", 8, 50),
        ("BM.GPU.A100-v2.8", "a100-sxm-80gb", 8, 25),
        ("BM.GPU.H100.8", "h100-sxm-80gb", 8, 50),
        ("BM.GPU.H200.8", "h200-sxm-141gb", 8, 50),
        ("bm.gpu.mi300x.8", "mi300x", 8, 50),
        ("BM.GPU.GB300.4", "gb300-nvl72", 72, 100),
    ],
)
def test_machines_go_by_the_names_that_clouds_and_drivers_give_them(
    name: str, chip: str, domain: int, network_gb_s: float
) -> None:
    cluster = catalogue.cluster(name, 144)
    assert cluster.chip.id == chip
    assert cluster.fabric.domain == domain
    assert cluster.fabric.levels[-1].gb_s_per_chip == network_gb_s


def test_without_vendors_no_name_means_two_chips() -> None:
    found: dict[str, str] = {}
    for name, chip in catalogue.chips().items():
        for spelling in (f"NVIDIA {name}", f"ml.{name}", name):
            assert catalogue.chip(spelling) is chip
        assert found.setdefault(name.lower(), chip.id) == chip.id


def test_an_unknown_name_is_refused_with_near_ones() -> None:
    with pytest.raises(UnknownName, match="h100"):
        catalogue.chip("h100-sxn-80gb")


@pytest.mark.parametrize(("name", "gib"), [("v5e", 15.75), ("v6e", 31.25)])
def test_a_program_on_a_tpu_has_what_xla_leaves_it(name: str, gib: float) -> None:
    assert catalogue.chip(name).usable_memory_gib == gib
