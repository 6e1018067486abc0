"""How layers fall on the stages of a pipeline: contiguous chunks, one or several to a stage.

Without balancing every stage has an equal number of layers. A balanced split depends on the
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

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.columns import Array, distinct, take_at

_ALTERNATING = 2
"""A model with more runs of layers of one kind than this has kinds that take turns, so that the
rounds of its stages differ."""
_TRIED = 8
"""How many sizes of the largest chunk are tried."""


@dataclass(frozen=True, slots=True)
class Order:
    """The stages of some partitions, one after the other."""

    kind: Array
    """Which of the different stages each stage is; shape (most stages, partitions)."""
    corners: Array
    """The stages where a stretch of equal stages begins or ends; shape (most corners, partitions).
    Shorter columns repeat their last entry."""

    @classmethod
    def of(cls, kind: Array, pp: Array) -> Order:
        """Of kinds (partitions, most stages)."""
        stage, last = np.arange(kind.shape[1]), pp[:, None] - 1
        differs = np.diff(kind, axis=1, prepend=-1) != 0
        begins, ends = differs | (stage == 0), np.roll(differs, -1, axis=1) | (stage == last)
        corner = np.where((begins | ends) & (stage <= last), stage, last)
        most = 1 + int((corner < last).sum(axis=1).max())
        return cls(
            np.ascontiguousarray(kind.T), np.ascontiguousarray(np.sort(corner, axis=1)[:, :most].T)
        )

    def corners_of(self, partition: Array) -> Array:
        """Of pipelines with these partitions, with no more padding than they need, (s, n)."""
        corners = self.corners.take(partition, axis=1)
        return corners[: 1 + int((corners < corners[-1]).any(axis=1).sum())]


@dataclass(frozen=True, slots=True)
class Steady:
    """Paths through chunks that are dealt out in rounds, the longest by what parts cost, where
    stages alternate between forwards and backwards, and where all forwards come first: from stage
    to stage, round after round.

    `passes` (3, parts, u): forwards and backwards that a micro-batch takes on the one, and both
    that it takes on the other; `moves` (u,): down how many stages the first goes with every group
    of micro-batches, and misses as many chunks of both; `last` (u,): where the other one ends.
    Nothing where there is one round, or where kinds of layers do not take turns.
    """

    passes: Array
    moves: Array
    last: Array

    def with_groups(self, rows: Array, group: Array, chunk: Array) -> tuple[Array, Array, Array]:
        """`passes` of some with groups of so many micro-batches, less what they miss of mean chunks
        (parts, n): no more than there is, so that no part makes a path shorter that takes longer
        itself."""
        out, back, ahead = self.passes.take(rows, axis=2)
        missed = self.moves.take(rows) / group * chunk
        return np.maximum(out - missed, 0.0), np.maximum(back - missed, 0.0), ahead

    @classmethod
    def of(cls, begin: Array, order: Array, costs: Array, pp: Array, rounds: Array) -> Steady:
        """Of groups of as many micro-batches as stages; backward is taken to be two thirds of both
        passes."""
        u, kinds = len(pp), len(costs) - 2
        found = cls(np.zeros((3, len(costs), u)), np.zeros(u), np.zeros(u))
        held = _held(begin, order, kinds)
        for p, v in {(int(p), int(v)) for p, v in zip(pp, rounds, strict=True) if v > 1}:
            rows = np.flatnonzero((pp == p) & (rounds == v))
            parts = np.zeros((len(rows), p * v, len(costs)))
            parts[:, :, :kinds] = held[rows, : p * v]
            parts[:, 0, kinds] = parts[:, -1, -1] = 1
            chunks = parts.reshape(len(rows), v, p, len(costs))
            forward, backward = _blocks(chunks)
            path, moves = _cycle(
                (forward + 2 * backward) @ costs / 3, (chunks @ costs).mean(axis=(1, 2)) / p
            )
            ahead = _downwards(chunks @ costs)
            for i, (of, at) in enumerate(((forward, path), (backward, path), (chunks, ahead))):
                on_path = np.take_along_axis(of, at[:, :, None, None], axis=2)[:, :, 0]
                found.passes[i][:, rows] = on_path.sum(axis=1).T
            stays = np.all([(of == of[:, :1]).all(axis=1) for of in (path, ahead)], axis=0)
            found.passes[:, :, rows[stays]] = 0.0
            found.moves[rows], found.last[rows] = moves, ahead[:, -1]
        return found


def _blocks(chunks: Array) -> tuple[Array, Array]:
    """Forwards and backwards of a micro-batch, (u, v, p, parts) each, on every stage while
    backwards are those of one round after the other, from the last one back: of chunks (u, v, p,
    parts). Forwards are a round ahead, and twice as many of them for every stage that follows
    (models.cost.schedules)."""
    _, v, p, _ = chunks.shape
    stage, block = np.arange(p), np.arange(v)[:, None]
    ahead, late = np.divmod(2 * (p - 1 - stage), p)
    share = (late / p)[:, None]
    early, later = ((block - 1 + ahead + more) % v for more in (0, 1))
    return (1 - share) * chunks[:, early, stage] + share * chunks[:, later, stage], chunks[:, ::-1]


def _cycle(values: Array, each: Array) -> tuple[Array, Array]:
    """Of values (u, v, p) the stage of every round, (u, v), on the cycle that has most, where a
    move down takes as much from it as `each` (u,) of the stages moved; and how many those are
    together."""
    u, v, p = values.shape
    stage = np.arange(p)
    lost = np.maximum(stage - stage[:, None], 0) * each[:, None, None]  # from row to column
    best, came = np.zeros((u, p)), []
    for turn in range(2 * v):
        reached = best[:, :, None] - lost
        came.append(reached.argmax(axis=1))
        best = reached.max(axis=1) + values[:, turn % v]
    at, path = best.argmax(axis=1), np.empty((u, v), dtype=np.int64)
    for turn in range(2 * v - 1, v - 1, -1):
        path[:, turn - v] = at
        at = np.take_along_axis(came[turn], at[:, None], axis=1)[:, 0]
    return path, np.maximum(np.diff(path, axis=1, prepend=path[:, -1:]), 0).sum(axis=1)


def _downwards(values: Array) -> Array:
    """Of values (u, v, p) the stage of every round, (u, v), that have most of those that never go
    up."""
    u, v, p = values.shape
    best, came = np.zeros((u, p)), []
    for turn in range(v):
        reached = np.where(np.arange(p) >= np.arange(p)[:, None], best[:, :, None], -np.inf)
        came.append(reached.argmax(axis=1))
        best = reached.max(axis=1) + values[:, turn]
    at, path = best.argmax(axis=1), np.empty((u, v), dtype=np.int64)
    for turn in range(v - 1, -1, -1):
        path[:, turn] = at
        at = np.take_along_axis(came[turn], at[:, None], axis=1)[:, 0]
    return path


@dataclass(frozen=True, slots=True)
class Stages:
    """The different stages of u partitions, at most s each.

    `amounts` (parts, s, u): layers of each kind, then how much of the embedding and of the head a
    stage has. `index` (s, u): the first stage that is like this, which holds no less than the
    others (models.cost.pipeline.in_flight). Padding repeats the last one. Of every partition that
    they were taken from, `order`: how they follow each other, and `rounds` (2, parts, s, all):
    amounts of their chunks of the first and of the last round, where they are dealt out in rounds,
    and `steady`: on which paths these are longest; `code` (u,): which of those each is.
    """

    amounts: Array
    index: Array
    order: Order
    rounds: Array
    steady: Steady
    code: Array

    def take(self, rows: Array) -> Stages:
        """Those of some partitions, with no more padding than they need."""
        most = int(self.different[rows].max(initial=1))
        amounts, index = (
            self.amounts[:, :most].take(rows, axis=2),
            self.index[:most].take(rows, axis=1),
        )
        return Stages(amounts, index, self.order, self.rounds, self.steady, self.code.take(rows))

    def of_rounds(self, rows: Array) -> Array:
        """`rounds` of some, (2, parts, s, rows)."""
        return self.rounds[:, :, : self.amounts.shape[1]].take(self.code.take(rows), axis=3)

    def beside_head(self, kind: int, layers: int) -> Stages:
        """With so many layers of a kind more where the head is."""
        if not layers:
            return self
        amounts, rounds, passes = self.amounts.copy(), self.rounds.copy(), self.steady.passes.copy()
        for values in (amounts, *rounds, *passes):
            values[kind] += layers * values[-1]
        return Stages(
            amounts, self.index, self.order, rounds, replace(self.steady, passes=passes), self.code
        )

    @property
    def different(self) -> Array:
        """How many stages of each partition differ, (u,)."""
        return np.asarray(1 + (np.diff(self.index, axis=0) != 0).sum(axis=0))


def partition(
    runs: Sequence[tuple[int, int]],
    layer_cost: Array,
    head_cost: float,
    pp: Array,
    virtual_stages: Array,
    balanced: Array,
    mirrored: Array,
    folded: Array,
    level: Array | bool = False,
    *,
    by_threshold: bool = False,
    stated: Array | None = None,
) -> Stages:
    """Contiguous chunks of layers for u rows.

    `layer_cost` (k,): a layer of each kind; `head_cost`: output head and MTP, which are in the last
    chunk. Rows that are `balanced` get a split by these costs, or that of nanotron, `by_threshold`;
    the others an equal number of layers, but for those that have them in `stated`, as boundaries
    does. `mirrored` rows (DualPipe) hold chunk i and chunk p-1-i on
    device i, `folded` ones (two chunks in a V) chunk i and chunk 2p-1-i. Stages of `level` ones
    hold as many micro-batches each.
    """
    order = np.repeat([kind for kind, _ in runs], [count for _, count in runs])
    costs = layer_cost[order]
    shape = pp, virtual_stages, balanced, facing(pp, mirrored, folded), level
    begin = boundaries(costs, head_cost, *shape, by_threshold=by_threshold, stated=stated)
    rounds = np.where(mirrored | folded, 1, virtual_stages)
    amounts, of_rounds, index, kind = _different_stages(
        begin, order, len(layer_cost), pp, rounds, mirrored, folded
    )
    costs = np.array([*layer_cost, 0.0, head_cost])
    steady = Steady.of(
        begin, order, costs, pp, rounds if len(runs) > _ALTERNATING else np.ones_like(rounds)
    )
    return Stages(amounts, index, Order.of(kind, pp), of_rounds, steady, np.arange(len(pp)))


def facing(pp: Array, mirrored: Array, folded: Array) -> Array:
    """How many chunks from either end on lie on stages with one from the other end; 0 where none
    do."""
    return np.where(mirrored, pp // 2, np.where(folded, pp, 0))


def boundaries(
    layers: Array,
    head: float,
    pp: Array,
    virtual_stages: Array,
    balanced: Array,
    facing: Array,
    level: Array | bool = False,
    *,
    by_threshold: bool = False,
    stated: Array | None = None,
) -> Array:
    """Where each chunk of layers begins, (u, most chunks + 1); from the last one's end on the
    number of layers. `stated` has the layers of each chunk, (u, chunks), of the rows that are split
    as someone says, and 0 in the others."""
    if stated is not None:
        is_stated = stated.any(axis=1)
        shape = pp, virtual_stages, balanced & ~is_stated, facing, level
        begin = boundaries(layers, head, *shape, by_threshold=by_threshold)
        ends = np.cumsum(stated[is_stated], axis=1)[:, : begin.shape[1] - 1]
        begin[is_stated, 1:] = len(layers)
        begin[is_stated, 1 : 1 + ends.shape[1]] = np.minimum(ends, len(layers))
        return begin
    chunks = pp * virtual_stages
    begin = np.ceil(np.arange(int(chunks.max()) + 1) * len(layers) / chunks[:, None]).astype(
        np.int64
    )
    begin = np.minimum(begin, len(layers))
    rounds = balanced & (virtual_stages > 1) & (pp > 1) & (facing == 0) & (not by_threshold)
    v_shaped = balanced & (facing > 1) & (len(layers) >= chunks) & (not by_threshold)
    if rounds.any():
        begin[rounds] = _in_rounds(layers, head, pp[rounds], virtual_stages[rounds], begin.shape[1])
    for pairs in np.unique(facing[v_shaped]).tolist():
        begin[v_shaped & (facing == pairs)] = _in_v(layers, head, pairs, begin.shape[1])
    whole = balanced & ~rounds & ~v_shaped
    if whole.any():
        split = _thresholds if by_threshold else _balanced
        begin[whole] = split(layers, head, chunks[whole], begin.shape[1])
    levelled = whole & level & (chunks > 2) & (not by_threshold)
    if levelled.any():
        others, before = chunks[levelled] - 1, begin[levelled]
        ends = take_at(before, np.arange(len(before)), others)
        again = _balanced(layers, head, others, begin.shape[1], ends)
        begin[levelled] = np.where(np.arange(begin.shape[1]) < others[:, None], again, before)
    return begin


def _thresholds(layers: Array, head: float, chunks: Array, width: int) -> Array:
    """Where chunks begin (u, width): each takes layers until the cost of all so far passes its
    share of the whole (nanotron src/nanotron/models/base.py, build_model)."""
    upto = np.cumsum(layers)
    begin = np.full((len(chunks), width), len(layers))
    at = np.zeros(len(chunks), dtype=np.int64)
    for chunk in range(width):
        begin[:, chunk] = np.where(chunk < chunks, at, len(layers))
        passed = np.searchsorted(upto, (upto[-1] + head) * (chunk + 1) / chunks, side="right") + 1
        at = np.minimum(np.maximum(passed, at + 1), len(layers))
    return begin


def _balanced(
    layers: Array, head: float, chunks: Array, width: int, ends: Array | None = None
) -> Array:
    """Where chunks begin (u, width), and the number of layers from the last one's end on, so that
    the largest chunk is least: of the sums that stretches of layers have, several tried at once. Of
    all layers and the head, or of the first `ends`."""
    ends = np.full(len(chunks), len(layers)) if ends is None else ends
    single, upto = layers.astype(float), _up_to(layers).astype(float)
    for of in (single, upto):
        of[-1] += head
    sums = np.unique((upto[None, :] - upto[:, None])[np.triu_indices(len(upto), 1)])
    largest = np.maximum.accumulate(single)[ends - 1]
    least = np.maximum(upto[ends] / chunks, largest)
    low = np.searchsorted(sums, least * (1 - 1e-12))
    high = np.minimum(np.searchsorted(sums, least + largest), len(sums) - 1)
    every, to, row = np.tile(chunks, _TRIED), np.tile(ends, _TRIED), np.arange(len(chunks))
    while (low < high).any():
        tried = low + (high - low) * np.arange(_TRIED)[:, None] // _TRIED
        fits = (_filled(upto, every, sums[tried].ravel(), width, to)[:, 0] == 0).reshape(
            tried.shape
        )
        few = _TRIED - fits.sum(axis=0)  # that are too small
        bounds = np.concatenate([low[None] - 1, tried, high[None]])
        low, high = bounds[few, row] + 1, bounds[few + 1, row]
    return _filled(upto, chunks, sums[low], width, ends)


def _in_rounds(layers: Array, head: float, pp: Array, v: Array, width: int) -> Array:
    """Where chunks that are dealt out to several stages in rounds begin (u, width)."""
    n, head = len(layers), head / float(layers.mean())
    on_last, ending = _last_stages(n, head, pp, v)
    pp, v = pp[:, None], v[:, None]
    each, more = np.divmod(n - on_last[:, None], pp - 1)
    chunk = np.arange(width - 1)
    stage, round_ = chunk % pp, chunk // pp
    of_last = np.where(
        round_ < v - 1, _evenly((on_last - ending)[:, None], v - 1, round_), ending[:, None]
    )
    bare, splits = n < pp * v - 1, []  # both ends without a layer
    late = stage >= pp - 1 - more
    for has_more in (late, np.where(bare, late, stage < more)):
        counts = np.where(stage == pp - 1, of_last, _evenly(each + has_more, v, round_))
        counts = np.where(bare & (stage == 0), round_ > 0, counts)
        begin = _up_to(counts).astype(np.int64)
        splits.append(np.where(np.arange(width) < pp * v, begin, n))
    late, early = (
        _slowest(begin, layers, stage, pp) for begin in splits
    )  # the head is on the last stage of both
    return np.where((early < late * (1 - 1e-9))[:, None], splits[1], splits[0])


def _slowest(begin: Array, layers: Array, stage: Array, pp: Array) -> Array:
    """What the layers of the costliest stage but the last cost, (u,), with the `stage` of every
    chunk."""
    rows, width = stage.shape
    place = (np.arange(rows)[:, None] * width + stage).ravel()
    cost = np.bincount(place, np.diff(_up_to(layers)[begin], axis=1).ravel(), rows * width).reshape(
        rows, width
    )
    return np.asarray(np.where(np.arange(width) < pp - 1, cost, 0.0).max(axis=1))


def _in_v(layers: Array, head: float, pp: int, width: int) -> Array:
    """Where the chunks of a V begin (width,)."""
    n, most = len(layers), len(layers) // (2 * pp) + 2
    first, last, early = (grid.ravel()[:, None] for grid in np.indices((most, most + 1, 2)))
    first = first + 1
    each, more = np.divmod(n - first - last, pp - 1)
    stage = np.arange(1, pp)
    held = each + np.where(early == 1, stage <= more, stage >= pp - more)
    counts = np.concatenate([first, (held + 1) // 2, held[:, ::-1] // 2, last], axis=1)
    begin, upto = _up_to(counts), _up_to(layers)
    chunks = np.diff(upto[np.minimum(begin, n)], axis=1)
    chunks[:, -1] += head
    stages = chunks[:, :pp] + chunks[:, : pp - 1 : -1]
    slowest = np.where(each[:, 0] >= 2, stages.max(axis=1), np.inf)
    best = np.lexsort((chunks.max(axis=1), np.round(slowest / upto[-1], 9)))[0]
    return np.concatenate([begin[best, :-1], np.full(width - 2 * pp, n)])


def _up_to(values: Array) -> Array:
    """Their sums up to each, beginning with nothing, along the last axis."""
    nothing = np.zeros_like(values, shape=(*values.shape[:-1], 1))
    return np.concatenate([nothing, np.cumsum(values, axis=-1)], axis=-1)


def _last_stages(n: int, head: float, pp: Array, v: Array) -> tuple[Array, Array]:
    """How many of n layers the last stage has, and its last chunk beside the head, which is worth
    so many, (u,): of equally good numbers the most, since the stages before hold more
    micro-batches."""
    last = np.arange(n, -1, -1)
    most = np.minimum(n - v * (pp - 1) + (n < pp * v - 1), n // pp + 1)
    others = -(-(n - last) // (pp - 1)[:, None])
    stages = np.where(
        (last <= most[:, None]) & (last >= v[:, None] - 1), np.maximum(others, last + head), np.inf
    )
    row, at = np.nonzero(stages <= stages.min(axis=1, keepdims=True) * (1 + 1e-12))
    end, round_ = np.arange(n // int((pp * v).min()) + 1, -1, -1), np.arange(int(v.max()))
    rounds, last, others = v[row, None, None], last[at, None, None], others[row, at, None, None]
    of_last = np.where(
        round_ < rounds - 1, _evenly(last - end[:, None], rounds - 1, round_), end[:, None] + head
    )
    longest = np.maximum(_evenly(others, rounds, round_), of_last)
    together = np.where(round_ < rounds, longest, 0.0).sum(axis=2)
    legal = (end <= n // (pp * v)[row, None] + 1) & (last[:, 0] - end >= rounds[:, 0] - 1)
    together = np.where(legal, together, np.inf)
    best = np.lexsort((np.arange(len(row)), together.min(axis=1), row))
    best = best[np.searchsorted(row, np.arange(len(pp)))]
    return last[best, 0, 0], end[together[best].argmin(axis=1)]


def _evenly(count: Array, rounds: Array | int, round_: Array) -> Array:
    """Of so many layers those of a round, the first ones' one more."""
    return count // rounds + (round_ < count % rounds)


def _filled(upto: Array, chunks: Array, bound: Array, width: int, ends: Array) -> Array:
    """Chunks filled up to a bound, from the last of some layers back, so that of all splits within
    it the early stages, which hold most micro-batches, get the fewest. The first begins after layer
    0 where the bound is too tight."""
    begin, at = np.repeat(ends[:, None], width, axis=1), ends
    for chunk in range(int(chunks.max()) - 1, -1, -1):
        reach = np.searchsorted(upto, upto[at] - bound * (1 + 1e-12))
        reach = np.minimum(
            np.maximum(reach, chunk), at - 1
        )  # every chunk before has a layer, and so has this
        at = np.where(chunk < chunks, reach, at)
        begin[:, chunk] = at
    return begin


def stage_of(chunk: Array, pp: Array | int, folded: Array | bool) -> Array:
    """Where chunks lie: on stage after stage, and again from the first, or from the last back."""
    return np.where(folded & (chunk >= pp), (-1 - chunk) % pp, chunk % pp)


def _held(begin: Array, order: Array, kinds: int) -> Array:
    """Layers of each kind in each chunk, (u, chunks, kinds)."""
    of_kind = np.concatenate(
        [np.zeros((1, kinds)), np.cumsum(order[:, None] == np.arange(kinds), axis=0)]
    )
    return np.diff(of_kind[begin], axis=1)


def _different_stages(
    begin: Array, order: Array, kinds: int, pp: Array, rounds: Array, mirrored: Array, folded: Array
) -> tuple[Array, Array, Array, Array]:
    """`amounts`, `rounds` and `index` of Stages, and `kind` of their Order."""
    rows, width = len(pp), int(pp.max())
    held = _held(begin, order, kinds)
    chunk = np.arange(held.shape[1])
    place = np.arange(rows)[:, None] * width + stage_of(chunk, pp[:, None], folded[:, None])

    def by_stage(held: Array) -> list[Array]:
        return [
            np.bincount(place.ravel(), held[:, :, k].ravel(), rows * width).reshape(rows, width)
            for k in range(kinds)
        ]

    stage = np.broadcast_to(np.arange(width), (rows, width))
    last = np.where(folded, 0, pp - 1)[:, None]
    ends = stage == 0, stage == last
    parts = np.stack([*by_stage(held), *ends]).astype(float)
    opposite = np.broadcast_to(np.maximum(pp[:, None] - 1 - stage, 0), parts.shape)
    parts = np.where(
        mirrored[:, None], (parts + np.take_along_axis(parts, opposite, axis=2)) / 2, parts
    )
    of_rounds = np.zeros((2, *parts.shape))
    if (several := rounds > 1).any():
        before, after = (
            (chunk < pp[:, None])[:, :, None],
            (chunk >= (pp * (rounds - 1))[:, None])[:, :, None],
        )
        none = np.zeros_like(ends[0])
        of_rounds[0] = several[:, None] * np.stack([*by_stage(held * before), ends[0], none])
        of_rounds[1] = several[:, None] * np.stack([*by_stage(held * after), none, ends[1]])

    row, stage = np.nonzero(stage < pp[:, None])
    row, stage = (
        row[::-1],
        stage[::-1],
    )  # of stages that are alike, `distinct` names the last it meets
    told_apart = [*2 * parts, *(of_rounds[0, :kinds] + (len(order) + 1) * of_rounds[1, :kinds])]
    alike, code = distinct(row, *(part[row, stage].astype(np.int64) for part in told_apart))
    ordered = np.lexsort((stage[alike], row[alike]))
    start = np.searchsorted(row[alike[ordered]], np.arange(rows + 1))
    kind = np.zeros((rows, width), dtype=np.int64)
    kind[row, stage] = np.argsort(ordered)[code] - start[row]
    row, stage = row[alike[ordered]], stage[alike[ordered]]
    most = np.diff(start).max()
    pick = np.minimum(start[:-1] + np.arange(most)[:, None], start[1:] - 1)
    return (
        parts[:, row[pick], stage[pick]],
        of_rounds[:, :, row[pick], stage[pick]],
        stage[pick],
        kind,
    )
