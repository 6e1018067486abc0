"""The software as callers give it: the name of a stack, or a stack with some of its abilities
changed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from models.errors import Invalid
from models.spec.catalogue import as_tuples
from models.spec.profile import shipped_profile
from models.spec.stack import Kernel, Stack
from models.spec.switches import as_of, changed, release_year
from models.spec.workload import Precision
from service.schemas.layout import Modules, Placement, Recompute, Schedule, ZeroStage
from service.schemas.wire import Degree, Name, NameOrFields, Wire

Bytes = Annotated[float, Field(ge=0, le=8)]
MOST_YEARS = 20.0
"""No software is taken to be older."""
_SAME_AGE_YEARS = 0.05
"""Dates of releases are known to a tenth of a year."""


class StackFields(Wire):
    """A stack by name; each further field replaces what the catalogue says of it."""

    name: Name
    version: Annotated[str, Field(min_length=1, max_length=40)] | None = None
    """A release of the software, such as "0.2.1": its age, and its switches as tuned recipes set
    them then, unless given."""
    schedules: Annotated[list[Schedule], Field(min_length=1)] | None = None
    max_virtual_stages: Annotated[int, Field(ge=1, le=64)] | None = None
    interleaves_hybrids: bool | None = None
    """Models with Mamba-2, or with layers of one block, have virtual stages too."""
    micro_batch_groups: Literal["stages", "equal", "any"] | None = None
    plain_micro_batches: Literal["any", "stages", "multiple"] | None = None
    """Micro-batches that schedules without virtual stages need: any number, pp or more, or a
    multiple of pp."""
    partition: Literal["even", "balanced", "threshold"] | None = None
    zero_stages: Annotated[list[ZeroStage], Field(min_length=1)] | None = None
    reshard: Annotated[list[bool], Field(min_length=1, max_length=2)] | None = None
    placements: Annotated[list[Placement], Field(min_length=1, max_length=120)] | None = None
    """Orders of the mesh axes over ranks, innermost first: those that it has, or that may be
    answered."""
    equal_data_parallel: bool | None = None
    hybrid_stages: list[ZeroStage] | None = None
    """ZeRO stages in which it may shard over a part of the data-parallel chips and replicate over
    the rest."""
    max_pp: Degree | None = None
    max_tp: Degree | None = None
    max_cp: Degree | None = None
    max_ep: Degree | None = None
    unsearched_axes: list[Literal["pp", "tp", "cp", "ep"]] | None = None
    """Axes that it has and that are not searched: layouts that state them are predicted."""
    unsearched_zero_stages: list[ZeroStage] | None = None
    experts_alone: bool | None = None
    shards_over_context_and_experts: bool | None = None
    """Context and expert parallelism shard parameters too: they go with ZeRO 3 only."""
    min_zero_in_context: ZeroStage | None = None
    """The lowest ZeRO stage that goes with context parallelism."""
    context_in_pipeline: bool | None = None
    max_zero_in_pipeline: ZeroStage | None = None
    mtp_alone: bool | None = None
    """Multi-token prediction goes with neither a pipeline nor context parallelism."""
    muon_stages: Annotated[list[ZeroStage], Field(min_length=1)] | None = None
    """ZeRO stages that Muon goes with."""
    narrow_moment_stages: Annotated[list[ZeroStage], Field(min_length=1)] | None = None
    """ZeRO stages that go with moments of 16 bits."""
    fp8_stages: Annotated[list[ZeroStage], Field(min_length=1)] | None = None
    """ZeRO stages that go with fp8."""
    tensor_alone: bool | None = None
    """Tensor parallelism goes with neither a pipeline nor context parallelism."""
    fp8_at_once_on: list[Literal["nvidia", "amd", "intel", "google", "aws", "huawei"]] | None = None
    """Vendors on whose chips fp8 goes with one micro-batch only outside a pipeline."""
    replicates_kv_heads: bool | None = None
    sequence_parallel: Annotated[list[bool], Field(min_length=1, max_length=2)] | None = None
    unsearched_sequence_parallel: Annotated[list[bool], Field(max_length=2)] | None = None
    context: Literal["ring", "allgather", "ulysses"] | None = None
    expert_tensor_parallel: bool | None = None
    expert_folding: Literal["all", "shard", "beside_tensor"] | None = None
    ties_in_pipeline: bool | None = None
    dispatcher: Literal["alltoall", "deduplicated", "allgather"] | None = None
    node_limit: Degree | None = None
    overlap_data: bool | None = None
    overlap_zero1: bool | None = None
    overlap_tensor: bool | None = None
    overlap_tensor_not_in: list[Precision] | None = None
    """Formats in which tensor-parallel traffic does not run beside compute."""
    overlap_expert: bool | None = None
    overlap_expert_of_hybrids: bool | None = None
    overlap_pipeline: bool | None = None
    recompute: Annotated[list[Recompute], Field(min_length=1)] | None = None
    selective: (
        Annotated[list[Annotated[Modules, Field(min_length=1)]], Field(min_length=1, max_length=16)]
        | None
    ) = None
    """Sets of modules that it recomputes together, its own choice first."""
    recompute_modules: Modules | None = None
    """Others that it can be told to recompute."""
    recomputes_last: bool | None = None
    """A layer that is computed again computes its last product again too, of which backward needs
    nothing."""
    recompute_layers: bool | None = None
    """It may recompute the first few layers of a chunk only."""
    offload: list[Literal["activations", "optimizer"]] | None = None
    offload_alone: bool | None = None
    offloads_checkpoints: bool | None = None
    """Activations are offloaded only as what full recompute keeps."""
    checkpoint_offload_stages: list[ZeroStage] | None = None
    """The ZeRO stages in which it does so."""
    offloads_recurrences: bool | None = None
    offloads_adam_alone: bool | None = None
    offloads_gradients: bool | None = None
    """Gradients of ZeRO 2 and 3 go to the host with the optimizer."""
    parameters_on_host: bool | None = None
    """Parameters of ZeRO 3 are on the host with the optimizer, and come for every pass."""
    host_buffers: Annotated[float, Field(ge=1, le=4)] | None = None
    """Host memory over the bytes of what is offloaded there with the optimizer."""
    attention_kernel: Kernel | None = None
    whole_gradients: bool | None = None
    """ZeRO 1 all-reduces gradients, where others scatter what each device will update."""
    gradient_bytes: Annotated[float, Field(ge=2, le=8)] | None = None
    reduce_bytes: Annotated[float, Field(ge=2, le=8)] | None = None
    """Bytes of a gradient on the wire; those of an accumulated one unless said."""
    gather_bytes: Bytes | None = None
    tensor_gathers_in: list[Precision] | None = None
    """Formats that tensor parallelism gathers the inputs of products in."""
    fp8_scaling: Literal["tensorwise", "rowwise"] | None = None
    """The part that has a scale of its own in fp8: a tensor, or every row of it."""
    whole_blocks: bool | None = None
    """Weights in fp8, mxfp8 or nvfp4 need sides on a device that are multiples of 16, 32 or 16."""
    keeps_operands: bool | None = None
    """Weights are kept in the format of GEMMs too, as they are and transposed."""
    parameter_shards: bool | None = None
    """ZeRO 3 keeps shards of the parameters in use beside the fp32 ones."""
    parallel_loss: bool | None = None
    loss: Literal["fused", "fused_linear", "compiled", "pytorch", "stepwise"] | None = None
    """The code that makes loss and gradient of logits; it decides how many bytes of each are moved,
    and alive together. With "fused_linear" (Liger) there are never all of them."""
    loss_chunks: Annotated[int, Field(ge=1, le=64)] | None = None
    """Parts of a micro-batch that head and loss work on one after the other."""
    tiled_mlp: bool | None = None
    """Dense networks work on tiles of tokens, and compute forward once more in backward (ALST)."""
    low_precision_activations: bool | None = None
    fused: bool | None = None
    fused_norm: bool | None = None
    """Norms are fused kernels, even where other element-wise operations are not."""
    launch: Literal["eager", "compiled", "graph"] | None = None
    moe_graphs: Literal["none", "partial", "full"] | None = None
    """The part of a step of a sparse model that is captured as CUDA graphs, whatever `launch` is:
    nothing, all but the experts, or all."""
    static_experts: bool | None = None
    """Experts have buffers of a fixed size, over which tokens are dropped, as a graph of a whole
    step needs them: HybridEP with a rank capacity and paged stash."""
    experts_at_once: bool | None = None
    """One grouped kernel multiplies for all experts of a device."""
    expert_loop: Literal["kernels", "modules", "gathered_modules"] | None = None
    """The calls of a loop for each expert where `experts_at_once` is false, which this field
    implies: kernels, a module of Python, or such a module whose matrices ZeRO 3 gathers one by
    one."""
    fused_routing: bool | None = None
    """Router, permutations and dispatch are a few fused kernels."""
    running_balance: bool | None = None
    age_years: Annotated[float, Field(ge=0, le=MOST_YEARS)] | None = None
    """Years by which the software is older than the newest that profiles are fitted to: kernels and
    launches are slower, and switches are set as tuned recipes set them then, unless given."""

    def changes(self) -> dict[str, object]:
        """Returns the fields that were given. A null counts as not given, except for `node_limit`,
        where it means no limit."""
        given = {name: getattr(self, name) for name in sorted(self.model_fields_set - {"name"})}
        return {
            name: value
            for name, value in given.items()
            if value is not None or name == "node_limit"
        }

    def build(self, base: Stack) -> Stack:
        """Returns the catalogue's stack `base` as it was in the version or at the age that is
        given, with the given fields changed. Raises Invalid."""
        changes = {name: as_tuples(value) for name, value in self.changes().items()}
        # An expert loop says that experts run one after another, unless the request says otherwise.
        if "expert_loop" in changes:
            changes.setdefault("experts_at_once", False)
        version = changes.pop("version", None)
        year = self._software_year(base.id, version)
        if year is None:
            return changed(base, changes)
        # Age 0 is the newest software that the shipped profile describes.
        age_years = max(shipped_profile().software_year - year, 0.0)
        return changed(as_of(base, year), {"age_years": age_years, **changes})

    def _software_year(self, stack_id: str, version: str | None) -> float | None:
        """Returns the date at which the software was new, as a year with a fraction; None where it
        is the newest. Raises Invalid for an unknown version, or one that contradicts
        `age_years`."""
        newest = shipped_profile().software_year
        if version is None:
            return newest - self.age_years if self.age_years else None
        year = release_year(stack_id, version)
        age_years = max(newest - year, 0.0)
        if self.age_years is not None and abs(self.age_years - age_years) > _SAME_AGE_YEARS:
            rule = f"is of {age_years:.2g} years before the newest software; leave out age_years"
            raise Invalid("stack.version", version, rule)
        return year


StackForm = NameOrFields[StackFields]


def with_age(form: str | StackFields, years: float) -> str | StackFields:
    """Returns the stack whose software is `years` older than the newest that profiles are fitted
    to, for runs of known date. A stack that states an age or a version is returned unchanged."""
    fields = StackFields(name=form) if isinstance(form, str) else form
    if not years or fields.age_years is not None or fields.version is not None:
        return form
    return StackFields.model_validate(
        {**fields.changes(), "name": fields.name, "age_years": min(years, MOST_YEARS)}
    )
