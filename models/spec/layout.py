"""A layout: mesh degrees, their placement, micro-batch, schedule, recompute, sharding and offload.

:class:`Layout` is one layout, with names. :class:`Layouts` are many layouts, as arrays of numbers.
All later computation works on arrays: one layout is an array of length one. A *knob* is a field of
a layout that a caller may fix, and a *code* is the number that stands for a name in arrays. A
*placement* is an order of the mesh axes, from the innermost links outwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np

from models.columns import Array, Columns
from models.errors import Invalid
from models.spec.recompute import MODULES, RECOMPUTE, decode_policy, policy_code

AXES = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
SCHEDULES = ("1f1b", "interleaved", "afab", "zero_bubble", "zero_bubble_v", "dualpipe")
ONE_F_ONE_B, INTERLEAVED, AFAB, ZERO_BUBBLE, ZERO_BUBBLE_V, DUALPIPE = range(len(SCHEDULES))
PLACEMENTS: tuple[tuple[str, ...], ...] = tuple(permutations(AXES))
DEFAULT_PLACEMENT = PLACEMENTS.index(AXES)
TORUS_AXES: tuple[tuple[str, ...], ...] = tuple(permutations("zyx"))
TORUS_BLOCKS = (1, 2, 4)
MAX_LAYERS = 10**4  # of one chunk of a stated partition
TORUS_KNOBS = ("torus_axes", "torus_block")
DEGREES = (*AXES, "ep", "etp")
_DEGREES_FROM_PP = (*reversed(AXES), "ep", "etp")
_POSITIVE_KNOBS = (*_DEGREES_FROM_PP, "micro_batch", "virtual_stages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One layout of a job. The product of pp, dp_replicate, dp_shard, cp and tp is the number of
    devices."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    """Expert parallelism. Together with `etp` it folds over the mesh axes other than pp."""
    etp: int = 1
    """Tensor parallelism of experts."""
    placement: tuple[str, ...] = AXES
    """The mesh axes in the order from the innermost links outwards."""
    torus_axes: tuple[str, ...] = TORUS_AXES[0]
    """The dims of a torus in the order in which they are filled."""
    torus_block: int = 1
    """The side of a block, in devices along each dim. A torus is filled through one block after the
    other."""
    micro_batch: int = 1
    """The sequences that a data-parallel rank runs at a time."""
    schedule: str = "1f1b"
    virtual_stages: int = 1
    """The number of model chunks that a device holds."""
    balanced: bool = False
    """Layers are split over stages so that the slowest stage is as fast as it can be, or as
    `layers_per_chunk` says. Where it is false, stages have equal numbers of layers."""
    layers_per_chunk: tuple[int, ...] = ()
    """The number of layers of each of the pp * virtual_stages chunks, in the order of the model.
    Where it is empty, `balanced` decides."""
    recompute: str = "none"
    """The part of forward that backward computes again: nothing ("none"), some modules of every
    layer ("selective"), or all but the inputs of layers ("full")."""
    recompute_modules: tuple[str, ...] = ()
    """The modules of selective recompute (models.spec.recompute.MODULES). Where none is named,
    selective recompute takes the default modules of the stack."""
    recompute_layers: int = 0
    """The number of first layers of each chunk that full recompute takes; 0 stands for all."""
    zero_stage: int = 0
    """The tensors that dp_shard, together with cp, shards: optimizer states (1), gradients too (2),
    parameters too (3, FSDP)."""
    reshard: bool = True
    """Gathered parameters are dropped after forward, and gathered again for backward. It matters in
    stage 3 alone."""
    sequence_parallel: bool = False
    """Norms and residuals are sharded over tp."""
    offload_activations: bool = False
    """Activations are kept in host memory."""
    offload_optimizer: bool = False
    """Optimizer states are kept in host memory and updated there."""

    def __post_init__(self) -> None:
        for name in _POSITIVE_KNOBS:
            if getattr(self, name) < 1:
                raise Invalid(f"layout.{name}", getattr(self, name), "must be at least 1")
        for name, choices in (("schedule", SCHEDULES), ("recompute", RECOMPUTE)):
            if getattr(self, name) not in choices:
                rule = f"must be one of {', '.join(choices)}"
                raise Invalid(f"layout.{name}", getattr(self, name), rule)
        self._check_recompute()
        self._check_layers_per_chunk()
        if tuple(self.placement) not in PLACEMENTS:
            rule = f"must order all of {', '.join(AXES)}"
            raise Invalid("layout.placement", self.placement, rule)
        if tuple(self.torus_axes) not in TORUS_AXES:
            raise Invalid("layout.torus_axes", self.torus_axes, "must order all of z, y, x")
        if self.torus_block not in TORUS_BLOCKS:
            rule = f"must be one of {', '.join(map(str, TORUS_BLOCKS))}"
            raise Invalid("layout.torus_block", self.torus_block, rule)
        if self.zero_stage not in range(4):
            raise Invalid("layout.zero_stage", self.zero_stage, "must be 0, 1, 2 or 3")

    def _check_recompute(self) -> None:
        """Raise Invalid where modules or a number of layers do not go with the recompute policy."""
        modules = self.recompute_modules
        layers = self.recompute_layers
        if not set(modules) <= set(MODULES):
            rule = f"must be among {', '.join(MODULES)}"
            raise Invalid("layout.recompute_modules", modules, rule)
        if modules and self.recompute != "selective":
            raise Invalid("layout.recompute_modules", modules, 'go with recompute "selective"')
        if layers < 0 or (layers and self.recompute != "full"):
            rule = 'a number of layers goes with recompute "full"; 0 is all'
            raise Invalid("layout.recompute_layers", layers, rule)

    def _check_layers_per_chunk(self) -> None:
        """Raise Invalid where `layers_per_chunk` has not one number of layers for each chunk, or
        has unequal numbers though `balanced` is false, which asks for an equal split."""
        layers = self.layers_per_chunk
        if not layers:
            return
        chunks = self.pp * self.virtual_stages
        if len(layers) != chunks:
            rule = (
                f"must have a number of layers for each of pp({self.pp}) *"
                f" virtual_stages({self.virtual_stages}) = {chunks} chunks, and has {len(layers)}"
            )
            raise Invalid("layout.layers_per_chunk", list(layers), rule)
        if not all(0 <= count <= MAX_LAYERS for count in layers):
            rule = f"must be 0 to {MAX_LAYERS} each"
            raise Invalid("layout.layers_per_chunk", list(layers), rule)
        if len(set(layers)) > 1 and not self.balanced:
            rule = "is an equal split, and layers_per_chunk has unequal numbers; leave one out"
            raise Invalid("layout.balanced", self.balanced, rule)

    @property
    def dp(self) -> int:
        return self.dp_replicate * self.dp_shard

    @property
    def num_devices(self) -> int:
        return self.pp * self.dp * self.cp * self.tp

    def summary(self) -> str:
        """Return the layout in one line, such as "pp=4 tp=8 micro_batch=1 1f1b zero=1": degrees
        above 1, and other knobs that are not at their plainest value."""
        parts = [f"{axis}={getattr(self, axis)}" for axis in self._active_axes(_DEGREES_FROM_PP)]
        if not parts:
            parts.append("one device")
        parts.append(f"micro_batch={self.micro_batch}")
        if self.pp > 1 or self.schedule != "1f1b":
            chunks = f" x{self.virtual_stages}" if self.virtual_stages > 1 else ""
            parts.append(f"{self.schedule}{chunks}")
        if self.layers_per_chunk:
            parts.append(f"layers={','.join(map(str, self.layers_per_chunk))}")
        if self.zero_stage:
            parts.append(f"zero={self.zero_stage}")
        if self.recompute != "none":
            parts.append(f"recompute={self._recompute_summary()}")
        for name in ("offload_activations", "offload_optimizer"):
            if getattr(self, name):
                parts.append(name)
        # Where axes of one rank stand makes no difference; AXES is the plainest order.
        order = self._active_axes(self.placement)
        if order != self._active_axes(AXES):
            parts.append(f"placement={'<'.join(order)}")
        if self.torus_axes != TORUS_AXES[0]:
            parts.append(f"torus={'<'.join(self.torus_axes)}")
        if self.torus_block > 1:
            parts.append(f"torus_block={self.torus_block}")
        return " ".join(parts)

    def _active_axes(self, order: tuple[str, ...]) -> list[str]:
        """Return the axes of an order that have more than one rank."""
        return [axis for axis in order if getattr(self, axis) > 1]

    def _recompute_summary(self) -> str:
        """Return the recompute policy in one word, such as "mlp+moe", "full" or "full:4"."""
        if self.recompute_modules:
            return "+".join(self.recompute_modules)
        layers = f":{self.recompute_layers}" if self.recompute_layers else ""
        return f"{self.recompute}{layers}"


_NAMES: dict[str, Sequence[Any]] = {
    "schedule": SCHEDULES,
    "placement": PLACEMENTS,
    "torus_axes": TORUS_AXES,
}
"""The tables that the codes of Layouts index."""
_CODES = {
    name: {value: code for code, value in enumerate(values)} for name, values in _NAMES.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts(Columns):
    """n layouts, in fields that are arrays of n integers or truth values.

    `schedule`, `placement` and `torus_axes` are indices into SCHEDULES, PLACEMENTS and TORUS_AXES.
    `recompute` is the number of a policy with its modules (models.spec.recompute).
    `layers_per_chunk` holds strings, with a character for each chunk whose code point is one more
    than the number of its layers. Strings are empty where no partition is stated. `stated_layers`
    reads them.
    """

    pp: Array
    dp_replicate: Array
    dp_shard: Array
    cp: Array
    tp: Array
    ep: Array
    etp: Array
    placement: Array
    torus_axes: Array
    torus_block: Array
    micro_batch: Array
    schedule: Array
    virtual_stages: Array
    balanced: Array
    layers_per_chunk: Array
    recompute: Array
    recompute_layers: Array
    zero_stage: Array
    reshard: Array
    sequence_parallel: Array
    offload_activations: Array
    offload_optimizer: Array

    @classmethod
    def of(cls, layouts: Iterable[Layout]) -> Layouts:
        """Return layouts as columns. Choices such as the schedule become their codes, and
        layers_per_chunk a string with a character for each chunk."""
        rows = list(layouts)
        columns: dict[str, Array] = {}
        for field in fields(cls):
            values = [getattr(row, field.name) for row in rows]
            if field.name == "recompute":
                values = [policy_code(row.recompute, row.recompute_modules) for row in rows]
            elif field.name in _NAMES:
                # Orders of axes may be lists, which cannot be keys of _CODES.
                names = [value if isinstance(value, str) else tuple(value) for value in values]
                values = [_CODES[field.name][name] for name in names]
            elif field.name == "layers_per_chunk":
                # 1 is added since numpy drops trailing characters of code point 0.
                values = ["".join(chr(1 + count) for count in counts) for counts in values]
            columns[field.name] = np.array(values, dtype=_DTYPES.get(field.name, np.int64))
        return cls(**columns)

    def __len__(self) -> int:
        return len(self.pp)

    def __getitem__(self, index: int) -> Layout:
        """Return the layout at this position, with names in place of codes."""
        values: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)[index].item()
            values[field.name] = _NAMES[field.name][value] if field.name in _NAMES else value
        values["recompute"], values["recompute_modules"] = decode_policy(values["recompute"])
        # Each character has the number of layers plus 1 as its code point (Layouts.of).
        characters = values["layers_per_chunk"]
        values["layers_per_chunk"] = tuple(ord(character) - 1 for character in characters)
        return Layout(**values)

    @property
    def dp(self) -> Array:
        return self.dp_replicate * self.dp_shard

    @property
    def num_devices(self) -> Array:
        return self.pp * self.dp * self.cp * self.tp

    def num_micro_batches(self, global_batch: int) -> Array:
        """Return the number of micro-batches that a rank runs in one step. Where the batch does not
        divide, it is rounded down, but not to 0; models.layouts.mesh_rules refuses such layouts
        anyway."""
        return np.maximum(global_batch // (self.dp * self.micro_batch), 1)

    @property
    def states_layers(self) -> Array:
        """A mask of the layouts whose `layers_per_chunk` states a partition, of shape (n,)."""
        strings = self.layers_per_chunk
        # Strings of one character are compared as code points, which is faster.
        # An empty string has code point 0, and stated numbers of layers are stored plus 1.
        if strings.itemsize == np.dtype("U1").itemsize and strings.flags.c_contiguous:
            return np.asarray(strings.view(np.uint32) > 0)
        return np.asarray(strings != "")

    @property
    def stated_layers(self) -> Array:
        """The numbers of `layers_per_chunk`, of shape (n, most chunks), with 0 beyond the last
        chunk."""
        strings = np.ascontiguousarray(self.layers_per_chunk)
        # numpy keeps a character in four bytes, which are its code point.
        points = strings.view(np.uint32).reshape(len(strings), strings.itemsize // 4)
        # Numbers are stored plus 1; a shorter string ends in zeros, which would become -1.
        return np.maximum(points.astype(np.int64) - 1, 0)


_DTYPES: dict[str, type] = {
    "balanced": bool,
    "layers_per_chunk": str,
    "reshard": bool,
    "sequence_parallel": bool,
    "offload_activations": bool,
    "offload_optimizer": bool,
}
"""The types of the columns that do not hold integers."""


def active_axes(layouts: Layouts) -> Array:
    """Return for each of n layouts the set of axes with more than one rank, (n,), as a number whose
    bits are positions in AXES: 0b10001 stands for tp and pp. It is the row of a layout in tables
    such as `equivalent_placements`."""
    return np.asarray(
        sum((getattr(layouts, axis) > 1) * (1 << bit) for bit, axis in enumerate(AXES))
    )


@cache
def equivalent_placements() -> Array:
    """Return an array (32, placements): for each set of active axes (as in `active_axes`) and each
    placement, the number of the first placement that orders these axes alike.

    Axes of one rank move no data, so placements that differ only in where such axes stand are
    equivalent, and only the first of them is searched.
    """
    first_alike = np.zeros((1 << len(AXES), len(PLACEMENTS)), dtype=np.int64)
    for pattern, row in enumerate(first_alike):
        first: dict[tuple[str, ...], int] = {}
        for code, order in enumerate(PLACEMENTS):
            row[code] = first.setdefault(_axes_in(pattern, order), code)
    return first_alike


@cache
def pipeline_outermost() -> Array:
    """Return an array (32, placements): for each set of active axes (as in `active_axes`) and each
    placement, true where none of these axes lies outside the pipeline's. Some stacks need that for
    certain degrees of expert parallelism (models.layouts.placement_rules)."""
    is_outermost = np.ones((1 << len(AXES), len(PLACEMENTS)), dtype=bool)
    for pattern, row in enumerate(is_outermost):
        for code, order in enumerate(PLACEMENTS):
            row[code] = not _axes_in(pattern, order[order.index("pp") + 1 :])
    return is_outermost


@cache
def offered_placements(stack_placements: tuple[tuple[str, ...], ...]) -> Array:
    """Return an array (32, placements): for each set of active axes (those of more than one rank,
    as in `active_axes`) and each placement, true where it orders these axes as some placement of
    the stack does. A stack that lists no placements offers all."""
    listed = [PLACEMENTS.index(order) for order in stack_placements]
    codes = listed or list(range(len(PLACEMENTS)))
    # For one set of axes, `numbers` has the same number for placements that order them alike. So
    # the placements that have the number of a listed one are offered.
    return np.array([np.isin(numbers, numbers[codes]) for numbers in equivalent_placements()])


def _axes_in(pattern: int, order: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes of an order whose bits are set in `pattern`, a set of axes, in that order.
    Bits are positions in AXES: 0b10001 stands for tp and pp."""
    return tuple(axis for axis in order if pattern >> AXES.index(axis) & 1)
