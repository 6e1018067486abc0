"""The tables of the pages, written from the code so that they cannot fall behind it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from inspect import getdoc

from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel

from models.layouts.complexity import POINTS, TERM_WORDS
from models.layouts.rule import Rule
from models.layouts.rules import RULES
from models.spec import catalogue
from models.spec.hardware import Fabric
from models.spec.switches import NOTHING, Switch, setting_of, switches_of
from service import metrics as service_metrics
from service.formats import huggingface
from service.formats.huggingface.family import Hybrid
from service.formats.launch.formats import FORMATS
from service.schemas.layer import LayerGroup
from service.schemas.layer_list import LayerListFields, LayerRepetition
from service.schemas.mixers import (
    AttentionFields,
    CompressionFields,
    DeltaNetFields,
    IndexerFields,
    LightningFields,
    Mamba2Fields,
    MlaFields,
    ShortConvolutionFields,
)
from service.schemas.networks import LayerMoeFields, MlpFields
from service.settings import PREFIX, Settings
from service.web.problem_types import TYPES
from tests.docs import caches
from tests.launchers.judges.shims import SHIMS
from tests.openapi import openapi


def settings() -> str:
    rows = [
        (f"`{PREFIX}{name.upper()}`", f"`{field.default}`", _plain(field.description))
        for name, field in Settings.model_fields.items()
    ]
    return _table(("variable", "default", "meaning"), rows)


def routes() -> str:
    paths = openapi()["paths"]
    rows = [
        (f"`{method.upper()} {path}`", _plain(operation.get("description")))
        for path, operations in sorted(paths.items())
        for method, operation in operations.items()
    ]
    return _table(("route", "what it does"), rows)


def metrics() -> str:
    rows = list[tuple[str, str, str]]()
    for metric in vars(service_metrics).values():
        if isinstance(metric, service_metrics.StoredGauge):
            rows.append((f"`{metric.name}`", _names(metric.labels), metric.meaning))
        if isinstance(metric, MetricWrapperBase):
            (described,) = metric.describe()
            total = "_total" if described.type == "counter" else ""
            labels = _names(metric._labelnames)
            rows.append((f"`{described.name}{total}`", labels, described.documentation))
    return _table(("metric", "labels", "meaning"), rows)


def problem_types() -> str:
    rows = [
        (f"`/problems/{name}`", str(kind.status), kind.title, _plain(kind.meaning))
        for name, kind in TYPES.items()
    ]
    return _table(("type", "status", "title", "meaning"), rows)


def chips() -> str:
    known = {chip.id: chip for chip in catalogue.chips().values()}
    rows = [
        (
            f"`{id_}`",
            _names(chip.aliases),
            chip.generation,
            f"{chip.peak_tflops.get('bf16', chip.peak_tflops.get('fp16')):g}",
            f"{chip.usable_memory_gib:g}",
            f"{chip.memory_bandwidth_gb_s:g}",
            _links(chip.fabric),
            chip.confidence or "",
        )
        for id_, chip in sorted(known.items())
    ]
    head = ("chip", "also accepted", "generation", "TFLOP/s", "GiB", "GB/s", "links", "figures")
    return _table(head, rows)


def machines() -> str:
    known = {fabric.id: fabric for fabric in catalogue.fabrics().values()}
    aliases: dict[str, list[str]] = {}
    for name, fabric in catalogue.fabrics().items():
        aliases.setdefault(fabric.id, []).append(name)
    rows = [
        (f"`{id_}`", _names(aliases[id_][1:]), f"`{catalogue.fabric_chip(id_)}`", _links(fabric))
        for id_, fabric in sorted(known.items())
    ]
    return _table(("machine or cluster", "also accepted", "chip", "links"), rows)


def _links(fabric: Fabric) -> str:
    """What joins how many chips, at how many GB/s of a chip one way, from the inside out."""
    torus = fabric.torus
    parts = []
    for level in fabric.levels:
        peer = f" ({level.peer_gb_s:g} to a peer)" if level.peer_gb_s else ""
        parts.append(f"{level.size or 'all'} at {level.gb_s_per_chip:g}{peer}")
    if torus:
        parts.insert(0, f"torus of {torus.max_chips}, {torus.gb_s_per_link:g} a link")
    return "; ".join(parts)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def stacks() -> str:
    known = {stack.id: stack for stack in catalogue.stacks().values()}
    rows = [(f"`{id_}`", stack.name, _names(stack.aliases)) for id_, stack in sorted(known.items())]
    return _table(("stack", "software", "also accepted"), rows)


def switches() -> str:
    """The switches of stacks that have words for them; stacks that are like one have the same."""
    known = {stack.id: stack for stack in catalogue.stacks().values()}
    rows = [
        (
            f"`{id_}`",
            f"`{switch.field}`",
            f"`{switch.name}`",
            _setting(switch, switch.recipe_value_at().value),
            _setting(switch, switch.default_at().value),
        )
        for id_, stack in sorted(known.items())
        for switch in switches_of(stack)
        if len({setting.value for setting in switch.settings}) > 1
    ]
    head = ("stack", "field", "switch", "recipes set", "told nothing")
    return _table(head, rows)


def model_families() -> str:
    """By what their layers are; the last rows have what is refused."""
    families = huggingface.FAMILIES
    hybrids = {name for name, family in families.items() if isinstance(family, Hybrid)}
    alike = {name: one for name, one in families.items() if name not in hybrids}
    rows = [
        ("dense", [name for name, one in alike.items() if one.experts is None]),
        ("with experts", [name for name, one in alike.items() if one.experts is not None]),
        ("with recurrences or convolutions, or attention to chosen or pooled keys", [*hybrids]),
        ("multimodal, around a text tower of these", [*huggingface.text_towers()]),
    ]
    for missing in dict.fromkeys(huggingface.UNSUPPORTED.values()):
        refused = [name for name, one in huggingface.UNSUPPORTED.items() if one == missing]
        rows.append((f"*not described:* {missing}", refused))
    cells = [(what, ", ".join(f"`{name}`" for name in sorted(names))) for what, names in rows]
    return _table(("layers", "`model_type`"), cells)


def launch_formats() -> str:
    rows = [
        (
            f"`{name}`",
            f"{format_.framework} {format_.release}",
            _names(format_.stacks),
            "a document" if format_.words is None else "arguments",
        )
        for name, format_ in FORMATS.items()
    ]
    return _table(("format", "written for", "of stacks", "settings are"), rows)


def launch_shims() -> str:
    """What the real frameworks are told in the tests of launch formats."""
    rows = [(shim.frameworks, shim.asks, shim.told) for shim in SHIMS.values()]
    return _table(("framework", "asks for", "is told"), rows)


def _setting(switch: Switch, value: object) -> str:
    words = setting_of(switch, value).words
    return f"`{words}`" if words != NOTHING else "not set"


def rule_meaning(rule: Rule) -> str:
    """The first paragraph of the docstring of the rule's test, on one line."""
    return " ".join((getdoc(rule.test) or "").split("\n\n")[0].split())


def rules() -> str:
    rows = [(f"`{rule.name}`", f"`{rule.field}`", rule.kind, rule_meaning(rule)) for rule in RULES]
    return _table(("rule", "field", "of the", "what it asks"), rows)


def complexity_terms() -> str:
    rows = [(f"`{name}`", str(points), TERM_WORDS[name]) for name, points in POINTS.items()]
    return _table(("term", "points", "what has them"), rows)


def layer_lists() -> str:
    """The fields of a model that is given layer by layer, object by object."""
    rows = [
        (
            place,
            f"`{name}`",
            "required" if field.is_required() else f"`{json.dumps(field.default)}`",
            _plain(field.description),
        )
        for place, form in _LAYER_FORMS.items()
        for name, field in form.model_fields.items()
    ]
    return _table(("in", "field", "default", "meaning"), rows)


_LAYER_FORMS: dict[str, type[BaseModel]] = {
    "the model": LayerListFields,
    "a repetition": LayerRepetition,
    "a layer": LayerGroup,
    "`attention`": AttentionFields,
    "`mla`": MlaFields,
    "`compression`": CompressionFields,
    "`indexer`": IndexerFields,
    "`recurrence`: Mamba-2": Mamba2Fields,
    "`recurrence`: delta rule": DeltaNetFields,
    "`recurrence`: lightning": LightningFields,
    "`recurrence`: short convolution": ShortConvolutionFields,
    "`mlp`": MlpFields,
    "`moe`": LayerMoeFields,
}


def function_caches() -> str:
    rows = [
        (f"`{file}`", f"`{name}`", key, size) for file, name, key, size in caches.cached_functions()
    ]
    return _table(("module", "function", "key", "results kept"), rows)


def property_caches() -> str:
    rows = [
        (f"`{file}`", f"`{owner}`", _names(properties))
        for (file, owner), properties in caches.cached_properties().items()
    ]
    return _table(("module", "class", "properties"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "layer lists": layer_lists,
    "metrics": metrics,
    "settings": settings,
    "routes": routes,
    "problem types": problem_types,
    "chips": chips,
    "machines": machines,
    "model families": model_families,
    "stacks": stacks,
    "launch formats": launch_formats,
    "launch shims": launch_shims,
    "switches": switches,
    "rules": rules,
    "complexity terms": complexity_terms,
    "function caches": function_caches,
    "property caches": property_caches,
}
"""By the name that stands in the markers of a page."""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _plain(text: str | None) -> str:
    """One line that a cell of a table can hold."""
    return " ".join((text or "").split()).replace("|", "\\|")
