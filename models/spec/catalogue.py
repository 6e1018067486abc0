"""The shipped chips, fabrics, stacks and architectures, looked up by id or declared alias.

An *entry* is the JSON object of one of them in a file of data/. *Sources* are the papers, model
cards and logs that describe a model, mostly without details such as biases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

from models.errors import Invalid, UnknownName
from models.package_data import read_json
from models.spec.architecture import Architecture, MlaShape, MoeShape
from models.spec.feed_forward import Moe
from models.spec.hardware import Chip, Cluster, Fabric, Level, Torus
from models.spec.layer import Layer
from models.spec.prices import list_prices
from models.spec.stack import Stack

T = TypeVar("T")

_MOST_PADDING = 128 * 64
"""The most entries that Megatron-LM adds to a vocabulary. It pads vocabularies to a multiple of 128
times the tensor-parallel size (--make-vocab-size-divisible-by); 64 is the largest size that this
allows for."""
_PLAIN_LAYERS = 1024  # of questions too, whose layers are without number: a model has a few kinds
_BEFORE_HARDWARE = re.compile(
    r"^(?:nvidia-|tesla-|amd-|instinct-|intel-|google-|aws-|huawei-|gpu-|standard-|ml\.)+(?=.)"
)
"""Words that stand before the name of hardware: vendors and their brands, as drivers and node
labels print them, and the words of Azure and SageMaker for a machine."""
_BESIDE_LETTERS = re.compile(r"(?<!\d)-|-(?!\d)")
"""A hyphen, unless it is between two digits, where it keeps A100-40GB apart from A10040GB."""
_TUNED = re.compile(r"-(?:instruct|chat|base|it|hf)$")
"""A word behind the name of a model that says how its weights were trained or stored: their shape
is the same."""


def chip(name: str) -> Chip:
    return _find("chip", name, chips(), _hardware_named)


def fabric(name: str) -> Fabric:
    return _find("fabric", name, fabrics(), _hardware_named)


def fabric_described_as(text: str) -> Fabric | None:
    """Return the fabric of the cluster that published runs describe in exactly these words; None
    where no fabric of the catalogue lists them."""
    return _described_fabrics().get(text)


def stack(name: str) -> Stack:
    return _find("stack", name, stacks(), _named)


def architecture(name: str) -> Architecture:
    return _find("architecture", name, architectures(), _architecture_named)


def architecture_shape(name: str) -> dict[str, Any]:
    """Return the arguments of Architecture.from_shape that make a shipped architecture, given its
    id or an alias. They describe the model of a launch that only names it. Raise UnknownName for an
    unknown name."""
    known = architecture(name).name
    entry = next(
        entry for entry in read_json("models", "data/architectures.json") if entry["id"] == known
    )
    return {"name": known, **entry["shape"]}


def cluster(preset: str, num_chips: int, **fields: Any) -> Cluster:
    """Return a cluster named by its chip, on the fabric of the chip's data sheet, or by a fabric
    preset, with the chip that the preset joins. `fields` are further fields of Cluster. Raise
    UnknownName for an unknown preset, and Invalid for a number of chips that the fabric does not
    join."""
    if preset_chip := _hardware_named(preset, chips()):
        fabric = preset_chip.fabric
    elif preset_fabric := _hardware_named(preset, fabrics()):
        preset_chip, fabric = chip(fabric_chip(preset_fabric.id)), preset_fabric
    else:
        raise UnknownName("cluster", preset, [*fabrics(), *chips()])
    return Cluster(chip=preset_chip, fabric=fabric, num_chips=num_chips, **fields)


def fabric_chip(fabric_id: str) -> str:
    """Return the id of the chip that a fabric preset joins."""
    return _fabric_chips()[fabric_id]


@cache
def chips() -> Mapping[str, Chip]:
    """Return every chip, by id and by alias."""
    return _by_name("chips", _chip_with_list_price)


def _chip_with_list_price(entry: Mapping[str, Any]) -> Chip:
    """Return a chip from an entry of data/chips.json with its list price, where one is
    published."""
    prices = list_prices(entry["id"])
    priced = {**entry, "usd_per_chip_hour": prices[0].usd_per_chip_hour} if prices else entry
    return chip_from(priced)


@cache
def fabrics() -> Mapping[str, Fabric]:
    """Return every fabric, by id and by alias."""
    return _by_name("fabrics", _fabric_from)


@cache
def stacks() -> Mapping[str, Stack]:
    """Return every stack, by id and by alias. Fields that a stack leaves out are those of the stack
    that it is `like`."""
    entries = {entry["id"]: entry for entry in read_json("models", "data/stacks.json")}

    def stack_from(entry: Mapping[str, Any]) -> Stack:
        # An own field stands in for that of the stack that this one is `like`.
        fields = {**entries.get(entry.get("like", ""), {}), **entry}
        return Stack(**{name: as_tuples(value) for name, value in fields.items()})

    return _by_name("stacks", stack_from)


def as_tuples(value: Any) -> Any:
    """Return a value with its lists, and the lists in them, as tuples."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def from_json(cls: type[T], data: Mapping[str, Any]) -> T:
    """Return an instance of a dataclass with the values of a JSON object, whose lists become
    tuples. Names that are no fields of it are ignored, since a later release may have written
    them."""
    names = {field.name for field in fields(cast(Any, cls))}
    return cls(**{name: as_tuples(value) for name, value in data.items() if name in names})


@cache
def architectures() -> Mapping[str, Architecture]:
    """Return every architecture, by id and by alias."""
    return _by_name("architectures", _architecture_from)


def _architecture_from(entry: Mapping[str, Any]) -> Architecture:
    """Return an architecture from an entry of data/architectures.json, whose "shape" has the
    arguments of Architecture.from_shape."""
    shape = dict(entry["shape"])
    if shape.get("mla"):
        shape["mla"] = MlaShape(**shape["mla"])
    if shape.get("moe"):
        shape["moe"] = MoeShape(**shape["moe"])
    return Architecture.from_shape(name=entry["id"], **shape)


@cache
def families() -> Mapping[str, str]:
    """Return the model_type of Hugging Face by the id and the aliases of a shipped architecture.
    Launch formats that state a model's family need it. Architectures without a model_type are left
    out."""
    return {
        name: entry["family"]
        for entry in read_json("models", "data/architectures.json")
        if "family" in entry
        for name in (entry["id"], *entry["aliases"])
    }


def matching_name(own: Architecture, others: Iterable[Architecture]) -> str | None:
    """Return the name of the first of `others` that equals this model in all but its name and the
    padding of its vocabulary; None where none does. It recognises a known model that a request
    describes field by field."""
    for known in others:
        if not 0 <= own.vocab_size - known.vocab_size < _MOST_PADDING:
            continue
        if replace(own, name=known.name, vocab_size=known.vocab_size) == known:
            return known.name
    return None


def with_known_biases(own: Architecture) -> Architecture:
    """Return a model, read from a source that leaves out biases and some norms, with those of the
    first shipped model that equals it in all that sources usually state. Its name, vocabulary, tied
    embedding and mtp_layers stay its own. It is returned unchanged where no shipped model
    matches."""
    known = _shipped_by_stated().get(_without_seldom_stated(own))
    if known is None:
        return own
    return replace(
        known,
        name=own.name,
        vocab_size=own.vocab_size,
        tie_word_embeddings=own.tie_word_embeddings,
        mtp_layers=own.mtp_layers,
    )


@cache
def _shipped_by_stated() -> Mapping[Architecture, Architecture]:
    """Return shipped models by what _without_seldom_stated leaves of them, so that a model of which
    a source states no more can be looked up. Where several are equal by that, the first is kept."""
    shipped: dict[Architecture, Architecture] = {}
    for known in architectures().values():
        shipped.setdefault(_without_seldom_stated(known), known)
    return shipped


def _without_seldom_stated(own: Architecture) -> Architecture:
    """Return a model with default values in fields that sources seldom state (biases, norms) or
    state apart from the shape (name, vocabulary, tied embedding, mtp_layers), so that models
    compare by the rest."""
    layers = tuple(_layer_without_seldom_stated(layer) for layer in own.layers)
    return replace(
        own, name="", vocab_size=0, tie_word_embeddings=False, mtp_layers=0, layers=layers
    )


@lru_cache(_PLAIN_LAYERS)
def _layer_without_seldom_stated(layer: Layer) -> Layer:
    """Return a layer with default values in fields that sources seldom state: biases, norms, sinks,
    gates of shared experts and groups of experts. Layers that differ in these alone then compare
    as equal."""
    attention, network = layer.attention, layer.feed_forward
    if attention:
        attention = replace(
            attention, attention_bias=False, attention_output_bias=False, qk_norm=False, sinks=False
        )
    network = replace(network, bias=False) if network else None
    if isinstance(network, Moe):
        defaults = {"router_bias": False, "shared_gate": False, "selection_bias": False}
        network = replace(network, **defaults, num_groups=1, groups_per_token=1)
    return replace(
        layer,
        attention=attention,
        feed_forward=network,
        num_norms=2,
        norm_bias=False,
        post_norms=False,
    )


def chip_from(entry: Mapping[str, Any]) -> Chip:
    """Return a chip from an entry in the form of data/chips.json. Its fabric is its scale-up domain
    or torus, and its NICs. Raise Invalid where it has no links."""
    scale_up = entry["scale_up"]
    nic_gb_s = entry.get("scale_out_gb_s")
    levels = []
    torus = Torus(**scale_up["torus"]) if scale_up.get("torus") else None
    if torus is None:
        domain = Level(
            name="scale-up domain",
            gb_s_per_chip=scale_up["gb_s_per_chip"],
            size=scale_up["domain"],
            peer_gb_s=scale_up.get("peer_gb_s"),
        )
        levels.append(domain)
    if nic_gb_s:
        network = "data-centre network" if torus else "scale-out"
        levels.append(Level(name=network, gb_s_per_chip=nic_gb_s))
    if not levels and torus is None:
        raise Invalid("chip", entry["id"], "needs a scale-up domain or a scale-out bandwidth")
    source = "; ".join(entry.get("sources", ()))
    # The fabric that a chip brings with it has the id of the chip.
    fabric = Fabric(id=entry["id"], levels=tuple(levels), torus=torus, source=source)
    return from_json(Chip, {**entry, "fabric": fabric})


@cache
def _fabric_chips() -> Mapping[str, str]:
    """Return the id of the chip of every fabric, by the id of the fabric."""
    return {entry["id"]: entry["chip"] for entry in read_json("models", "data/fabrics.json")}


@cache
def _described_fabrics() -> Mapping[str, Fabric]:
    """Return fabrics by the words with which published runs describe their cluster."""
    return {
        text: _fabric_from(entry)
        for entry in read_json("models", "data/fabrics.json")
        for text in entry.get("printed", ())
    }


def _fabric_from(entry: Mapping[str, Any]) -> Fabric:
    """Return a fabric from an entry of data/fabrics.json. Without a torus its first level is the
    scale-up domain. The links between peers in that domain are those of the chip unless the entry
    has its own."""
    chip_fabric = chip(entry["chip"]).fabric
    levels = []
    for index, level in enumerate(entry["levels"]):
        is_domain = index == 0 and chip_fabric.torus is None
        peer_gb_s = chip_fabric.levels[0].peer_gb_s if is_domain else None
        levels.append(
            Level(
                name=level["name"],
                gb_s_per_chip=level["gb_s_per_chip"],
                size=level["size"],
                # Beside a torus, a level may say itself that it scales up: it then joins slices.
                scale="up" if is_domain else level.get("scale", "out"),
                peer_gb_s=level.get("peer_gb_s", peer_gb_s),
            )
        )
    return Fabric(
        id=entry["id"], levels=tuple(levels), torus=chip_fabric.torus, source=entry["source"]
    )


def _by_name(file: str, build: Callable[[Mapping[str, Any]], T]) -> dict[str, T]:
    """Return what `build` makes of each entry of a file below data/, by the entry's id and by its
    aliases."""
    index: dict[str, T] = {}
    for entry in read_json("models", f"data/{file}.json"):
        index |= dict.fromkeys((entry["id"], *entry.get("aliases", ())), build(entry))
    return index


def normalized_name(name: str) -> str:
    """Return the spelling by which names are compared, such as "h100-sxm" for "H100 SXM"."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def _plain_hardware_name(name: str) -> str:
    """Return a name of hardware without the words that vendors, drivers and clouds put before it,
    and without hyphens beside letters: h200 for NVIDIA H-200, p5.48xlarge for ml.p5.48xlarge."""
    return _BESIDE_LETTERS.sub("", _BEFORE_HARDWARE.sub("", normalized_name(name)))


def _hardware_named(name: str, index: Mapping[str, T]) -> T | None:
    """Return the hardware with this name or alias, whatever words vendors, drivers and clouds put
    before it ("NVIDIA H200" finds h200), and with or without a gap beside a letter ("Gaudi 3").
    Return None where no hardware has the name."""
    return _named(name, index) or _first_alike(name, index, _plain_hardware_name)


def _base_name(name: str) -> str:
    """Return a model's name without a word for its training: qwen/qwen3-8b for
    Qwen/Qwen3-8B-Base."""
    return _TUNED.sub("", normalized_name(name))


def _architecture_named(name: str, index: Mapping[str, T]) -> T | None:
    """Return the model with this name or alias, or with one that differs in the word for its
    training. Return None where no model has the name."""
    return _named(name, index) or _first_alike(name, index, _base_name)


def _find(
    field: str,
    name: str,
    index: Mapping[str, T],
    look_up: Callable[[str, Mapping[str, T]], T | None],
) -> T:
    """Return the value that `look_up` finds in `index` by its name. Raise UnknownName for the field
    where it finds none."""
    value = look_up(name, index)
    if value is None:
        raise UnknownName(field, name, index)
    return value


def _named(name: str, index: Mapping[str, T]) -> T | None:
    """Return the value of a name in `index`, regardless of case and of spaces, underscores or
    hyphens; None where no value has the name."""
    return index[name] if name in index else _first_alike(name, index, normalized_name)


def _first_alike(name: str, index: Mapping[str, T], simplify: Callable[[str], str]) -> T | None:
    """Return the first value in `index` whose name equals this one when both are simplified; None
    where there is none."""
    simplified = simplify(name)
    return next((value for known, value in index.items() if simplify(known) == simplified), None)
