"""From what a request names to what the models compute with, and a record of which entries that
were."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from models.errors import DomainError, Invalid, UnknownName
from models.spec import catalogue
from models.spec.architecture import Architecture
from models.spec.hardware import Chip, Cluster, Fabric
from models.spec.problem import Problem
from models.spec.stack import Stack
from service.formats import huggingface
from service.json_pointers import instead_of, under
from service.resolve.tpu_slices import as_chips
from service.schemas.architecture import HuggingFaceConfig, OwnModel, ShapeFields
from service.schemas.catalog import Kind
from service.schemas.cluster import ChipFields, ClusterFields, ClusterPreset, ClusterSize
from service.schemas.prediction import (
    ArchitectureUsed,
    CatalogUsed,
    EntryUsed,
    FabricUsed,
    Link,
    Parameters,
    StackUsed,
)
from service.schemas.question import Question
from service.schemas.stack import StackFields
from service.schemas.wire import UNNAMED
from service.store import Rows
from service.store.tables import CatalogRow

T = TypeVar("T")

MAX_PARAMETERS = 10**15
MAX_NAME = 120
_PADDED = 128 * 8
"""To multiples of which a vocabulary is padded, for tensor parallelism within a node of eight."""
_OF_SLURM = "gpu:"
"""Begins the names of generic resources there: gpu:h100."""
SHIPPED: dict[Kind, Callable[[], Iterable[str]]] = {
    "chips": catalogue.chips,
    "clusters": lambda: [*catalogue.fabrics(), *catalogue.chips()],
    "architectures": catalogue.architectures,
    "stacks": catalogue.stacks,
}
"""Every name and alias of a kind; a chip is also a cluster, on the fabric of its data sheet."""

TEXT_TOWERS = {"llama-4-scout", "llama-4-maverick", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b"}
"""Shipped architectures that leave out the other towers of a multimodal model."""

_own_model: TypeAdapter[HuggingFaceConfig | ShapeFields] = TypeAdapter(OwnModel)


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """A part of a problem, the entry it came from, and the form that will mean the same
    tomorrow."""

    value: T
    used: EntryUsed
    form: Any
    text_tower: bool = False
    quantized: bool = False


@dataclass(frozen=True, slots=True)
class Resolved:
    """`request` is the question with every name pinned to its version and every default filled in.
    `quantized`: the model was given with weights in a format for inference."""

    problem: Problem
    used: CatalogUsed
    request: dict[str, Any]
    quantized: bool = False

    def answered(self, problem: Problem) -> Resolved:
        """The same question, with the links of the cluster that the answer uses."""
        fabric = self.used.fabric.model_copy(update={"links": _links(problem.cluster)})
        return replace(self, problem=problem, used=self.used.model_copy(update={"fabric": fabric}))


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster, the entries that its chip and links came from, and the form that will mean the
    same tomorrow."""

    cluster: Cluster
    chip: EntryUsed
    fabric: EntryUsed
    form: dict[str, Any]


class Resolver:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def problem(self, question: Question, usd_per_chip_hour: float | None = None) -> Resolved:
        architecture = self.architecture(question.model)
        place = self.place(question.cluster, usd_per_chip_hour)
        stack = self.stack(question.stack)
        _require_positions(architecture.value, question.workload.seq_len)
        problem = Problem(
            architecture=architecture.value,
            cluster=place.cluster,
            workload=question.workload.build(),
            stack=stack.value,
        )
        request = {
            "model": architecture.form,
            "cluster": place.form,
            "workload": question.workload.model_dump(mode="json"),
            "stack": stack.form,
        }
        used = CatalogUsed(
            chip=place.chip,
            fabric=FabricUsed(**place.fabric.model_dump(), links=_links(place.cluster)),
            architecture=_architecture_used(architecture),
            stack=StackUsed(**stack.used.model_dump(), changes=_changes(question.stack)),
        )
        return Resolved(problem, used, request, architecture.quantized)

    def place(
        self, form: ClusterPreset | ClusterFields, usd_per_chip_hour: float | None = None
    ) -> Place:
        """`usd_per_chip_hour`: of a cluster that names no price of its own, instead of the
        catalogue's."""
        chip, fabric, size = self.cluster(form)
        of_chip = chip.value.usd_per_chip_hour if chip.used.source == "given" else None
        if usd_per_chip_hour is not None and size.usd_per_chip_hour is None and of_chip is None:
            size = size.model_copy(update={"usd_per_chip_hour": usd_per_chip_hour})
        written = {**fabric.form, **size.model_dump(mode="json", include=_SIZE, exclude_none=True)}
        return Place(size.build(chip.value, fabric.value), chip.used, fabric.used, written)

    def architecture(self, form: str | HuggingFaceConfig | ShapeFields) -> Part[Architecture]:
        if not isinstance(form, str):
            source = "huggingface" if isinstance(form, HuggingFaceConfig) else "given"
            built = _build(form)
            if not form.is_named:
                built = replace(built, name=self._namesake(built) or _own_name(built))
            used = EntryUsed(name=built.name, source=source)
            written = form.model_dump(mode="json", exclude_unset=True)
            return Part(built, used, written, _is_multimodal(form), _is_quantized(form))
        if row := self._registered("architectures", form):
            own, built = _registered_model(row)
            return Part(built, _used(row), pinned(row), _is_multimodal(own), _is_quantized(own))
        shipped = self._shipped("architectures", form, "model", catalogue.architecture)
        used = EntryUsed(name=shipped.name, source="shipped")
        return Part(shipped, used, shipped.name, shipped.name in TEXT_TOWERS)

    def _namesake(self, built: Architecture) -> str | None:
        """Shipped or registered: runs of one model are of one family, whether or not they name
        it."""
        shipped = catalogue.architectures().values()
        return catalogue.namesake(built, shipped) or catalogue.namesake(
            built, self._registered_models
        )

    @cached_property
    def _registered_models(self) -> list[Architecture]:
        """The last version of each."""
        catalog, found = self._rows.catalog, list[Architecture]()
        for row in catalog.latest("architectures", catalog.names("architectures")):
            with suppress(DomainError, ValidationError):
                found.append(_registered_model(row)[1])
        return found

    def chip(self, form: str | ChipFields, field: str) -> Part[Chip]:
        if not isinstance(form, str):
            _require_memory(form, field)
            own = form.build(_own_id(form, form.name))
            return Part(
                own,
                EntryUsed(name=own.id, source="given"),
                form.model_dump(mode="json", exclude_unset=True),
            )
        if row := self._registered("chips", form):
            fields = ChipFields.model_validate(row.entry["chip"])
            return Part(fields.build(row.name), _used(row), pinned(row))
        shipped = self._shipped("chips", form, field, catalogue.chip)
        return Part(shipped, EntryUsed(name=shipped.id, source="shipped"), shipped.id)

    def cluster(
        self, form: ClusterPreset | ClusterFields
    ) -> tuple[Part[Chip], Part[Fabric], ClusterSize]:
        """The chip, the fabric with the names of both in its form, and how much of it."""
        if isinstance(form, ClusterFields):
            chip, fabric = self.fabric(form)
            return chip, fabric, form
        form = form.model_copy(update={"preset": form.preset.removeprefix(_OF_SLURM)})
        if row := self._registered("clusters", form.preset):
            fields = ClusterFields.model_validate(row.entry["cluster"])
            chip, fabric = self.fabric(fields)
            given = {name: value for name in _SIZE if (value := getattr(form, name)) is not None}
            named = Part(replace(fabric.value, id=row.name), _used(row), {"preset": pinned(row)})
            return chip, named, fields.model_copy(update=given)
        if row := self._registered("chips", form.preset):
            chip = self.chip(form.preset, "cluster.preset")
            return chip, Part(chip.value.fabric, _used(row), {"preset": pinned(row)}), form
        form = as_chips(form)
        shipped = self._shipped(
            "clusters", form.preset, "cluster.preset", lambda name: catalogue.cluster(name, 1)
        )
        chip = Part(
            shipped.chip, EntryUsed(name=shipped.chip.id, source="shipped"), shipped.chip.id
        )
        used = EntryUsed(name=shipped.fabric.id, source="shipped")
        return chip, Part(shipped.fabric, used, {"preset": shipped.fabric.id}), form

    def fabric(self, fields: ClusterFields) -> tuple[Part[Chip], Part[Fabric]]:
        chip = self.chip(fields.chip, "cluster.chip")
        links = fields.model_dump(mode="json", include={"levels", "torus"}, exclude_unset=True)
        with instead_of("levels", "cluster.levels"):
            fabric = fields.fabric(chip.value)
        own = fields.levels is None and fields.torus is None
        used = chip.used if own else EntryUsed(name=fabric.id, source="given")
        if own and isinstance(fields.chip, str):  # which is what its name as a preset means
            return chip, Part(
                fabric, used, {"preset": fabric.id if used.source == "shipped" else chip.form}
            )
        return chip, Part(fabric, used, {"chip": chip.form, **links})

    def stack(self, form: str | StackFields) -> Part[Stack]:
        name = form if isinstance(form, str) else form.name
        field = "stack" if isinstance(form, str) else "stack.name"
        base = self._shipped("stacks", name, field, catalogue.stack)
        used = EntryUsed(name=base.id, source="shipped")
        if isinstance(form, str):
            return Part(base, used, base.id)
        changes = form.changes()
        return Part(form.build(base), used, {"name": base.id, **changes} if changes else base.id)

    def _registered(self, kind: Kind, name: str) -> CatalogRow | None:
        return self._rows.catalog.named(kind, normal(name))

    def _shipped(self, kind: Kind, name: str, field: str, find: Callable[[str], T]) -> T:
        try:
            return find(name)
        except UnknownName:
            own = self._rows.catalog.names(kind)
            error = UnknownName(field, name, [*SHIPPED[kind](), *own])
            base, _, version = name.rpartition("@")
            if base and (row := self._registered(kind, base)):
                raise _saying(
                    error, f": {base} has no version {version}, its last is {row.version}"
                ) from None
            raise (_with_another_way(error) if kind in ("chips", "clusters") else error) from None


def _with_another_way(error: UnknownName) -> UnknownName:
    """What to do with a chip that no catalogue has, instead of all the names of those that it
    has."""
    near = f"; did you mean {', '.join(error.near)}?" if error.near else ";"
    return _saying(
        error,
        f"{near} the chip of a cluster may be its data sheet, or registered by POST"
        " /v1/catalog/chips",
    )


def _saying(error: UnknownName, more: str) -> UnknownName:
    error.rule = f"unknown name{more}"
    error.args = (f"{error.field} = {error.value!r}: {error.rule}",)
    return error


_SIZE = {*ClusterSize.model_fields}


def _own_id(form: ChipFields, name: str) -> str:
    """Of a chip that a request describes: what is learnt of one is said of no other."""
    described = form.model_dump_json(
        exclude={"name", "usd_per_chip_hour", "price_source", "sources", "caveats"}
    )
    return _id(name, described)


def _own_name(built: Architecture) -> str:
    """Of a model that no catalogue has and nobody named: its type, or else its shape, whichever way
    that was described; logs print its vocabulary as Megatron pads it."""
    if built.name != UNNAMED:
        return built.name
    padded = -(-built.vocab_size // _PADDED) * _PADDED
    return _id(
        UNNAMED, repr((replace(built, name="", vocab_size=padded, layers=built.kinds), built.runs))
    )


def _id(name: str, described: str) -> str:
    return f"{name}-{hashlib.sha256(described.encode()).hexdigest()[:12]}"


def _registered_model(row: CatalogRow) -> tuple[HuggingFaceConfig | ShapeFields, Architecture]:
    own = _own_model.validate_python(row.entry["model"])
    return own, replace(_build(own), name=row.name)


def normal(name: str) -> str:
    """Spellings that mean the same name, as in models.spec.catalogue."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def _build(form: HuggingFaceConfig | ShapeFields) -> Architecture:
    with under("model"):
        built = form.build()
        if len(built.name) > MAX_NAME:
            built = replace(built, name=built.name[:MAX_NAME])
        if built.parameters.total > MAX_PARAMETERS:
            raise Invalid(
                "",
                None,
                f"has {built.parameters.total:.3g} parameters; at most {MAX_PARAMETERS:.0e}",
            )
    return built


def _require_positions(architecture: Architecture, seq_len: int) -> None:
    learned = architecture.learned_positions
    if 0 < learned < seq_len:
        rule = f"is more than the {learned} positions that {architecture.name} learns"
        raise Invalid("workload.seq_len", seq_len, rule)


def _require_memory(chip: ChipFields, field: str) -> None:
    """Data sheets mean 1e9 bytes or 2^30 by GB, depending on the vendor: the larger one is what
    there can be."""
    if chip.usable_memory_gib > chip.memory_gb:
        units = "whether by GB the data sheet means 2^30 bytes, as GiB are, or 1e9"
        rule = f"must not exceed the memory of the chip, memory_gb = {chip.memory_gb:g}, {units}"
        raise Invalid(f"{field}.usable_memory_gib", chip.usable_memory_gib, rule)


def _used(row: CatalogRow) -> EntryUsed:
    return EntryUsed(name=row.name, source="registered", version=row.version)


def pinned(row: CatalogRow) -> str:
    return f"{row.name}@{row.version}"


def _changes(form: str | StackFields) -> dict[str, Any]:
    return {} if isinstance(form, str) else form.changes()


def _architecture_used(part: Part[Architecture]) -> ArchitectureUsed:
    count = part.value.parameters
    parameters = Parameters(total=count.total, active=count.active, mtp=count.mtp)
    return ArchitectureUsed(
        **part.used.model_dump(),
        parameters=parameters,
        num_layers=part.value.num_layers,
        text_tower=part.text_tower,
    )


def _is_multimodal(form: HuggingFaceConfig | ShapeFields) -> bool:
    return isinstance(form, HuggingFaceConfig) and huggingface.is_multimodal(form.root)


def _is_quantized(form: HuggingFaceConfig | ShapeFields) -> bool:
    return isinstance(form, HuggingFaceConfig) and huggingface.is_quantized(form.root)


def _links(cluster: Cluster) -> list[Link]:
    return [
        Link(
            name=dim.name,
            kind="line" if dim.kind == "ring" and not dim.wraps else dim.kind,
            scale=dim.scale,
            domain=dim.domain,
            gb_s=dim.gb_s,
        )
        for dim in cluster.dims
    ]
