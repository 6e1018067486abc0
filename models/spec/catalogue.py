"""The shipped chips, fabrics, stacks and architectures, looked up by exact id or declared alias."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from models.errors import Invalid, UnknownName
from models.spec.architecture import Architecture, Layer, MlaShape, Moe, MoeShape
from models.spec.hardware import Chip, Cluster, Fabric, Level, Torus
from models.spec.stack import Stack

T = TypeVar("T")

_PADDING = 128 * 64
"""Megatron-LM pads a vocabulary to a multiple of 128 times the tensor-parallel size:
--make-vocab-size-divisible-by."""


def chip(name: str) -> Chip:
    return _find("chip", name, chips())


def fabric(name: str) -> Fabric:
    return _find("fabric", name, fabrics())


def fabric_described_as(text: str) -> Fabric | None:
    """That of the cluster whose published runs describe it so."""
    return _printed_fabrics().get(text)


def stack(name: str) -> Stack:
    return _find("stack", name, stacks())


def architecture(name: str) -> Architecture:
    return _find("architecture", name, architectures())


def cluster(preset: str, num_chips: int, **fields: Any) -> Cluster:
    """A fabric preset with its chip, or a chip on the fabric of its data sheet."""
    key = _normal(preset)
    known = {_normal(name): fabric_ for name, fabric_ in fabrics().items()}
    if key in known and key not in {_normal(name) for name in chips()}:
        return Cluster(
            chip=chip(fabric_chip(known[key].id)), fabric=known[key], num_chips=num_chips, **fields
        )
    try:
        part = chip(preset)
    except UnknownName:
        raise UnknownName("cluster", preset, [*fabrics(), *chips()]) from None
    return Cluster(chip=part, fabric=part.fabric, num_chips=num_chips, **fields)


def fabric_chip(fabric_id: str) -> str:
    return _fabric_chips()[fabric_id]


@cache
def chips() -> Mapping[str, Chip]:
    """By id and alias."""
    return _index((chip_from(entry), entry["aliases"]) for entry in _load("chips"))


@cache
def fabrics() -> Mapping[str, Fabric]:
    return _index((_fabric_from(entry), entry.get("aliases", ())) for entry in _load("fabrics"))


@cache
def stacks() -> Mapping[str, Stack]:
    entries = {entry["id"]: entry for entry in _load("stacks")}

    def read(entry: dict[str, Any]) -> Stack:
        whole = {**entries.get(entry.get("like", ""), {}), **entry}
        return Stack(**{name: as_tuples(value) for name, value in whole.items()})

    return _index((read(entry), entry["aliases"]) for entry in entries.values())


def as_tuples(value: Any) -> Any:
    """Lists, and lists in them, as tuples."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


@cache
def architectures() -> Mapping[str, Architecture]:
    index: dict[str, Architecture] = {}
    for entry in _load("architectures"):
        shape = dict(entry["shape"])
        if shape.get("mla"):
            shape["mla"] = MlaShape(**shape["mla"])
        if shape.get("moe"):
            shape["moe"] = MoeShape(**shape["moe"])
        value = Architecture.from_shape(name=entry["id"], **shape)
        for name in (entry["id"], *entry["aliases"]):
            index[name] = value
    return index


def matching_name(own: Architecture, others: Iterable[Architecture]) -> str | None:
    """Of a model without a name: the first of others that is the same, but for a padded
    vocabulary."""
    near = (known for known in others if 0 <= own.vocab_size - known.vocab_size < _PADDING)
    same = (
        known.name
        for known in near
        if replace(own, name=known.name, vocab_size=known.vocab_size) == known
    )
    return next(same, None)


def with_known_biases(own: Architecture) -> Architecture:
    """Of a model whose biases and norms nobody told: with those of the first shipped one that is
    otherwise the same."""
    plain, kept = _plain(own), ("name", "vocab_size", "tie_word_embeddings", "mtp_layers")
    known = next((known for known in architectures().values() if _plain(known) == plain), None)
    return own if known is None else replace(known, **{name: getattr(own, name) for name in kept})


@cache
def _plain(own: Architecture) -> Architecture:
    """Without what sources seldom tell, or tell apart from the shape."""
    layers = tuple(_plain_layer(layer) for layer in own.layers)
    return replace(
        own, name="", vocab_size=0, tie_word_embeddings=False, mtp_layers=0, layers=layers
    )


@cache
def _plain_layer(layer: Layer) -> Layer:
    attention = replace(
        layer.attention, qkv_bias=False, output_bias=False, qk_norm=False, sinks=False
    )
    block = replace(layer.feed_forward, bias=False)
    if isinstance(block, Moe):
        plain = {"router_bias": False, "shared_gate": False, "selection_bias": False}
        block = replace(block, **plain, num_groups=1, groups_per_token=1)
    return replace(
        layer,
        attention=attention,
        feed_forward=block,
        num_norms=2,
        norm_bias=False,
        post_norms=False,
    )


def chip_from(entry: Mapping[str, Any]) -> Chip:
    """A chip in the form of data/chips.json; its fabric is its scale-up domain and its NICs."""
    up, out = entry["scale_up"], entry.get("scale_out_gb_s")
    levels = []
    torus = Torus(**up["torus"]) if up.get("torus") else None
    if torus is None:
        domain = Level(
            name="scale-up domain",
            gb_s_per_chip=up["gb_s_per_chip"],
            size=up["domain"],
            peer_gb_s=up.get("peer_gb_s"),
        )
        levels.append(domain)
    if out:
        levels.append(
            Level(name="data-centre network" if torus else "scale-out", gb_s_per_chip=out)
        )
    if not levels and torus is None:
        raise Invalid("chip", entry["id"], "needs a scale-up domain or a scale-out bandwidth")
    return Chip(
        id=entry["id"],
        name=entry["name"],
        vendor=entry["vendor"],
        generation=entry["generation"],
        year=entry.get("year"),
        aliases=tuple(entry.get("aliases", ())),
        peak_tflops=entry["peak_tflops"],
        memory_gb=entry["memory_gb"],
        usable_memory_gib=entry["usable_memory_gib"],
        memory_bandwidth_gb_s=entry["memory_bandwidth_gb_s"],
        host_memory_gb=entry.get("host_memory_gb"),
        compute_units=entry.get("compute_units", 1),
        gemm_tile=entry.get("gemm_tile", 128),
        devices_per_chip=entry.get("devices_per_chip", 1),
        tdp_w=entry.get("tdp_w"),
        usd_per_chip_hour=entry.get("usd_per_chip_hour"),
        sources=tuple(entry.get("sources", ())),
        caveats=entry.get("caveats"),
        fabric=Fabric(
            id=entry["id"],
            levels=tuple(levels),
            torus=torus,
            source="; ".join(entry.get("sources", ())),
        ),
    )


@cache
def _fabric_chips() -> Mapping[str, str]:
    return {entry["id"]: entry["chip"] for entry in _load("fabrics")}


@cache
def _printed_fabrics() -> Mapping[str, Fabric]:
    return {
        text: _fabric_from(entry) for entry in _load("fabrics") for text in entry.get("printed", ())
    }


def _fabric_from(entry: Mapping[str, Any]) -> Fabric:
    own = chip(entry["chip"]).fabric
    levels = tuple(
        Level(
            name=level["name"],
            gb_s_per_chip=level["gb_s_per_chip"],
            size=level["size"],
            scale="up" if index == 0 and own.torus is None else level.get("scale", "out"),
            peer_gb_s=level.get(
                "peer_gb_s", own.levels[0].peer_gb_s if index == 0 and own.torus is None else None
            ),
        )
        for index, level in enumerate(entry["levels"])
    )
    return Fabric(id=entry["id"], levels=levels, torus=own.torus, source=entry["source"])


def _load(name: str) -> list[dict[str, Any]]:
    return json.loads((files("models") / f"data/{name}.json").read_text())


def _index(items: Iterable[tuple[Any, Iterable[str]]]) -> dict[str, Any]:
    index: dict[str, Any] = {}
    for value, aliases in items:
        for name in (value.id, *aliases):
            index[name] = value
    return index


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def _find(field: str, name: str, index: Mapping[str, T]) -> T:
    if name in index:
        return index[name]
    wanted = _normal(name)
    for known, value in index.items():
        if _normal(known) == wanted:
            return value
    raise UnknownName(field, name, index)
