"""Layouts, and the split of their layers over stages, as compiled functions read them.

A *row* is one layout in numbers. Its *shard* is what micro-batch, cp, tp, ep and etp leave to one
device of a layer; its *mesh* has the other degrees and the placement too. Stages of a partition
that have equal layers are stored once, as one *distinct* stage.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.layouts.groups import MeshRow
from models.spec.device_order import filling_code
from models.spec.layout import Layouts


class Row(MeshRow):
    """Holds one layout (models.spec.layout.Layout)."""

    micro_batch: int
    sequence_parallel: bool
    policy: int
    """The number of a recompute policy of a question."""
    recompute_layers: int
    offload_activations: bool
    offload_optimizer: bool
    zero_stage: int
    reshard: bool
    schedule: int
    virtual_stages: int
    partition: int
    """The number of a partition of StageTables."""


_KINDS = MeshRow.__annotations__ | Row.__annotations__
ROW = np.dtype(
    [(name, "?" if kind == "bool" else "i4") for name, kind in _KINDS.items()], align=True
)
RowColumns: Any = namedtuple("RowColumns", _KINDS)  # type: ignore[misc]
"""Holds the fields of rows, each an array (n,)."""
_MIXING = 0x1E3779B97F4A7C15
"""An odd number whose bits are irregular. Multiplication by it mixes fields into one number."""


def rows_of(layouts: Layouts, policies: Array, partition: Array) -> Array:
    """Return layouts as records of Row, (n,). `policies` lists numbers of recompute policies,
    ascending, and a record has the position of its policy there. `partition` (n,) has the row of
    StageTables for each layout."""
    # Fields that layouts do not have under the same name.
    translated = {
        "policy": np.searchsorted(policies, layouts.recompute),
        "partition": partition,
        "filling": filling_code(layouts.torus_axes, layouts.torus_block),
    }
    columns: list[Array] = [
        np.ascontiguousarray(
            translated[name] if name in translated else getattr(layouts, name),
            dtype=np.bool_ if kind == "bool" else np.int64,
        )
        for name, kind in _KINDS.items()
    ]
    rows = np.empty(len(layouts), dtype=ROW)
    _fill_rows(RowColumns(*columns), rows)
    return rows


@compiled
def _fill_rows(columns: Any, rows: Array) -> None:
    """Write n records of Row from `columns`, which are RowColumns."""
    for i in range(len(rows)):
        row = rows[i]
        row.pp = columns.pp[i]
        row.dp_replicate = columns.dp_replicate[i]
        row.dp_shard = columns.dp_shard[i]
        row.cp = columns.cp[i]
        row.tp = columns.tp[i]
        row.ep = columns.ep[i]
        row.etp = columns.etp[i]
        row.placement = columns.placement[i]
        row.filling = columns.filling[i]
        row.micro_batch = columns.micro_batch[i]
        row.sequence_parallel = columns.sequence_parallel[i]
        row.policy = columns.policy[i]
        row.recompute_layers = columns.recompute_layers[i]
        row.offload_activations = columns.offload_activations[i]
        row.offload_optimizer = columns.offload_optimizer[i]
        row.zero_stage = columns.zero_stage[i]
        row.reshard = columns.reshard[i]
        row.schedule = columns.schedule[i]
        row.virtual_stages = columns.virtual_stages[i]
        row.partition = columns.partition[i]


@compiled
def fill_keys(rows: Array, keys: Array) -> None:
    """Write a sorting key for each of n rows. Sorted by it, rows with equal shards lie together;
    among these, rows with equal meshes; and among these, rows with equal recompute policy, ZeRO
    stage and offloading. Consecutive rows can then reuse what they have in common."""
    for i in range(len(rows)):
        row = rows[i]
        shard = row.micro_batch * _MIXING + row.cp
        shard = (shard * _MIXING + row.tp) * _MIXING + row.sequence_parallel
        shard = (shard * _MIXING + row.ep) * _MIXING + row.etp
        mesh = (row.pp * _MIXING + row.dp_shard) * _MIXING + row.dp_replicate
        mesh = (mesh * _MIXING + row.placement) * _MIXING + row.filling
        regime = (row.policy * _MIXING + row.recompute_layers) * _MIXING + row.zero_stage
        regime = (regime * _MIXING + row.reshard) * _MIXING + row.offload_activations
        # Three hashes of 20 bits each, most significant first. Equal hashes of unequal rows are
        # harmless: reuse compares the rows themselves (models.cost.step).
        keys[i] = (high_bits(shard) << 40) + (high_bits(mesh) << 20) + high_bits(regime)


@compiled
def take_rows(rows: Array, positions: Array, taken: Array) -> None:
    """Write rows[positions] into `taken`, (n,). numpy's `take` takes ten times as long on
    records."""
    for i in range(len(positions)):
        taken[i] = rows[positions[i]]


@inlined
def high_bits(mixed: int) -> int:
    """Return a hash of 20 bits: the highest bits of the product with a large odd number, which
    depend on all bits of `mixed`."""
    return (mixed * _MIXING) >> 44 & 0xFFFFF  # bits 44 to 63 of 64


class StageTables(NamedTuple):
    """Holds the distinct stages of u partitions, at most s each
    (models.cost.pipeline.stage_partition). Values beyond the number of stages, or of stretch ends,
    that a partition has mean nothing."""

    distinct_count: Array
    """The number of distinct stages of a partition, (u,)."""
    amounts: Array
    """Layers of each kind that a stage has, and how much of each end (embedding, head), (u, s,
    parts)."""
    first_alike: Array
    """The first stage of the pipeline that a distinct stage stands for, (u, s)."""
    distinct: Array
    """The number of the distinct stage that stands for each stage, (u, stages)."""
    stretch_ends: Array
    """The stages where a stretch of equal ones begins or ends, ascending, (u, stretch ends)."""
    stretch_end_count: Array
    """The number of stretch ends, (u,)."""
    first: Array
    """The part of `amounts` in chunks of the first round, under interleaving, (u, s, parts)."""
    last: Array
    """The part of `amounts` in chunks of the last round, under interleaving, (u, s, parts)."""
    path_out: Array
    """Forwards that a micro-batch takes on the longest path while stages alternate, (u, parts)."""
    path_back: Array
    """Backwards that a micro-batch takes on the longest path while stages alternate, (u, parts)."""
    path_ahead: Array
    """Both passes that a micro-batch takes on the longest path where all forwards come first, (u,
    parts)."""
    path_moves: Array
    """The number of stages by which the path while stages alternate goes down with every group of
    micro-batches, (u,)."""
    path_last: Array
    """The stage where the path with all forwards first ends, (u,)."""
