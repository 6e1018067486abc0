"""The rules of pipelines: schedules, virtual stages, and the split of layers over chunks.

A function whose docstring states a rule returns for each of n layouts whether it obeys, (n,); the
function after it words the error (models.layouts.rule.Rule).

A *chunk* is what a stage has of the layers, or with virtual stages one of its parts. A *V* is the
schedule zero_bubble_v, with two virtual stages.
"""

from __future__ import annotations

import numpy as np

from models.columns import Array
from models.layouts.rule import Rule, holds_for_all, is_one_of
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
)
from models.spec.problem import Problem


def _schedule_offered(problem: Problem, layouts: Layouts) -> Array:
    """The stack runs the schedule."""
    offered = [SCHEDULES.index(name) for name in problem.stack.schedules]
    # Without a pipeline these schedules are plain gradient accumulation, which every stack has.
    without_pipeline = (layouts.pp == 1) & is_one_of(layouts.schedule, (ONE_F_ONE_B, AFAB))
    return is_one_of(layouts.schedule, offered) | without_pipeline


def _schedule_message(problem: Problem, layout: Layout) -> str:
    return (
        f"stack {problem.stack.id} runs {', '.join(problem.stack.schedules)}, not {layout.schedule}"
    )


def _schedule_shape(problem: Problem, layouts: Layouts) -> Array:
    """The schedule has as many stages, virtual stages and micro-batches as it is made for."""
    m = layouts.num_micro_batches(problem.workload.global_batch)
    not_virtual = layouts.virtual_stages == 1
    # Without a pipeline these two are plain gradient accumulation.
    without_pipeline = is_one_of(layouts.schedule, (ONE_F_ONE_B, AFAB)) & not_virtual
    interleaved = (layouts.virtual_stages >= 2) & (m >= layouts.pp)
    # Interleaving passes micro-batches through a chunk in groups. A stack has groups of any size,
    # of equal size (as many groups as pp goes into m), or of pp micro-batches ("stages").
    if problem.stack.micro_batch_groups == "equal":
        interleaved &= m % np.maximum(m // layouts.pp, 1) == 0
    elif problem.stack.micro_batch_groups == "stages":
        interleaved &= m % layouts.pp == 0
    # What stacks ask of the micro-batches of a schedule without virtual stages.
    enough = {"any": m > 0, "stages": m >= layouts.pp, "multiple": m % layouts.pp == 0}
    plain = not_virtual & enough[problem.stack.plain_micro_batches]
    # DualPipe sends half of the micro-batches from either end.
    both_ways = not_virtual & (layouts.pp % 2 == 0) & (m >= 2 * layouts.pp) & (m % 2 == 0)
    with_pipeline = (
        (is_one_of(layouts.schedule, (ONE_F_ONE_B, AFAB, ZERO_BUBBLE)) & plain)
        | ((layouts.schedule == INTERLEAVED) & interleaved)
        | ((layouts.schedule == ZERO_BUBBLE_V) & (layouts.virtual_stages == 2))
        | ((layouts.schedule == DUALPIPE) & both_ways)
    )
    return np.where(layouts.pp == 1, without_pipeline, with_pipeline)


def _virtual_stages_offered(problem: Problem, layouts: Layouts) -> Array:
    """The stack has virtual stages, where the layout has any, and has them for hybrid models where
    the model is one."""
    # problem.max_virtual_stages is 1 for a hybrid model that the stack cannot interleave. Without a
    # pipeline the rule schedule_shape refuses virtual stages.
    return (layouts.virtual_stages == 1) | (problem.max_virtual_stages > 1) | (layouts.pp == 1)


def _no_virtual_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that the stack has no virtual stages, or none for hybrid models."""
    of_hybrids = " of hybrid models" if problem.stack.max_virtual_stages > 1 else ""
    return (
        f"stack {problem.stack.id} runs at most 1 virtual stages{of_hybrids}, not"
        f" {layout.virtual_stages}"
    )


def _virtual_stages_searched(problem: Problem, layouts: Layouts) -> Array:
    """A device has no more virtual stages than `stack.max_virtual_stages`."""
    # The rule virtual_stages_offered refuses the layout where the stack has no virtual stages, and
    # schedule_shape where there is no pipeline.
    return (
        (layouts.virtual_stages <= problem.max_virtual_stages)
        | (problem.max_virtual_stages == 1)
        | (layouts.pp == 1)
    )


def _many_virtual_message(problem: Problem, layout: Layout) -> str:
    return (
        f"layouts are searched up to stack.max_virtual_stages({problem.max_virtual_stages}), and"
        f" this has {layout.virtual_stages}: raise that field"
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


def _shape_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that says which virtual stages and micro-batches the schedule needs, and
    which the layout has."""
    if layout.pp == 1:
        got = f"got {layout.schedule} with virtual_stages({layout.virtual_stages})"
        return f"without a pipeline the schedule is 1f1b or afab, with virtual_stages(1); {got}"
    # The batch may be too small for the ranks, which another rule refuses.
    m = max(problem.workload.global_batch // (layout.dp * layout.micro_batch), 1)
    # 1F1B, all-forward-all-backward and ZB-H1 need the same.
    plain = f"virtual_stages(1){_PLAIN_MICRO_BATCHES[problem.stack.plain_micro_batches]}"
    needs = _SCHEDULE_NEEDS.get(layout.schedule, plain)
    # Only the text of "interleaved" has the placeholder {groups}.
    needs = needs.format(groups=_INTERLEAVED_GROUPS[problem.stack.micro_batch_groups])
    return (
        f"{layout.schedule} needs {needs}; got virtual_stages({layout.virtual_stages}) and {m}"
        f" micro-batches with pp({layout.pp})"
    )


def _layers_divide(problem: Problem, layouts: Layouts) -> Array:
    """There are enough layers for all chunks of the pipeline, and the same number for each unless
    the layout is `balanced`."""
    chunks = layouts.pp * layouts.virtual_stages
    layers = problem.architecture.num_layers
    # With interleaving, the embedding and the head may each be a chunk without layers
    # (models.cost.pipeline.stage_partition).
    empty_chunks = 2 * (layouts.schedule == INTERLEAVED)
    return np.where(layouts.balanced, chunks <= layers + empty_chunks, layers % chunks == 0)


def _layers_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that says how the layers must divide into the pipeline's chunks."""
    layers, chunks = problem.architecture.num_layers, layout.pp * layout.virtual_stages
    of_degrees = f"pp({layout.pp}) * virtual_stages({layout.virtual_stages})"
    if not layout.balanced and chunks <= layers:
        return f"{layers} layers must divide into {chunks} chunks of one length, {of_degrees}"
    free = ", of which the first and the last may have none" * (layout.schedule == "interleaved")
    return f"{layers} layers must be enough for {chunks} chunks, {of_degrees}{free}"


def _stated_layers_add_up(problem: Problem, layouts: Layouts) -> Array:
    """`layers_per_chunk` adds up to the layers of the model, gives each chunk at least one, except
    the first and the last of `interleaved`, and goes with a stack that can split so.

    Chunks without layers are those of an embedding or a head by itself, which only chunks that are
    dealt out in rounds may be. nanotron takes no stated split: it splits layers by their cost.
    """
    if not layouts.states_layers.any():
        return holds_for_all(layouts)
    # (n, most chunks of any layout)
    stated = layouts.stated_layers
    chunk = np.arange(stated.shape[1])
    chunks = (layouts.pp * layouts.virtual_stages)[:, None]
    is_end = (chunk == 0) | (chunk == chunks - 1)
    may_be_empty = (layouts.schedule == INTERLEAVED)[:, None] & is_end
    # Columns beyond a layout's own chunks are no chunks, and need no layers.
    filled = (stated > 0) | may_be_empty | (chunk >= chunks)
    adds_up = (stated.sum(axis=1) == problem.architecture.num_layers) & filled.all(axis=1)
    return ~layouts.states_layers | (adds_up & (not problem.stack.splits_by_threshold))


def _stated_layers_message(problem: Problem, layout: Layout) -> str:
    """Return the words that follow "layers_per_chunk": why the stack takes no such split, what the
    layers add up to, or that a chunk is empty."""
    if problem.stack.splits_by_threshold:
        return f"stack {problem.stack.id} splits layers by their cost; leave it out"
    given, layers = sum(layout.layers_per_chunk), problem.architecture.num_layers
    if given != layers:
        return f"adds up to {given}, must to the {layers} layers of {problem.architecture.name}"
    ends = ", but for the first and the last" if layout.schedule == "interleaved" else ""
    return f"{list(layout.layers_per_chunk)}: each chunk needs a layer{ends}"


def _tied_embedding_in_pipeline(problem: Problem, layouts: Layouts) -> Array:
    """A model that ties its embedding to its head has no pipeline, unless the stack can share them
    between stages."""
    may_tie = problem.stack.ties_in_pipeline or not problem.architecture.tie_word_embeddings
    return (layouts.pp == 1) | may_tie


def _tie_message(problem: Problem, layout: Layout) -> str:
    return (
        f"stack {problem.stack.id} has no pipeline for a model that ties its embedding to its head"
        " (tie_word_embeddings)"
    )


def _mtp_offered(problem: Problem, layouts: Layouts) -> Array:
    """A model with multi-token prediction has neither a pipeline nor context parallelism, unless
    the stack has it together with these."""
    if not (problem.stack.mtp_alone and problem.architecture.mtp_layers):
        return holds_for_all(layouts)
    return (layouts.pp == 1) & (layouts.cp == 1)


def _mtp_message(problem: Problem, layout: Layout) -> str:
    return (
        f"stack {problem.stack.id} has multi-token prediction without pipeline and context"
        f" parallelism only; got pp({layout.pp}), cp({layout.cp}); mtp_layers 0 leaves it out"
    )


def _accumulation_offered(problem: Problem, layouts: Layouts) -> Array:
    """Where the stack accumulates no gradients in fp8 on these chips, there is one micro-batch
    only, or a pipeline.

    MaxText configs/types.py. The micro-batches of its pipelines share one backward pass, which
    accumulates nothing.
    """
    cannot_accumulate = (
        problem.workload.precision == "fp8"
        and problem.cluster.chip.vendor in problem.stack.fp8_at_once_on
    )
    is_single = layouts.num_micro_batches(problem.workload.global_batch) <= 1
    return (layouts.pp > 1) | is_single | (not cannot_accumulate)


def _accumulate_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that says which micro-batch fp8 without accumulation needs."""
    return (
        f"stack {problem.stack.id} accumulates no gradients in fp8 on chips of"
        f" {problem.cluster.chip.vendor}: without a pipeline micro_batch({layout.micro_batch}) must"
        f" be all of a rank's {problem.workload.global_batch // layout.dp} sequences"
    )


def _partition_offered(problem: Problem, layouts: Layouts) -> Array:
    """The stack splits layers over stages as asked: evenly, or by their cost (`balanced`)."""
    if problem.stack.splits_by_threshold:
        # Such a stack gives each stage layers until their cost passes its share, and cannot split
        # evenly.
        return layouts.balanced == (layouts.pp > 1)
    return ~layouts.balanced | ((layouts.pp > 1) & (problem.stack.partition == "balanced"))


def _partition_message(problem: Problem, layout: Layout) -> str:
    if layout.pp == 1:
        return "an uneven split needs pp > 1"
    split = "by their cost" if problem.stack.splits_by_threshold else "evenly only"
    return f"stack {problem.stack.id} splits layers {split}"


def _balancing_needs_all_forwards_first(problem: Problem, layouts: Layouts) -> Array:
    """With `global_batch_loss` there is one micro-batch, or the schedule runs all forward passes
    before the first backward pass.

    An auxiliary loss over the global batch is known only after the forward of every micro-batch,
    unless the stack keeps running statistics for it.
    """
    if not balances_global_batch(problem):
        return holds_for_all(layouts)
    is_single = layouts.num_micro_batches(problem.workload.global_batch) == 1
    return (layouts.schedule == AFAB) | is_single


def balances_global_batch(problem: Problem) -> bool:
    """Say whether there is a load-balancing loss over the global batch that constrains
    schedules."""
    over_global_batch = problem.workload.load_balancing == "global_batch_loss"
    # With running statistics the loss is known before all micro-batches have run.
    return problem.architecture.is_moe and over_global_batch and not problem.stack.running_balance


def _balancing_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that says what a load-balancing loss over the global batch needs, and
    whether the stack lacks the schedule for it."""
    lacks_schedule = layout.pp > 1 and "afab" not in problem.stack.schedules
    return (
        f"load_balancing({problem.workload.load_balancing}), an auxiliary loss over the global"
        " batch, needs every forward before the first backward: one micro-batch, or the"
        " all-forward-all-backward schedule"
        f" (afab){f', which stack {problem.stack.id} lacks' if lacks_schedule else ''}"
    )


PIPELINE_RULES = (
    Rule("layout.schedule", _schedule_offered, _schedule_message),
    Rule("layout.schedule", _schedule_shape, _shape_message),
    Rule("layout.virtual_stages", _virtual_stages_offered, _no_virtual_message),
    Rule("layout.virtual_stages", _virtual_stages_searched, _many_virtual_message, kind="search"),
    Rule("layout.layers_per_chunk", _stated_layers_add_up, _stated_layers_message),
    Rule("layout.pp", _layers_divide, _layers_message),
    Rule("layout.pp", _tied_embedding_in_pipeline, _tie_message),
    Rule("layout.pp", _mtp_offered, _mtp_message),
    Rule("layout.micro_batch", _accumulation_offered, _accumulate_message),
    Rule("layout.balanced", _partition_offered, _partition_message),
    Rule("layout.schedule", _balancing_needs_all_forwards_first, _balancing_message),
)
