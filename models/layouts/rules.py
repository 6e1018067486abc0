"""What makes a layout legal: each rule has a name, a vectorised test and a message with the values
put in.

A rule is a fact of the arithmetic (degrees multiply to the devices), of the model (heads divide
over tp), of a framework (its source named) or of the stack's data. The search counts what each rule
refuses; a prediction of a single layout fails with the first rule's message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from models.columns import Array
from models.errors import Invalid
from models.layouts.placement import Groups, groups
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
from models.spec.recompute import FULL, MODULES, NONE, RECOMPUTE, STACK_SELECTIVE, policy_code


@dataclass(frozen=True, slots=True)
class Rule:
    """`test` is true where a layout obeys. `message` says, for one that does not, what the rule
    asks."""

    name: str
    field: str
    test: Callable[[Problem, Layouts], Array]
    message: Callable[[Problem, Layout], str]


def _mesh_fills_cluster(p: Problem, x: Layouts) -> Array:
    return x.num_devices == p.cluster.num_devices


def _filling(p: Problem, x: Layout) -> str:
    """What dp_shard would do, if any."""
    shard, rest = divmod(p.cluster.num_devices * x.dp_shard, x.num_devices)
    return "" if rest else f": dp_shard({shard}) would"


def _heads(p: Problem, x: Layouts) -> Array:
    ok = np.ones(len(x), dtype=bool)
    for layer in p.architecture.kinds:
        a = layer.attention
        beyond = (x.tp % a.num_kv_heads == 0) & p.stack.replicates_kv_heads
        ok &= (a.num_heads % x.tp == 0) & ((a.num_kv_heads % x.tp == 0) | beyond)
    return ok


def _widths(p: Problem, x: Layouts) -> Array:
    ok = p.architecture.hidden_size % x.tp == 0
    for layer in p.architecture.kinds:
        if layer.dense:
            ok &= layer.dense.intermediate_size % x.tp == 0
        if layer.moe:
            ok &= layer.moe.intermediate_size % x.etp == 0
    return ok


def _blocks(p: Problem, x: Layouts) -> Array:
    """Experts' tokens are padded, their weights are not."""
    block = p.workload.number_format.block if p.stack.whole_blocks else 1
    if block == 1:
        return np.ones(len(x), dtype=bool)
    return np.all([(side + np.zeros(len(x))) % block == 0 for side in _sides(p, x)], axis=0)


def _sides(p: Problem, x: Layouts) -> list[Array | float]:
    """Sides of the weights of layers on a device, of those projections too that it computes at
    once."""
    hidden = p.architecture.hidden_size
    sides: list[Array | float] = [hidden, *([hidden / x.tp] if p.architecture.mtp_layers else [])]
    for layer in p.architecture.kinds:
        a = layer.attention
        queries, values = a.num_heads * a.head_dim / x.tp, a.num_heads * a.v_head_dim / x.tp
        if a.kv_lora_rank is None:
            sides += [queries + a.kv_dim * a.kv_share(x.tp), values]
        else:
            sides += [queries, values, a.kv_lora_rank, a.kv_lora_rank + a.rope_head_dim]
            sides += [a.q_lora_rank] if a.q_lora_rank else []
        sides += [layer.dense.intermediate_size / x.tp] if layer.dense else []
        sides += [layer.moe.intermediate_size / x.etp] if layer.moe else []
    return sides


def _experts(p: Problem, x: Layouts) -> Array:
    counts = [layer.moe.num_experts for layer in p.architecture.kinds if layer.moe]
    if not counts:
        return (x.ep == 1) & (x.etp == 1)
    return np.all([count % x.ep == 0 for count in counts], axis=0)


def _fold(p: Problem, x: Layouts) -> Array:
    """torchtitan parallel_dims.py: ep folds over dp_shard, cp and tp; plain Megatron over all of
    dp; MaxText base.yml: over fsdp or context, with what is within an expert sharded over
    tensor."""
    if p.stack.expert_folding == "beside_tensor":
        return (x.dp_shard * x.cp % x.ep == 0) & ((x.etp == x.tp) | (not p.experts_keep_tensor))
    dense = x.dp_shard * x.cp * x.tp
    if p.stack.expert_folding == "all":
        dense = np.where(x.dp_shard > 1, dense, dense * x.dp_replicate)
    return dense % (x.ep * x.etp) == 0


def _causal_chunks(x: Layouts) -> Array:
    return np.where(x.cp > 1, 2 * x.cp, 1)


def _sequence(p: Problem, x: Layouts) -> Array:
    """Megatron arguments.py: seq % (2·cp) == 0, for balanced causal chunks."""
    return p.workload.seq_len % _causal_chunks(x) == 0


def _sequence_over_tensor(p: Problem, x: Layouts) -> Array:
    """Sequence parallelism shards every chunk over tp too."""
    return p.workload.seq_len % (_causal_chunks(x) * np.where(x.sequence_parallel, x.tp, 1)) == 0


def _beyond_heads(p: Problem) -> str:
    """What tp may be with more devices than key-value heads."""
    return (
        "divide or be a multiple of"
        if p.stack.replicates_kv_heads
        else f"stack {p.stack.id} repeats none: divide"
    )


def _ties(p: Problem, x: Layouts) -> Array:
    return (x.pp == 1) | p.stack.ties_in_pipeline | (not p.architecture.tie_word_embeddings)


def _multi_token_prediction(p: Problem, x: Layouts) -> Array:
    free = not (p.stack.mtp_alone and p.architecture.mtp_layers)
    return ((x.pp == 1) & (x.cp == 1)) | free


def _heads_over_cp(p: Problem, x: Layouts) -> Array:
    if p.stack.context != "ulysses":
        return np.ones(len(x), dtype=bool)
    heads = min(layer.attention.num_heads for layer in p.architecture.kinds)
    return heads % (x.cp * x.tp) == 0


def _batch(p: Problem, x: Layouts) -> Array:
    return p.workload.global_batch % (x.dp * x.micro_batch) == 0


def _accumulation(p: Problem, x: Layouts) -> Array:
    at_once = p.workload.precision == "fp8" and p.cluster.chip.vendor in p.stack.fp8_at_once_on
    return (x.pp > 1) | (x.num_micro_batches(p.workload.global_batch) <= 1) | (not at_once)


def _layers(p: Problem, x: Layouts) -> Array:
    chunks = x.pp * x.virtual_stages
    layers = p.architecture.num_layers
    ends = 2 * (
        x.schedule == INTERLEAVED
    )  # which may be chunks by themselves (models.cost.stage_partition)
    return np.where(x.balanced, chunks <= layers + ends, layers % chunks == 0)


def _partition_offered(p: Problem, x: Layouts) -> Array:
    if p.stack.splits_by_threshold:
        return x.balanced == (x.pp > 1)
    return ~x.balanced | ((x.pp > 1) & (p.stack.partition == "balanced"))


def _schedule_shape(p: Problem, x: Layouts) -> Array:
    m = x.num_micro_batches(p.workload.global_batch)
    single = (x.pp == 1) & np.isin(x.schedule, (ONE_F_ONE_B, AFAB)) & (x.virtual_stages == 1)
    interleaved = (x.virtual_stages >= 2) & (m >= x.pp)
    if p.stack.micro_batch_groups != "any":
        equal = p.stack.micro_batch_groups == "equal"
        interleaved &= m % (np.maximum(m // x.pp, 1) if equal else x.pp) == 0
    enough = {"any": m > 0, "stages": m >= x.pp, "multiple": m % x.pp == 0}
    plain = (x.virtual_stages == 1) & enough[p.stack.plain_micro_batches]
    both_ways = (x.virtual_stages == 1) & (x.pp % 2 == 0) & (m >= 2 * x.pp) & (m % 2 == 0)
    piped = np.select(
        [
            np.isin(x.schedule, (ONE_F_ONE_B, AFAB, ZERO_BUBBLE)),
            x.schedule == INTERLEAVED,
            x.schedule == ZERO_BUBBLE_V,
            x.schedule == DUALPIPE,
        ],
        [plain, interleaved, x.virtual_stages == 2, both_ways],
        False,
    )
    return np.where(x.pp == 1, single, piped & (x.virtual_stages <= p.stack.max_virtual_stages))


_NEEDS = {
    "interleaved": (
        "virtual_stages from 2, and micro-batches in groups as the stack makes them: {groups}"
    ),
    "zero_bubble_v": "virtual_stages(2)",
    "dualpipe": "virtual_stages(1), an even pp and an even number of at least 2*pp micro-batches",
}


_GROUPS = {
    "any": "pp of them or more",
    "equal": "pp of them or more, and a multiple of how often pp goes into their number",
    "stages": "a multiple of pp",
}


_PLAIN = {
    "any": "",
    "stages": " and at least pp micro-batches",
    "multiple": " and a multiple of pp micro-batches",
}


def _shape_message(p: Problem, x: Layout) -> str:
    if x.pp == 1:
        got = f"got {x.schedule} with virtual_stages({x.virtual_stages})"
        return f"without a pipeline the schedule is 1f1b or afab, with virtual_stages(1); {got}"
    if x.virtual_stages > p.stack.max_virtual_stages:
        return (
            f"stack {p.stack.id} runs at most {p.stack.max_virtual_stages} virtual stages, not"
            f" {x.virtual_stages}"
        )
    m = max(p.workload.global_batch // (x.dp * x.micro_batch), 1)
    needs = _NEEDS.get(x.schedule, f"virtual_stages(1){_PLAIN[p.stack.plain_micro_batches]}")
    needs = needs.format(groups=_GROUPS[p.stack.micro_batch_groups])
    return (
        f"{x.schedule} needs {needs}; got virtual_stages({x.virtual_stages}) and {m} micro-batches"
        f" with pp({x.pp})"
    )


def _schedule_offered(p: Problem, x: Layouts) -> Array:
    offered = [SCHEDULES.index(name) for name in p.stack.schedules]
    return np.isin(x.schedule, offered) | ((x.pp == 1) & np.isin(x.schedule, (ONE_F_ONE_B, AFAB)))


def _balancing(p: Problem, x: Layouts) -> Array:
    if (
        not p.architecture.is_moe
        or p.workload.load_balancing != "global_batch_loss"
        or p.stack.running_balance
    ):
        return np.ones_like(x.pp, dtype=bool)
    return (x.schedule == AFAB) | (x.num_micro_batches(p.workload.global_batch) == 1)


def _sharding_shape(p: Problem, x: Layouts) -> Array:
    plain = (x.zero_stage == 0) & (x.dp_shard == 1)
    sharded = (x.zero_stage > 0) & ((x.dp_shard > 1) | (x.dp_replicate == 1))
    return plain | sharded


def _sharding_offered(p: Problem, x: Layouts) -> Array:
    hybrid = (
        (x.dp_replicate == 1) | (x.dp_shard == 1) | np.isin(x.zero_stage, p.stack.hybrid_stages)
    )
    return np.isin(x.zero_stage, p.stack.zero_stages) & hybrid


def _muon(p: Problem, x: Layouts) -> Array:
    return np.isin(x.zero_stage, p.stack.muon_stages) | (p.workload.optimizer != "muon")


def _reshard_offered(p: Problem, x: Layouts) -> Array:
    return (x.zero_stage < 3) | np.isin(x.reshard, p.stack.reshard)


def _degrees_offered(p: Problem, x: Layouts) -> Array:
    s = p.stack
    etp = (x.etp == 1) | (s.expert_tensor_parallel & (x.etp <= s.max_tp))
    pp = (x.pp <= s.max_pp) & ((x.pp == 1) | (x.cp == 1) | s.context_in_pipeline)
    return pp & (x.tp <= s.max_tp) & (x.cp <= s.max_cp) & (x.ep <= s.max_ep) & etp


def _sequence_parallel_offered(p: Problem, x: Layouts) -> Array:
    with_tp = np.isin(x.sequence_parallel, p.stack.sequence_parallel)
    return np.where(x.tp > 1, with_tp, ~x.sequence_parallel)


def _moe_sequence_parallel(p: Problem, x: Layouts) -> Array:
    """Megatron moe_layer.py: MoE with tensor parallelism trains only with sequence parallelism."""
    return (
        (x.tp == 1) | x.sequence_parallel if p.architecture.is_moe else np.ones(len(x), dtype=bool)
    )


def _recompute_offered(p: Problem, x: Layouts) -> Array:
    selective = (x.recompute != NONE) & (x.recompute != FULL)
    name = np.where(
        selective,
        RECOMPUTE.index("selective"),
        np.where(x.recompute == FULL, RECOMPUTE.index("full"), 0),
    )
    return np.isin(name, [RECOMPUTE.index(offered) for offered in p.stack.recompute])


def _modules_offered(p: Problem, x: Layouts) -> Array:
    others = (STACK_SELECTIVE - 1) & ~policy_code("selective", p.stack.recomputable_modules)
    return (x.recompute & others) == 0


def _modules_exist(p: Problem, x: Layouts) -> Array:
    nowhere = [name for name in MODULES if not p.has_module(name)]
    return (x.recompute & policy_code("selective", nowhere) & (STACK_SELECTIVE - 1)) == 0


def _recompute_layers(p: Problem, x: Layouts) -> Array:
    """Of chunks that are all as long: how many layers of unequal ones are recomputed, no share of a
    stage says."""
    fewer = x.recompute_layers * x.pp * x.virtual_stages < p.architecture.num_layers
    return (x.recompute_layers == 0) | (
        p.stack.recompute_layers & fewer & ~x.balanced & ~x.offload_activations
    )


def _layers_message(p: Problem, x: Layout) -> str:
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
    beside = (x.recompute == NONE) | (not p.stack.offload_alone)
    activations = ~x.offload_activations | (("activations" in p.stack.offload) & beside)
    on_host = (
        "optimizer" in p.stack.offload and p.workload.optimizer != "muon"
    )  # whose products a host is too slow for
    return activations & (~x.offload_optimizer | on_host)


def _sharding_in_pipeline(p: Problem, x: Layouts) -> Array:
    return (x.zero_stage <= p.stack.max_zero_in_pipeline) | (x.pp == 1)


def _sharding_beside_experts(p: Problem, x: Layouts) -> Array:
    return (x.zero_stage <= 2) | (x.ep == 1) | (x.cp == 1) | (not p.stack.experts_alone)


def _offload_sharded(p: Problem, x: Layouts) -> Array:
    """DeepSpeed zero/offload_config.py; Megatron-Core's CPU offload is part of its distributed
    optimizer."""
    return ~x.offload_optimizer | (x.zero_stage > 0)


def _offload_in_pipeline(p: Problem, x: Layouts) -> Array:
    return ~x.offload_activations | (x.pp == 1) | (not p.stack.offload_alone)


def _torus(p: Problem, x: Layouts) -> Array:
    return fits_torus(p, groups(p.cluster, x))


def _torus_axes(p: Problem, x: Layouts) -> Array:
    return np.asarray((x.torus_axes == 0) | (p.cluster.fabric.torus is not None))


def _torus_block(p: Problem, x: Layouts) -> Array:
    shape = p.cluster.slice_shape or (1,)
    fits = [(length <= x.torus_block) | (length % x.torus_block == 0) for length in shape]
    return np.all(fits, axis=0) & ((x.torus_block == 1) | (p.cluster.fabric.torus is not None))


def _placement(p: Problem, x: Layouts) -> Array:
    return np.asarray(offered_orders(p.stack.placements)[active_axes(x), x.placement])


def equal_data_parallel(p: Problem, x: Layouts) -> Array:
    if not p.stack.equal_data_parallel:
        return np.ones(len(x), dtype=bool)
    of_experts = x.ep * x.etp if p.architecture.is_moe else x.tp
    return (
        (x.pp == 1)
        | pipeline_outermost()[active_axes(x), x.placement]
        | (of_experts == x.tp * x.cp)
    )


def fits_torus(p: Problem, g: Groups) -> Array:
    """An axis on a torus covers whole lines of it or divides one, so that its ring closes on real
    links."""
    if p.cluster.fabric.torus is None:
        return np.ones(len(g.tp.code), dtype=bool)
    axes = (g.tp, g.cp, g.dp_shard, g.dp_replicate, g.pp, g.ep)
    return np.asarray(np.all([axis.per_row(axis.table.whole) for axis in axes], axis=0))


RULES: tuple[Rule, ...] = (
    Rule("mesh_fills_cluster", "layout", _mesh_fills_cluster, lambda p, x: (
        f"pp({x.pp}) * dp_replicate({x.dp_replicate}) * dp_shard({x.dp_shard}) * cp({x.cp}) * tp({x.tp}) = "
        f"{x.num_devices}, must equal the cluster's {p.cluster.num_devices} devices{_filling(p, x)}")),
    Rule("tensor_divides_heads", "layout.tp", _heads, lambda p, x: (
        f"tp({x.tp}) must divide the {p.architecture.kinds[0].attention.num_heads} attention heads, and "
        f"{_beyond_heads(p)} the {p.architecture.kinds[0].attention.num_kv_heads} key-value heads")),
    Rule("tensor_divides_widths", "layout.tp", _widths, lambda p, x: (
        f"tp({x.tp}) must divide hidden_size({p.architecture.hidden_size}) and the dense intermediate sizes, "
        f"etp({x.etp}) the expert intermediate size")),
    Rule("whole_blocks", "layout.tp", _blocks, lambda p, x: (
        f"stack {p.stack.id} needs widths that are multiples of {p.workload.number_format.block} under "
        f"{p.workload.precision}, on every device: hidden_size({p.architecture.hidden_size}), of attention and dense "
        f"layers over tp({x.tp}), of experts over etp({x.etp})")),
    Rule("experts_divide", "layout.ep", _experts, lambda p, x: (
        f"ep({x.ep}) must divide the number of experts, and ep and etp be 1 in a dense model")),
    Rule("experts_fold_over_dense_axes", "layout.ep", _fold, lambda p, x: (
        f"stack {p.stack.id} shards experts over tp: etp({x.etp}) must be tp({x.tp}), and ep({x.ep}) divide "
        f"dp_shard({x.dp_shard}) * cp({x.cp})" if p.stack.expert_folding == "beside_tensor" else
        f"etp({x.etp}) * ep({x.ep}) must divide dp_shard({x.dp_shard}) * cp({x.cp}) * tp({x.tp})"
        + (" (times dp_replicate without sharding)" if p.stack.expert_folding == "all" else ""))),
    Rule("sequence_divides", "layout.cp", _sequence, lambda p, x: (
        f"seq_len({p.workload.seq_len}) must be a multiple of 2*cp({x.cp})")),
    Rule("sequence_divides_over_tensor", "layout.tp", _sequence_over_tensor, lambda p, x: (
        f"seq_len({p.workload.seq_len}) must be a multiple of " + f"2*cp({x.cp}) times " * (x.cp > 1)
        + f"tp({x.tp}) with sequence parallelism")),
    Rule("context_divides_heads", "layout.cp", _heads_over_cp, lambda p, x: (
        f"cp({x.cp}) * tp({x.tp}) must divide the attention heads: {p.stack.id} exchanges heads for tokens")),
    Rule("batch_divides", "layout.micro_batch", _batch, lambda p, x: (
        f"global_batch({p.workload.global_batch}) must be a multiple of dp({x.dp}) * micro_batch({x.micro_batch})")),
    Rule("schedule_offered", "layout.schedule", _schedule_offered, lambda p, x: (
        f"stack {p.stack.id} runs {', '.join(p.stack.schedules)}, not {x.schedule}")),
    Rule("schedule_shape", "layout.schedule", _schedule_shape, _shape_message),
    Rule("layers_divide", "layout.pp", _layers, lambda p, x: (
        f"{p.architecture.num_layers} layers must give each of pp({x.pp}) * virtual_stages({x.virtual_stages}) chunks "
        + ("the same number" if not x.balanced and x.pp * x.virtual_stages <= p.architecture.num_layers
            else "but the first and last at least one" if x.schedule == "interleaved" else "at least one on average"))),
    Rule("tied_embedding_in_pipeline", "layout.pp", _ties, lambda p, x: (
        f"stack {p.stack.id} has no pipeline for a model that ties its embedding to its head (tie_word_embeddings)")),
    Rule("mtp_offered", "layout.pp", _multi_token_prediction, lambda p, x: (
        f"stack {p.stack.id} has multi-token prediction without pipeline and context parallelism only; got "
        f"pp({x.pp}), cp({x.cp}); mtp_layers 0 leaves it out")),
    Rule("accumulation_offered", "layout.micro_batch", _accumulation, lambda p, x: (
        f"stack {p.stack.id} accumulates no gradients in fp8 on chips of {p.cluster.chip.vendor}: without a pipeline "
        f"micro_batch({x.micro_batch}) must be all of a rank's {p.workload.global_batch // x.dp} sequences")),
    Rule("partition_offered", "layout.balanced", _partition_offered, lambda p, x: (
        "an uneven split needs pp > 1" if x.pp == 1 else f"stack {p.stack.id} splits layers "
        + ("by their cost" if p.stack.splits_by_threshold else "evenly only"))),
    Rule("balancing_needs_all_forwards_first", "layout.schedule", _balancing, lambda p, x: (
        f"load_balancing({p.workload.load_balancing}), an auxiliary loss over the global batch, needs every forward "
        "before the first backward: one micro-batch, or the all-forward-all-backward schedule (afab)"
        + (f", which stack {p.stack.id} lacks" if x.pp > 1 and "afab" not in p.stack.schedules else ""))),
    Rule("sharding_shape", "layout.zero_stage", _sharding_shape, lambda p, x: (
        f"zero_stage({x.zero_stage}) with dp_shard({x.dp_shard}), dp_replicate({x.dp_replicate}): stage 0 replicates "
        "(dp_shard 1), stages 1 to 3 shard (dp_shard above 1, or no data parallelism)")),
    Rule("sharding_offered", "layout.zero_stage", _sharding_offered, lambda p, x: (
        f"stack {p.stack.id} offers ZeRO stages {', '.join(map(str, p.stack.zero_stages))}"
        + (f", and beside replicas {', '.join(map(str, p.stack.hybrid_stages)) or 'none'}"
           if x.dp_replicate > 1 and x.dp_shard > 1 else "") + f"; got {x.zero_stage}")),
    Rule("muon_offered", "layout.zero_stage", _muon, lambda p, x: (
        f"stack {p.stack.id} has Muon with ZeRO stages {', '.join(map(str, p.stack.muon_stages))}, "
        f"not {x.zero_stage}")),
    Rule("sharding_in_pipeline", "layout.zero_stage", _sharding_in_pipeline, lambda p, x: (
        f"stack {p.stack.id} has ZeRO up to {p.stack.max_zero_in_pipeline} beside a pipeline, not {x.zero_stage}")),
    Rule("sharding_beside_experts", "layout.zero_stage", _sharding_beside_experts, lambda p, x: (
        f"stack {p.stack.id} has ZeRO 3 with ep({x.ep}) only without context parallelism; got cp({x.cp})")),
    Rule("reshard_offered", "layout.reshard", _reshard_offered, lambda p, x: (
        f"stack {p.stack.id} offers reshard after forward: {', '.join(str(v).lower() for v in p.stack.reshard)}")),
    Rule("degrees_offered", "layout", _degrees_offered, lambda p, x: (
        f"stack {p.stack.id} has tp up to {p.stack.max_tp}, cp up to {p.stack.max_cp}, ep up to {p.stack.max_ep}"
        + (f", pp up to {p.stack.max_pp}" if x.pp > p.stack.max_pp else "")
        + ("" if p.stack.context_in_pipeline else ", and cp 1 beside a pipeline")
        + ("" if p.stack.expert_tensor_parallel else ", and etp 1 only")
        + f"; got pp({x.pp}), tp({x.tp}), cp({x.cp}), ep({x.ep}), etp({x.etp})")),
    Rule("sequence_parallel_offered", "layout.sequence_parallel", _sequence_parallel_offered, lambda p, x: (
        f"sequence parallelism goes with tp > 1; stack {p.stack.id} then has it "
        + " or ".join("on" if value else "off" for value in p.stack.sequence_parallel))),
    Rule("moe_needs_sequence_parallel", "layout.sequence_parallel", _moe_sequence_parallel, lambda p, x: (
        f"experts with tp({x.tp}) > 1 need sequence_parallel"
        + ("" if True in p.stack.sequence_parallel else f", which stack {p.stack.id} does not have: tp must be 1"))),
    Rule("recompute_offered", "layout.recompute", _recompute_offered, lambda p, x: (
        f"stack {p.stack.id} recomputes {', '.join(p.stack.recompute)}, not {x.recompute}")),
    Rule("modules_offered", "layout.recompute_modules", _modules_offered, lambda p, x: (
        f"stack {p.stack.id} recomputes the modules {', '.join(p.stack.recomputable_modules)}, "
        f"not all of {', '.join(x.recompute_modules)}")),
    Rule("modules_exist", "layout.recompute_modules", _modules_exist, lambda p, x: (
        f"no layer of {p.architecture.name} has {', '.join(m for m in x.recompute_modules if not p.has_module(m))}")),
    Rule("recompute_layers_offered", "layout.recompute_layers", _recompute_layers, _layers_message),
    Rule("offload_offered", "layout", _offload_offered, lambda p, x: (
        f"stack {p.stack.id} offloads {', '.join(p.stack.offload) or 'nothing'}"
        f"{', activations without recompute only' if p.stack.offload_alone else ''}"
        f"{', and no optimizer that is muon' if p.workload.optimizer == 'muon' else ''}")),
    Rule("offload_needs_sharding", "layout.offload_optimizer", _offload_sharded, lambda p, x: (
        "optimizer states go to the host as the shards of ZeRO 1 to 3, which one device may have too; got zero_stage(0)"
        )),
    Rule("offload_in_pipeline", "layout.offload_activations", _offload_in_pipeline, lambda p, x: (
        f"stack {p.stack.id} offloads activations without a pipeline only")),
    Rule("placement_offered", "layout.placement", _placement, lambda p, x: (
        f"stack {p.stack.id} orders ranks {' or '.join(' < '.join(order) for order in p.stack.placements)}, "
        f"not {' < '.join(x.placement)}")),
    Rule("equal_data_parallel", "layout.placement", equal_data_parallel, lambda p, x: (
        f"stack {p.stack.id} puts pp inside data parallelism only where ep·etp is tp·cp = {x.tp * x.cp} "
        "(without experts: cp = 1)")),
    Rule("torus_axes_exist", "layout.torus_axes", _torus_axes, lambda p, x: (
        f"orders the dims of a torus, which {p.cluster.fabric.id} is not: leave it out")),
    Rule("block_divides_torus", "layout.torus_block", _torus_block, lambda p, x: (
        f"torus_block({x.torus_block}) must divide every longer dim of the torus of "
        f"{'x'.join(map(str, p.cluster.slice_shape))}" if p.cluster.slice_shape else
        f"is a block of a torus, which {p.cluster.fabric.id} is not: leave it out")),
    Rule("placement_fits_torus", "layout.placement", _torus, lambda p, x: (
        f"placed {' < '.join(x.placement)} on a torus of {'x'.join(map(str, p.cluster.slice_shape))}, filled along "
        f"{', '.join(x.torus_axes)}{f' in blocks of {x.torus_block}' if x.torus_block > 1 else ''}, every axis must "
        "divide a torus dim or cover whole dims")),
)  # fmt: skip


BY_NAME: dict[str, Rule] = {rule.name: rule for rule in RULES}


def first_broken(problem: Problem, layouts: Layouts) -> Array:
    """Index into RULES of the first rule each layout breaks, or -1; shape (n,)."""
    broken = np.full(len(layouts), -1)
    for index, rule in enumerate(RULES):
        fails = (broken < 0) & ~np.asarray(rule.test(problem, layouts), dtype=bool)
        broken[fails] = index
    return broken


def require_legal(problem: Problem, layout: Layout) -> None:
    """Raise Invalid with the first broken rule's message."""
    index = int(first_broken(problem, Layouts.of([layout]))[0])
    if index >= 0:
        rule = RULES[index]
        raise Invalid(rule.field, rule.name, rule.message(problem, layout))
