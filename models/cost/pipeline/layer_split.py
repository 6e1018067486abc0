"""The split of layers over the stages of a pipeline, in contiguous chunks, one or several to a
stage.

The *size* of a stage or chunk is its forward FLOPs. A *round* is one chunk on every stage.

Without balancing, every chunk has an equal number of layers. A balanced split depends on the
schedule. Each schedule below minimises its first quantity, and then the next one among the splits
that are left:

- One chunk a stage, as 1F1B has it: the largest stage, then the number of layers on early stages,
  which hold the activations of most micro-batches.
- One chunk a stage where all stages hold equally many micro-batches (all forwards first, ZB-H1):
  the largest stage, then the largest stage but the last.
- Several chunks a stage, dealt out in rounds (interleaving): the largest stage, then the sum over
  rounds of each round's largest chunk. A split counts only if numbers of layers are as even as can
  be. Every stage but the last, which has the head, then has as many layers, or one more; these go
  to late stages or, where layers differ, to early ones. Every stage's chunks are as even as can be
  too, the larger ones first.
- A V, where the first stage has both ends of the model, and DualPipe, where the two outermost have:
  the largest stage, then the largest chunk. All other stages have as even a number of layers as can
  be.

Where chunks are dealt out in rounds, the head's chunk may have no layer. Where there are two layers
fewer than chunks, the embedding's chunk may have none either, as in Megatron-LM's splits and Llama
3's (arXiv 2407.21783 §3.3.2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled, inlined
from models.cost.facts import record_type
from models.cost.pipeline.bubble import holds_equal_micro_batches
from models.spec.identity import cached_by_identity
from models.spec.layout import DUALPIPE, ZERO_BUBBLE_V
from models.spec.problem import Problem

_MOST_RUNS = 2
"""Kinds of layers count as alternating in a model that has more runs of equal layers than this.
Dense layers that are followed by sparse ones are two runs, and do not alternate."""
_CACHED_PROBLEMS = 64
"""The number of problems whose layers and costs are kept. All layouts of a problem share them; the
number bounds memory."""
_ROUNDING = 1e-12
"""Costs that differ by no more than this, relatively, count as equal, so that rounding decides
nothing."""
_LEAST_GAIN = 1e-9
"""The share by which the slowest stage has to get faster for early stages to have the layers that
are left over. The sums that are compared add up other layers, so that rounding tells them apart by
some 1e-13 at most, and a gain of a billionth is worth no change of partition."""


class Layers(NamedTuple):
    """Holds the layers of a model, and the forward FLOPs by which they are split. Their parts are
    the kinds of layers, the embedding and the head."""

    kind: Array
    """The kind of each layer, (layers,)."""
    flops_before: Array
    """FLOPs of the layers before each, and at last of all layers, (layers + 1,)."""
    head: float
    """FLOPs of the head with multi-token prediction."""
    encoder: float
    """FLOPs of the encoder of images, which is beside the first layer (Problem.encoder_flops)."""
    costs: Array
    """FLOPs of a layer of each kind, of the embedding, and of the head alone, (parts,)."""
    mtp_layers: int
    """Layers of multi-token prediction, which are like the last layer and lie beside the head."""
    take_turns: bool
    """True where kinds alternate through the model, so that the rounds of a stage differ."""
    by_threshold: bool
    """True where balanced splits are nanotron's."""


class Shape(NamedTuple):
    """Holds the part of a layout that decides how its layers are split over stages."""

    pp: int
    virtual_stages: int
    schedule: int
    balanced: bool
    stated: bool
    """True where the layout says how many layers each chunk has."""


SHAPE = record_type(Shape)
"""The dtype of records of Shape."""


@cached_by_identity(_CACHED_PROBLEMS)
def layers_of(problem: Problem) -> Layers:
    """Return the layers of a problem, with their forward FLOPs for one token, by which they are
    split over stages. The result is shared through a cache: nobody may write to it."""
    architecture = problem.architecture
    runs, mtp_layers = architecture.layer_runs, architecture.mtp_layers
    layer_costs, head = problem.forward_flops
    kind = np.repeat(*np.array(runs).T)  # runs are pairs of a kind and a number of layers
    encoder = problem.encoder_flops
    # `head` has multi-token prediction in it, whose layers `costs` counts like others.
    costs = np.array([*layer_costs, encoder, head - mtp_layers * layer_costs[kind[-1]]])
    return Layers(
        kind=kind,
        flops_before=np.append(0.0, costs[kind].cumsum()),
        head=head,
        encoder=encoder,
        costs=costs,
        mtp_layers=mtp_layers,
        take_turns=len(runs) > _MOST_RUNS,
        by_threshold=problem.stack.splits_by_threshold,
    )


@compiled
def split_layers(layers: Layers, shape: Shape, stated: Array, begin: Array) -> None:
    """Write the first layer of each chunk into `begin`, (most chunks + 1,); entries beyond the last
    chunk become the number of layers. Where the layout states the split (`shape.stated`), `stated`
    has its layers per chunk. This module's docstring has the rules of balanced splits."""
    num_layers = len(layers.kind)
    chunks = shape.pp * shape.virtual_stages
    in_rounds = goes_in_rounds(shape)
    # In rounds, the chunks of the embedding and of the head may have no layer.
    fewest_layers = chunks - (2 if in_rounds else 0)
    begin[:] = num_layers
    if shape.stated:
        begin[0] = 0
        for chunk in range(chunks):
            begin[chunk + 1] = min(begin[chunk] + stated[chunk], num_layers)
    # Chunks of equal length, or of lengths that differ by one; with too few layers some are empty.
    elif not shape.balanced or num_layers < fewest_layers:
        for chunk in range(chunks):
            begin[chunk] = -(-chunk * num_layers // chunks)  # rounded up
    elif layers.by_threshold:
        _split_by_thresholds(layers, chunks, begin)
    elif in_rounds:
        _split_in_rounds(layers, shape.pp, shape.virtual_stages, begin)
    elif is_v_shaped(shape) and chunks >= 4:
        _split_in_v(layers, chunks // 2, begin)
    else:
        _minimise_largest_chunk(layers, chunks, num_layers, layers.head, begin)
        # Equal numbers of micro-batches leave no reason to give early stages fewer layers, so the
        # layers before the last chunk are split evenly. The head (0.0 FLOPs) is not among these.
        if holds_equal_micro_batches(shape.schedule) and chunks > 2:
            _minimise_largest_chunk(layers, chunks - 1, begin[chunks - 1], 0.0, begin)


@compiled
def is_v_shaped(shape: Shape) -> bool:
    """Say whether chunks from both ends of the model lie on one stage. Under DualPipe, two stages
    have the same chunks."""
    return shape.schedule in (ZERO_BUBBLE_V, DUALPIPE)


@compiled
def goes_in_rounds(shape: Shape) -> bool:
    """Say whether chunks are dealt out to the stages in several rounds (interleaving)."""
    return shape.virtual_stages > 1 and shape.pp > 1 and not is_v_shaped(shape)


@inlined
def _flops_between(layers: Layers, begin: int, end: int) -> float:
    """Return the FLOPs of the layers from `begin` to the one before `end`."""
    return layers.flops_before[end] - layers.flops_before[begin]


@compiled
def _split_by_thresholds(layers: Layers, chunks: int, begin: Array) -> None:
    """Write the first layer of each chunk, as nanotron splits. Chunk i takes layers until the
    FLOPs of all layers so far exceed (i + 1) / chunks of the total (nanotron
    src/nanotron/models/base.py, build_model)."""
    num_layers = len(layers.kind)
    layer = 0
    for chunk in range(chunks):
        begin[chunk] = layer
        threshold = (layers.flops_before[num_layers] + layers.head) * (chunk + 1) / chunks
        # At least one layer, while there are any.
        layer = min(layer + 1, num_layers)
        while layer < num_layers and layers.flops_before[layer] <= threshold:
            layer += 1


@compiled
def _minimise_largest_chunk(
    layers: Layers, chunks: int, end: int, head: float, begin: Array
) -> None:
    """Write the first layer of each chunk of layers 0 to `end` - 1, such that the largest chunk
    costs least. The last chunk also has the head, of `head` FLOPs, and the first the encoder of
    images.

    The search starts from a lower bound of the largest chunk: the mean chunk, or the largest layer.
    It raises this size to the next one that lets some chunk take one layer more, until chunks hold
    all layers.
    """
    flops_before = layers.flops_before
    mean = (layers.encoder + flops_before[end] + head) / chunks
    last_layer = flops_before[end] + head - flops_before[end - 1]
    first_layer = layers.encoder + flops_before[1]
    largest = max(mean, last_layer, first_layer)
    for layer in range(end):
        largest = max(largest, layers.costs[layers.kind[layer]])
    # Chunks are filled from the last: while the first begins after layer 0, layers are left over.
    begin[0] = end
    while begin[0] > 0:
        largest = _fill_from_last_chunk(layers, chunks, end, head, largest, begin)


@compiled
def _fill_from_last_chunk(
    layers: Layers, chunks: int, end: int, head: float, largest: float, begin: Array
) -> float:
    """Fill chunks with up to `largest` FLOPs each, from the last chunk back, and write their first
    layers to `begin`. Each gets at least one layer. Of all splits within that size, this one gives
    the fewest layers to early stages, which hold the activations of most micro-batches.

    Return the least size with which some chunk would take one layer more. If `largest` is too
    small, layers are left over and `begin[0]` stays above 0.
    """
    flops_before = layers.flops_before
    next_size = np.inf
    for chunk in range(chunks - 1, -1, -1):
        up_to_end = flops_before[end] + head
        first = end - 1
        if chunk == 0:
            up_to_end += layers.encoder
        # Each earlier chunk is left a layer, so `first` is at least their number.
        while first > chunk and up_to_end - flops_before[first - 1] <= largest * (1 + _ROUNDING):
            first -= 1
        if first > chunk:
            next_size = min(next_size, up_to_end - flops_before[first - 1])
        begin[chunk] = end = first
        head = 0.0  # Only the last chunk has it.
    return next_size


@compiled
def _split_in_rounds(layers: Layers, pp: int, rounds: int, begin: Array) -> None:
    """Write the first layer of each chunk of an interleaved split, in which chunk i is on stage
    i % pp. Layers left over by an even split go to late stages, unless the slowest stage before the
    last is faster with them on early ones."""
    num_layers = len(layers.kind)
    # The head's FLOPs over those of a mean layer.
    head_in_layers = layers.head / (layers.flops_before[num_layers] / num_layers)
    last = _last_stage(num_layers, head_in_layers, pp, rounds)
    _deal_out(num_layers, pp, rounds, last, late=True, begin=begin)
    slowest_if_late = _largest_stage_but_last(layers, pp, rounds, begin)
    _deal_out(num_layers, pp, rounds, last, late=False, begin=begin)
    slowest_if_early = _largest_stage_but_last(layers, pp, rounds, begin)
    # `begin` has the early split now, and keeps it only where that is faster.
    if slowest_if_early >= slowest_if_late * (1 - _LEAST_GAIN):
        _deal_out(num_layers, pp, rounds, last, late=True, begin=begin)


class _LastStage(NamedTuple):
    """Holds numbers of layers of the last stage of a pipeline in rounds."""

    layers: int
    """Layers in all its chunks."""
    beside_head: int
    """Layers in its last chunk, which has the head."""


@compiled
def _last_stage(num_layers: int, head: float, pp: int, rounds: int) -> _LastStage:
    """Return how many layers the last stage gets of an interleaved split, in all and beside the
    head, which costs as much as `head` layers. They minimise the largest stage, then the sum over
    rounds of the largest chunk. Ties go to the larger number, since earlier stages hold the
    activations of more micro-batches."""
    bare_ends = _has_bare_ends(num_layers, pp, rounds)  # the embedding's chunk has no layer
    # At most one layer more than a mean stage, and as many as leave every other chunk a layer,
    # except the embedding's where ends are bare.
    most = min(num_layers - rounds * (pp - 1) + (1 if bare_ends else 0), num_layers // pp + 1)
    best = _LastStage(0, 0)
    least_stage = least_sum = np.inf
    # The last stage needs a layer in every round but that of the head.
    for on_last in range(most, rounds - 2, -1):
        on_other = -(-(num_layers - on_last) // (pp - 1))  # rounded up
        largest_stage = max(on_other, on_last + head)
        if largest_stage > least_stage * (1 + _ROUNDING):
            continue
        if largest_stage < least_stage * (1 - _ROUNDING):
            least_stage, least_sum = largest_stage, np.inf
        # The head's chunk has at most one layer more than a mean chunk, and leaves one for each
        # other round.
        most_beside_head = min(num_layers // (pp * rounds) + 1, on_last - rounds + 1)
        for beside_head in range(most_beside_head, -1, -1):
            largest_chunks = 0  # the sum over rounds, but for the last round, which has the head
            for round_ in range(rounds - 1):
                of_other = _even_share(on_other, rounds, round_)
                of_last = _even_share(on_last - beside_head, rounds - 1, round_)
                largest_chunks += max(of_other, of_last)
            of_other = _even_share(on_other, rounds, rounds - 1)
            sum_of_largest = largest_chunks + max(of_other, beside_head + head)
            if sum_of_largest < least_sum * (1 - _ROUNDING):
                best = _LastStage(on_last, beside_head)
                least_sum = sum_of_largest
    return best


@inlined
def _has_bare_ends(num_layers: int, pp: int, rounds: int) -> bool:
    """Say whether there are so few layers that neither the embedding nor the head has one in its
    chunk: at least two fewer than chunks."""
    return num_layers < pp * rounds - 1


@compiled
def _even_share(count: int, rounds: int, round_: int) -> int:
    """Return the number of layers in round `round_` where `rounds` rounds share `count` layers
    evenly. The first rounds get the remainder, one layer each: 7 layers in 3 rounds are 3, 2, 2."""
    return count // rounds + (1 if round_ < count % rounds else 0)


@compiled
def _deal_out(
    num_layers: int, pp: int, rounds: int, last: _LastStage, late: bool, begin: Array
) -> None:
    """Write the first layer of each chunk of an interleaved split, given the layers of the last
    stage. The other stages share the rest evenly. The remainder goes to late stages, one layer
    each, if `late`, and otherwise to early ones."""
    per_stage, remainder = divmod(num_layers - last.layers, pp - 1)
    bare_ends = _has_bare_ends(num_layers, pp, rounds)
    begin[0] = 0
    for chunk in range(pp * rounds - 1):
        round_, stage = divmod(chunk, pp)
        if stage == pp - 1:
            # Its last chunk, which has the head, comes after this loop and takes what is left.
            count = _even_share(last.layers - last.beside_head, rounds - 1, round_)
        elif bare_ends and stage == 0:
            count = min(round_, 1)  # no layer beside the embedding, one in each later round
        else:
            # Bare ends leave the embedding's stage a layer short, so the remainder goes to others.
            is_late = stage >= pp - 1 - remainder
            has_more = is_late if late or bare_ends else stage < remainder
            count = _even_share(per_stage + has_more, rounds, round_)
        begin[chunk + 1] = begin[chunk] + count


@compiled
def _largest_stage_but_last(layers: Layers, pp: int, rounds: int, begin: Array) -> float:
    """Return the forward FLOPs of the layers of the costliest stage before the last, where `begin`
    has the first layer of each chunk of an interleaved split. The last stage has the same layers in
    all splits that are compared by it."""
    largest = 0.0
    for stage in range(pp - 1):
        cost = 0.0
        for chunk in range(stage, pp * rounds, pp):
            cost += _flops_between(layers, begin[chunk], begin[chunk + 1])
        largest = max(largest, cost)
    return largest


@compiled
def _split_in_v(layers: Layers, stages: int, begin: Array) -> None:
    """Write the first layer of each chunk of a V, in which stage i has chunks i and
    2 * stages - 1 - i. (DualPipe has each such pair on two stages, which count as one here.) All
    sizes of the first and the last chunk that may be best are tried; the split with the smallest
    largest stage wins, then the one with the smallest largest chunk."""
    num_layers = len(layers.kind)
    # The ends of the model add to the cost of their chunks, so that these have at most two layers
    # more than a mean chunk.
    most = num_layers // (2 * stages) + 2
    best = 0, 0, False
    least = np.inf, np.inf
    # The head's chunk may be without layers, the embedding's may not.
    for first in range(1, most + 1):
        for last in range(most + 1):
            if (num_layers - first - last) // (stages - 1) < 2:
                continue  # A stage needs a layer for each of its two chunks.
            for early in (False, True):
                largest = _fill_v(layers, stages, first, last, early, begin)
                if largest < least:
                    best, least = (first, last, early), largest
    _fill_v(layers, stages, *best, begin)


@inlined
def _fill_v(
    layers: Layers, stages: int, first: int, last: int, early: bool, begin: Array
) -> tuple[float, float]:
    """Write to `begin` the first layer of each chunk of a V whose first and last chunk have `first`
    and `last` layers. The other stages share the rest evenly; the remainder goes to early stages,
    one layer each, if `early`, and otherwise to late ones. An odd layer of a stage is in its chunk
    on the way down.

    Return the cost of the largest stage, in billionths of the FLOPs of all layers, and of the
    largest chunk, in FLOPs.
    """
    down = 0
    up = len(layers.kind)
    per_stage, remainder = divmod(up - first - last, stages - 1)
    largest = largest_chunk = 0.0
    for stage in range(stages):
        # Stage 0 has the first and the last chunk, so that the others count from 1.
        has_more = stage <= remainder if early else stage >= stages - remainder
        held = per_stage + has_more
        down_end = down + (first if stage == 0 else (held + 1) // 2)
        up_begin = up - (last if stage == 0 else held // 2)
        cost_down = _flops_between(layers, down, down_end) + (layers.encoder if stage == 0 else 0.0)
        cost_up = _flops_between(layers, up_begin, up) + (layers.head if stage == 0 else 0.0)
        largest = max(largest, cost_down + cost_up)
        largest_chunk = max(largest_chunk, cost_down, cost_up)
        begin[stage] = down
        begin[2 * stages - 1 - stage] = up_begin
        down = down_end
        up = up_begin
    # Whole billionths tie where costs differ by rounding only, and the largest chunk then decides.
    return np.rint(largest / layers.flops_before[-1] * 1e9), largest_chunk
