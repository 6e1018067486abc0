"""The rules of what a mesh divides: devices, heads, widths, experts, sequences and the batch.

A function whose docstring states a rule returns for each of n layouts whether it obeys, (n,); the
function after it words the error (models.layouts.rule.Rule).
"""

from __future__ import annotations

import numpy as np

from models.columns import Array
from models.layouts.factors import divisors
from models.layouts.rule import Rule, holds_for_all
from models.spec.attention import Attention
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.recurrence import Mamba2, Recurrence

BATCH_FIELD = "workload.global_batch"
"""The one field that rules blame outside the layout."""


def _mesh_fills_cluster(problem: Problem, layouts: Layouts) -> Array:
    """The degrees of the mesh multiply to the number of devices."""
    return layouts.num_devices == problem.cluster.num_devices


def _mesh_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence with the product of the degrees and the number of devices, and the
    dp_shard that would fill the cluster, if there is one."""
    shard, rest = divmod(problem.cluster.num_devices * layout.dp_shard, layout.num_devices)
    would_fill = "" if rest else f": dp_shard({shard}) would"
    return (
        f"pp({layout.pp}) * dp_replicate({layout.dp_replicate}) * dp_shard({layout.dp_shard}) *"
        f" cp({layout.cp}) * tp({layout.tp}) = {layout.num_devices}, must equal the cluster's"
        f" {problem.cluster.num_devices} devices{would_fill}"
    )


def _tensor_divides_heads(problem: Problem, layouts: Layouts) -> Array:
    """`tp` divides the attention heads, and the key-value heads, unless the stack repeats these."""
    ok = holds_for_all(layouts)
    for attention in problem.architecture.attentions:
        heads, kv_heads = attention.num_attention_heads, attention.num_key_value_heads
        repeats_heads = (layouts.tp % kv_heads == 0) & problem.stack.replicates_kv_heads
        ok &= (heads % layouts.tp == 0) & ((kv_heads % layouts.tp == 0) | repeats_heads)
    for recurrence in problem.architecture.recurrences:
        ok &= recurrence.num_heads % layouts.tp == 0
        ok &= recurrence.num_key_heads % layouts.tp == 0
    return ok


def _heads_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that says which heads tp must divide. Those of linear attention come
    first where tp does not divide them."""
    for recurrence in problem.architecture.recurrences:
        heads, key_heads = recurrence.num_heads, recurrence.num_key_heads
        if heads % layout.tp or key_heads % layout.tp:
            return (
                f"tp({layout.tp}) must divide the {heads} heads of linear attention or"
                f" state-space layers, and the {key_heads} of their keys"
            )
    # tp divides the heads of every recurrence, so attention breaks the rule: its first kind is
    # named.
    attention = problem.architecture.attentions[0]
    if problem.stack.replicates_kv_heads:
        why = ""
        verb = "divide or be a multiple of"
    else:
        why = f"stack {problem.stack.id} repeats none: "
        verb = "divide"
    return (
        f"tp({layout.tp}) must divide the {attention.num_attention_heads} attention heads, and"
        f" {why}{verb} the {attention.num_key_value_heads} key-value heads"
    )


def _tensor_divides_widths(problem: Problem, layouts: Layouts) -> Array:
    """`tp` divides the hidden size and the width of dense layers, `etp` the width of experts."""
    ok = problem.architecture.hidden_size % layouts.tp == 0
    for layer in problem.architecture.kinds:
        if layer.dense:
            ok &= layer.dense.intermediate_size % layouts.tp == 0
        if layer.moe:
            ok &= layer.moe.intermediate_size % layouts.etp == 0
    return ok


def _widths_message(problem: Problem, layout: Layout) -> str:
    return (
        f"tp({layout.tp}) must divide hidden_size({problem.architecture.hidden_size}) and the dense"
        f" intermediate sizes, etp({layout.etp}) the expert intermediate size"
    )


def _whole_blocks(problem: Problem, layouts: Layouts) -> Array:
    """The sides of a device's weight matrices are multiples of the block of the number format,
    where the kernels of the stack need it.

    The number of tokens of an expert is not tested: tokens are padded, weights are not.
    """
    block = problem.workload.number_format.block if problem.stack.whole_blocks else 1
    if block == 1:
        return holds_for_all(layouts)
    # A side may be one number for all layouts: adding zeros makes it a column.
    sides = [side + np.zeros(len(layouts)) for side in _weight_sides(problem, layouts)]
    return np.all([side % block == 0 for side in sides], axis=0)


def _weight_sides(problem: Problem, layouts: Layouts) -> list[Array | float]:
    """Return the lengths of the sides of all weight matrices of layers on one device, each a number
    for all of n layouts or an array (n,). Block-scaled number formats need multiples of their block
    there. Projections computed in one product (queries, keys and values) count as one matrix."""
    hidden = problem.architecture.hidden_size
    sides: list[Array | float] = [hidden]
    if problem.architecture.mtp_layers:
        # The projection of multi-token prediction puts out the hidden size, divided over tp.
        sides.append(hidden / layouts.tp)
    for layer in problem.architecture.kinds:
        for mixer in layer.mixers:
            sides += _mixer_sides(mixer, layouts.tp)
        sides += [layer.dense.intermediate_size / layouts.tp] if layer.dense else []
        sides += [layer.moe.intermediate_size / layouts.etp] if layer.moe else []
    return sides


def _mixer_sides(mixer: Attention | Recurrence, tp: Array) -> list[Array | float]:
    """Return the sides of the weight matrices of a mixer on one device, except the hidden size. A
    mixer is attention or a recurrence (linear attention, state-space layer). Each side is (n,) for
    n degrees of tp, or one number for all."""
    if isinstance(mixer, Recurrence):
        # The output projection, and the input projections of queries, keys and values in one.
        return [mixer.value_elements / tp, mixer.input_elements / tp]
    queries = mixer.num_attention_heads * mixer.head_dim / tp
    values = mixer.num_attention_heads * mixer.v_head_dim / tp
    if mixer.kv_lora_rank is None:
        # Queries, keys and values are one product. kv_share is 1/tp, but at least one head.
        return [queries + mixer.kv_dim * mixer.kv_share(tp), values]
    # MLA's latents are whole on every device: tp divides heads alone. The projection to the latent
    # of keys and values puts out the rotary part of the keys too.
    latent = mixer.kv_lora_rank
    query_latent = [mixer.q_lora_rank] if mixer.q_lora_rank else []
    return [queries, values, latent, latent + mixer.qk_rope_head_dim, *query_latent]


def _blocks_message(problem: Problem, layout: Layout) -> str:
    return (
        f"stack {problem.stack.id} needs widths that are multiples of"
        f" {problem.workload.number_format.block} under {problem.workload.precision}, on every"
        f" device: hidden_size({problem.architecture.hidden_size}), of attention and dense layers"
        f" over tp({layout.tp}), of experts over etp({layout.etp})"
    )


def _experts_divide(problem: Problem, layouts: Layouts) -> Array:
    """`ep` divides the number of experts; in a dense model `ep` and `etp` are 1."""
    counts = [layer.moe.num_experts for layer in problem.architecture.kinds if layer.moe]
    if not counts:
        return (layouts.ep == 1) & (layouts.etp == 1)
    return np.all([count % layouts.ep == 0 for count in counts], axis=0)


def _experts_message(problem: Problem, layout: Layout) -> str:
    return (
        f"ep({layout.ep}) must divide the number of experts, and ep and etp be 1 in a dense model"
    )


def _experts_fold_over_dense_axes(problem: Problem, layouts: Layouts) -> Array:
    """`ep` times `etp` divides the product of the axes that the stack folds experts over.

    In torchtitan (parallel_dims.py) these are dp_shard, cp and tp; in plain Megatron-Core all of
    data parallelism too; in MaxText (base.yml) fsdp or context, with the inside of an expert
    sharded over tensor.
    """
    if problem.stack.expert_folding == "beside_tensor":
        # ep is a part of dp_shard. Without tp it may also be all of cp and a part of dp_shard.
        divides_shards = layouts.dp_shard % layouts.ep == 0
        covers_context = (
            (layouts.ep % layouts.cp == 0)
            & (layouts.dp_shard * layouts.cp % layouts.ep == 0)
            & (layouts.tp == 1)
        )
        keeps_tensor = (layouts.etp == layouts.tp) | (not problem.experts_keep_tensor)
        return (divides_shards | covers_context) & keeps_tensor
    devices = layouts.dp_shard * layouts.cp * layouts.tp
    # Sharded layouts fold experts over the shards alone; plain data parallelism over replicas too.
    if problem.stack.expert_folding == "all":
        devices = np.where(layouts.dp_shard > 1, devices, devices * layouts.dp_replicate)
    return devices % (layouts.ep * layouts.etp) == 0


def _folding_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that says which degrees ep and etp must divide in this stack."""
    if problem.stack.expert_folding == "beside_tensor":
        return (
            f"stack {problem.stack.id} shards experts over tp: etp({layout.etp}) must be"
            f" tp({layout.tp}), and ep({layout.ep}) divide dp_shard({layout.dp_shard}), or with tp"
            f" 1 cover cp({layout.cp}) and divide dp_shard * cp"
        )
    over_replicas = problem.stack.expert_folding == "all"
    replicas = " (times dp_replicate without sharding)" if over_replicas else ""
    return (
        f"etp({layout.etp}) * ep({layout.ep}) must divide dp_shard({layout.dp_shard}) *"
        f" cp({layout.cp}) * tp({layout.tp}){replicas}"
    )


def _sequence_divides(problem: Problem, layouts: Layouts) -> Array:
    """`seq_len` divides into two chunks for each rank of `cp`, one from the front and one from the
    back, so that causal attention is balanced."""
    return problem.workload.seq_len % _sequence_chunks(layouts) == 0


def _sequence_chunks(layouts: Layouts) -> Array:
    """Return the number of chunks of a sequence under context parallelism. Each rank has one from
    the front and one from the back, so that causal attention is balanced (Megatron arguments.py:
    seq % (2·cp) == 0)."""
    return np.where(layouts.cp > 1, 2 * layouts.cp, 1)


def _sequence_message(problem: Problem, layout: Layout) -> str:
    return f"seq_len({problem.workload.seq_len}) must be a multiple of 2*cp({layout.cp})"


def _sequence_divides_over_tensor(problem: Problem, layouts: Layouts) -> Array:
    """With sequence parallelism the tokens of a sequence, or of each chunk that context parallelism
    makes of it, divide over `tp` as well."""
    ranks = np.where(layouts.sequence_parallel, layouts.tp, 1)
    return problem.workload.seq_len % (_sequence_chunks(layouts) * ranks) == 0


def _chunks_message(problem: Problem, layout: Layout) -> str:
    chunks = f"2*cp({layout.cp}) times " if layout.cp > 1 else ""
    return (
        f"seq_len({problem.workload.seq_len}) must be a multiple of {chunks}tp({layout.tp}) with"
        " sequence parallelism"
    )


def _context_divides_heads(problem: Problem, layouts: Layouts) -> Array:
    """`cp` times `tp` divides the heads where context parallelism exchanges heads for tokens: those
    of attention under Ulysses, with the key-value heads unless the stack repeats these, and those
    of linear attention and state-space layers.

    Transformer Engine (pytorch/attention, AttnFuncWithCPAndQKVOA2A) and MaxText exchange whole
    key-value heads; DeepSpeed (runtime/sequence_parallel/ulysses_sp.py) repeats them where there
    are fewer than ranks. Megatron-Core ssm/gated_delta_net and ssm/mamba_context_parallel.py
    exchange the heads of recurrences, whatever attention does; groups of Mamba-2 are repeated where
    there are fewer.
    """
    ranks = layouts.cp * layouts.tp
    ok = holds_for_all(layouts)
    if problem.stack.context == "ulysses":
        for attention in problem.architecture.attentions:
            kv_heads = attention.num_key_value_heads
            repeats_heads = (ranks % kv_heads == 0) & problem.stack.exchanges_repeated_kv_heads
            ok &= attention.num_attention_heads % ranks == 0
            ok &= (layouts.cp == 1) | (kv_heads % ranks == 0) | repeats_heads
    for recurrence in problem.architecture.recurrences:
        heads_ok = recurrence.num_heads % ranks == 0
        key_heads_ok = recurrence.num_key_heads % ranks == 0
        if isinstance(recurrence, Mamba2):
            # Its key heads (groups) may also be repeated.
            key_heads_ok |= ranks % recurrence.num_key_heads == 0
        ok &= (layouts.cp == 1) | (heads_ok & key_heads_ok)
    return ok


def _context_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that says which heads cp·tp must divide: those of linear attention or
    state-space layers where it does not, and else those of attention."""
    ranks = f"cp({layout.cp}) * tp({layout.tp})"
    for recurrence in problem.architecture.recurrences:
        heads, keys = recurrence.num_heads, recurrence.num_key_heads
        # Ranks beyond the key heads (groups) of Mamba-2 get repeated ones.
        ends = "or be a multiple of them" if isinstance(recurrence, Mamba2) else "too"
        if heads % (layout.cp * layout.tp) or keys % (layout.cp * layout.tp):
            return (
                f"{ranks} must divide the {heads} heads of linear attention or state-space layers,"
                f" which are exchanged for tokens, and the {keys} of their keys {ends}"
            )
    attention = problem.architecture.attentions[0]
    verb = "divide or be a multiple of" if problem.stack.exchanges_repeated_kv_heads else "divide"
    return (
        f"{ranks} must divide the {attention.num_attention_heads} attention heads, and {verb} the"
        f" {attention.num_key_value_heads} key-value heads: {problem.stack.id} exchanges heads for"
        " tokens"
    )


def _batch_divides(problem: Problem, layouts: Layouts) -> Array:
    """`global_batch` is a multiple of the data-parallel ranks times `micro_batch`."""
    return problem.workload.global_batch % (layouts.dp * layouts.micro_batch) == 0


def _batch_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that says what the batch must be a multiple of, with the nearest batches
    that would do, or else the nearest micro-batches."""
    batch = problem.workload.global_batch
    message = (
        f"global_batch({batch}) must be a multiple of dp({layout.dp}) *"
        f" micro_batch({layout.micro_batch})"
    )
    if _batch_blame(problem, layout) == BATCH_FIELD:
        near = nearest_batches(batch, layout)
        such = "such batch is" if len(near) == 1 else "such batches are"
        return f"{message}: the nearest {such} {' and '.join(map(str, near))}"
    # dp divides the batch here, and micro_batch does not divide what a rank gets.
    sizes = divisors(batch // layout.dp)
    below = [size for size in sizes if size < layout.micro_batch][-1:]
    above = [size for size in sizes if size > layout.micro_batch][:1]
    return f"{message}: with that dp micro_batch may be {' or '.join(map(str, below + above))}"


def _batch_blame(problem: Problem, layout: Layout) -> str:
    """Return the field to blame: the global batch where the data-parallel ranks do not divide it,
    and else the micro-batch."""
    return BATCH_FIELD if problem.workload.global_batch % layout.dp else "layout.micro_batch"


def nearest_batches(batch: int, layout: Layout, rounds: int = 1) -> tuple[int, ...]:
    """Return the global batches just below and above `batch` that are multiples of a layout's
    dp · micro_batch · rounds: with these every rank has a multiple of `rounds` micro-batches. The
    lower one is left out where it is 0."""
    unit = layout.dp * layout.micro_batch * rounds
    below = batch // unit * unit
    return tuple(near for near in (below, below + unit) if near)


MESH_RULES = (
    Rule("layout", _mesh_fills_cluster, _mesh_message),
    Rule("layout.tp", _tensor_divides_heads, _heads_message),
    Rule("layout.tp", _tensor_divides_widths, _widths_message),
    Rule("layout.tp", _whole_blocks, _blocks_message),
    Rule("layout.ep", _experts_divide, _experts_message),
    Rule("layout.ep", _experts_fold_over_dense_axes, _folding_message),
    Rule("layout.cp", _sequence_divides, _sequence_message),
    Rule("layout.tp", _sequence_divides_over_tensor, _chunks_message),
    Rule("layout.cp", _context_divides_heads, _context_message),
    Rule("layout.micro_batch", _batch_divides, _batch_message, _batch_blame),
)
