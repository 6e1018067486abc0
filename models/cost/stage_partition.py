"""How layers fall on the stages of a pipeline: contiguous chunks, one or several to a stage.

Without balancing every chunk has an equal number of layers. A balanced split depends on the
schedule. Each of these makes its first quantity least, then the next one among what is left:

- One chunk a stage, as 1F1B has it: the largest stage, then the number of layers on early stages,
  which hold most micro-batches.
- One chunk a stage where all stages hold as many micro-batches (afab, ZB-H1): the largest stage,
  then the largest stage but the last.
- Several chunks a stage, dealt out in rounds (interleaving): the largest stage, then the sum over
  rounds of each round's largest chunk. Only such splits count as give every stage but the last,
  which has the head, as even a number of layers as can be (one more goes to late stages or, where
  layers differ, to early ones), and every stage chunks as even as can be, the larger ones first.
- A V, where the first stage has both ends of the model, and DualPipe, where the two outermost have:
  the largest stage, then the largest chunk. All other stages have as even a number of layers as can
  be.

Dealt out in rounds, the head's chunk may have no layer and, where there are two layers fewer than
chunks, neither has the embedding's, as in Megatron-LM's splits and Llama 3's (arXiv 2407.21783
§3.3.2).
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
"""A model with more runs of layers of one kind than this has kinds that take turns, so that the
rounds of its stages differ."""
_CACHED_PROBLEMS = 64
"""Of so many problems is kept what their layers cost."""
_ROUNDING = 1e-12
"""Costs that differ by less, relatively, are the same."""


class Layers(NamedTuple):
    """The layers of a model, and the forward FLOPs by which they are split."""

    kind: Array
    """(layers,): of which kind each is."""
    upto: Array
    """(layers + 1,): FLOPs of the layers before each, and at last of all."""
    head: float
    """FLOPs of the head with multi-token prediction."""
    embedding: float
    """FLOPs of the encoder of images, which is beside the first layer (Problem.encoder_flops)."""
    costs: Array
    """(parts,): FLOPs of a layer of each kind, of the embedding, and of the head alone."""
    mtp_layers: int
    """Layers of multi-token prediction, which are like the last layer and where the head is."""
    take_turns: bool
    by_threshold: bool
    """Whether balanced splits are nanotron's."""


class Shape(NamedTuple):
    """What of a layout decides how its layers fall on stages."""

    pp: int
    virtual_stages: int
    schedule: int
    balanced: bool
    stated: bool
    """Whether the layout says how many layers each chunk has."""


SHAPE = record_type(Shape)


class Scratch(NamedTuple):
    """Room for the chunks of a partition, and for a path through them."""

    held: Array
    """(chunks, parts): layers of each kind that chunks have, and which of the ends."""
    cost: Array
    """(chunks,)"""
    best: Array
    """(2 * rounds + 1, stages): what the longest path to a stage costs before each round."""
    came: Array
    """(2 * rounds, stages): from which stage that path comes."""
    paths: Array
    """(2, rounds): the stages of the longest paths."""


def partitions(problem: Problem, layouts: Layouts) -> tuple[StageTables, Array]:
    """The partitions that layouts have, each once, and the number of each layout's."""
    _, tables, code = splits(problem, layouts)
    return tables, code


def splits(problem: Problem, layouts: Layouts) -> tuple[Array, StageTables, Array]:
    """The same, after where the chunks of each partition begin."""
    shapes, code = _distinct_shapes(layouts)
    return *partition(layers_of(problem), shapes), code


def layers_of_chunks(problem: Problem, layouts: Layouts) -> list[list[list[int]]]:
    """Of each layout's partition, the kinds of the layers of each chunk, in the order of the
    model."""
    shapes, code = _distinct_shapes(layouts)
    layers = layers_of(problem)
    kinds, begin = layers.kind.tolist(), partition(layers, shapes)[0].tolist()
    ends = (shapes.pp * shapes.virtual_stages + 1).tolist()
    return [[kinds[a:b] for a, b in pairwise(begin[shape][: ends[shape]])] for shape in code]


def _distinct_shapes(layouts: Layouts) -> tuple[Layouts, Array]:
    """One layout of every shape there is, and the number of each layout's shape."""
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
    """Those that are split over stages. They are shared by all who ask: nobody writes to them."""
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
    """Where the chunks of each shape begin, (u, most chunks + 1), from the last one's end on the
    number of layers; and the stages that they make."""
    x, u, parts = shapes, len(shapes), len(layers.costs)
    chunks = int((x.pp * x.virtual_stages).max(initial=1))
    stages, rounds = int(x.pp.max(initial=1)), int(x.virtual_stages.max(initial=1))
    columns = x.pp, x.virtual_stages, x.schedule, x.balanced, x.states_layers
    records = np.array(list(zip(*columns, strict=True)), dtype=SHAPE)
    begin = np.empty((u, chunks + 1), dtype=np.int64)
    scratch = Scratch(
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
        corners=np.zeros((u, stages), dtype=np.int64),
        corner_count=np.zeros(u, dtype=np.int64),
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
    scratch: Scratch,
    tables: StageTables,
) -> None:
    """Of shapes of which some have `stated` (u, chunks) layers; into tables that are all 0."""
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
        _with_least_largest(layers, chunks, n, layers.head, begin)
        if holds_equal_micro_batches(shape.schedule) and chunks > 2:
            _with_least_largest(layers, chunks - 1, begin[chunks - 1], 0.0, begin)


@compiled
def _faces(shape: Shape) -> bool:
    """Whether chunks from both ends of the model face each other on a stage, of which DualPipe has
    two."""
    return shape.schedule in (ZERO_BUBBLE_V, DUALPIPE)


@compiled
def _is_dealt_out(shape: Shape) -> bool:
    return shape.virtual_stages > 1 and shape.pp > 1 and not _faces(shape)


@compiled
def _up_to_thresholds(layers: Layers, chunks: int, begin: Array) -> None:
    """Each takes layers until the cost of all so far passes its share of the whole (nanotron
    src/nanotron/models/base.py, build_model)."""
    n, at = len(layers.kind), 0
    for chunk in range(chunks):
        begin[chunk] = at
        threshold = (layers.upto[n] + layers.head) * (chunk + 1) / chunks
        at = min(at + 1, n)
        while at < n and layers.upto[at] <= threshold:
            at += 1


@compiled
def _with_least_largest(layers: Layers, chunks: int, end: int, head: float, begin: Array) -> None:
    """Chunks of the layers before `end`, beside the last one the head, and beside the first the
    encoder of images. The largest is no less than the mean chunk and than a single layer; from
    there on it grows to the next size that lets some chunk take one layer more, until all layers
    are in chunks."""
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
    """Fills chunks up to the largest, from the last one back, so that of all splits within it the
    early stages, which hold most micro-batches, get the fewest layers; each gets one. Layers are
    left before the first where that is too small. Returns the least size with which some chunk
    takes one layer more."""
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
    """Chunks that are dealt out to several stages, to late ones one more; or to early ones, where
    that makes the slowest stage before the last faster."""
    n = len(layers.kind)
    on_last, ending = _last_stage(n, layers.head / (layers.upto[n] / n), pp, v)
    _deal(n, pp, v, on_last, ending, True, begin)
    late = _slowest_before_last(layers, pp, v, begin)
    _deal(n, pp, v, on_last, ending, False, begin)
    if _slowest_before_last(layers, pp, v, begin) >= late * (1 - 1e-9):
        _deal(n, pp, v, on_last, ending, True, begin)


@compiled
def _last_stage(n: int, head: float, pp: int, v: int) -> tuple[int, int]:
    """How many of n layers the last stage has, and its last chunk beside the head, which is worth
    so many, for the least largest stage and then the least sum of largest chunks. Of equally good
    numbers these are the most, since the stages before hold more micro-batches."""
    bare = n < pp * v - 1  # neither end of the model has a layer beside it
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
                on_last, ending, least = last, end, together
    return on_last, ending


@compiled
def _evenly(count: int, rounds: int, round_: int) -> int:
    """Of so many layers those of a round, the first ones' one more."""
    return count // rounds + (1 if round_ < count % rounds else 0)


@compiled
def _deal(n: int, pp: int, v: int, on_last: int, ending: int, late: bool, begin: Array) -> None:
    """Gives the last stage so many layers, and so many of them beside the head; and other stages as
    many each, or one more to `late` ones or to early ones."""
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
    """What the layers of the costliest stage but the last cost."""
    slowest = 0.0
    for stage in range(pp - 1):
        cost = 0.0
        for chunk in range(stage, pp * v, pp):
            cost += layers.upto[begin[chunk + 1]] - layers.upto[begin[chunk]]
        slowest = max(slowest, cost)
    return slowest


@compiled
def _in_v(layers: Layers, stages: int, begin: Array) -> None:
    """Chunks of which each stage has one from either end of the model; of DualPipe's stages, two
    have the same. Tries all numbers of layers for the first and the last chunk that may be best."""
    n = len(layers.kind)
    most = n // (2 * stages) + 2
    best = 0, 0, False
    least = np.inf, np.inf
    for first in range(1, most + 1):
        for last in range(most + 1):
            if (n - first - last) // (stages - 1) < 2:
                continue  # some chunk would have no layer
            for early in (False, True):
                largest = _fill_v(layers, stages, first, last, early, begin)
                if largest < least:
                    best, least = (first, last, early), largest
    _fill_v(layers, stages, *best, begin)


@inlined
def _fill_v(
    layers: Layers, stages: int, first: int, last: int, early: bool, begin: Array
) -> tuple[float, float]:
    """Gives the first and the last chunk so many layers, and other stages as many each, or one more
    to `early` ones or to late ones; more of them on the way down. Returns what the largest stage
    costs, in billionths of all layers, and the largest chunk."""
    upto, down, up = layers.upto, 0, len(layers.kind)
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
    """Writes the stages that differ, in the order in which they first come, which of them each
    stage is, and where stretches of equal ones begin or end."""
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
            tables.corners[i, tables.corner_count[i]] = stage
            tables.corner_count[i] += 1


@compiled
def _set_stage(
    shape: Shape, held: Array, stage: int, tables: StageTables, i: int, place: int
) -> None:
    """Writes what a stage has, and what of it in the first and in the last round."""
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
def _set_paths(layers: Layers, shape: Shape, scratch: Scratch, tables: StageTables, i: int) -> None:
    """Writes the paths through chunks that are dealt out in rounds, the longest by what parts cost,
    where stages alternate between forwards and backwards, and where all forwards come first: from
    stage to stage, round after round. Nothing where both stay on one stage.

    The first goes down the pipeline with every group of micro-batches, taken to be as many as
    stages, and misses as many chunks of both passes as it goes down stages.
    """
    pp, rounds, costs, held = shape.pp, shape.virtual_stages, layers.costs, scratch.held
    alternating, ahead = scratch.paths[0, :rounds], scratch.paths[1, :rounds]
    chunks = pp * rounds
    for chunk in range(chunks):
        scratch.cost[chunk] = weighed(held[chunk], costs)
    stays = _set_longest_path(pp, rounds, rounds, 0.0, np.inf, scratch, ahead)
    for chunk in range(chunks):
        both = 0.0  # of which backward is taken to be two thirds
        for part in range(len(costs)):
            out, back = _passes(held, pp, rounds, chunk, part)
            both += (out + 2 * back) * costs[part]
        scratch.cost[chunk] = both / 3
    missed = (layers.upto[-1] + layers.head) / chunks / pp
    if _set_longest_path(pp, rounds, 2 * rounds, missed, 0.0, scratch, alternating) and stays:
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
    """Forwards and backwards of a part that a micro-batch has on a stage while backwards are those
    of one round after the other, from the last one back: `chunk` counts these. Forwards are a round
    ahead, and twice as many of them for every stage that follows (models.cost.schedules)."""
    round_, stage = divmod(chunk, pp)
    ahead, late = divmod(2 * (pp - 1 - stage), pp)
    early = held[(round_ - 1 + ahead) % rounds * pp + stage, part]
    later = held[(round_ + ahead) % rounds * pp + stage, part]
    share = late / pp
    return (1 - share) * early + share * later, held[(rounds - 1 - round_) * pp + stage, part]


@compiled
def _set_longest_path(
    pp: int, rounds: int, turns: int, down: float, up: float, scratch: Scratch, path: Array
) -> bool:
    """Writes the stage of each round on the path through chunks that costs most, after so many
    turns; a move takes `down` or `up` from it for every stage that it goes. Returns whether the
    path is on one stage."""
    best, came = scratch.best, scratch.came
    best[0, :pp] = 0.0
    for turn in range(turns):
        for stage in range(pp):
            longest = -np.inf
            for other in range(pp):
                lost = (stage - other) * down if other <= stage else (other - stage) * up
                if best[turn, other] - lost > longest:
                    longest = best[turn, other] - lost
                    came[turn, stage] = other
            best[turn + 1, stage] = longest + scratch.cost[turn % rounds * pp + stage]
    end = stage = int(best[turns, :pp].argmax())
    stays = True
    for turn in range(turns - 1, turns - 1 - rounds, -1):
        path[turn % rounds] = stage
        stays = stays and stage == end
        stage = came[turn, stage]
    return stays
