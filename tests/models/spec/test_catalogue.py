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
OPTIONAL = {"host_memory_gb", "host_memory_source", "gemm_tile"}
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


def test_an_unknown_name_is_refused_with_near_ones() -> None:
    with pytest.raises(UnknownName, match="h100"):
        catalogue.chip("h100-sxn-80gb")
