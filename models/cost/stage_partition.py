"""The split of layers over the stages of a pipeline, in contiguous chunks, one or several to a
stage.

Without balancing, every chunk has an equal number of layers. A balanced split depends on the
schedule. Each schedule below minimises its first quantity, and then the next one among the splits
that are left:

- One chunk a stage, as 1F1B has it: the largest stage, then the number of layers on early stages,
  which hold most micro-batches.
- One chunk a stage where all stages hold as many micro-batches (afab, ZB-H1): the largest stage,
  then the largest stage but the last.
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

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from models.columns import Array, distinct
from models.compilation.compiled import compiled, inlined
from models.cost.facts import record_type
from models.cost.pipeline import holds_equal_micro_batches, weighed
from models.cost.rows import StageTables
from models.spec.identity import cached_by_identity
from models.spec.layout import DUALPIPE, ZERO_BUBBLE_V, Layouts
from models.spec.problem import Problem

_ALTERNATING = 2
"""The number of runs of layers of one kind beyond which kinds take turns, so that the rounds of a
stage differ."""
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
    """Holds the layers of a model, and the forward FLOPs by which they are split."""

    kind: Array
    """The kind of each layer, (layers,)."""
    upto: Array
    """FLOPs of the layers before each, and at last of all layers, (layers + 1,)."""
    head: float
    """FLOPs of the head with multi-token prediction."""
    embedding: float
    """FLOPs of the encoder of images, which is beside the first layer (Problem.encoder_flops)."""
    costs: Array
    """FLOPs of a layer of each kind, of the embedding, and of the head alone, (parts,)."""
    mtp_layers: int
    """Layers of multi-token prediction, which are like the last layer and lie beside the head."""
    take_turns: bool
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


class ChunkScratch(NamedTuple):
    """Buffers for the chunks of a partition, and for a path through them."""

    held: Array
    """Layers of each kind that a chunk has, and which of the ends, (chunks, parts)."""
    cost: Array
    """FLOPs of each chunk, (chunks,)."""
    best: Array
    """The cost of the longest path to each stage before each round, (2 * rounds + 1, stages)."""
    came: Array
    """The stage from which the longest path to a stage comes, (2 * rounds, stages)."""
    paths: Array
    """The stages of the longest paths, (2, rounds)."""


def partitions(problem: Problem, layouts: Layouts) -> tuple[StageTables, Array]:
    """Return the partitions that layouts have, each once, and the number of each layout's."""
    _, tables, code = splits(problem, layouts)
    return tables, code


def splits(problem: Problem, layouts: Layouts) -> tuple[Array, StageTables, Array]:
    """Return the first layer of each chunk of the partitions that layouts have; the partitions,
    each once; and the number of each layout's."""
    shapes, code = _distinct_shapes(layouts)
    return *partition(layers_of(problem), shapes), code


def layers_of_chunks(problem: Problem, layouts: Layouts) -> list[list[list[int]]]:
    """Return, for each layout, the kinds of the layers of each chunk, in the order of the model."""
    shapes, code = _distinct_shapes(layouts)
    layers = layers_of(problem)
    kinds, begin = layers.kind.tolist(), partition(layers, shapes)[0].tolist()
    ends = (shapes.pp * shapes.virtual_stages + 1).tolist()
    return [[kinds[a:b] for a, b in pairwise(begin[shape][: ends[shape]])] for shape in code]


def _distinct_shapes(layouts: Layouts) -> tuple[Layouts, Array]:
    """Return one layout of every shape that occurs, and the number of each layout's shape."""
    if len(layouts) == 1:
        return layouts, np.zeros(1, dtype=np.int64)
    x = layouts
    columns = [x.pp, x.virtual_stages, x.schedule, x.balanced]
    if x.states_layers.any():
        columns.append(np.unique(x.layers_per_chunk, return_inverse=True)[1].ravel())
    first, code = distinct(*columns)
    return x.take(first), code


@cached_by_identity(_CACHED_PROBLEMS)
def layers_of(problem: Problem) -> Layers:
    """Return the layers that are split over stages. The result is shared through a cache: nobody
    may write to it."""
    architecture = problem.architecture
    runs, mtp_layers = architecture.layer_runs, architecture.mtp_layers
    layer_costs, head = problem.forward_flops
    kind = np.repeat(*np.array(runs).T)
    embedding = problem.encoder_flops
    costs = np.array([*layer_costs, embedding, head - mtp_layers * layer_costs[kind[-1]]])
    return Layers(
        kind=kind,
        upto=np.append(0.0, costs[kind].cumsum()),
        head=head,
        embedding=embedding,
        costs=costs,
        mtp_layers=mtp_layers,
        take_turns=len(runs) > _ALTERNATING,
        by_threshold=problem.stack.splits_by_threshold,
    )


def partition(layers: Layers, shapes: Layouts) -> tuple[Array, StageTables]:
    """Return the first layer of each chunk of each shape, (u, most chunks + 1), and the stages that
    chunks make. From the end of the last chunk on, the first layers are the number of layers."""
    x = shapes
    u = len(shapes)
    parts = len(layers.costs)
    chunks = int((x.pp * x.virtual_stages).max(initial=1))
    stages, rounds = int(x.pp.max(initial=1)), int(x.virtual_stages.max(initial=1))
    columns = x.pp, x.virtual_stages, x.schedule, x.balanced, x.states_layers
    records = np.array(list(zip(*columns, strict=True)), dtype=SHAPE)
    begin = np.empty((u, chunks + 1), dtype=np.int64)
    scratch = ChunkScratch(
        held=np.empty((chunks, parts)),
        cost=np.empty(chunks),
        best=np.empty((2 * rounds + 1, stages)),
        came=np.empty((2 * rounds, stages), dtype=np.int64),
        paths=np.empty((2, rounds), dtype=np.int64),
    )
    tables = StageTables(
        different=np.zeros(u, dtype=np.int64),
        amounts=np.zeros((u, stages, parts)),
        first_alike=np.zeros((u, stages), dtype=np.int64),
        kind=np.zeros((u, stages), dtype=np.int64),
        stretch_ends=np.zeros((u, stages), dtype=np.int64),
        stretch_end_count=np.zeros(u, dtype=np.int64),
        first=np.zeros((u, stages, parts)),
        last=np.zeros((u, stages, parts)),
        path_out=np.zeros((u, parts)),
        path_back=np.zeros((u, parts)),
        path_ahead=np.zeros((u, parts)),
        path_moves=np.zeros(u),
        path_last=np.zeros(u),
    )
    _partition_all(layers, records, x.stated_layers, begin, scratch, tables)
    return begin, tables


@compiled
def _partition_all(
    layers: Layers,
    shapes: Array,
    stated: Array,
    begin: Array,
    scratch: ChunkScratch,
    tables: StageTables,
) -> None:
    """Write the partitions of shapes into tables that are all 0. `stated` (u, chunks) has the
    layers of those shapes that state them."""
    for i in range(len(shapes)):
        _split(layers, shapes[i], stated[i], begin[i])
        _set_chunks(layers, shapes[i], begin[i], scratch.held)
        _set_stages(shapes[i], scratch.held, tables, i)
        if layers.take_turns and _is_dealt_out(shapes[i]):
            _set_paths(layers, shapes[i], scratch, tables, i)


# -- where chunks begin


@compiled
def _split(layers: Layers, shape: Shape, stated: Array, begin: Array) -> None:
    n, pp = len(layers.kind), shape.pp
    chunks = pp * shape.virtual_stages
    begin[:] = n
    if shape.stated:
        begin[0] = 0
        for chunk in range(chunks):
            begin[chunk + 1] = min(begin[chunk] + stated[chunk], n)
    elif not shape.balanced or n < chunks - (2 if _is_dealt_out(shape) else 0):
        for chunk in range(chunks):
            begin[chunk] = -(-chunk * n // chunks)
    elif layers.by_threshold:
        _up_to_thresholds(layers, chunks, begin)
    elif _is_dealt_out(shape):
        _in_rounds(layers, pp, shape.virtual_stages, begin)
    elif _faces(shape) and chunks >= 4:
        _in_v(layers, chunks // 2, begin)
    else:
        _minimise_largest_chunk(layers, chunks, n, layers.head, begin)
        if holds_equal_micro_batches(shape.schedule) and chunks > 2:
            _minimise_largest_chunk(layers, chunks - 1, begin[chunks - 1], 0.0, begin)


@compiled
def _faces(shape: Shape) -> bool:
    """Say whether chunks from both ends of the model lie on one stage. Under DualPipe, two stages
    have the same chunks."""
    return shape.schedule in (ZERO_BUBBLE_V, DUALPIPE)


@compiled
def _is_dealt_out(shape: Shape) -> bool:
    return shape.virtual_stages > 1 and shape.pp > 1 and not _faces(shape)


@compiled
def _up_to_thresholds(layers: Layers, chunks: int, begin: Array) -> None:
    """Write where chunks begin. Each chunk takes layers until the cost of all layers so far passes
    its share of the whole (nanotron src/nanotron/models/base.py, build_model)."""
    n, at = len(layers.kind), 0
    for chunk in range(chunks):
        begin[chunk] = at
        threshold = (layers.upto[n] + layers.head) * (chunk + 1) / chunks
        at = min(at + 1, n)
        while at < n and layers.upto[at] <= threshold:
            at += 1


@compiled
def _minimise_largest_chunk(
    layers: Layers, chunks: int, end: int, head: float, begin: Array
) -> None:
    """Write where chunks of the layers before `end` begin. The last chunk has the head beside its
    layers, and the first the encoder of images.

    The largest chunk is no less than the mean chunk and no less than any single layer. From there
    on its size grows to the next one that lets some chunk take one layer more, until all layers are
    in chunks.
    """
    upto, first = layers.upto, layers.embedding
    largest = max((first + upto[end] + head) / chunks, upto[end] + head - upto[end - 1])
    largest = max(largest, first + upto[1])
    for layer in range(end):
        largest = max(largest, layers.costs[layers.kind[layer]])
    begin[0] = end
    while begin[0] > 0:
        largest = _fill_back(layers, chunks, end, head, largest, begin)


@compiled
def _fill_back(
    layers: Layers, chunks: int, end: int, head: float, largest: float, begin: Array
) -> float:
    """Fill chunks up to the size `largest`, from the last one back. Of all splits within that size,
    this one gives the fewest layers to early stages, which hold most micro-batches. Each chunk gets
    a layer at least. Layers are left before the first chunk where the size is too small. Return the
    least size with which some chunk takes one layer more."""
    upto, least = layers.upto, np.inf
    for chunk in range(chunks - 1, -1, -1):
        whole, first = upto[end] + head, end - 1
        if chunk == 0:
            whole += layers.embedding
        while first > chunk and whole - upto[first - 1] <= largest * (1 + _ROUNDING):
            first -= 1
        if first > chunk:
            least = min(least, whole - upto[first - 1])
        begin[chunk] = end = first
        head = 0.0
    return least


@compiled
def _in_rounds(layers: Layers, pp: int, v: int, begin: Array) -> None:
    """Write where chunks begin that are dealt out to stages in rounds. Late stages have the layers
    that are left over; or early ones, where that makes the slowest stage before the last faster."""
    n = len(layers.kind)
    on_last, ending = _last_stage(n, layers.head / (layers.upto[n] / n), pp, v)
    _deal(n=n, pp=pp, v=v, on_last=on_last, ending=ending, late=True, begin=begin)
    late = _slowest_before_last(layers, pp, v, begin)
    _deal(n=n, pp=pp, v=v, on_last=on_last, ending=ending, late=False, begin=begin)
    if _slowest_before_last(layers, pp, v, begin) >= late * (1 - _LEAST_GAIN):
        _deal(n=n, pp=pp, v=v, on_last=on_last, ending=ending, late=True, begin=begin)


@compiled
def _last_stage(n: int, head: float, pp: int, v: int) -> tuple[int, int]:
    """Return how many of n layers the last stage has, and how many of these lie beside the head,
    which costs as much as `head` layers. The numbers minimise the largest stage, and then the sum
    of largest chunks. Of equally good numbers the largest are taken, since the stages before hold
    more micro-batches."""
    bare = n < pp * v - 1  # With so few layers, neither end of the model has one beside it.
    most = min(n - v * (pp - 1) + (1 if bare else 0), n // pp + 1)
    on_last = ending = 0
    slowest = least = np.inf
    for last in range(most, v - 2, -1):
        before = -(-(n - last) // (pp - 1))
        stage = max(before, last + head)
        if stage > slowest * (1 + _ROUNDING):
            continue
        if stage < slowest * (1 - _ROUNDING):
            slowest, least = stage, np.inf
        for end in range(min(n // (pp * v) + 1, last - v + 1), -1, -1):
            earlier = 0
            for round_ in range(v - 1):
                earlier += max(_evenly(before, v, round_), _evenly(last - end, v - 1, round_))
            together = earlier + max(_evenly(before, v, v - 1), end + head)
            if together < least * (1 - _ROUNDING):
                on_last = last
                ending = end
                least = together
    return on_last, ending


@compiled
def _evenly(count: int, rounds: int, round_: int) -> int:
    """Return the number of layers in one of `rounds` rounds that share `count` layers evenly. The
    first rounds have one more where they do not divide."""
    return count // rounds + (1 if round_ < count % rounds else 0)


@compiled
def _deal(n: int, pp: int, v: int, on_last: int, ending: int, late: bool, begin: Array) -> None:
    """Write where chunks begin, with `on_last` layers on the last stage and `ending` of them beside
    the head. The other stages have as many each, or one more on `late` stages, or else on early
    ones."""
    each, more = divmod(n - on_last, pp - 1)
    bare = n < pp * v - 1
    begin[0] = 0
    for chunk in range(pp * v - 1):
        round_, stage = divmod(chunk, pp)
        if stage == pp - 1:
            count = _evenly(on_last - ending, v - 1, round_)
        elif bare and stage == 0:
            count = min(round_, 1)
        else:
            has_more = stage >= pp - 1 - more if late or bare else stage < more
            count = _evenly(each + has_more, v, round_)
        begin[chunk + 1] = begin[chunk] + count


@compiled
def _slowest_before_last(layers: Layers, pp: int, v: int, begin: Array) -> float:
    """Return the FLOPs of the layers of the costliest stage but the last."""
    slowest = 0.0
    for stage in range(pp - 1):
        cost = 0.0
        for chunk in range(stage, pp * v, pp):
            cost += layers.upto[begin[chunk + 1]] - layers.upto[begin[chunk]]
        slowest = max(slowest, cost)
    return slowest


@compiled
def _in_v(layers: Layers, stages: int, begin: Array) -> None:
    """Write where chunks begin of which each stage has one from either end of the model. Two of
    DualPipe's stages have the same chunks. All numbers of layers for the first and the last chunk
    are tried that may be best."""
    n = len(layers.kind)
    most = n // (2 * stages) + 2
    best = 0, 0, False
    least = np.inf, np.inf
    for first in range(1, most + 1):
        for last in range(most + 1):
            if (n - first - last) // (stages - 1) < 2:
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
    """Give the first and the last chunk `first` and `last` layers, and the other stages as many
    each, or one more to `early` ones, or else to late ones. Chunks on the way down have the odd
    layer of a stage. Return the cost of the largest stage, in billionths of all layers, and of the
    largest chunk."""
    upto = layers.upto
    down = 0
    up = len(layers.kind)
    each, more = divmod(up - first - last, stages - 1)
    largest = largest_chunk = 0.0
    for stage in range(stages):
        held = each + (stage <= more if early else stage >= stages - more)
        down_end = down + (first if stage == 0 else (held + 1) // 2)
        up_begin = up - (last if stage == 0 else held // 2)
        cost_down = upto[down_end] - upto[down] + (layers.embedding if stage == 0 else 0.0)
        cost_up = upto[up] - upto[up_begin] + (layers.head if stage == 0 else 0.0)
        largest = max(largest, cost_down + cost_up)
        largest_chunk = max(largest_chunk, cost_down, cost_up)
        begin[stage], begin[2 * stages - 1 - stage] = down, up_begin
        down, up = down_end, up_begin
    # Whole billionths tie where costs differ by rounding only, and the largest chunk then decides.
    return np.rint(largest / upto[-1] * 1e9), largest_chunk


# -- stages


@compiled
def _set_chunks(layers: Layers, shape: Shape, begin: Array, held: Array) -> None:
    chunks = shape.pp * shape.virtual_stages
    held[:chunks] = 0.0
    for chunk in range(chunks):
        for layer in range(begin[chunk], begin[chunk + 1]):
            held[chunk, layers.kind[layer]] += 1
    held[0, -2] = held[chunks - 1, -1] = 1.0
    held[chunks - 1, layers.kind[-1]] += layers.mtp_layers


@compiled
def _set_stages(shape: Shape, held: Array, tables: StageTables, i: int) -> None:
    """Write the stages that differ, in the order in which they first come; which of them each stage
    is like; and where stretches of equal stages begin or end."""
    pp, kind = shape.pp, tables.kind[i]
    for stage in range(pp):
        count = tables.different[i]
        _set_stage(shape, held, stage, tables, i, count)
        for like in range(count + 1):
            if _are_alike(tables, i, like, count):
                kind[stage] = like
                break
        if kind[stage] == count:
            tables.first_alike[i, count] = stage
            tables.different[i] += 1
    for stage in range(pp):
        begins = stage == 0 or kind[stage - 1] != kind[stage]
        if begins or stage == pp - 1 or kind[stage + 1] != kind[stage]:
            tables.stretch_ends[i, tables.stretch_end_count[i]] = stage
            tables.stretch_end_count[i] += 1


@compiled
def _set_stage(
    shape: Shape, held: Array, stage: int, tables: StageTables, i: int, place: int
) -> None:
    """Write the parts that a stage has, and which of them are in the first and in the last
    round."""
    chunks = shape.pp * shape.virtual_stages
    for part in range(held.shape[1]):
        amount = 0.0
        if _faces(shape):
            amount = held[stage, part] + held[chunks - 1 - stage, part]
        else:
            for chunk in range(stage, chunks, shape.pp):
                amount += held[chunk, part]
        tables.amounts[i, place, part] = amount / 2 if shape.schedule == DUALPIPE else amount
        if _is_dealt_out(shape):
            tables.first[i, place, part] = held[stage, part]
            tables.last[i, place, part] = held[chunks - shape.pp + stage, part]


@compiled
def _are_alike(tables: StageTables, i: int, one: int, other: int) -> bool:
    for of in (tables.amounts[i], tables.first[i], tables.last[i]):
        for part in range(of.shape[1]):
            if of[one, part] != of[other, part]:
                return False
    return True


# -- paths through rounds that differ


@compiled
def _set_paths(
    layers: Layers, shape: Shape, scratch: ChunkScratch, tables: StageTables, i: int
) -> None:
    """Write the paths that cost most through chunks dealt out in rounds, from stage to stage and
    round after round. One is for stages that alternate between forwards and backwards, the other
    for all forwards first. Write nothing where both stay on one stage.

    The first path goes down the pipeline with every group of micro-batches, which is taken to have
    as many as there are stages. It misses as many chunks of both passes as it goes down stages.
    """
    pp = shape.pp
    rounds = shape.virtual_stages
    costs = layers.costs
    held = scratch.held
    alternating, ahead = scratch.paths[0, :rounds], scratch.paths[1, :rounds]
    chunks = pp * rounds
    for chunk in range(chunks):
        scratch.cost[chunk] = weighed(held[chunk], costs)
    stays = _set_longest_path(
        pp=pp, rounds=rounds, rounds_walked=rounds, down=0.0, up=np.inf, scratch=scratch, path=ahead
    )
    for chunk in range(chunks):
        # Both passes, of which backward is taken to be two thirds.
        both = 0.0
        for part in range(len(costs)):
            out, back = _passes(held, pp, rounds, chunk, part)
            both += (out + 2 * back) * costs[part]
        scratch.cost[chunk] = both / 3
    missed = (layers.upto[-1] + layers.head) / chunks / pp
    stays_alternating = _set_longest_path(
        pp=pp,
        rounds=rounds,
        rounds_walked=2 * rounds,
        down=missed,
        up=0.0,
        scratch=scratch,
        path=alternating,
    )
    if stays_alternating and stays:
        return
    tables.path_last[i] = ahead[-1]
    for round_ in range(rounds):
        tables.path_moves[i] += max(alternating[round_] - alternating[round_ - 1], 0)
        for part in range(len(costs)):
            out, back = _passes(held, pp, rounds, round_ * pp + alternating[round_], part)
            tables.path_out[i, part] += out
            tables.path_back[i, part] += back
            tables.path_ahead[i, part] += held[round_ * pp + ahead[round_], part]


@compiled
def _passes(held: Array, pp: int, rounds: int, chunk: int, part: int) -> tuple[float, float]:
    """Return the forwards and backwards of a part that a micro-batch has on a stage while stages
    alternate. Backwards then come one round after the other, from the last one back; `chunk` counts
    these. Forwards are a round ahead, and two more forwards for every stage that follows
    (models.cost.schedules)."""
    round_, stage = divmod(chunk, pp)
    ahead, late = divmod(2 * (pp - 1 - stage), pp)
    early = held[(round_ - 1 + ahead) % rounds * pp + stage, part]
    later = held[(round_ + ahead) % rounds * pp + stage, part]
    share = late / pp
    return (1 - share) * early + share * later, held[(rounds - 1 - round_) * pp + stage, part]


@compiled
def _set_longest_path(
    pp: int,
    rounds: int,
    rounds_walked: int,
    down: float,
    up: float,
    scratch: ChunkScratch,
    path: Array,
) -> bool:
    """Write the stage of each round on the path through chunks that costs most, once it has
    `rounds_walked`. A move costs the path `down` or `up` for every stage that it goes. Return
    whether the path is on one stage."""
    best, came = scratch.best, scratch.came
    best[0, :pp] = 0.0
    for walked in range(rounds_walked):
        for stage in range(pp):
            longest = -np.inf
            for other in range(pp):
                lost = (stage - other) * down if other <= stage else (other - stage) * up
                if best[walked, other] - lost > longest:
                    longest = best[walked, other] - lost
                    came[walked, stage] = other
            best[walked + 1, stage] = longest + scratch.cost[walked % rounds * pp + stage]
    end = stage = int(best[rounds_walked, :pp].argmax())
    stays = True
    for walked in range(rounds_walked - 1, rounds_walked - 1 - rounds, -1):
        path[walked % rounds] = stage
        stays = stays and stage == end
        stage = came[walked, stage]
    return stays
