"""A layout: mesh degrees, their placement, micro-batch, schedule, recompute, sharding and offload.

:class:`Layout` is one, with names; :class:`Layouts` is many, as arrays of codes. Everything
downstream works on arrays, and one layout is an array of length one.
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
PLACEMENTS: tuple[tuple[str, ...], ...] = tuple(permutations(AXES))
DEFAULT_PLACEMENT = PLACEMENTS.index(AXES)
TORUS_AXES: tuple[tuple[str, ...], ...] = tuple(permutations("zyx"))
TORUS_BLOCKS = (1, 2, 4)
TORUS_KNOBS = ("torus_axes", "torus_block")
DEGREES = (*AXES, "ep", "etp")

ONE_F_ONE_B, INTERLEAVED, AFAB, ZERO_BUBBLE, ZERO_BUBBLE_V, DUALPIPE = range(len(SCHEDULES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One layout.

    pp, dp_replicate, dp_shard, cp, tp   degrees; their product is the number of devices ep, etp
    expert degrees, folded over the non-pipeline axes placement                            mesh axes
    from the innermost links outwards torus_axes, torus_block              the dims of a torus that
    they fill one after the other, a block of so many devices along each at a time micro_batch
    sequences a data-parallel rank runs at a time schedule, virtual_stages             pipeline
    schedule and model chunks a device holds balanced                             layers over stages
    so that the slowest is fastest, not an equal number recompute                            "none",
    "selective" (some modules of every layer) or "full" (only the inputs of layers are kept)
    recompute_modules                    which modules (models.spec.recompute.MODULES), if
    selective; none named: those that the stack takes unless told otherwise recompute_layers
    if full, of how many layers, the first of each chunk; 0: of all zero_stage, reshard
    what dp_shard (with cp) shards: 1 optimizer, 2 gradients too, 3 parameters too (FSDP), dropped
    again after forward if `reshard` sequence_parallel                    norms and residuals are
    sharded over tp offload_activations/_optimizer       kept in host memory
    """

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    etp: int = 1
    placement: tuple[str, ...] = AXES
    torus_axes: tuple[str, ...] = TORUS_AXES[0]
    torus_block: int = 1
    micro_batch: int = 1
    schedule: str = "1f1b"
    virtual_stages: int = 1
    balanced: bool = False
    recompute: str = "none"
    recompute_modules: tuple[str, ...] = ()
    recompute_layers: int = 0
    zero_stage: int = 0
    reshard: bool = True
    sequence_parallel: bool = False
    offload_activations: bool = False
    offload_optimizer: bool = False

    def __post_init__(self) -> None:
        for name in (
            "pp",
            "dp_replicate",
            "dp_shard",
            "cp",
            "tp",
            "ep",
            "etp",
            "micro_batch",
            "virtual_stages",
        ):
            if getattr(self, name) < 1:
                raise Invalid(f"layout.{name}", getattr(self, name), "must be at least 1")
        for name, choices in (("schedule", SCHEDULES), ("recompute", RECOMPUTE)):
            if getattr(self, name) not in choices:
                raise Invalid(
                    f"layout.{name}", getattr(self, name), f"must be one of {', '.join(choices)}"
                )
        self._check_recompute()
        if tuple(self.placement) not in PLACEMENTS:
            raise Invalid(
                "layout.placement", self.placement, f"must order all of {', '.join(AXES)}"
            )
        if tuple(self.torus_axes) not in TORUS_AXES:
            raise Invalid("layout.torus_axes", self.torus_axes, "must order all of z, y, x")
        if self.torus_block not in TORUS_BLOCKS:
            raise Invalid(
                "layout.torus_block",
                self.torus_block,
                f"must be one of {', '.join(map(str, TORUS_BLOCKS))}",
            )
        if self.zero_stage not in range(4):
            raise Invalid("layout.zero_stage", self.zero_stage, "must be 0, 1, 2 or 3")

    def _check_recompute(self) -> None:
        modules, layers = self.recompute_modules, self.recompute_layers
        if not set(modules) <= set(MODULES):
            raise Invalid(
                "layout.recompute_modules", modules, f"must be among {', '.join(MODULES)}"
            )
        if modules and self.recompute != "selective":
            raise Invalid("layout.recompute_modules", modules, 'go with recompute "selective"')
        if layers < 0 or (layers and self.recompute != "full"):
            raise Invalid(
                "layout.recompute_layers",
                layers,
                'a number of layers goes with recompute "full"; 0 is all',
            )

    @property
    def dp(self) -> int:
        return self.dp_replicate * self.dp_shard

    @property
    def num_devices(self) -> int:
        return self.pp * self.dp * self.cp * self.tp

    def summary(self) -> str:
        """The layout in one line: degrees above 1, and the knobs away from their plainest value."""
        axes = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")
        parts = [f"{axis}={getattr(self, axis)}" for axis in axes if getattr(self, axis) > 1] or [
            "one device"
        ]
        parts.append(f"micro_batch={self.micro_batch}")
        if self.pp > 1 or self.schedule != "1f1b":
            parts.append(
                self.schedule + (f" x{self.virtual_stages}" if self.virtual_stages > 1 else "")
            )
        parts += [f"zero={self.zero_stage}"] if self.zero_stage else []
        parts += [f"recompute={self._recompute_summary()}"] if self.recompute != "none" else []
        parts += [
            name for name in ("offload_activations", "offload_optimizer") if getattr(self, name)
        ]
        active = [[a for a in order if getattr(self, a) > 1] for order in (self.placement, AXES)]
        parts += [f"placement={'<'.join(active[0])}"] if active[0] != active[1] else []
        parts += [f"torus={'<'.join(self.torus_axes)}"] if self.torus_axes != TORUS_AXES[0] else []
        parts += [f"torus_block={self.torus_block}"] if self.torus_block > 1 else []
        return " ".join(parts)

    def _recompute_summary(self) -> str:
        if self.recompute_modules:
            return "+".join(self.recompute_modules)
        return self.recompute + (f":{self.recompute_layers}" if self.recompute_layers else "")


_CODED: dict[str, Sequence[Any]] = {
    "schedule": SCHEDULES,
    "placement": PLACEMENTS,
    "torus_axes": TORUS_AXES,
}
_CODE_OF = {
    name: {value: code for code, value in enumerate(values)} for name, values in _CODED.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts(Columns):
    """Many layouts; each field is an integer or boolean array of shape (n,), coded fields index
    their tables, and `recompute` is a policy with its modules (models.spec.recompute)."""

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
    recompute: Array
    recompute_layers: Array
    zero_stage: Array
    reshard: Array
    sequence_parallel: Array
    offload_activations: Array
    offload_optimizer: Array

    @classmethod
    def of(cls, layouts: Iterable[Layout]) -> Layouts:
        rows = list(layouts)
        columns = {}
        for field in fields(cls):
            values = [getattr(row, field.name) for row in rows]
            if field.name == "recompute":
                values = [policy_code(row.recompute, row.recompute_modules) for row in rows]
            elif field.name in _CODED:
                values = [
                    _CODE_OF[field.name][v if isinstance(v, str) else tuple(v)] for v in values
                ]
            columns[field.name] = np.array(
                values, dtype=bool if field.name in _BOOLEAN else np.int64
            )
        return cls(**columns)

    def __len__(self) -> int:
        return len(self.pp)

    def __getitem__(self, index: int) -> Layout:
        values: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)[index].item()
            values[field.name] = _CODED[field.name][value] if field.name in _CODED else value
        values["recompute"], values["recompute_modules"] = decode_policy(values["recompute"])
        return Layout(**values)

    @property
    def dp(self) -> Array:
        return self.dp_replicate * self.dp_shard

    @property
    def num_devices(self) -> Array:
        return self.pp * self.dp * self.cp * self.tp

    def num_micro_batches(self, global_batch: int) -> Array:
        """Micro-batches a rank runs in one step; at least 1 (a rule refuses what does not
        divide)."""
        return np.maximum(global_batch // (self.dp * self.micro_batch), 1)


_BOOLEAN = {"balanced", "reshard", "sequence_parallel", "offload_activations", "offload_optimizer"}


def active_axes(x: Layouts) -> Array:
    """Which axes have more than one rank, as bits in the order of AXES."""
    return np.stack([getattr(x, axis) > 1 for axis in AXES], axis=1) @ (1 << np.arange(len(AXES)))


@cache
def equivalent_placements() -> Array:
    """(active axes, placement): the first placement that has these axes in the same order."""
    found = np.zeros((1 << len(AXES), len(PLACEMENTS)), dtype=np.int64)
    for pattern, of_pattern in enumerate(found):
        first: dict[tuple[str, ...], int] = {}
        for code, order in enumerate(PLACEMENTS):
            of_pattern[code] = first.setdefault(
                tuple(axis for axis in order if pattern >> AXES.index(axis) & 1), code
            )
    return found


@cache
def pipeline_outermost() -> Array:
    """(active axes, placement): whether of these axes none lies outside the pipeline's."""
    found = np.ones((1 << len(AXES), len(PLACEMENTS)), dtype=bool)
    for pattern, of_pattern in enumerate(found):
        for code, order in enumerate(PLACEMENTS):
            of_pattern[code] = not any(
                pattern >> AXES.index(axis) & 1 for axis in order[order.index("pp") + 1 :]
            )
    return found


@cache
def offered_orders(offered: tuple[tuple[str, ...], ...]) -> Array:
    """(active axes, placement): whether it has these axes as one of those offered does; where none
    is, as any."""
    codes = [PLACEMENTS.index(order) for order in offered] or list(range(len(PLACEMENTS)))
    return np.array([np.isin(alike, alike[codes]) for alike in equivalent_placements()])
