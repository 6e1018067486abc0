"""The layouts of published runs: what a row states, and the alternatives that it leaves open.

A *row* is one published run, a JSON object, and `training` is the part of it about the training.
What a row does not state is taken as its *stack*, the training software, usually has it, and the
name of that field is appended to `assumed`. A *problem* is a model, a cluster, a workload and a
stack, for which layouts are possible. A *chunk* is consecutive layers on one stage of a pipeline.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any, NamedTuple

from models.errors import Invalid
from models.layouts.defaults import torus_axes_covering_dims
from models.layouts.factors import divisors
from models.spec.architecture import Architecture
from models.spec.hardware import Cluster
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.recompute import MODULES, RECOMPUTE
from models.spec.stack import Stack
from service.formats.published.software import (
    Row,
    data_parallel_kind,
    is_older_than,
    offloaded_states,
    stated_zero_stage,
)

_MAX_MICRO_BATCH = 16  # where a source leaves it open; larger ones are rare, and stated


class RecomputePolicy(NamedTuple):
    """The recompute of a layout: modules of every layer, or whole layers."""

    name: str
    """"none", "selective" or "full"."""
    modules: tuple[str, ...] = ()
    """The modules of "selective"; none stands for the stack's own."""
    layers: int = 0
    """The layers of each chunk that "full" means; 0 stands for all."""


def read_degrees(
    training: Row, cluster: Cluster, architecture: Architecture, stack: Stack, assumed: list[str]
) -> dict[str, Any]:
    """Returns the degrees of parallelism, the ZeRO stage and resharding, as fields of Layout.
    Adds to `assumed` the names of fields that the row does not state."""
    num_devices = cluster.num_devices
    tp = _stated_degree(training, "tp", assumed)
    pp = _stated_degree(training, "pp", assumed)
    cp = _stated_degree(training, "cp", assumed)
    model_parallel = tp * pp * cp
    dp = training.get("dp") or num_devices // model_parallel  # of data-parallel ranks
    # Chips are counted more reliably than dp, which some sources state by a convention of theirs.
    if model_parallel * dp != num_devices and num_devices % model_parallel == 0:
        dp = num_devices // model_parallel
        assumed.append("dp")
    sharding = _sharding(training, stack, dp, pp, assumed)
    dp_shard = sharding["dp_shard"]
    ep = (training.get("ep") or 1) if architecture.is_moe else 1
    etp = training.get("etp") or _expert_tensor_degree(stack, architecture, tp, ep, dp * cp * tp)
    is_sharding_stated = stated_zero_stage(training) is not None or training.get("fsdp_size")
    # `usual_sharding` is "slice": on a torus, shard within a slice, where links are fastest.
    if stack.usual_sharding and cluster.fabric.torus and not is_sharding_stated:
        dp_shard = _shard_within_slice(cluster, dp_shard, tp * cp, ep * etp)
    sequence_parallel = training.get("sequence_parallel")
    if sequence_parallel is None:
        sequence_parallel = True in stack.sequence_parallel
        if tp > 1:
            assumed.append("sequence_parallel")
    return {
        **sharding,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp_shard": dp_shard,
        "dp_replicate": dp // dp_shard,
        "ep": ep,
        "etp": etp,
        "sequence_parallel": bool(sequence_parallel and tp > 1),
    }


def _stated_degree(training: Row, name: str, assumed: list[str]) -> int:
    """Returns a stated degree, or else 1, and adds its name to `assumed`."""
    if training.get(name) is None:
        assumed.append(name)
    return training.get(name) or 1


def _sharding(training: Row, stack: Stack, dp: int, pp: int, assumed: list[str]) -> dict[str, Any]:
    """Returns the ZeRO stage, whether FSDP frees parameters after forward (`reshard`), and the
    degree of sharding, as fields of Layout. A row that states no known kind of sharding gets the
    stack's usual one, and `assumed` the name of that field. `dp` is the number of data-parallel
    ranks."""
    stage = stated_zero_stage(training)
    if stage is None:
        assumed.append("data_parallel_kind")
        # `usual_sharding`, the devices over which ZeRO 3 shards, is of stacks that usually run it.
        stage = 1 if 1 in stack.zero_stages and not stack.usual_sharding else 3
    if stage < 3:  # `reshard` matters at stage 3 alone, and keeps its default
        return {"zero_stage": stage, "reshard": True, "dp_shard": dp if stage else 1}
    kind = data_parallel_kind(training)
    size_in_kind = re.search(r"fsdp\s*(\d+)", kind)  # "dp2 x fsdp256" -> 256
    size = training.get("fsdp_size") or (int(size_in_kind.group(1)) if size_in_kind else 0) or dp
    shard = size if dp % size == 0 else dp  # a size by another count of ranks is not used
    # Under a pipeline FSDP keeps gathered parameters by default.
    keeps_gathered = "no reshard" in kind or (pp > 1 and False in stack.reshard)
    return {"zero_stage": 3, "reshard": not keeps_gathered, "dp_shard": shard}


def _shard_within_slice(
    cluster: Cluster, dp_shard: int, other_degrees: int, expert_ranks: int
) -> int:
    """Returns the degree of sharding of a run that shards within each slice and replicates over
    slices. Returns `dp_shard`, over all slices, where the other axes leave no room within a
    slice. `other_degrees` is tp * cp, and `expert_ranks` is ep * etp."""
    # The part of dp_shard that fits beside tp and cp into the devices of one slice, over which
    # experts must be split evenly, too.
    within_slice = math.gcd(dp_shard, cluster.scale_up_domain // other_degrees)
    has_room = within_slice > 1 and within_slice * other_degrees % expert_ranks == 0
    return within_slice if has_room else dp_shard


def _expert_tensor_degree(
    stack: Stack, architecture: Architecture, tp: int, ep: int, stage_devices: int
) -> int:
    """Returns the tensor parallelism of experts for a row that does not state it: `tp` where the
    stack usually splits experts as it splits dense layers, or can do nothing else, and otherwise
    1. Returns 1, too, where `ep * tp` does not divide the devices of a stage."""
    if stage_devices % (ep * tp):
        return 1
    # Stacks of JAX, which launch a step as one graph, can split experts but usually do not. Under
    # "beside_tensor" experts are always split over tp.
    is_habit = ep > 1 and stack.expert_tensor_parallel and stack.launch != "graph"
    if architecture.is_moe and (is_habit or stack.expert_folding == "beside_tensor"):
        return tp
    return 1


def read_layouts(
    row: Row, problem: Problem, degrees: dict[str, Any], assumed: list[str]
) -> tuple[Layout, ...]:
    """Returns the layouts that a row may mean: one for each combination of schedule, recompute
    and micro-batch that it leaves open. Adds the names of such fields to `assumed`."""
    training = row["training"]
    pp = degrees["pp"]
    num_layers = problem.architecture.num_layers
    # On a torus, devices are numbered as jax does it, in the order that suits these degrees.
    torus_axes = torus_axes_covering_dims(problem, Layout(**degrees))
    offloads_optimizer = "optimizer" in offloaded_states(training)
    layouts: list[Layout] = []
    for schedule, virtual_stages in _possible_schedules(training, problem, pp, assumed):
        chunks = pp * virtual_stages
        is_even = num_layers % chunks == 0
        policies = _recompute_policies(training, problem, num_layers // chunks, assumed)
        for policy in policies:
            # Layouts can have recompute of some layers of a chunk only where chunks are equal.
            # Otherwise all layers are recomputed, which 0 stands for.
            is_part = is_even and policy.layers * chunks < num_layers
            for micro_batch in _micro_batches(row, problem, degrees, assumed):
                layout = Layout(
                    **degrees,
                    torus_axes=torus_axes,
                    micro_batch=micro_batch,
                    schedule=schedule,
                    virtual_stages=virtual_stages,
                    # Stages have different numbers of layers: they must, or the stack cuts by cost.
                    balanced=pp > 1 and (not is_even or problem.stack.splits_by_threshold),
                    recompute=policy.name,
                    recompute_modules=policy.modules,
                    recompute_layers=policy.layers if is_part else 0,
                    offload_activations=_offloads_activations(training),
                    offload_optimizer=offloads_optimizer,
                )
                layouts.append(layout)
    return tuple(layouts)


_UNDESCRIBED = ("v-half", "v-min", "dualpipe-v")
"""Schedules that hold or order micro-batches otherwise than those that the models know."""


def _possible_schedules(
    training: Row, problem: Problem, pp: int, assumed: list[str]
) -> list[tuple[str, int]]:
    """Returns the possible schedules, each with its number of chunks per stage: the stated one,
    or else the plain one and the most interleaved one that the layers allow."""
    if pp == 1:
        return [("1f1b", 1)]  # without a pipeline a schedule changes nothing
    schedules = [_schedule(training, problem, pp, assumed)]
    is_stated = training.get("pp_schedule") or training.get("vpp") is not None
    stage_layers, uneven = divmod(problem.architecture.num_layers, pp)
    can_interleave = "interleaved" in problem.stack.schedules and not uneven and stage_layers > 1
    if can_interleave and not is_stated:
        schedules.append(("interleaved", min(stage_layers, problem.stack.max_virtual_stages)))
    return schedules


def _schedule(training: Row, problem: Problem, pp: int, assumed: list[str]) -> tuple[str, int]:
    """Returns the stated schedule, or else the stack's plain one, and its number of chunks per
    stage. Raises Invalid for a schedule that is not modelled."""
    text = (training.get("pp_schedule") or "").lower()
    num_layers = problem.architecture.num_layers
    stated_vpp = training.get("vpp")
    virtual_stages = stated_vpp if isinstance(stated_vpp, int) else 1
    if isinstance(stated_vpp, str) and "max" in stated_vpp:
        virtual_stages = _max_virtual_stages(num_layers, pp)
    if not text or text == "none":
        assumed.append("schedule")
    if unknown := training.get("schedule_variant") or (text if text in _UNDESCRIBED else None):
        raise Invalid("training.pp_schedule", unknown, "is no schedule that is described")
    if "zbv" in text or text == "zb-v":
        return "zero_bubble_v", 2  # a V goes through every stage twice
    if text.startswith("zb") or "zero" in text:
        return "zero_bubble", 1
    if "dualpipe" in text:
        return "dualpipe", 1
    if virtual_stages > 1:
        return "interleaved", virtual_stages
    if "interleav" in text or text == "1f1b-i":
        assumed.append("virtual_stages")
        if problem.stack.usual_virtual_stages:
            return "interleaved", problem.stack.usual_virtual_stages
        # Many chunks leave a small bubble: take the most per stage, of 2 to 8, that divide the
        # layers, with or without the embedding and the head as two more. 2 is the least.
        fitting = [
            chunks
            for chunks in range(2, 9)
            if 0 in (num_layers % (pp * chunks), (num_layers + 2) % (pp * chunks))
        ]
        return "interleaved", fitting[-1] if fitting else 2
    # A stack has its plain schedule first: afab for stacks of JAX, 1f1b for the others.
    return ("afab", 1) if problem.stack.schedules[0] == "afab" else ("1f1b", 1)


def _max_virtual_stages(num_layers: int, pp: int) -> int:
    """Returns the number of chunks per stage for a row that says "max": one layer in each chunk.
    It is rounded up where at most two chunks are left without a layer, for the embedding and the
    head, and down otherwise."""
    most = -(-num_layers // pp)
    return most if most * pp <= num_layers + 2 else max(num_layers // pp, 1)


def _recompute_policies(
    training: Row, problem: Problem, chunk_layers: int, assumed: list[str]
) -> list[RecomputePolicy]:
    """Returns the recompute policies that a row may mean, such as two modules for
    "selective:core_attn,mlp" and four layers for "full:block,4 layers". A row that states none
    gets those usual in the stack. `chunk_layers` is the number of layers in a chunk. Adds
    "recompute" to `assumed` where the row leaves the policy open."""
    text = training.get("recompute")
    if text is None:
        assumed.append("recompute")
        return _habitual_policies(problem, chunk_layers)
    policy, _, details = text.partition(":")
    stack = problem.stack
    # Stacks that recompute whole layers, and no modules, mean some layers by "selective".
    selects_layers = stack.recompute_layers and "selective" not in stack.recompute
    if policy.startswith("selective") and selects_layers:
        layers = _stated_layers(text, chunk_layers)
        if layers is not None:
            return [RecomputePolicy("full", layers=layers)]
        assumed.append("recompute")
        # The layers may be any; eighths of a chunk, and all of it (0), stand for them.
        return [RecomputePolicy("full", layers=part) for part in (*_eighths(chunk_layers), 0)]
    if policy == "selective":
        stated = details.split(",")
        modules = tuple(name for name in MODULES if name in stated and problem.has_module(name))
        return [RecomputePolicy("selective", modules)]
    if policy in RECOMPUTE:
        blocks = re.fullmatch(r"block,(\d+) layers", details)
        return [RecomputePolicy(policy, layers=int(blocks[1]) if blocks else 0)]
    if policy == "custom" and not _offloads_activations(training):
        # A custom policy keeps the activations that it names, and no row says which: it may
        # recompute some modules, or whole layers.
        assumed.append("recompute")
        modules = tuple(filter(problem.has_module, stack.selective[-1]))
        return [RecomputePolicy("selective", modules), RecomputePolicy("full")]
    # qkv_proj_offloaded keeps queries, keys and values, on the host, and recomputes the rest.
    is_full = policy.startswith(("full", "custom", "qkv"))
    return [RecomputePolicy("full" if is_full else "selective")]


def _habitual_policies(problem: Problem, chunk_layers: int) -> list[RecomputePolicy]:
    """Returns the stack's default recompute policy, and every policy that recomputes more, as a
    run may have done for want of memory."""
    stack = problem.stack
    module_sets = [tuple(filter(problem.has_module, modules)) for modules in stack.selective]
    selective = [modules for modules in dict.fromkeys(module_sets) if modules]
    least = RECOMPUTE.index(stack.default_recompute)  # RECOMPUTE goes from none to full
    policies: list[RecomputePolicy] = []
    for policy in stack.recompute:
        if RECOMPUTE.index(policy) >= least:
            sets = selective if policy == "selective" else [()]
            policies += [RecomputePolicy(policy, modules) for modules in sets]
    if stack.recompute_layers:  # the stack can also recompute only some layers of a chunk
        policies += [RecomputePolicy("full", layers=part) for part in _eighths(chunk_layers)]
    return policies


def _offloads_activations(training: Row) -> bool:
    """Returns True where the row says that activations are offloaded to the host."""
    offload = (training.get("offload") or "").lower()
    # MaxText's decoder_layer_input = offload moves the inputs of layers, which are activations.
    return (
        "decoder_layer" in offload
        or "activations" in offload
        or "offload" in (training.get("recompute") or "")
    )


def _stated_layers(text: str, chunk_layers: int) -> int | None:
    """Returns the number of layers of a chunk that a text states as "8 layers", "1/3" or "0.5".
    As in a layout, 0 stands for all of them. None where the text states no number."""
    # The remainder by `chunk_layers` turns all layers of a chunk into 0.
    count = re.search(r"(\d+) layers", text)
    if count:
        return min(int(count[1]), chunk_layers) % chunk_layers
    share = re.search(r"\b(\d+/[1-9]\d*|0?\.\d+)\b", text)
    if share:
        layers = round(min(float(Fraction(share[1])), 1.0) * chunk_layers)
        return max(layers, 1) % chunk_layers
    return None


def _eighths(layers: int) -> list[int]:
    """Returns one to seven eighths of the layers, rounded down, without 0. They stand for every
    number of recomputed layers that a run may have had, of which trying all would take long."""
    return sorted({layers * eighths // 8 for eighths in range(1, 8)} - {0})


def _micro_batches(row: Row, problem: Problem, degrees: Row, assumed: list[str]) -> tuple[int, ...]:
    """Returns the stated micro-batch, or else all that the run may have had, and then adds
    "micro_batch" to `assumed`. Raises Invalid where the batch has less than one sequence for
    each data-parallel rank."""
    training = row["training"]
    pp = degrees["pp"]
    stack = problem.stack
    dp = degrees["dp_shard"] * degrees["dp_replicate"]
    rank_sequences = problem.workload.global_batch // dp  # of one data-parallel rank in a step
    stated = training.get("micro_batch_size")
    # No layout can have a size that does not divide the sequences of a rank.
    if stated is not None and stated == int(stated) and rank_sequences % int(stated) == 0:
        return (int(stated),)
    accumulation = training.get("grad_accum")
    if accumulation and rank_sequences % accumulation == 0 and rank_sequences:
        return (rank_sequences // accumulation,)
    assumed.append("micro_batch")
    if rank_sequences < 1:
        raise Invalid(
            "training.global_batch_sequences",
            problem.workload.global_batch,
            "less than one sequence a rank",
        )
    # Earlier releases made as many micro-batches as stages, unless told otherwise.
    if pp > 1 and rank_sequences % pp == 0 and is_older_than(row, stack.one_sequence_since):
        return (rank_sequences // pp,)
    if pp == 1 and stack.usual_sequences:
        return tuple(divisors(rank_sequences))  # all sequences at once, or as many as fit
    # 1 is the default of stacks that are not of JAX (whose launch is "graph"). Whoever states
    # recompute but no micro-batch has tuned both.
    is_untuned = training.get("recompute") is None
    if is_untuned and stack.launch != "graph" and problem.architecture.is_moe:
        return (1,)
    return tuple(size for size in divisors(rank_sequences) if size <= _MAX_MICRO_BATCH)
