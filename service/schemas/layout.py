"""A layout on the wire, and the constraints that a caller may put on one."""

from __future__ import annotations

import dataclasses
import operator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError

from models.errors import Invalid
from models.layouts.defaults import with_stack_defaults
from models.spec.constraints import (
    EVEN_CHANCE,
    KNOBS,
    MAX_FIT_PROBABILITY,
    SAFE_FIT_PROBABILITY,
    Constraints,
)
from models.spec.layout import MAX_LAYERS, TORUS_KNOBS, Layout
from models.spec.problem import Problem
from models.spec.recompute import MODULES, Module
from service.schemas.stored import read_stored
from service.schemas.wire import Degree, OneOrMany, Wire, reject_boolean

MAX_CHUNKS = 4096  # more than any pipeline has stages times virtual stages
_TUPLES = ("placement", "torus_axes", "recompute_modules", "layers_per_chunk")
_PLAIN = Layout()

Schedule = Literal["1f1b", "interleaved", "afab", "zero_bubble", "zero_bubble_v", "dualpipe"]
Recompute = Literal["none", "selective", "full"]
Modules = Annotated[list[Module], Field(max_length=len(MODULES))]
ZeroStage = Annotated[Literal[0, 1, 2, 3], BeforeValidator(reject_boolean)]
MicroBatchTokens = Annotated[int, Field(ge=1, le=10**9)]
LayersPerChunk = Annotated[
    list[Annotated[int, Field(ge=0, le=MAX_LAYERS)]], Field(max_length=MAX_CHUNKS)
]
TorusBlock = Annotated[Literal[1, 2, 4], BeforeValidator(reject_boolean)]
Axis = Literal["tp", "cp", "dp_shard", "dp_replicate", "pp"]
Placement = Annotated[list[Axis], Field(min_length=5, max_length=5)]
TorusAxes = Annotated[list[Literal["x", "y", "z"]], Field(min_length=3, max_length=3)]


def _always(value: object) -> bool:
    """Returns True: the condition for `exclude_if` of a field that requests have and answers never
    show, though both share one schema."""
    return True


class LayoutFields(Wire):
    """Mesh degrees, which multiply to the devices of the cluster, and how the mesh is run.

    Where the value of a knob that is left out breaks a rule of the stack, the stack's own takes its
    place: with tp > 1 sequence_parallel as the stack has it, with dp_shard > 1 its lowest
    zero_stage, a schedule and a split of layers that it runs; and recompute is what the stack does
    unless told otherwise. A null is as if the knob were left out.

    The answer has the layout as it was predicted. Knobs that mean nothing there are null: those of
    a torus where there is none, and without a pipeline virtual_stages and the schedule, unless that
    is afab. Sent back, it is the same layout.
    """

    pp: Degree = 1
    """Pipeline."""
    dp_replicate: Degree = 1
    """Data parallel, parameters replicated."""
    dp_shard: Degree = 1
    """Data parallel, sharded as `zero_stage` says."""
    cp: Degree = 1
    """Context."""
    tp: Degree = 1
    """Tensor."""
    ep: Degree = 1
    """Experts, folded over the axes other than pp."""
    etp: Degree = 1
    """Tensor parallelism inside an expert."""
    placement: Placement = ["tp", "cp", "dp_shard", "dp_replicate", "pp"]
    """Axes from the innermost links outwards."""
    torus_axes: TorusAxes | None = None
    """The dims of a torus (z is the last number of its shape) that the axes of the placement fill
    one after the other: with ["y", "z", "x"] the innermost axis lies along y. Left out: so that
    axes cover whole dims."""
    torus_block: TorusBlock | None = None
    """The blocks of a torus that are filled one after the other, by their length in every dim that
    is as long: with 4 an axis of 64 is a cube of 4 x 4 x 4. With 1 a line at a time, as JAX lays a
    mesh over a slice by itself; others are for meshes that may split physical axes
    (`allow_split_physical_axes`), or devices put in order by hand. Left out: 1."""
    micro_batch: Degree = 1
    """Sequences a data-parallel rank runs at a time."""
    micro_batch_tokens: MicroBatchTokens | None = Field(default=None, exclude_if=_always)
    """Instead of `micro_batch`: the same in tokens, a multiple of `seq_len`. Answers have it in
    sequences."""
    schedule: Schedule | None = None
    """Left out: 1f1b where the stack and the recipe have it, else the first of the stack's that the
    recipe allows. Without a pipeline only afab means something: all forward passes of a step before
    its backward passes."""
    virtual_stages: Degree | None = None
    """Model chunks a device holds in one direction: 1 under dualpipe, which has one in each. Left
    out: 2 with a schedule that needs several, else 1."""
    balanced: bool = False
    """Layers over stages so that the slowest is fastest, not an equal number. Left out with pp > 1:
    as the stack has it."""
    layers_per_chunk: LayersPerChunk = Field(default=[], exclude_if=operator.not_)
    """Layers of each of the `pp` times `virtual_stages` chunks, in the order of the model, such as
    [12, 12, 12, 10]; they add up to the layers of the model. Left out: as `balanced` says."""
    recompute: Recompute = "none"
    """Left out: as the stack does unless told otherwise."""
    recompute_modules: Modules = []
    """With recompute "selective": the modules of every layer, by Megatron-Core's names; `mlp_act`
    is the activation function of a dense MLP, `alternate_mm` every second matrix product and
    `grouped_mm` the products of experts, as torchtitan has them; `out_proj` is the output
    projection of attention and `mlp_gate` one up-projection of a gated MLP, as MaxText names them.
    None named: those that the stack takes unless told otherwise."""
    recompute_layers: Annotated[int, Field(ge=0, le=10**4)] = 0
    """With recompute "full": how many layers, the first of each chunk of a stage, where all have as
    many; 0: all."""
    zero_stage: ZeroStage = 0
    """The states that `dp_shard` shards: 1 optimizer, 2 gradients too, 3 parameters too (FSDP).
    Left out with dp_shard > 1: the stack's lowest."""
    reshard: bool = True
    """With ZeRO 3: gathered parameters are dropped after forward."""
    sequence_parallel: bool = False
    """Norms and residuals are sharded over tp. Left out with tp > 1: as the stack has it."""
    offload_activations: bool = False
    offload_optimizer: bool = False

    @property
    def knobs_given(self) -> set[str]:
        """Returns the fields that the request sets, which are neither left out nor null."""
        return {name for name in self.model_fields_set if getattr(self, name) is not None}

    def field_of(self, knob: str) -> str:
        """Returns the field of the request that gave a knob, for errors about it: the micro-batch
        may be given in tokens."""
        in_tokens = knob == "micro_batch" and self.micro_batch_tokens is not None
        return "micro_batch_tokens" if in_tokens else knob

    def build(self) -> Layout:
        """Returns the layout. Fields that are null take the defaults of `Layout`."""
        fields = self.model_dump(exclude_none=True)
        fields |= {name: tuple(fields[name]) for name in _TUPLES if name in fields}
        # The models mark every layout whose stages have unequal numbers of layers as balanced.
        if "balanced" not in self.knobs_given and len({*self.layers_per_chunk}) > 1:
            fields["balanced"] = True
        return Layout(**fields)

    def with_stack_defaults(self, problem: Problem) -> LayoutFields:
        """Returns the layout with the stack's default for every field that was left out. Fields
        without a meaning, such as a schedule without a pipeline, are null."""
        # Layers that the request spreads itself decide `balanced` too (`build`).
        knobs_given = self.knobs_given | ({"balanced"} if self.layers_per_chunk else set())
        settled = with_stack_defaults(problem, self.build(), knobs_given)
        return LayoutFields.shown(settled, on_torus=problem.cluster.is_torus)

    @classmethod
    def summary(cls, layout: object) -> str | None:
        """Returns a stored layout in one line; None where it is too old to have the form that
        layouts have now."""
        try:
            return read_stored(cls, layout).build().summary()
        except (Invalid, ValidationError):
            return None

    @classmethod
    def of(cls, layout: Layout) -> LayoutFields:
        """Returns the layout with every field, also those that have no meaning for it."""
        knobs = {field.name: getattr(layout, field.name) for field in dataclasses.fields(layout)}
        lists = {name: list(knobs[name]) for name in _TUPLES}
        return cls.model_validate({**knobs, **lists})

    @classmethod
    def shown(cls, layout: Layout, *, on_torus: bool) -> LayoutFields:
        """Returns the layout as answers have it: fields without a meaning are null, such as a
        schedule without a pipeline. If such a field is not at its default, it stays, so that a rule
        can refuse it."""
        meaningless = list[str]() if on_torus else list(TORUS_KNOBS)
        if layout.pp == 1:
            meaningless += ["schedule", "virtual_stages"]
        unset = [knob for knob in meaningless if getattr(layout, knob) == getattr(_PLAIN, knob)]
        return cls.of(layout).model_copy(update=dict.fromkeys(unset))  # each becomes None


class ConstraintFields(Wire):
    """For each knob of a layout the value or the values it may take; knobs not named are free."""

    pp: OneOrMany[Degree] | None = None
    dp_replicate: OneOrMany[Degree] | None = None
    dp_shard: OneOrMany[Degree] | None = None
    dp: OneOrMany[Degree] | None = None
    """dp_replicate times dp_shard."""
    cp: OneOrMany[Degree] | None = None
    tp: OneOrMany[Degree] | None = None
    ep: OneOrMany[Degree] | None = None
    etp: OneOrMany[Degree] | None = None
    micro_batch: OneOrMany[Degree] | None = None
    micro_batch_tokens: OneOrMany[MicroBatchTokens] | None = None
    """Instead of `micro_batch`: the same in tokens, multiples of `seq_len`. Answers have
    `micro_batch` beside it."""
    virtual_stages: OneOrMany[Degree] | None = None
    schedule: OneOrMany[Schedule] | None = None
    balanced: OneOrMany[bool] | None = None
    recompute: OneOrMany[Recompute] | None = None
    recompute_modules: Annotated[Modules, Field(min_length=1)] | None = None
    """The modules that selective recompute takes, all of them, instead of the sets that the stack
    offers."""
    recompute_layers: OneOrMany[Annotated[int, Field(ge=0, le=10**4)]] | None = None
    """Layers of each chunk that full recompute takes; 0: all. Left out, it is searched, unless
    `recompute` is given: then full means all."""
    zero_stage: OneOrMany[ZeroStage] | None = None
    torus_block: OneOrMany[TorusBlock] | None = None
    """Blocks of a torus; 1 leaves layouts whose axes lie along lines."""
    reshard: OneOrMany[bool] | None = None
    sequence_parallel: OneOrMany[bool] | None = None
    offload_activations: OneOrMany[bool] | None = None
    offload_optimizer: OneOrMany[bool] | None = None
    memory_reserve_gib: Annotated[float, Field(ge=0, le=1e5)] = 0.0
    """Memory of each device to leave free."""
    min_fit_probability: Annotated[float, Field(ge=EVEN_CHANCE, le=MAX_FIT_PROBABILITY)] = (
        SAFE_FIT_PROBABILITY
    )
    """Least probability with which a layout must fit in memory. It holds for all that is searched
    for: recommendations with their alternatives, fewest chips and thresholds, frontiers, and sides
    of comparisons. With 0.5 it is enough that the memory predicted for a layout is there."""
    use_all_chips: bool = False
    """A recommendation must use every chip. Otherwise it uses fewer where no layout uses all, or
    where a step takes less on fewer. Frontiers and comparisons always use all."""

    def build(self) -> Constraints:
        """Returns the constraints, with the allowed values of each restricted field of a layout."""
        values = {knob: getattr(self, knob) for knob in KNOBS}
        allowed = {
            knob: tuple(value) if isinstance(value, list) else (value,)
            for knob, value in values.items()
            if value is not None
        }
        return Constraints(
            allowed=allowed,
            memory_reserve_gib=self.memory_reserve_gib,
            min_fit_probability=self.min_fit_probability,
            use_all_chips=self.use_all_chips,
        )
