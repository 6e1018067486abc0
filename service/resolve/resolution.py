"""Turns the names in a question into the values that the models compute with, and records which
catalogue entries those were.

A *form* is what a request sends for one part, such as a name or an object with fields. A *pinned*
form names a version, so that it means the same later. *Shipped* entries come with the service.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from models.errors import DomainError, Invalid, UnknownName
from models.layouts.rules import lift_search_limits
from models.spec import catalogue
from models.spec.architecture import Architecture
from models.spec.hardware import Chip, Cluster, Fabric
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.stack import Stack
from models.spec.trained import as_trained
from service.formats import huggingface
from service.identifiers import digest
from service.json_pointers import prefix_errors, relocate_errors
from service.nearest_names import unknown_name, with_hint
from service.resolve.explicit_models import explicit_fields
from service.resolve.given_prices import NO_PRICES, GivenPrices
from service.resolve.hardware_names import unknown_hardware
from service.resolve.tpu_slices import expand_slice_name
from service.schemas.architecture import HuggingFaceConfig, NamedModelFields, OwnModel, ShapeFields
from service.schemas.catalog import Kind
from service.schemas.cluster import (
    ChipFields,
    ClusterFields,
    ClusterForm,
    ClusterPreset,
    ClusterSize,
    require_memory,
)
from service.schemas.layer_list import LayerListFields
from service.schemas.objective import ObjectiveFields
from service.schemas.prediction import (
    ArchitectureUsed,
    CatalogUsed,
    EntryUsed,
    FabricUsed,
    Link,
    StackUsed,
)
from service.schemas.question import Question
from service.schemas.stack import StackFields, StackForm
from service.schemas.stored import read_stored, read_stored_as
from service.schemas.wire import UNNAMED
from service.store import Rows
from service.store.tables import RegisteredEntryRow

T = TypeVar("T")

MAX_PARAMETERS = 10**15  # far beyond any model: larger counts are mistakes
MAX_NAME_LENGTH = 120

_VOCAB_MULTIPLE = 128 * 8
"""Megatron pads a vocabulary to a multiple of 128 for each rank of tensor parallelism, of which a
node holds eight."""

_SLURM_PREFIX = "gpu:"
"""The prefix that Slurm puts before the name of a GPU, as in gpu:h100."""

SHIPPED_NAMES: dict[Kind, Callable[[], Iterable[str]]] = {
    "chips": catalogue.chips,
    "clusters": lambda: [*catalogue.fabrics(), *catalogue.chips()],
    "architectures": catalogue.architectures,
    "stacks": catalogue.stacks,
}
"""Every name and alias of a kind; a chip is also a cluster, on the fabric of its data sheet."""

_DESCRIBE_MODEL = (
    "give the model's config.json of Hugging Face as it is, its explicit fields (num_layers,"
    " hidden_size, …), or a list of its layers"
)
"""The other ways to give a model than by a name of the catalogue."""

TEXT_TOWERS = {"llama-4-scout", "llama-4-maverick", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b"}
"""Shipped architectures that leave out the other towers of a multimodal model."""

_SIZE_FIELDS = {*ClusterSize.model_fields}

DescribedModel = HuggingFaceConfig | LayerListFields | ShapeFields
ModelForm = str | NamedModelFields | DescribedModel
_described_model: TypeAdapter[DescribedModel] = TypeAdapter(OwnModel)


@dataclass(frozen=True, slots=True)
class ResolvedPart(Generic[T]):
    """One part of a problem: its architecture, chip, fabric or stack."""

    value: T
    used: EntryUsed
    """The catalogue entry that the value came from."""
    pinned_form: Any
    """A form of the part that a request can send and that means an equal value, whatever is
    registered later."""
    text_tower: bool = False
    """True where the value is only the text tower of a multimodal model."""
    quantized: bool = False
    """True where the model was given with weights in a format for inference."""


@dataclass(frozen=True, slots=True)
class ResolvedCluster:
    """A cluster of a stated size."""

    cluster: Cluster
    chip: EntryUsed
    fabric: EntryUsed
    pinned_form: dict[str, Any]
    """A form of the cluster that a request can send and that means an equal one, whatever is
    registered later."""


@dataclass(frozen=True, slots=True)
class ResolvedQuestion:
    """A question as a problem for the models."""

    problem: Problem
    used: CatalogUsed
    request: dict[str, Any]
    """The question with every name pinned to its version and every default filled in."""
    quantized: bool = False
    """True where the model was given with weights in a format for inference."""

    def for_layouts(self, layouts: Iterable[Layout]) -> ResolvedQuestion:
        """Returns this question without those limits on the search that the given layouts exceed:
        what a caller states need not be searched."""
        problem = reduce(lift_search_limits, layouts, self.problem)
        return self if problem is self.problem else replace(self, problem=problem)

    def with_answered_problem(self, problem: Problem) -> ResolvedQuestion:
        """Returns this question with the problem that was answered and the links of its cluster.
        That problem may use fewer of the chips."""
        fabric = self.used.fabric.model_copy(update={"links": _links(problem.cluster)})
        return replace(self, problem=problem, used=self.used.model_copy(update={"fabric": fabric}))


class Resolver:
    """Resolves names by what ships and what `rows` have registered."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def resolve(self, question: Question, prices: GivenPrices = NO_PRICES) -> ResolvedQuestion:
        """Returns the question with its names resolved. It is kept until an entry of the catalogue
        is registered. `prices` are for clusters that name no price themselves."""
        key = question.model_dump_json(include={*Question.model_fields}, exclude_unset=True)
        return self._rows.recall(
            ("question", digest(key), prices), lambda: self._resolve(question, prices)
        )

    def _resolve(self, question: Question, prices: GivenPrices) -> ResolvedQuestion:
        """Resolves each part of the question and puts them together as a problem. Raises Invalid
        for an unknown name, or for a sequence longer than the model has positions."""
        architecture, architecture_used = self._recall_part(
            question, "model", lambda: self._architecture_as_used(question.model)
        )
        sized, fabric_used = self._recall_part(
            question, "cluster", lambda: self._cluster_as_used(question.cluster, prices), prices
        )
        stack, stack_used = self._recall_part(
            question, "stack", lambda: self._stack_as_used(question.stack)
        )
        _require_positions(architecture.value, question.workload.seq_len)
        workload = question.workload.build()
        problem = Problem(
            architecture=as_trained(architecture.value, workload),
            cluster=sized.cluster,
            workload=workload,
            stack=stack.value,
        )
        request = {
            "model": architecture.pinned_form,
            "cluster": sized.pinned_form,
            "workload": question.workload.model_dump(mode="json"),
            "stack": stack.pinned_form,
        }
        used = CatalogUsed(
            chip=sized.chip, fabric=fabric_used, architecture=architecture_used, stack=stack_used
        )
        return ResolvedQuestion(problem, used, request, architecture.quantized)

    def _recall_part(
        self, question: Question, field: str, resolve: Callable[[], T], *others: Hashable
    ) -> T:
        """Returns the result of `resolve` for a field of the question. Questions that write the
        field in equal words, with equal `others`, get one object. Caches by identity then find
        values derived from it, which pays because questions of one job differ only in workload and
        layout."""
        key = question.model_dump_json(include={field}, exclude_unset=True)
        return self._rows.recall(("part", digest(key), *others), resolve)

    def _architecture_as_used(
        self, form: ModelForm
    ) -> tuple[ResolvedPart[Architecture], ArchitectureUsed]:
        """Returns the model, and how answers show it: with its parameters and its explicit
        fields."""
        part = self.architecture(form)
        used = ArchitectureUsed.from_attributes(
            part.used,
            parameters=part.value.parameters,
            num_layers=part.value.num_layers,
            model=explicit_fields(part.value),
            text_tower=part.text_tower,
        )
        return part, used

    def _cluster_as_used(
        self, form: ClusterForm, prices: GivenPrices
    ) -> tuple[ResolvedCluster, FabricUsed]:
        """Returns the cluster in its size, and how answers show its fabric with its links."""
        sized = self.cluster(form, prices)
        return sized, FabricUsed.from_attributes(sized.fabric, links=_links(sized.cluster))

    def _stack_as_used(self, form: StackForm) -> tuple[ResolvedPart[Stack], StackUsed]:
        """Returns the stack, and how answers show it with the request's changes."""
        part = self.stack(form)
        changes = {} if isinstance(form, str) else form.changes()
        return part, StackUsed.from_attributes(part.used, changes=changes)

    def cluster(
        self, form: ClusterPreset | ClusterFields, prices: GivenPrices = NO_PRICES
    ) -> ResolvedCluster:
        """Returns the cluster in its size. `prices` replace the catalogue's price, unless the
        cluster or the data sheet in the request has one."""
        chip, fabric, size = self.cluster_parts(form)
        given_price = size.usd_per_chip_hour
        if given_price is None and chip.used.source == "given":
            given_price = chip.value.usd_per_chip_hour
        if given_price is None and (price := prices.price_of(chip.used.name)) is not None:
            size = size.model_copy(update={"usd_per_chip_hour": price})
        size_form = size.model_dump(mode="json", include=_SIZE_FIELDS, exclude_none=True)
        return ResolvedCluster(
            cluster=size.build(chip.value, fabric.value),
            chip=chip.used,
            fabric=fabric.used,
            pinned_form={**fabric.pinned_form, **size_form},
        )

    def prices(self, objective: ObjectiveFields) -> GivenPrices:
        """Returns the prices of an objective, each under the chip's name in the catalogue."""
        by_chip = {
            self.chip(name, f"objective.prices.{name}").used.name: price
            for name, price in objective.prices.items()
        }
        return GivenPrices(tuple(sorted(by_chip.items())), objective.usd_per_chip_hour)

    def architecture(self, form: ModelForm, field: str = "model") -> ResolvedPart[Architecture]:
        """Returns the model that the request names or describes. `field` is its place in the
        request, for errors."""
        if isinstance(form, NamedModelFields):
            return self._named_as_object(form)
        if not isinstance(form, str):
            return self._described_architecture(form)
        if row := self._registered("architectures", form):
            described, architecture = _registered_architecture(row)
            return ResolvedPart(
                value=architecture,
                used=_entry_used(row),
                pinned_form=pinned_name(row),
                text_tower=_is_text_alone(described),
                quantized=_is_quantized(described),
            )
        shipped = self._shipped("architectures", form, field, catalogue.architecture)
        used = EntryUsed(name=shipped.name, source="shipped")
        # Of some multimodal models the catalogue has the language model alone.
        return ResolvedPart(shipped, used, shipped.name, shipped.name in TEXT_TOWERS)

    def _named_as_object(self, form: NamedModelFields) -> ResolvedPart[Architecture]:
        """Returns a model of the catalogue, with the encoder of images that the request may add to
        it."""
        named = self.architecture(form.name, "model.name")
        if form.encoder is None:
            return named
        with prefix_errors("model.encoder"):
            encoder = form.encoder.build()
        images = form.encoder.model_dump(mode="json", exclude_unset=True)
        return replace(
            named,
            value=replace(named.value, encoder=encoder),
            pinned_form={"name": named.pinned_form, "encoder": images},
            # The model stays one of text alone (`text_tower`) where `build` gives None, which it
            # does for an encoder without any tokens of images.
            text_tower=named.text_tower and encoder is None,
        )

    def _described_architecture(self, form: DescribedModel) -> ResolvedPart[Architecture]:
        """Returns a model that the request describes. If it has no name, it gets the name of the
        catalogue entry with the same shape, or else one made of its shape."""
        built = _build_architecture(form)
        if not form.is_named:
            built = replace(built, name=self._matching_name(built) or _name_by_shape(built))
        source = "huggingface" if isinstance(form, HuggingFaceConfig) else "given"
        return ResolvedPart(
            value=built,
            used=EntryUsed(name=built.name, source=source),
            pinned_form=form.model_dump(mode="json", exclude_unset=True),
            text_tower=_is_text_alone(form),
            quantized=_is_quantized(form),
        )

    def _matching_name(self, built: Architecture) -> str | None:
        """Returns the shipped or registered name of a model of this shape.

        Runs of one model are then of one family, whether or not they name it.
        """
        shipped = catalogue.architectures().values()
        return catalogue.matching_name(built, shipped) or catalogue.matching_name(
            built, self._registered_architectures
        )

    @cached_property
    def _registered_architectures(self) -> list[Architecture]:
        """Returns the last version of each registered architecture. Those that can no longer be
        built, because the rules have changed since they were stored, are left out."""
        entries = self._rows.registered_entries
        architectures = list[Architecture]()
        for row in entries.latest("architectures", entries.names("architectures")):
            with suppress(DomainError, ValidationError):
                architectures.append(_registered_architecture(row)[1])
        return architectures

    def chip(self, form: str | ChipFields, field: str) -> ResolvedPart[Chip]:
        """Returns the chip that the request names or describes. `field` is its place in the
        request, for errors."""
        if not isinstance(form, str):
            require_memory(f"{field}.usable_memory_gib", form.usable_memory_gib, form.memory_gb)
            with prefix_errors(field):
                described = form.build(_described_chip_id(form))
            return ResolvedPart(
                value=described,
                used=EntryUsed(name=described.id, source="given"),
                pinned_form=form.model_dump(mode="json", exclude_unset=True),
            )
        if row := self._registered("chips", form):
            fields = read_stored(ChipFields, row.entry["chip"])
            return ResolvedPart(fields.build(row.name), _entry_used(row), pinned_name(row))
        shipped = self._shipped("chips", form, field, catalogue.chip)
        return _shipped_chip(shipped)

    def cluster_parts(
        self, form: ClusterPreset | ClusterFields
    ) -> tuple[ResolvedPart[Chip], ResolvedPart[Fabric], ClusterSize]:
        """Returns the chip, the fabric and the size of a cluster. The fabric's pinned form names
        the chip too."""
        if isinstance(form, ClusterFields):
            chip, fabric = self.fabric(form)
            return chip, fabric, form
        preset = form.preset.removeprefix(_SLURM_PREFIX)  # "gpu:h100" means "h100"
        form = form.model_copy(update={"preset": preset})
        if row := self._registered("clusters", preset):
            return self._registered_cluster(row, form)
        if row := self._registered("chips", preset):
            chip = self.chip(preset, "cluster.preset")
            pinned_form = {"preset": pinned_name(row)}
            return chip, ResolvedPart(chip.value.fabric, _entry_used(row), pinned_form), form
        form = expand_slice_name(form)
        # One chip is enough here: only the chip and the fabric of the shipped cluster are used.
        shipped = self._shipped(
            "clusters", form.preset, "cluster.preset", lambda name: catalogue.cluster(name, 1)
        )
        used = EntryUsed(name=shipped.fabric.id, source="shipped")
        fabric = ResolvedPart(shipped.fabric, used, {"preset": shipped.fabric.id})
        return _shipped_chip(shipped.chip), fabric, form

    def _registered_cluster(
        self, row: RegisteredEntryRow, form: ClusterPreset
    ) -> tuple[ResolvedPart[Chip], ResolvedPart[Fabric], ClusterSize]:
        """Returns the chip, the fabric and the size of a registered cluster. A size in the request
        replaces the registered one."""
        fields = read_stored(ClusterFields, row.entry["cluster"])
        chip, fabric = self.fabric(fields)
        named_fabric = ResolvedPart(
            value=replace(fabric.value, id=row.name),  # answers call it by the entry's name
            used=_entry_used(row),
            pinned_form={"preset": pinned_name(row)},
        )
        size_fields = {name: getattr(form, name) for name in _SIZE_FIELDS}
        requested_size = {name: value for name, value in size_fields.items() if value is not None}
        return chip, named_fabric, fields.model_copy(update=requested_size)

    def fabric(self, fields: ClusterFields) -> tuple[ResolvedPart[Chip], ResolvedPart[Fabric]]:
        """Returns the chip and the fabric of a cluster that the request describes."""
        chip = self.chip(fields.chip_with_links, "cluster.chip")
        with relocate_errors("levels", "cluster.levels"):
            fabric = fields.fabric(chip.value)
        # A request without links means the fabric of the chip's data sheet.
        is_own_fabric = fields.levels is None and fields.torus is None
        used = chip.used if is_own_fabric else EntryUsed(name=fabric.id, source="given")
        if is_own_fabric and isinstance(fields.chip, str):
            # The name of a chip, given as a preset, means this fabric: it pins chip and fabric.
            preset = fabric.id if used.source == "shipped" else chip.pinned_form
            return chip, ResolvedPart(fabric, used, {"preset": preset})
        links = fields.model_dump(mode="json", include={"levels", "torus"}, exclude_unset=True)
        return chip, ResolvedPart(fabric, used, {"chip": chip.pinned_form, **links})

    def stack(self, form: str | StackFields) -> ResolvedPart[Stack]:
        """Returns the stack with the changes that the request makes to it. Raises UnknownName."""
        if isinstance(form, str):
            base = self._shipped("stacks", form, "stack", catalogue.stack)
            return ResolvedPart(base, EntryUsed(name=base.id, source="shipped"), base.id)
        base = self._shipped("stacks", form.name, "stack.name", catalogue.stack)
        used = EntryUsed(name=base.id, source="shipped")
        changes = form.changes()
        pinned_form = {"name": base.id, **changes} if changes else base.id
        return ResolvedPart(form.build(base), used, pinned_form)

    def _registered(self, kind: Kind, name: str) -> RegisteredEntryRow | None:
        """Returns the registered entry with this name, in its last version unless the name has one;
        None where there is none. The result is kept until an entry is registered."""
        normalized = catalogue.normalized_name(name)
        return self._rows.recall(
            (kind, normalized), lambda: self._rows.registered_entries.named(kind, normalized)
        )

    def _shipped(self, kind: Kind, name: str, field: str, find: Callable[[str], T]) -> T:
        """Returns the shipped entry that `find` has by this name.

        Raises UnknownName for `field`. The error suggests names of registered entries too.
        """
        try:
            return find(name)
        except UnknownName:
            raise self._unknown_name(kind, name, field) from None

    def _unknown_name(self, kind: Kind, name: str, field: str) -> UnknownName:
        """Returns the error for an unknown name: with the last version of the entry, names like it,
        or other ways to describe the part."""
        known = [*SHIPPED_NAMES[kind](), *self._rows.registered_entries.names(kind)]
        # A name may have a version, as in my-chip@3, which the entry does not have.
        base, _, version = name.rpartition("@")
        if base and (row := self._registered(kind, base)):
            error = UnknownName(field, name, known)
            return with_hint(error, f": {base} has no version {version}, its last is {row.version}")
        if kind in ("chips", "clusters"):
            return unknown_hardware(kind, name, field, known)
        cure = _DESCRIBE_MODEL if kind == "architectures" else ""
        return unknown_name(field, name, known, cure)


def pinned_name(row: RegisteredEntryRow) -> str:
    return f"{row.name}@{row.version}"


def _shipped_chip(chip: Chip) -> ResolvedPart[Chip]:
    return ResolvedPart(chip, EntryUsed(name=chip.id, source="shipped"), chip.id)


def _described_chip_id(form: ChipFields) -> str:
    """Returns the chip's name with a hash of its data sheet. Coefficients learnt under this id
    apply to no chip with another data sheet. Price, sources and caveats do not change it."""
    description = form.model_dump_json(
        exclude={"name", "usd_per_chip_hour", "price_source", "sources", "caveats"}
    )
    return _hashed_name(form.name, description)


def _name_by_shape(built: Architecture) -> str:
    """Returns a name for a model that is in no catalogue and that nobody named.

    It is the model's type, or else a hash of its shape that is the same however the shape was
    described: the vocabulary counts as padded, because logs print it as Megatron pads it.
    """
    if built.name != UNNAMED:
        return built.name
    padded = -(-built.vocab_size // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE  # rounded up
    shape = replace(built, name="", vocab_size=padded, layers=built.kinds)
    return _hashed_name(UNNAMED, repr((shape, built.layer_runs)))


def _hashed_name(stem: str, description: str) -> str:
    return f"{stem}-{hashlib.sha256(description.encode()).hexdigest()[:12]}"


def _registered_architecture(row: RegisteredEntryRow) -> tuple[DescribedModel, Architecture]:
    """Returns a registered model as it was described, and as it is built."""
    described = read_stored_as(_described_model, row.entry["model"])
    return described, replace(_build_architecture(described), name=row.name)


def _build_architecture(form: DescribedModel) -> Architecture:
    """Builds the model that a request describes. Raises Invalid for one with too many
    parameters."""
    with prefix_errors("model"):
        built = form.build()
        # The model_type of a config.json may be longer than a name that a request gives.
        if len(built.name) > MAX_NAME_LENGTH:
            built = replace(built, name=built.name[:MAX_NAME_LENGTH])
        if built.parameters.total > MAX_PARAMETERS:
            rule = f"has {built.parameters.total:.3g} parameters; at most {MAX_PARAMETERS:.0e}"
            raise Invalid("", None, rule)  # "" becomes the field "model"
    return built


def _require_positions(architecture: Architecture, seq_len: int) -> None:
    """Raises Invalid for a sequence that is longer than the positions that the model learns."""
    learned = architecture.learned_positions
    if 0 < learned < seq_len:  # 0: it learns none, and takes sequences of any length
        rule = f"is more than the {learned} positions that {architecture.name} learns"
        raise Invalid("workload.seq_len", seq_len, rule)


def _entry_used(row: RegisteredEntryRow) -> EntryUsed:
    return EntryUsed(name=row.name, source="registered", version=row.version)


def _is_text_alone(form: DescribedModel) -> bool:
    """Returns whether only the text tower of a multimodal model is read from the form."""
    if not isinstance(form, HuggingFaceConfig) or form.encoder is not None:
        return False
    return huggingface.is_multimodal(form.root)


def _is_quantized(form: DescribedModel) -> bool:
    return isinstance(form, HuggingFaceConfig) and huggingface.is_quantized(form.root)


def _links(cluster: Cluster) -> list[Link]:
    """Returns the levels of links of a cluster, as answers show them. A ring that does not wrap is
    a line."""
    return [
        Link.from_attributes(dim, kind="line" if dim.kind == "ring" and not dim.wraps else dim.kind)
        for dim in cluster.dims
    ]
