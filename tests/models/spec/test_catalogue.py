"""The shipped catalogue: every entry builds, has a source, and is found by each of its names."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest

from models.errors import UnknownName
from models.spec import catalogue
from models.spec.hardware import Chip, Fabric


def entries(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((files("models") / f"data/{name}.json").read_text())
    return found


CHIPS = entries("chips")
FABRICS = entries("fabrics")
NUMBERS = {
    "memory_gb", "usable_memory_gib", "memory_bandwidth_gb_s", "compute_units", "devices_per_chip",
}  # fmt: skip
REQUIRED = NUMBERS | {
    "id", "name", "vendor", "generation", "year", "aliases", "peak_tflops", "scale_up",
    "scale_out_gb_s", "tdp_w", "sources", "confidence", "caveats",
}  # fmt: skip
CONFIDENCE = {"high", "medium", "low", "data sheet only"}
OPTIONAL = {"host_memory_gb", "host_memory_source", "usable_memory_source", "gemm_tile"}
PRIORS = json.loads((files("models") / "data/priors.json").read_text())["terms"]
MEASURED_GENERATIONS = {
    term["scope"].removeprefix("generation:")
    for term in PRIORS
    if term["scope"].startswith("generation:")
}
UNMEASURED_GENERATIONS = {
    "ada", "ascend", "blackwell-rtx", "cdna2", "cdna5", "gaudi", "rubin", "turing",
}  # fmt: skip
"""Of which no prior is known: a name that is in neither set is likely to be misspelt."""


@pytest.mark.parametrize("entry", CHIPS, ids=lambda entry: entry.get("id", "without an id"))
def test_an_entry_has_the_fields_of_a_chip_and_no_others(entry: dict[str, Any]) -> None:
    assert entry.keys() >= REQUIRED
    assert entry.keys() <= REQUIRED | OPTIONAL
    assert all(entry[name] > 0 for name in NUMBERS)
    assert all(peak > 0 for peak in entry["peak_tflops"].values())
    assert entry["generation"] in MEASURED_GENERATIONS | UNMEASURED_GENERATIONS
    assert entry["confidence"] in CONFIDENCE
    assert ("host_memory_gb" in entry) == ("host_memory_source" in entry)


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


def test_no_name_means_a_chip_and_a_machine_of_another() -> None:
    """A preset is a chip or a machine: the chip is found first, and so must be the same."""
    for name, fabric in catalogue.fabrics().items():
        of_fabric = catalogue.fabric_chip(fabric.id)
        try:
            chip = catalogue.chip(name)
        except UnknownName:
            continue
        assert chip.id == of_fabric == fabric.id


def test_no_name_means_two_machines() -> None:
    names = [name.lower() for entry in FABRICS for name in (entry["id"], *entry.get("aliases", ()))]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("entry", CHIPS, ids=lambda entry: entry["id"])
def test_a_narrower_format_is_no_slower(entry: dict[str, Any]) -> None:
    """Of floating point: some chips have fewer integer units than the ones before them."""
    peaks = entry["peak_tflops"]
    for formats in (
        ("fp32", "tf32", "bf16", "fp8", "fp6", "fp4"),
        ("fp32", "fp16", "fp8", "fp6", "fp4"),
    ):
        of_format = [peaks[name] for name in formats if name in peaks]
        assert of_format == sorted(of_format)


@pytest.mark.parametrize(
    ("chip", "both_ways_gb_s"),
    [
        ("v100", 300),
        ("a100", 600),
        ("h100", 900),
        ("h800", 400),
        ("gh200", 900),
        ("b200", 1800),
        ("gb300", 1800),
        ("vr200", 3600),
        ("a100-64gb", 600),
        ("h100-64gb", 900),
        ("h100-pcie", 128),
        ("rtx-pro-6000", 128),
        ("l40s", 64),
        ("a40", 64),
        ("rtx-3090", 64),
        ("rtx-5090", 128),
        ("t4", 32),
        ("ascend-910c", 392),
        ("l4", 64),
        ("a10g", 64),
        ("rtx-4090", 64),
        ("mi300x", 896),
        ("mi300a", 768),
        ("mi355x", 1075.2),
        ("mi455x", 3600),
        ("trn3", 2560),
        ("tpu-v7x", 1200),
        ("tpu-8t", 2400),
        ("ascend-950dt", 2000),
    ],
)
def test_bandwidths_are_one_way_where_data_sheets_add_both_ways(
    chip: str, both_ways_gb_s: float
) -> None:
    """The figures are those of the data sheets, which add up both ways. TPU links are a little
    slower than theirs in effect."""
    fabric = catalogue.chip(chip).fabric
    if fabric.torus is None:
        one_way = fabric.levels[0].gb_s_per_chip
    else:
        one_way = 2 * fabric.torus.ndim * fabric.torus.gb_s_per_link
    assert 0.85 * both_ways_gb_s <= 2 * one_way <= both_ways_gb_s


@pytest.mark.parametrize("chip", {chip.id: chip for chip in catalogue.chips().values()}.values())
def test_scale_up_links_are_no_slower_than_the_network(chip: Chip) -> None:
    fabric = chip.fabric
    network = [level.gb_s_per_chip for level in fabric.levels if level.scale == "out"]
    inner = fabric.torus.gb_s_per_link if fabric.torus else fabric.levels[0].gb_s_per_chip
    assert all(inner >= gb_s for gb_s in network)


@pytest.mark.parametrize(
    "fabric", {fabric.id: fabric for fabric in catalogue.fabrics().values()}.values()
)
def test_links_to_peers_add_up_to_those_of_a_chip(fabric: Fabric) -> None:
    node = fabric.levels[0]
    if node.peer_gb_s is None or node.size is None:
        return
    assert node.peer_gb_s < node.gb_s_per_chip <= node.peer_gb_s * (node.size - 1) * 1.001 or (
        node.size == 8 and node.peer_gb_s == 25  # DGX-1V: two links to some peers
    )


@pytest.mark.parametrize("entry", CHIPS, ids=lambda entry: entry["id"])
def test_a_chip_of_which_nothing_is_measured_says_what_is_assumed(entry: dict[str, Any]) -> None:
    if entry["confidence"] == "data sheet only":
        assert entry["caveats"]
        assert entry["year"] >= 2025


@pytest.mark.parametrize("entry", FABRICS, ids=lambda entry: entry["id"])
def test_a_fabric_makes_a_cluster_of_its_chip(entry: dict[str, Any]) -> None:
    assert entry["source"]
    for name in (entry["id"], *entry.get("aliases", ())):
        cluster = catalogue.cluster(name, 64)
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
        ("VR200", "vr200-nvl72", 72, 200),
        ("Vera Rubin NVL144", "vr200-nvl72", 72, 200),
        ("vrnvl72", "vr200-nvl72", 72, 200),
        ("R100", "vr200-nvl72", 72, 200),
        ("HGX Rubin NVL8", "vr200-nvl72", 8, 100),
        ("AMD Instinct MI455X", "mi455x", 72, 300),
        ("Helios", "mi455x", 72, 300),
        ("trn3 UltraServer", "trainium3", 144, 25),
        ("Ascend 950DT", "ascend-950dt", 8192, 50),
        ("Atlas 950 SuperPoD", "ascend-950dt", 8192, 50),
        ("NVIDIA GeForce RTX 4090", "rtx-4090", 8, 1.5625),
        ("rtx_4090", "rtx-4090", 8, 1.5625),
        ("NVIDIA L4", "l4", 8, 1.5625),
        ("g6.48xlarge", "l4", 8, 1.5625),
        ("g6.12xlarge", "l4", 4, 1.25),
        ("NVIDIA A10G", "a10g", 8, 1.5625),
        ("ml.g5.48xlarge", "a10g", 8, 1.5625),
        ("g5.24xlarge", "a10g", 4, 1.5625),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000", 8, 6.25),
        ("g4-standard-384", "rtx-pro-6000", 8, 6.25),
        ("NVIDIA GH200 120GB", "gh200-96gb-120gb", 1, 50),
        ("GH200-NVL2", "gh200-144gb", 2, 50),
    ],
)
def test_machines_go_by_the_names_that_clouds_and_drivers_give_them(
    name: str, chip: str, domain: int, network_gb_s: float
) -> None:
    cluster = catalogue.cluster(name, 144)
    assert cluster.chip.id == chip
    assert cluster.fabric.domain == domain
    assert cluster.fabric.levels[-1].gb_s_per_chip == network_gb_s


@pytest.mark.parametrize(
    ("name", "chip", "peer_gb_s", "network_gb_s"),
    [
        ("Perlmutter", "a100-sxm-40gb", 100, 25),
        ("perlmutter-80gb", "a100-sxm-80gb", 100, 25),
        ("Polaris", "a100-sxm-40gb", 100, 12.5),
        ("JUWELS Booster", "a100-sxm-40gb", 100, 25),
        ("Leonardo", "a100-sxm-64gb", 100, 12.5),
        ("NVIDIA-A100-SXM-64GB", "a100-sxm-64gb", 100, 12.5),
        ("HGX A100 4-GPU", "a100-sxm-80gb", 100, 25),
        ("MareNostrum 5", "h100-sxm-64gb", 150, 25),
        ("H100-64GB", "h100-sxm-64gb", 150, 25),
        ("hgx-h100-4", "h100-sxm-80gb", 150, 50),
        ("hgx-h200-4", "h200-sxm-141gb", 150, 50),
        ("GB200 NVL4", "gb200-nvl72", 300, 50),
        ("Alps", "gh200-96gb-120gb", 150, 25),
        ("Isambard-AI", "gh200-96gb-120gb", 150, 25),
        ("JUPITER", "gh200-96gb-120gb", 150, 25),
        ("quad GH200", "gh200-96gb-120gb", 150, 25),
        ("El Capitan", "mi300a", 128, 25),
        ("Tuolumne", "mi300a", 128, 25),
        ("AMD Instinct MI300A", "mi300a", 128, 25),
    ],
)
def test_nodes_of_four_reach_each_other_without_a_switch(
    name: str, chip: str, peer_gb_s: float, network_gb_s: float
) -> None:
    cluster = catalogue.cluster(name, 16)
    node, network = cluster.dims
    assert cluster.chip.id == chip
    assert (node.domain, node.peer_gb_s, node.scale) == (4, peer_gb_s, "up")
    assert node.gb_s == 3 * peer_gb_s
    assert (network.gb_s, network.scale) == (network_gb_s, "out")


def test_nothing_is_offloaded_to_the_only_memory_there_is() -> None:
    """The processor and the GPU of an MI300A share theirs."""
    assert catalogue.cluster("mi300a", 4).host_bytes < 2**30


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


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("Qwen/Qwen3-8B-Base", "qwen3-8b"),
        ("qwen3-8b-base", "qwen3-8b"),
    ],
)
def test_weights_of_another_training_have_the_shape_of_the_model(name: str, known: str) -> None:
    assert catalogue.architecture(name).name == known


@pytest.mark.parametrize("name", ["qwen3-9b-base", "qwen3-8b-long", "-instruct"])
def test_another_model_stays_unknown(name: str) -> None:
    with pytest.raises(UnknownName):
        catalogue.architecture(name)
