"""The rules that make a layout legal: each has a name, a vectorised test and a message.

A rule states a fact of the arithmetic (the degrees multiply to the number of devices), of the model
(tensor parallelism divides the heads), of a framework (whose source its docstring names) or of the
stack's data; a few state how far we search (`kind`). The search counts how many layouts each rule
refuses; a prediction of a single layout fails with the message of the first rule that it breaks,
which has the layout's values in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from models.columns import Array
from models.errors import Invalid
from models.layouts.factors import divisors
from models.layouts.placement import LayoutGroups, groups
from models.spec.attention import Attention
from models.spec.layout import (
    AFAB,
    DUALPIPE,
    INTERLEAVED,
    ONE_F_ONE_B,
    SCHEDULES,
    ZERO_BUBBLE,
    ZERO_BUBBLE_V,
    Layout,
    Layouts,
    active_axes,
    offered_orders,
    pipeline_outermost,
)
from models.spec.problem import Problem
from models.spec.recompute import FULL, MODULES, NONE, STACK_SELECTIVE, policy_code
from models.spec.recurrence import Mamba2, Recurrence


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of legality. `field` is the dotted path of the value that an error blames, unless
    `blame` names another for a layout.

    `test` returns an array of truth values, one for each of n layouts: true where the layout obeys.
    The first paragraph of its docstring says what the rule asks, as the documentation shows it.
    `message` says what the rule asks of a layout that breaks it.

    A rule of the kind "framework" says what cannot run. One of the kind "search" says how far
    layouts are searched: the framework runs what it refuses, and `lifted` raises its limit for a
    layout that is stated.
    """

    name: str
    field: str
    test: Callable[[Problem, Layouts], Array]
    message: Callable[[Problem, Layout], str]
    blame: Callable[[Problem, Layout], str] | None = None
    kind: Literal["framework", "search"] = "framework"

    def blamed_field(self, problem: Problem, layout: Layout) -> str:
        """Return the dotted path of the value to blame for a layout that breaks the rule."""
        return self.field if self.blame is None else self.blame(problem, layout)

    def blamed_knob(self, problem: Problem, layout: Layout) -> str | None:
        """Return the field of the layout to blame; None where it is no single one, or none of a
        layout."""
        part, _, knob = self.blamed_field(problem, layout).partition(".")
        return knob or None if part == "layout" else None


BATCH_FIELD = "workload.global_batch"
"""The one field that rules blame outside the layout."""

# In the functions below, `p` is the problem and `x` the layout, or layouts, to be judged.


def _every(x: Layouts) -> Array:
    """Return true for each of the layouts: the rule does not concern this problem."""
    # The shape is that of a column, since the space tests chains by schedules in two dimensions.
    return np.ones(x.pp.shape, dtype=bool)


def _among(column: Array, offered: Iterable[int]) -> Array:
    """Say of each value of a column whether it is among those that are offered. For so few it is
    several times as fast as np.isin."""
    found = np.zeros(column.shape, dtype=bool)
    for one in offered:
        found |= column == one
    return found


# -- the mesh, and what it divides


def _mesh_fills_cluster(p: Problem, x: Layouts) -> Array:
    """The degrees of the mesh multiply to the number of devices."""
    return x.num_devices == p.cluster.num_devices


def _mesh_message(p: Problem, x: Layout) -> str:
    shard, rest = divmod(p.cluster.num_devices * x.dp_shard, x.num_devices)
    would_fill = "" if rest else f": dp_shard({shard}) would"
    return (
        f"pp({x.pp}) * dp_replicate({x.dp_replicate}) * dp_shard({x.dp_shard}) * cp({x.cp})"
        f" * tp({x.tp}) = {x.num_devices}, must equal the cluster's {p.cluster.num_devices}"
        f" devices{would_fill}"
    )


def _tensor_divides_heads(p: Problem, x: Layouts) -> Array:
    """`tp` divides the attention heads, and the key-value heads, unless the stack repeats these."""
    ok = _every(x)
    for a in p.architecture.attentions:
        repeats_heads = (x.tp % a.num_key_value_heads == 0) & p.stack.replicates_kv_heads
        ok &= (a.num_attention_heads % x.tp == 0) & (
            (a.num_key_value_heads % x.tp == 0) | repeats_heads
        )
    for r in p.architecture.recurrences:
        ok &= (r.num_heads % x.tp == 0) & (r.num_key_heads % x.tp == 0)
    return ok


def _heads_message(p: Problem, x: Layout) -> str:
    for r in p.architecture.recurrences:
        if r.num_heads % x.tp or r.num_key_heads % x.tp:
            return (
                f"tp({x.tp}) must divide the {r.num_heads} heads of linear attention or state-space"
                f" layers, and the {r.num_key_heads} of their keys"
            )
    attention = p.architecture.attentions[0]
    must = (
        "divide or be a multiple of"
        if p.stack.replicates_kv_heads
        else f"stack {p.stack.id} repeats none: divide"
    )
    return (
        f"tp({x.tp}) must divide the {attention.num_attention_heads} attention heads, and {must}"
        f" the {attention.num_key_value_heads} key-value heads"
    )


def _tensor_divides_widths(p: Problem, x: Layouts) -> Array:
    """`tp` divides the hidden size and the width of dense layers, `etp` the width of experts."""
    ok = p.architecture.hidden_size % x.tp == 0
    for layer in p.architecture.kinds:
        if layer.dense:
            ok &= layer.dense.intermediate_size % x.tp == 0
        if layer.moe:
            ok &= layer.moe.intermediate_size % x.etp == 0
    return ok


def _widths_message(p: Problem, x: Layout) -> str:
    return (
        f"tp({x.tp}) must divide hidden_size({p.architecture.hidden_size}) and the dense"
        f" intermediate sizes, etp({x.etp}) the expert intermediate size"
    )


def _weights_are_whole_blocks(p: Problem, x: Layouts) -> Array:
    """The sides of a device's weight matrices are multiples of the block of the number format,
    where the kernels of the stack need it.

    The number of tokens of an expert is not tested: tokens are padded, weights are not.
    """
    block = p.workload.number_format.block if p.stack.whole_blocks else 1
    if block == 1:
        return _every(x)
    sides = [side + np.zeros(len(x)) for side in _weight_sides(p, x)]
    return np.all([side % block == 0 for side in sides], axis=0)


def _weight_sides(p: Problem, x: Layouts) -> list[Array | float]:
    """Return the sides of the weight matrices of layers on one device. Projections that a device
    computes in one product (queries, keys and values) count as one matrix."""
    hidden = p.architecture.hidden_size
    sides: list[Array | float] = [hidden]
    if p.architecture.mtp_layers:
        sides.append(hidden / x.tp)
    for layer in p.architecture.kinds:
        sides += [side for each in layer.mixers for side in _mixer_sides(each, hidden, x.tp)]
        sides += [layer.dense.intermediate_size / x.tp] if layer.dense else []
        sides += [layer.moe.intermediate_size / x.etp] if layer.moe else []
    return sides


def _mixer_sides(mixer: Attention | Recurrence, hidden: int, tp: Array) -> list[Array | float]:
    if isinstance(mixer, Recurrence):
        return [mixer.values / tp, (mixer.values + 2 * mixer.keys) / tp]
    queries = mixer.num_attention_heads * mixer.head_dim / tp
    values = mixer.num_attention_heads * mixer.v_head_dim / tp
    if mixer.kv_lora_rank is None:
        return [queries + mixer.kv_dim * mixer.kv_share(tp), values]
    latent = mixer.kv_lora_rank
    query_latent = [mixer.q_lora_rank] if mixer.q_lora_rank else []
    return [queries, values, latent, latent + mixer.qk_rope_head_dim, *query_latent]


def _blocks_message(p: Problem, x: Layout) -> str:
    return (
        f"stack {p.stack.id} needs widths that are multiples of"
        f" {p.workload.number_format.block} under {p.workload.precision}, on every device:"
        f" hidden_size({p.architecture.hidden_size}), of attention and dense layers over"
        f" tp({x.tp}), of experts over etp({x.etp})"
    )


def _expert_parallel_divides_experts(p: Problem, x: Layouts) -> Array:
    """`ep` divides the number of experts; in a dense model `ep` and `etp` are 1."""
    counts = [layer.moe.num_experts for layer in p.architecture.kinds if layer.moe]
    if not counts:
        return (x.ep == 1) & (x.etp == 1)
    return np.all([count % x.ep == 0 for count in counts], axis=0)


def _experts_message(p: Problem, x: Layout) -> str:
    return f"ep({x.ep}) must divide the number of experts, and ep and etp be 1 in a dense model"


def _experts_fold(p: Problem, x: Layouts) -> Array:
    """`ep` times `etp` divides the product of the axes that the stack folds experts over.

    In torchtitan (parallel_dims.py) these are dp_shard, cp and tp; in plain Megatron-Core all of
    data parallelism too; in MaxText (base.yml) fsdp or context, with the inside of an expert
    sharded over tensor.
    """
    if p.stack.expert_folding == "beside_tensor":
        of_shards = x.dp_shard % x.ep == 0
        beside_context = (x.ep % x.cp == 0) & (x.dp_shard * x.cp % x.ep == 0) & (x.tp == 1)
        keeps_tensor = (x.etp == x.tp) | (not p.experts_keep_tensor)
        return (of_shards | beside_context) & keeps_tensor
    dense = x.dp_shard * x.cp * x.tp
    if p.stack.expert_folding == "all":
        dense = np.where(x.dp_shard > 1, dense, dense * x.dp_replicate)
    return dense % (x.ep * x.etp) == 0


def _folding_message(p: Problem, x: Layout) -> str:
    if p.stack.expert_folding == "beside_tensor":
        return (
            f"stack {p.stack.id} shards experts over tp: etp({x.etp}) must be tp({x.tp}), and"
            f" ep({x.ep}) divide dp_shard({x.dp_shard}), or with tp 1 cover cp({x.cp}) and divide"
            " dp_shard * cp"
        )
    replicas = " (times dp_replicate without sharding)" if p.stack.expert_folding == "all" else ""
    return (
        f"etp({x.etp}) * ep({x.ep}) must divide dp_shard({x.dp_shard}) * cp({x.cp}) * tp({x.tp})"
        f"{replicas}"
    )


def _sequence_divides_into_chunks(p: Problem, x: Layouts) -> Array:
    """`seq_len` divides into two chunks for each rank of `cp`, one from the front and one from the
    back, so that causal attention is balanced."""
    return p.workload.seq_len % _sequence_chunks(x) == 0


def _sequence_chunks(x: Layouts) -> Array:
    """Return the number of chunks of a sequence under context parallelism. Each rank has one from
    the front and one from the back, so that causal attention is balanced (Megatron arguments.py:
    seq % (2·cp) == 0)."""
    return np.where(x.cp > 1, 2 * x.cp, 1)


def _sequence_message(p: Problem, x: Layout) -> str:
    return f"seq_len({p.workload.seq_len}) must be a multiple of 2*cp({x.cp})"


def _chunks_divide_over_tensor(p: Problem, x: Layouts) -> Array:
    """With sequence parallelism the tokens of a sequence, or of each chunk that context parallelism
    makes of it, divide over `tp` as well."""
    return p.workload.seq_len % (_sequence_chunks(x) * np.where(x.sequence_parallel, x.tp, 1)) == 0


def _chunks_message(p: Problem, x: Layout) -> str:
    chunks = f"2*cp({x.cp}) times " if x.cp > 1 else ""
    return (
        f"seq_len({p.workload.seq_len}) must be a multiple of {chunks}tp({x.tp}) with sequence"
        " parallelism"
    )


def _context_divides_heads(p: Problem, x: Layouts) -> Array:
    """`cp` times `tp` divides the heads where context parallelism exchanges heads for tokens: those
    of attention under Ulysses, and those of linear attention and state-space layers.

    Megatron-Core ssm/gated_delta_net and ssm/mamba_context_parallel.py exchange the heads of
    recurrences, whatever attention does; groups of Mamba-2 are repeated where there are fewer.
    """
    ranks = x.cp * x.tp
    ok = _every(x)
    for attention in p.architecture.attentions if p.stack.context == "ulysses" else ():
        ok &= attention.num_attention_heads % ranks == 0
    for recurrence in p.architecture.recurrences:
        ok &= (x.cp == 1) | (recurrence.num_heads % ranks == 0)
        repeats = ranks % recurrence.num_key_heads == 0
        divides = recurrence.num_key_heads % ranks == 0
        ok &= (x.cp == 1) | divides | (repeats & isinstance(recurrence, Mamba2))
    return ok


def _context_message(p: Problem, x: Layout) -> str:
    ranks = f"cp({x.cp}) * tp({x.tp})"
    for recurrence in p.architecture.recurrences:
        heads, keys = recurrence.num_heads, recurrence.num_key_heads
        ends = "or be a multiple of them" if isinstance(recurrence, Mamba2) else "too"
        if heads % (x.cp * x.tp) or keys % (x.cp * x.tp):
            return (
                f"{ranks} must divide the {heads} heads of linear attention or state-space layers,"
                f" which are exchanged for tokens, and the {keys} of their keys {ends}"
            )
    return f"{ranks} must divide the attention heads: {p.stack.id} exchanges heads for tokens"


def _batch_divides(p: Problem, x: Layouts) -> Array:
    """`global_batch` is a multiple of the data-parallel ranks times `micro_batch`."""
    return p.workload.global_batch % (x.dp * x.micro_batch) == 0


def _batch_message(p: Problem, x: Layout) -> str:
    batch = p.workload.global_batch
    message = (
        f"global_batch({batch}) must be a multiple of dp({x.dp}) * micro_batch({x.micro_batch})"
    )
    if _batch_blame(p, x) == BATCH_FIELD:
        near = nearest_batches(batch, x)
        such = "such batch is" if len(near) == 1 else "such batches are"
        return f"{message}: the nearest {such} {' and '.join(map(str, near))}"
    sizes = divisors(batch // x.dp)
    below = [size for size in sizes if size < x.micro_batch][-1:]
    above = [size for size in sizes if size > x.micro_batch][:1]
    return f"{message}: with that dp micro_batch may be {' or '.join(map(str, below + above))}"


def _batch_blame(p: Problem, x: Layout) -> str:
    """Blame the batch where the data-parallel ranks do not divide it, and else the micro-batch."""
    return BATCH_FIELD if p.workload.global_batch % x.dp else "layout.micro_batch"


def nearest_batches(batch: int, layout: Layout, rounds: int = 1) -> tuple[int, ...]:
    """Return the global batches just below and above `batch` that the micro-batches of a layout
    divide, `rounds` at a time on every rank."""
    unit = layout.dp * layout.micro_batch * rounds
    below = batch // unit * unit
    return tuple(near for near in (below, below + unit) if near)


# -- the pipeline


def _schedule_offered(p: Problem, x: Layouts) -> Array:
    """The stack runs the schedule."""
    offered = [SCHEDULES.index(name) for name in p.stack.schedules]
    return _among(x.schedule, offered) | ((x.pp == 1) & _among(x.schedule, (ONE_F_ONE_B, AFAB)))


def _schedule_message(p: Problem, x: Layout) -> str:
    return f"stack {p.stack.id} runs {', '.join(p.stack.schedules)}, not {x.schedule}"


def _schedule_has_its_shape(p: Problem, x: Layouts) -> Array:
    """The schedule has as many stages, virtual stages and micro-batches as it is made for."""
    m = x.num_micro_batches(p.workload.global_batch)
    single = (x.pp == 1) & _among(x.schedule, (ONE_F_ONE_B, AFAB)) & (x.virtual_stages == 1)
    interleaved = (x.virtual_stages >= 2) & (m >= x.pp)
    if p.stack.micro_batch_groups != "any":
        equal = p.stack.micro_batch_groups == "equal"
        interleaved &= m % (np.maximum(m // x.pp, 1) if equal else x.pp) == 0
    enough = {"any": m > 0, "stages": m >= x.pp, "multiple": m % x.pp == 0}
    plain = (x.virtual_stages == 1) & enough[p.stack.plain_micro_batches]
    both_ways = (x.virtual_stages == 1) & (x.pp % 2 == 0) & (m >= 2 * x.pp) & (m % 2 == 0)
    with_pipeline = (
        (_among(x.schedule, (ONE_F_ONE_B, AFAB, ZERO_BUBBLE)) & plain)
        | ((x.schedule == INTERLEAVED) & interleaved)
        | ((x.schedule == ZERO_BUBBLE_V) & (x.virtual_stages == 2))
        | ((x.schedule == DUALPIPE) & both_ways)
    )
    return np.where(x.pp == 1, single, with_pipeline)


def _virtual_stages_have_code(p: Problem, x: Layouts) -> Array:
    """The stack has virtual stages, where the layout has any, and has them for hybrid models where
    the model is one."""
    return (x.virtual_stages == 1) | (p.max_virtual_stages > 1) | (x.pp == 1)


def _no_virtual_message(p: Problem, x: Layout) -> str:
    of_hybrids = " of hybrid models" if p.stack.max_virtual_stages > 1 else ""
    return f"stack {p.stack.id} runs at most 1 virtual stages{of_hybrids}, not {x.virtual_stages}"


def _virtual_stages_searched(p: Problem, x: Layouts) -> Array:
    """A device has no more virtual stages than `stack.max_virtual_stages`."""
    return (x.virtual_stages <= p.max_virtual_stages) | (p.max_virtual_stages == 1) | (x.pp == 1)


def _many_virtual_message(p: Problem, x: Layout) -> str:
    return (
        f"layouts are searched up to stack.max_virtual_stages({p.max_virtual_stages}), and this has"
        f" {x.virtual_stages}: raise that field"
    )


_SCHEDULE_NEEDS = {
    "interleaved": (
        "virtual_stages from 2, and micro-batches in groups as the stack makes them: {groups}"
    ),
    "zero_bubble_v": "virtual_stages(2)",
    "dualpipe": "virtual_stages(1), an even pp and an even number of at least 2*pp micro-batches",
}
_INTERLEAVED_GROUPS = {
    "any": "pp of them or more",
    "equal": "pp of them or more, and a multiple of how often pp goes into their number",
    "stages": "a multiple of pp",
}
_PLAIN_MICRO_BATCHES = {
    "any": "",
    "stages": " and at least pp micro-batches",
    "multiple": " and a multiple of pp micro-batches",
}


def _shape_message(p: Problem, x: Layout) -> str:
    if x.pp == 1:
        got = f"got {x.schedule} with virtual_stages({x.virtual_stages})"
        return f"without a pipeline the schedule is 1f1b or afab, with virtual_stages(1); {got}"
    m = max(p.workload.global_batch // (x.dp * x.micro_batch), 1)
    plain = f"virtual_stages(1){_PLAIN_MICRO_BATCHES[p.stack.plain_micro_batches]}"
    needs = _SCHEDULE_NEEDS.get(x.schedule, plain)
    needs = needs.format(groups=_INTERLEAVED_GROUPS[p.stack.micro_batch_groups])
    return (
        f"{x.schedule} needs {needs}; got virtual_stages({x.virtual_stages}) and {m} micro-batches"
        f" with pp({x.pp})"
    )


def _layers_divide_into_chunks(p: Problem, x: Layouts) -> Array:
    """There are enough layers for all chunks of the pipeline, and the same number for each unless
    the layout is `balanced`."""
    chunks = x.pp * x.virtual_stages
    layers = p.architecture.num_layers
    # The embedding and the head may each be a chunk by itself (models.cost.stage_partition).
    ends = 2 * (x.schedule == INTERLEAVED)
    return np.where(x.balanced, chunks <= layers + ends, layers % chunks == 0)


def _layers_message(p: Problem, x: Layout) -> str:
    layers, chunks = p.architecture.num_layers, x.pp * x.virtual_stages
    of_degrees = f"pp({x.pp}) * virtual_stages({x.virtual_stages})"
    if not x.balanced and chunks <= layers:
        return f"{layers} layers must divide into {chunks} chunks of one length, {of_degrees}"
    free = ", of which the first and the last may have none" * (x.schedule == "interleaved")
    return f"{layers} layers must be enough for {chunks} chunks, {of_degrees}{free}"


def _stated_layers_add_up(p: Problem, x: Layouts) -> Array:
    """`layers_per_chunk` adds up to the layers of the model, gives each chunk at least one, except
    the first and the last of `interleaved`, and goes with a stack that can split so.

    Chunks without layers are those of an embedding or a head by itself, which only chunks that are
    dealt out in rounds may be. nanotron has its own way of splitting.
    """
    if not x.states_layers.any():
        return ~x.states_layers
    stated = x.stated_layers
    chunk = np.arange(stated.shape[1])
    chunks = (x.pp * x.virtual_stages)[:, None]
    may_be_empty = (x.schedule == INTERLEAVED)[:, None] & ((chunk == 0) | (chunk == chunks - 1))
    filled = (stated > 0) | may_be_empty | (chunk >= chunks)
    adds_up = (stated.sum(axis=1) == p.architecture.num_layers) & filled.all(axis=1)
    return ~x.states_layers | (adds_up & (not p.stack.splits_by_threshold))


def _stated_layers_message(p: Problem, x: Layout) -> str:
    if p.stack.splits_by_threshold:
        return f"stack {p.stack.id} splits layers by their cost; leave it out"
    given, layers = sum(x.layers_per_chunk), p.architecture.num_layers
    if given != layers:
        return f"adds up to {given}, must to the {layers} layers of {p.architecture.name}"
    ends = ", but for the first and the last" if x.schedule == "interleaved" else ""
    return f"{list(x.layers_per_chunk)}: each chunk needs a layer{ends}"


def _tied_embedding_allowed(p: Problem, x: Layouts) -> Array:
    """A model that ties its embedding to its head has no pipeline, unless the stack can share them
    between stages."""
    return (x.pp == 1) | p.stack.ties_in_pipeline | (not p.architecture.tie_word_embeddings)


def _tie_message(p: Problem, x: Layout) -> str:
    return (
        f"stack {p.stack.id} has no pipeline for a model that ties its embedding to its head"
        " (tie_word_embeddings)"
    )


def _mtp_offered(p: Problem, x: Layouts) -> Array:
    """A model with multi-token prediction has neither a pipeline nor context parallelism, unless
    the stack has it together with these."""
    anywhere = not (p.stack.mtp_alone and p.architecture.mtp_layers)
    return ((x.pp == 1) & (x.cp == 1)) | anywhere


def _mtp_message(p: Problem, x: Layout) -> str:
    return (
        f"stack {p.stack.id} has multi-token prediction without pipeline and context parallelism"
        f" only; got pp({x.pp}), cp({x.cp}); mtp_layers 0 leaves it out"
    )


def _gradients_accumulate(p: Problem, x: Layouts) -> Array:
    """There is one micro-batch only, or a pipeline, where the stack accumulates no gradients in fp8
    on these chips."""
    at_once = p.workload.precision == "fp8" and p.cluster.chip.vendor in p.stack.fp8_at_once_on
    return (x.pp > 1) | (x.num_micro_batches(p.workload.global_batch) <= 1) | (not at_once)


def _accumulate_message(p: Problem, x: Layout) -> str:
    return (
        f"stack {p.stack.id} accumulates no gradients in fp8 on chips of {p.cluster.chip.vendor}:"
        f" without a pipeline micro_batch({x.micro_batch}) must be all of a rank's"
        f" {p.workload.global_batch // x.dp} sequences"
    )


def _partition_offered(p: Problem, x: Layouts) -> Array:
    """The stack splits layers over stages evenly, or unevenly, as asked."""
    if p.stack.splits_by_threshold:
        return x.balanced == (x.pp > 1)
    return ~x.balanced | ((x.pp > 1) & (p.stack.partition == "balanced"))


def _partition_message(p: Problem, x: Layout) -> str:
    if x.pp == 1:
        return "an uneven split needs pp > 1"
    split = "by their cost" if p.stack.splits_by_threshold else "evenly only"
    return f"stack {p.stack.id} splits layers {split}"


def _forwards_first(p: Problem, x: Layouts) -> Array:
    """With `global_batch_loss` there is one micro-batch, or the schedule runs all forward passes
    before the first backward pass.

    An auxiliary loss over the global batch is known only after the forward of every micro-batch,
    unless the stack keeps running statistics for it.
    """
    if not balances_global_batch(p):
        return _every(x)
    return (x.schedule == AFAB) | (x.num_micro_batches(p.workload.global_batch) == 1)


def balances_global_batch(p: Problem) -> bool:
    """Say whether there is a load-balancing loss over the global batch that constrains
    schedules."""
    over_global_batch = p.workload.load_balancing == "global_batch_loss"
    return p.architecture.is_moe and over_global_batch and not p.stack.running_balance


def _balancing_message(p: Problem, x: Layout) -> str:
    lacks_schedule = x.pp > 1 and "afab" not in p.stack.schedules
    return (
        f"load_balancing({p.workload.load_balancing}), an auxiliary loss over the global batch,"
        " needs every forward before the first backward: one micro-batch, or the"
        " all-forward-all-backward schedule (afab)"
        f"{f', which stack {p.stack.id} lacks' if lacks_schedule else ''}"
    )


# -- sharding of parameters, gradients and optimizer states


def _zero_stage_matches_degrees(p: Problem, x: Layouts) -> Array:
    """ZeRO stage 0 goes with `dp_shard` 1, and stages 1 to 3 with more, or with no data parallelism
    at all."""
    plain = (x.zero_stage == 0) & (x.dp_shard == 1)
    sharded = (x.zero_stage > 0) & ((x.dp_shard > 1) | (x.dp_replicate == 1))
    return plain | sharded


def _zero_stage_message(p: Problem, x: Layout) -> str:
    return (
        f"zero_stage({x.zero_stage}) with dp_shard({x.dp_shard}), dp_replicate({x.dp_replicate}):"
        " stage 0 replicates (dp_shard 1), stages 1 to 3 shard (dp_shard above 1, or no data"
        " parallelism)"
    )


def _zero_stage_offered(p: Problem, x: Layouts) -> Array:
    """The stack has the ZeRO stage, also beside replicas where there are some."""
    is_hybrid = (x.dp_replicate > 1) & (x.dp_shard > 1)
    others = p.stack.unsearched_zero_stages
    hybrid_is_offered = ~is_hybrid | _among(x.zero_stage, (*p.stack.hybrid_stages, *others))
    return _among(x.zero_stage, (*p.stack.zero_stages, *others)) & hybrid_is_offered


def _zero_stage_searched(p: Problem, x: Layouts) -> Array:
    """The ZeRO stage is one of `stack.zero_stages`, also where the stack runs others."""
    others = set(p.stack.unsearched_zero_stages) - set(p.stack.zero_stages)
    return ~_among(x.zero_stage, others)


def _unsearched_zero_message(p: Problem, x: Layout) -> str:
    searched = ", ".join(map(str, p.stack.zero_stages))
    return f"layouts are searched with stack.zero_stages {searched}; add {x.zero_stage} to it"


def _zero_stages_message(p: Problem, x: Layout) -> str:
    beside_replicas = ""
    if x.dp_replicate > 1 and x.dp_shard > 1:
        hybrid = ", ".join(map(str, p.stack.hybrid_stages)) or "none"
        beside_replicas = f", and beside replicas {hybrid}"
    return (
        f"stack {p.stack.id} offers ZeRO stages {', '.join(map(str, p.stack.zero_stages))}"
        f"{beside_replicas}; got {x.zero_stage}"
    )


def _muon_goes_with_zero_stage(p: Problem, x: Layouts) -> Array:
    """The stack has the optimizer Muon with this ZeRO stage."""
    return _among(x.zero_stage, p.stack.muon_stages) | (p.workload.optimizer != "muon")


def _muon_message(p: Problem, x: Layout) -> str:
    stages = ", ".join(map(str, p.stack.muon_stages))
    return f"stack {p.stack.id} has Muon with ZeRO stages {stages}, not {x.zero_stage}"


def _states_go_with_zero_stage(p: Problem, x: Layouts) -> Array:
    """The stack has the optimizer's moments, and the number format, with this ZeRO stage."""
    ok = _every(x)
    if p.workload.optimizer == "adamw_bf16_moments":
        ok &= _among(x.zero_stage, p.stack.narrow_moment_stages)
    if p.workload.precision == "fp8":
        ok &= _among(x.zero_stage, p.stack.fp8_stages)
    return ok


def _states_message(p: Problem, x: Layout) -> str:
    is_narrow = x.zero_stage not in p.stack.narrow_moment_stages
    is_of_moments = p.workload.optimizer == "adamw_bf16_moments" and is_narrow
    what = p.workload.optimizer if is_of_moments else p.workload.precision
    stages = p.stack.narrow_moment_stages if is_of_moments else p.stack.fp8_stages
    offered = ", ".join(map(str, stages))
    return f"stack {p.stack.id} has {what} with ZeRO stages {offered}, not {x.zero_stage}"


def _zero_in_pipeline(p: Problem, x: Layouts) -> Array:
    """The stack has this ZeRO stage beside a pipeline."""
    return (x.zero_stage <= p.stack.max_zero_in_pipeline) | (x.pp == 1)


def _zero_pipeline_message(p: Problem, x: Layout) -> str:
    return (
        f"stack {p.stack.id} has ZeRO up to {p.stack.max_zero_in_pipeline} beside a pipeline, not"
        f" {x.zero_stage}"
    )


def _zero_in_context(p: Problem, x: Layouts) -> Array:
    """The stack has this ZeRO stage beside context parallelism."""
    return (x.zero_stage >= p.stack.min_zero_in_context) | (x.cp == 1)


def _zero_context_message(p: Problem, x: Layout) -> str:
    return (
        f"stack {p.stack.id} shards parameters over context parallelism too: cp({x.cp}) needs ZeRO"
        f" {p.stack.min_zero_in_context} or more, not {x.zero_stage}"
    )


def _zero_with_experts(p: Problem, x: Layouts) -> Array:
    """ZeRO stage 3 with expert parallelism has no context parallelism, unless the stack has all
    three together."""
    return (x.zero_stage <= 2) | (x.ep == 1) | (x.cp == 1) | (not p.stack.experts_alone)


def _zero_experts_message(p: Problem, x: Layout) -> str:
    return (
        f"stack {p.stack.id} has ZeRO 3 with ep({x.ep}) only without context parallelism; got"
        f" cp({x.cp})"
    )


def _zero_beside_sharding_axes(p: Problem, x: Layouts) -> Array:
    """The axes of context and expert parallelism need ZeRO stage 3 where they shard parameters."""
    beside = (x.cp > 1) | (x.ep > 1)
    return (x.zero_stage == 3) | ~beside | (not p.stack.shards_over_context_and_experts)


def _zero_sharding_axes_message(p: Problem, x: Layout) -> str:
    return (
        f"stack {p.stack.id} shards parameters over context and expert parallelism too: cp({x.cp})"
        f" and ep({x.ep}) need ZeRO 3, not {x.zero_stage}"
    )


def _reshard_offered(p: Problem, x: Layouts) -> Array:
    """With ZeRO stage 3 the stack can drop gathered parameters, or keep them, as the layout
    does."""
    return (x.zero_stage < 3) | _among(x.reshard, p.stack.reshard)


def _reshard_message(p: Problem, x: Layout) -> str:
    offered = ", ".join(str(value).lower() for value in p.stack.reshard)
    return f"stack {p.stack.id} offers reshard after forward: {offered}"


# -- the other degrees


_LIMITED_AXES = {
    "pp": "pipeline parallelism",
    "tp": "tensor parallelism",
    "cp": "context parallelism",
    "ep": "expert parallelism",
}


def _degrees_offered(p: Problem, x: Layouts) -> Array:
    """The stack has every axis that is longer than 1, and axes together only where it has both."""
    s = p.stack
    ok = (x.etp == 1) | s.expert_tensor_parallel
    for axis in _LIMITED_AXES:
        ok &= (getattr(x, axis) == 1) | _has_axis(p, axis)
    ok &= (x.pp == 1) | (x.cp == 1) | s.context_in_pipeline
    return ok & ((x.tp == 1) | ((x.pp == 1) & (x.cp == 1)) | (not s.tensor_alone))


def _has_axis(p: Problem, axis: str) -> bool:
    return getattr(p.stack, f"max_{axis}") > 1 or axis in p.stack.unsearched_axes


def _degrees_message(p: Problem, x: Layout) -> str:
    s = p.stack
    missing = [
        f"no {words}: {axis}({getattr(x, axis)}) must be 1"
        for axis, words in _LIMITED_AXES.items()
        if getattr(x, axis) > 1 and not _has_axis(p, axis)
    ]
    if x.etp > 1 and not s.expert_tensor_parallel:
        missing.append(f"no tensor parallelism within experts: etp({x.etp}) must be 1")
    if x.pp > 1 and x.cp > 1 and not s.context_in_pipeline:
        missing.append(
            f"no context parallelism within a pipeline: cp({x.cp}) must be 1 beside pp({x.pp})"
        )
    if x.tp > 1 and (x.pp > 1 or x.cp > 1) and s.tensor_alone:
        missing.append(
            f"no tensor parallelism beside other axes: tp({x.tp}) must be 1 beside pp({x.pp}) and"
            f" cp({x.cp})"
        )
    return f"stack {s.id} has {', and '.join(missing)}"


def _degrees_searched(p: Problem, x: Layouts) -> Array:
    """No degree is above `stack.max_pp`, `max_tp`, `max_cp` or `max_ep`; nor is `etp` above
    `max_tp`."""
    s = p.stack
    ok = (x.etp <= max(s.max_tp, 1)) | (not s.expert_tensor_parallel)
    for axis in _LIMITED_AXES:
        ok &= (getattr(x, axis) <= getattr(s, f"max_{axis}")) | (not _has_axis(p, axis))
    return ok


def _searched_message(p: Problem, x: Layout) -> str:
    over = _limits_over(p, x)
    limits = ", ".join(f"stack.{name}({getattr(p.stack, name)})" for name in over)
    got = ", ".join(f"{name.removeprefix('max_')}({value})" for name, value in over.items())
    return f"layouts are searched up to {limits}, and this has {got}: raise that field"


def _limits_over(p: Problem, x: Layout) -> dict[str, int]:
    """Return the limits of degrees that a layout exceeds, by their field of the stack, and what
    they must be for it."""
    needed = {f"max_{axis}": getattr(x, axis) for axis in _LIMITED_AXES}
    needed["max_tp"] = max(x.tp, x.etp)
    return {name: value for name, value in needed.items() if value > getattr(p.stack, name)}


def _sp_offered(p: Problem, x: Layouts) -> Array:
    """`sequence_parallel` goes with `tp` above 1, and is on or off as the stack has it."""
    with_tp = _among(x.sequence_parallel, p.stack.sequence_parallel)
    return np.where(x.tp > 1, with_tp, ~x.sequence_parallel)


def _sp_message(p: Problem, x: Layout) -> str:
    offered = " or ".join("on" if value else "off" for value in p.stack.sequence_parallel)
    rule = f"sequence parallelism goes with tp > 1; stack {p.stack.id} then has it {offered}"
    can_say_otherwise = x.tp > 1 and len(p.stack.sequence_parallel) == 1
    cure = "; a build that has it on and off is stack.sequence_parallel = [true, false]"
    return rule + cure if can_say_otherwise else rule


def _moe_has_sp(p: Problem, x: Layouts) -> Array:
    """Experts with `tp` above 1 have `sequence_parallel`.

    Megatron moe_layer.py: MoE with tensor parallelism trains only with sequence parallelism.
    """
    return (x.tp == 1) | x.sequence_parallel if p.architecture.is_moe else _every(x)


def _moe_sp_message(p: Problem, x: Layout) -> str:
    never = f", which stack {p.stack.id} does not have: tp must be 1"
    return (
        f"experts with tp({x.tp}) > 1 need sequence_parallel"
        f"{'' if True in p.stack.sequence_parallel else never}"
    )


def _graphs_have_static_experts(p: Problem, x: Layouts) -> Array:
    """A step of a sparse model that is captured whole has experts of a fixed number of tokens:
    `workload.capacity_factor`, or `stack.static_experts`.

    What a captured graph launches has the shapes of the capture, and those of dropless experts
    change with every batch (Megatron-Core moe/token_dispatcher.py, drop and pad; moe/paged_stash.py
    and the rank capacity of HybridEP).
    """
    has_fixed_shapes = p.workload.capacity_factor is not None or p.stack.static_experts
    return _every(x) & (has_fixed_shapes or not p.is_captured)


def _graphs_message(p: Problem, x: Layout) -> str:
    return (
        "stack.moe_graphs(full) captures experts too, whose numbers of tokens must then be fixed:"
        " by drop and pad (workload.capacity_factor; in Megatron-Core --moe-expert-capacity-factor"
        " with --moe-pad-expert-input-to-capacity), or by HybridEP with a rank capacity and paged"
        " stash (stack.static_experts; --moe-token-dispatcher-type flex with"
        " --moe-flex-dispatcher-backend hybridep, --moe-expert-rank-capacity-factor,"
        " --moe-paged-stash). Both drop tokens; without either ask for moe_graphs none or partial"
    )


# -- recompute and offload


def _recompute_offered(p: Problem, x: Layouts) -> Array:
    """The stack has this kind of recompute."""
    offered = p.stack.recompute
    is_none, is_full = x.recompute == NONE, x.recompute == FULL
    return np.where(
        is_none, "none" in offered, np.where(is_full, "full" in offered, "selective" in offered)
    )


def _recompute_message(p: Problem, x: Layout) -> str:
    return f"stack {p.stack.id} recomputes {', '.join(p.stack.recompute)}, not {x.recompute}"


_ALL_MODULES = STACK_SELECTIVE - 1  # a bit for every module (models.spec.recompute)


def _modules_offered(p: Problem, x: Layouts) -> Array:
    """The stack can recompute these modules."""
    others = _ALL_MODULES & ~policy_code("selective", p.stack.recomputable_modules)
    return (x.recompute & others) == 0


def _modules_message(p: Problem, x: Layout) -> str:
    return (
        f"stack {p.stack.id} recomputes the modules {', '.join(p.stack.recomputable_modules)}, not"
        f" all of {', '.join(x.recompute_modules)}"
    )


def _modules_exist(p: Problem, x: Layouts) -> Array:
    """Some layer of the model has these modules."""
    nowhere = [name for name in MODULES if not p.has_module(name)]
    return (x.recompute & policy_code("selective", nowhere) & _ALL_MODULES) == 0


def _missing_modules_message(p: Problem, x: Layout) -> str:
    nowhere = ", ".join(name for name in x.recompute_modules if not p.has_module(name))
    return f"no layer of {p.architecture.name} has {nowhere}"


def _layers_fit(p: Problem, x: Layouts) -> Array:
    """A number of layers to recompute is less than the layers of a chunk, with an even split and
    activations on the device, and the stack takes such a number.

    A number of layers is meant for chunks of equal length: for unequal ones it would not say which
    share of a stage is recomputed.
    """
    fewer = x.recompute_layers * x.pp * x.virtual_stages < p.architecture.num_layers
    return (x.recompute_layers == 0) | (
        p.stack.recompute_layers & fewer & ~x.balanced & ~x.offload_activations
    )


def _num_layers_message(p: Problem, x: Layout) -> str:
    if not p.stack.recompute_layers:
        return f"stack {p.stack.id} recomputes all layers (0) or none"
    if x.offload_activations:
        return (
            f"recompute_layers({x.recompute_layers}) does not go with offload_activations; 0"
            " recomputes all layers"
        )
    if x.balanced:
        return (
            f"recompute_layers({x.recompute_layers}) needs an even split (balanced: false); 0"
            " recomputes all layers"
        )
    chunk = p.architecture.num_layers // (x.pp * x.virtual_stages)
    return (
        f"recompute_layers({x.recompute_layers}) must be less than the {chunk} layers of a chunk; 0"
        " is all of them"
    )


def _offload_offered(p: Problem, x: Layouts) -> Array:
    """The stack offloads the activations, or the optimizer, that the layout offloads, beside its
    kind of recompute and with this optimizer."""
    goes_with_recompute = (x.recompute == NONE) | (not p.stack.offload_alone)
    goes_with_recompute &= (x.recompute == FULL) | (not p.stack.offloads_checkpoints)
    has_them = "activations" in p.stack.offload and (
        p.stack.offloads_recurrences or not p.architecture.recurrences
    )
    activations = ~x.offload_activations | (has_them & goes_with_recompute)
    on_host = "optimizer" in p.stack.offload and _host_runs_optimizer(p)
    return activations & (~x.offload_optimizer | on_host)


def _host_runs_optimizer(p: Problem) -> bool:
    """Say whether the optimizer may run on the host, which is too slow for Muon's matrix
    products."""
    is_adam = "adam" in p.workload.optimizer
    return p.workload.optimizer != "muon" and (is_adam or not p.stack.offloads_adam_alone)


def _offload_message(p: Problem, x: Layout) -> str:
    offered = f"stack {p.stack.id} offloads {', '.join(p.stack.offload) or 'nothing'}"
    if p.stack.offload_alone:
        offered += ", activations without recompute only"
    if p.stack.offloads_checkpoints:
        offered += ", activations with full recompute only"
    if p.architecture.recurrences and not p.stack.offloads_recurrences:
        offered += ", and nothing of state-space or linear-attention layers"
    if not _host_runs_optimizer(p):
        offered += f", and no optimizer that is {p.workload.optimizer}"
    return offered


def _offload_sharded(p: Problem, x: Layouts) -> Array:
    """Optimizer states are offloaded as the shards of ZeRO 1 to 3 only. A stack that offloads the
    activations which FSDP's checkpointing keeps does so with ZeRO 3 only.

    DeepSpeed zero/offload_config.py; Megatron-Core's CPU offload is part of its distributed
    optimizer; accelerate utils/dataclasses.py, FullyShardedDataParallelPlugin.
    """
    of_checkpoints = x.offload_activations & p.stack.offloads_checkpoints
    has_stage = _among(x.zero_stage, p.stack.checkpoint_offload_stages)
    return (~x.offload_optimizer | (x.zero_stage > 0)) & (~of_checkpoints | has_stage)


def _unsharded_message(p: Problem, x: Layout) -> str:
    if x.offload_optimizer and not x.zero_stage:
        return (
            "optimizer states go to the host as the shards of ZeRO 1 to 3, which one device may"
            " have too; got zero_stage(0)"
        )
    stages = " or ".join(map(str, p.stack.checkpoint_offload_stages))
    return (
        f"stack {p.stack.id} offloads activations with ZeRO {stages} only; got"
        f" zero_stage({x.zero_stage})"
    )


def _offload_blame(p: Problem, x: Layout) -> str:
    of_states = x.offload_optimizer and not x.zero_stage
    return "layout.offload_optimizer" if of_states else "layout.offload_activations"


def _offload_in_pipeline(p: Problem, x: Layouts) -> Array:
    """Activations are not offloaded in a pipeline, unless the stack can do both together."""
    return ~x.offload_activations | (x.pp == 1) | (not p.stack.offload_alone)


def _pipelined_message(p: Problem, x: Layout) -> str:
    return f"stack {p.stack.id} offloads activations without a pipeline only"


# -- the placement on the fabric


def _placement_offered(p: Problem, x: Layouts) -> Array:
    """The stack offers the placement: it orders the axes over the devices in this way."""
    return np.asarray(offered_orders(p.stack.placements)[active_axes(x), x.placement])


def _placement_message(p: Problem, x: Layout) -> str:
    offered = " or ".join(" < ".join(order) for order in p.stack.placements)
    return f"stack {p.stack.id} orders ranks {offered}, not {' < '.join(x.placement)}"


def equal_data_parallel(p: Problem, x: Layouts) -> Array:
    """A pipeline that is not the outermost axis has as many data-parallel ranks for experts as for
    the rest of the model, where the stack asks for it."""
    if not p.stack.equal_data_parallel:
        return _every(x)
    devices_of_expert = x.ep * x.etp if p.architecture.is_moe else x.tp
    is_outermost = pipeline_outermost()[active_axes(x), x.placement]
    return (x.pp == 1) | is_outermost | (devices_of_expert == x.tp * x.cp)


def _equal_dp_message(p: Problem, x: Layout) -> str:
    return (
        f"stack {p.stack.id} puts pp inside data parallelism only where ep·etp is tp·cp ="
        f" {x.tp * x.cp} (without experts: cp = 1)"
    )


def _torus_axes_have_torus(p: Problem, x: Layouts) -> Array:
    """`torus_axes` are given for a torus only."""
    return np.asarray((x.torus_axes == 0) | (p.cluster.fabric.torus is not None))


def _torus_axes_message(p: Problem, x: Layout) -> str:
    return f"orders the dims of a torus, which {p.cluster.fabric.id} is not: leave it out"


def _block_divides_torus(p: Problem, x: Layouts) -> Array:
    """`torus_block` divides every longer dim of the torus, and is 1 where there is none."""
    if p.cluster.fabric.torus is None:
        return np.asarray(x.torus_block == 1)
    shape = p.cluster.slice_shape
    fits = [(length <= x.torus_block) | (length % x.torus_block == 0) for length in shape]
    return np.asarray(np.all(fits, axis=0))


def _block_message(p: Problem, x: Layout) -> str:
    if not p.cluster.slice_shape:
        return f"is a block of a torus, which {p.cluster.fabric.id} is not: leave it out"
    return (
        f"torus_block({x.torus_block}) must divide every longer dim of the torus of"
        f" {'x'.join(map(str, p.cluster.slice_shape))}"
    )


def _placement_fits_torus(p: Problem, x: Layouts) -> Array:
    """On a torus every axis divides a dim or covers whole dims, so that its rings close."""
    if p.cluster.fabric.torus is None:
        return _every(x)
    return fits_torus(p, groups(p.cluster, x))


def fits_torus(p: Problem, g: LayoutGroups) -> Array:
    """Say of each layout whether every axis covers whole lines of a torus or divides one, so that
    its ring closes on real links. True of any placement on a fabric that is no torus."""
    if p.cluster.fabric.torus is None:
        return np.ones(len(g.tp.code), dtype=bool)
    axes = (g.tp, g.cp, g.dp_shard, g.dp_replicate, g.pp, g.ep)
    return np.asarray(np.all([axis.per_row(axis.table.whole) for axis in axes], axis=0))


def _torus_message(p: Problem, x: Layout) -> str:
    blocks = f" in blocks of {x.torus_block}" if x.torus_block > 1 else ""
    return (
        f"placed {' < '.join(x.placement)} on a torus of"
        f" {'x'.join(map(str, p.cluster.slice_shape))}, filled along"
        f" {', '.join(x.torus_axes)}{blocks}, every axis must divide a torus dim or cover whole"
        " dims"
    )


RULES: tuple[Rule, ...] = (
    Rule("mesh_fills_cluster", "layout", _mesh_fills_cluster, _mesh_message),
    Rule("tensor_divides_heads", "layout.tp", _tensor_divides_heads, _heads_message),
    Rule("tensor_divides_widths", "layout.tp", _tensor_divides_widths, _widths_message),
    Rule("whole_blocks", "layout.tp", _weights_are_whole_blocks, _blocks_message),
    Rule("experts_divide", "layout.ep", _expert_parallel_divides_experts, _experts_message),
    Rule("experts_fold_over_dense_axes", "layout.ep", _experts_fold, _folding_message),
    Rule("sequence_divides", "layout.cp", _sequence_divides_into_chunks, _sequence_message),
    Rule("sequence_divides_over_tensor", "layout.tp", _chunks_divide_over_tensor, _chunks_message),
    Rule("context_divides_heads", "layout.cp", _context_divides_heads, _context_message),
    Rule("batch_divides", "layout.micro_batch", _batch_divides, _batch_message, _batch_blame),
    Rule("schedule_offered", "layout.schedule", _schedule_offered, _schedule_message),
    Rule("schedule_shape", "layout.schedule", _schedule_has_its_shape, _shape_message),
    Rule(
        "virtual_stages_offered",
        "layout.virtual_stages",
        _virtual_stages_have_code,
        _no_virtual_message,
    ),
    Rule(
        "virtual_stages_searched",
        "layout.virtual_stages",
        _virtual_stages_searched,
        _many_virtual_message,
        kind="search",
    ),
    Rule(
        "stated_layers_add_up",
        "layout.layers_per_chunk",
        _stated_layers_add_up,
        _stated_layers_message,
    ),
    Rule("layers_divide", "layout.pp", _layers_divide_into_chunks, _layers_message),
    Rule("tied_embedding_in_pipeline", "layout.pp", _tied_embedding_allowed, _tie_message),
    Rule("mtp_offered", "layout.pp", _mtp_offered, _mtp_message),
    Rule("accumulation_offered", "layout.micro_batch", _gradients_accumulate, _accumulate_message),
    Rule("partition_offered", "layout.balanced", _partition_offered, _partition_message),
    Rule(
        "balancing_needs_all_forwards_first", "layout.schedule", _forwards_first, _balancing_message
    ),
    Rule("sharding_shape", "layout.zero_stage", _zero_stage_matches_degrees, _zero_stage_message),
    Rule("sharding_offered", "layout.zero_stage", _zero_stage_offered, _zero_stages_message),
    Rule(
        "sharding_searched",
        "layout.zero_stage",
        _zero_stage_searched,
        _unsearched_zero_message,
        kind="search",
    ),
    Rule("muon_offered", "layout.zero_stage", _muon_goes_with_zero_stage, _muon_message),
    Rule("states_offered", "layout.zero_stage", _states_go_with_zero_stage, _states_message),
    Rule("sharding_in_pipeline", "layout.zero_stage", _zero_in_pipeline, _zero_pipeline_message),
    Rule("sharding_in_context", "layout.zero_stage", _zero_in_context, _zero_context_message),
    Rule("sharding_beside_experts", "layout.zero_stage", _zero_with_experts, _zero_experts_message),
    Rule(
        "sharding_axes_need_zero_3",
        "layout.zero_stage",
        _zero_beside_sharding_axes,
        _zero_sharding_axes_message,
    ),
    Rule("reshard_offered", "layout.reshard", _reshard_offered, _reshard_message),
    Rule("degrees_offered", "layout", _degrees_offered, _degrees_message),
    Rule("degrees_searched", "layout", _degrees_searched, _searched_message, kind="search"),
    Rule(
        "graphs_have_static_experts",
        "stack.moe_graphs",
        _graphs_have_static_experts,
        _graphs_message,
    ),
    Rule("sequence_parallel_offered", "layout.sequence_parallel", _sp_offered, _sp_message),
    Rule("moe_needs_sequence_parallel", "layout.sequence_parallel", _moe_has_sp, _moe_sp_message),
    Rule("recompute_offered", "layout.recompute", _recompute_offered, _recompute_message),
    Rule("modules_offered", "layout.recompute_modules", _modules_offered, _modules_message),
    Rule("modules_exist", "layout.recompute_modules", _modules_exist, _missing_modules_message),
    Rule("recompute_layers_offered", "layout.recompute_layers", _layers_fit, _num_layers_message),
    Rule("offload_offered", "layout", _offload_offered, _offload_message),
    Rule(
        "offload_needs_sharding",
        "layout.offload_optimizer",
        _offload_sharded,
        _unsharded_message,
        _offload_blame,
    ),
    Rule(
        "offload_in_pipeline",
        "layout.offload_activations",
        _offload_in_pipeline,
        _pipelined_message,
    ),
    Rule("placement_offered", "layout.placement", _placement_offered, _placement_message),
    Rule("equal_data_parallel", "layout.placement", equal_data_parallel, _equal_dp_message),
    Rule("torus_axes_exist", "layout.torus_axes", _torus_axes_have_torus, _torus_axes_message),
    Rule("block_divides_torus", "layout.torus_block", _block_divides_torus, _block_message),
    Rule("placement_fits_torus", "layout.placement", _placement_fits_torus, _torus_message),
)
"""Every rule, in the order in which a layout is held against them: errors name the first that is
broken."""


RULES_BY_NAME: dict[str, Rule] = {rule.name: rule for rule in RULES}


def lifted(problem: Problem, layout: Layout) -> Problem:
    """Return the problem with those limits of the search raised that a stated layout exceeds, and
    that its framework does not have."""
    row = Layouts.of([layout])
    of_search = (rule for rule in RULES if rule.kind == "search")
    broken = {rule.name for rule in of_search if not np.all(rule.test(problem, row))}
    if not broken:
        return problem
    raised: dict[str, Any] = {}
    if "virtual_stages_searched" in broken:
        raised["max_virtual_stages"] = layout.virtual_stages
    if "degrees_searched" in broken:
        raised |= _limits_over(problem, layout)
    if "sharding_searched" in broken:
        stack, stage = problem.stack, layout.zero_stage
        raised["zero_stages"] = (*stack.zero_stages, stage)
        raised["hybrid_stages"] = (*stack.hybrid_stages, stage)
    return replace(problem, stack=replace(problem.stack, **raised))


def first_broken(problem: Problem, layouts: Layouts) -> Array:
    """Return an index into RULES of the first rule that each layout breaks, or -1; shape (n,)."""
    passes = np.empty((len(RULES), len(layouts)), dtype=bool)
    for index, rule in enumerate(RULES):
        passes[index] = rule.test(problem, layouts)
    return np.where(passes.all(axis=0), -1, passes.argmin(axis=0))


def broken_rules(problem: Problem, layout: Layout) -> list[Rule]:
    """Return every rule that a layout breaks, in the order of RULES."""
    row = Layouts.of([layout])
    return [rule for rule in RULES if not np.all(rule.test(problem, row))]


def require_legal(problem: Problem, layout: Layout) -> None:
    """Raise Invalid with the message of the first broken rule."""
    index = int(first_broken(problem, Layouts.of([layout]))[0])
    if index >= 0:
        rule = RULES[index]
        field = rule.blamed_field(problem, layout)
        raise Invalid(field, rule.name, rule.message(problem, layout))
