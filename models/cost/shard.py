"""The share of one device: its part of a micro-batch and of a layer."""

from __future__ import annotations

from typing import NamedTuple

from models.compilation.compiled import compiled
from models.cost.facts import Facts, LayerFacts
from models.cost.rows import Row


class Shard(NamedTuple):
    """Holds the tokens of a device's cp rank, and the degrees by which tp, ep and etp cut a
    layer."""

    tokens: float
    """Tokens of a micro-batch."""
    local_tokens: float
    """Tokens of a micro-batch whose norms, residuals and routing the device computes."""
    tp: float
    ep: float
    etp: float


@compiled
def shard_of(facts: Facts, row: Row) -> Shard:
    """Return what a device has of a micro-batch and of a layer under a layout. With sequence
    parallelism the ranks of tp share the tokens outside the blocks' products."""
    tokens = row.micro_batch * facts.seq_len / row.cp
    local_tokens = tokens / row.tp if row.sequence_parallel else tokens
    return Shard(tokens, local_tokens, float(row.tp), float(row.ep), float(row.etp))


@compiled
def same_shard(one: Row, other: Row) -> bool:
    """Say whether two layouts have equal micro-batches, cut over cp and tp alike, and layers cut
    over tp, ep and etp alike. Kernel times and sizes of one then hold for the other."""
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
    """Return the share of all key-value heads that a device has: 1/tp, but at least one head. Where
    tp exceeds the number of heads, each is repeated on several devices."""
    return max(1 / tp, 1 / layer.num_key_value_heads)


@compiled
def routed_tokens(layer: LayerFacts, shard: Shard) -> float:
    """Return the mean number of token copies that one device's experts process. Where experts are
    balanced, it is the device's own tokens times the experts of a token. The ranks of an etp group
    gather their tokens, and each processes its slice of the experts for all of them."""
    return shard.local_tokens * layer.experts_per_token * shard.etp
