"""What one device works on: its part of a micro-batch and of a layer."""

from __future__ import annotations

from typing import NamedTuple

from models.compilation.compiled import compiled
from models.cost.facts import Facts, LayerFacts
from models.cost.rows import Row


class Shard(NamedTuple):
    """The tokens of a device's cp rank, and how tp, ep and etp cut a layer."""

    tokens: float
    """Of a micro-batch."""
    local_tokens: float
    """Tokens of which a device holds norms, residuals and routing."""
    tp: float
    ep: float
    etp: float


@compiled
def shard_of(f: Facts, row: Row) -> Shard:
    tokens = row.micro_batch * f.seq_len / row.cp
    local_tokens = tokens / row.tp if row.sequence_parallel else tokens
    return Shard(tokens, local_tokens, float(row.tp), float(row.ep), float(row.etp))


@compiled
def same_shard(one: Row, other: Row) -> bool:
    """Whether two layouts cut layers and micro-batches alike."""
    return (
        one.micro_batch == other.micro_batch
        and one.cp == other.cp
        and one.tp == other.tp
        and one.ep == other.ep
        and one.etp == other.etp
        and one.sequence_parallel == other.sequence_parallel
    )


@compiled
def kv_share(layer: LayerFacts, tp: float) -> float:
    """The share of all key-value heads that a device has: 1/tp, but at least one head, which is
    repeated on several devices where tp exceeds their number."""
    return max(1 / tp, 1 / layer.num_kv_heads)


@compiled
def routed_tokens(layer: LayerFacts, shard: Shard) -> float:
    """Token copies that one device's experts process, on average."""
    return shard.local_tokens * layer.experts_per_token * shard.etp
