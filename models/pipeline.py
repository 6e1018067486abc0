"""Pipeline schedules: how layers fall on stages, what is in flight, and the bubble.

Closed forms, with F, B, W the forward, full backward and weight-gradient seconds a micro-batch spends on a stage,
m micro-batches and p stages. A discrete-event simulation of the same schedules agrees (tests): for any stages
under afab, for equal stages under 1f1b, interleaved, (F = W, as in its paper) zero_bubble, (W <= I <= F) dualpipe and
(m >= 2p-1, W <= F <= I) zero_bubble_v, and closely for others; with unequal stages 1f1b and interleaved are upper
bounds, since a slow early stage hides part of its fill behind warm-up forwards.

schedule      idle time of stage s, besides m (F+B) of work                       source
afab          ΣF + (m-1) max F + ΣB + (m-1) max B - m (F+B)                       GPipe, arXiv 1811.06965
1f1b          Σ(F+B) over the other stages                                        arXiv 2006.09503
interleaved   Σ(F+B)/v over the other stages                                      arXiv 2104.04473 §2.2
zero_bubble   Σ(F+B-2W) over the other stages (ZB-H1: no stage waits for W, and   arXiv 2401.10241 table 2
              with p micro-batches or more p-1 of them fill the bubble, with
              fewer m-1; memory as 1f1b)
zero_bubble_v with I = B-W, of a whole stage, half of                             ScheduleZBVZeroBubble of PyTorch
              2(p-1)(F+I) - (min(m,p)-1)(F + min(F,I)) - 2W max(m-p,0), or of     (torch.distributed.pipelining)
              (p-1) max(I, 2I-2W, 2F-I) if that is more
dualpipe      (p/2-1)(F+B-2W + max(F,I)), which is (p/2-1)(F+B + B - 3W) where    arXiv 2412.19437 table 2
              I is no less than F
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from models.array import Array, distinct
from models.layout import AFAB, DUALPIPE, INTERLEAVED, ZERO_BUBBLE, ZERO_BUBBLE_V


@dataclass(frozen=True, slots=True)
class Stages:
    """The different stages of u partitions, at most s each.

    `amounts` (parts, s, u): layers of each kind, then how much of the embedding and of the head a stage has. `index`
    (s, u): the first stage that is like this, which holds no less than the others (models.pipeline.in_flight).
    Padding repeats the last one.
    """

    amounts: Array
    index: Array

    def take(self, rows: Array) -> Stages:
        return Stages(self.amounts[:, :, rows], self.index[:, rows])


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds of a micro-batch: forward, backward and its weight gradients on the different stages, (s, n); both
    passes, and weight gradients, of all stages, (n,). Weight gradients may be 0 where no schedule moves them."""

    forward: Array
    backward: Array
    weight: Array | float
    total: Array
    total_weight: Array | float


def partition(
    runs: Sequence[tuple[int, int]],
    layer_cost: Array,
    head_cost: float,
    pp: Array,
    virtual_stages: Array,
    balanced: Array,
    mirrored: Array,
    folded: Array,
    *,
    by_threshold: bool = False,
) -> Stages:
    """Contiguous chunks of layers for u rows.

    `layer_cost` (k,): a layer of each kind; `head_cost`: output head and MTP, which stay with the last layer. Rows
    that are `balanced` get the split whose slowest chunk is fastest, or that of nanotron, `by_threshold`; the others an
    equal number of layers.
    `mirrored` rows (DualPipe) hold chunk i and chunk p-1-i on device i, `folded` ones (two chunks in a V) chunk i and
    chunk 2p-1-i.
    """
    order = np.repeat([kind for kind, _ in runs], [count for _, count in runs])
    begin = boundaries(layer_cost[order], head_cost, pp * virtual_stages, balanced, by_threshold=by_threshold)
    return _different_stages(begin, order, len(layer_cost), pp, mirrored, folded)


def boundaries(layers: Array, head: float, chunks: Array, balanced: Array, *, by_threshold: bool = False) -> Array:
    """Where each chunk of layers begins, (u, most chunks + 1); from the last one's end on the number of layers."""
    begin = np.ceil(np.arange(int(chunks.max()) + 1) * len(layers) / chunks[:, None]).astype(np.int64)
    begin = np.minimum(begin, len(layers))
    if balanced.any():
        split = _thresholds if by_threshold else _balanced
        begin[balanced] = split(layers, head, chunks[balanced], begin.shape[1])
    return begin


def _thresholds(layers: Array, head: float, chunks: Array, width: int) -> Array:
    """Where chunks begin (u, width): each takes layers until the cost of all so far passes its share of the whole
    (nanotron src/nanotron/models/base.py, build_model)."""
    upto = np.cumsum(layers)
    begin = np.full((len(chunks), width), len(layers))
    at = np.zeros(len(chunks), dtype=np.int64)
    for chunk in range(width):
        begin[:, chunk] = np.where(chunk < chunks, at, len(layers))
        passed = np.searchsorted(upto, (upto[-1] + head) * (chunk + 1) / chunks, side="right") + 1
        at = np.minimum(np.maximum(passed, at + 1), len(layers))
    return begin


def _balanced(layers: Array, head: float, chunks: Array, width: int) -> Array:
    """Where chunks begin (u, width), and the number of layers from the last one's end on, so that the largest chunk is
    least: by bisection over the sums that stretches of layers have."""
    upto = np.concatenate([[0.0], np.cumsum(layers)])
    upto[-1] += head
    sums = np.unique((upto[None, :] - upto[:, None])[np.triu_indices(len(upto), 1)])
    least = np.maximum(upto[-1] / chunks, max(float(layers[:-1].max(initial=0)), float(layers[-1]) + head))
    low = np.searchsorted(sums, least * (1 - 1e-12))
    high = np.minimum(np.searchsorted(sums, least + layers.max() + head), len(sums) - 1)
    while (low < high).any():
        middle = (low + high) // 2
        fits = _filled(upto, chunks, sums[middle], width)[:, 0] == 0
        low, high = np.where(fits, low, middle + 1), np.where(fits, middle, high)
    return _filled(upto, chunks, sums[low], width)


def _filled(upto: Array, chunks: Array, bound: Array, width: int) -> Array:
    """Chunks filled up to a bound, from the last layer back, so that of all splits within it the early stages, which
    hold most micro-batches, get the fewest layers. The first begins after layer 0 where the bound is too tight."""
    layers = len(upto) - 1
    begin = np.full((len(chunks), width), layers)
    at = np.full(len(chunks), layers)
    for chunk in range(int(chunks.max()) - 1, -1, -1):
        reach = np.searchsorted(upto, upto[at] - bound * (1 + 1e-12))
        reach = np.minimum(np.maximum(reach, chunk), at - 1)  # every chunk before has a layer, and so has this
        at = np.where(chunk < chunks, reach, at)
        begin[:, chunk] = at
    return begin


def stage_of(chunk: Array, pp: Array | int, folded: Array | bool) -> Array:
    """Where chunks lie: on stage after stage, and again from the first, or from the last back."""
    return np.where(folded & (chunk >= pp), (-1 - chunk) % pp, chunk % pp)


def _different_stages(begin: Array, order: Array, kinds: int, pp: Array, mirrored: Array, folded: Array) -> Stages:
    rows, width = len(pp), int(pp.max())
    of_kind = np.concatenate([np.zeros((1, kinds)), np.cumsum(order[:, None] == np.arange(kinds), axis=0)])
    held = np.diff(of_kind[begin], axis=1)
    place = np.arange(rows)[:, None] * width + stage_of(np.arange(held.shape[1]), pp[:, None], folded[:, None])
    counts = [
        np.bincount(place.ravel(), held[:, :, k].ravel(), rows * width).reshape(rows, width) for k in range(kinds)
    ]
    stage = np.broadcast_to(np.arange(width), (rows, width))
    last = np.where(folded, 0, pp - 1)[:, None]
    parts = np.stack([*counts, stage == 0, stage == last]).astype(float)
    opposite = np.broadcast_to(np.maximum(pp[:, None] - 1 - stage, 0), parts.shape)
    parts = np.where(mirrored[:, None], (parts + np.take_along_axis(parts, opposite, axis=2)) / 2, parts)

    row, stage = np.nonzero(stage < pp[:, None])
    row, stage = row[::-1], stage[::-1]  # of stages that are alike, `distinct` names the last it meets
    alike, _ = distinct(row, *((2 * part[row, stage]).astype(np.int64) for part in parts))
    alike = alike[np.lexsort((stage[alike], row[alike]))]
    row, stage = row[alike], stage[alike]
    start = np.searchsorted(row, np.arange(rows + 1))
    most = np.diff(start).max()
    pick = np.minimum(start[:-1] + np.arange(most)[:, None], start[1:] - 1)
    return Stages(parts[:, row[pick], stage[pick]], stage[pick])


def micro_batch_group(pp: Array | int, micro_batches: Array | int) -> Array:
    """Of an interleaved schedule, how many micro-batches pass a chunk of a stage before its next one: the fewest, from
    pp on, that leave no remainder or one of pp or more, so that no stage waits (Megatron-Core schedules.py,
    get_schedule_table; pp in arXiv 2104.04473 §2.2)."""
    pp, m = np.broadcast_arrays(pp, np.maximum(micro_batches, pp))
    shape, pp, m = pp.shape, pp.ravel(), m.ravel()
    group, left = pp.copy(), np.arange(pp.size)
    while len(left):
        rest = m[left] % group[left]
        left = left[(rest > 0) & (rest < pp[left])]
        group[left] += 1
    return group.reshape(shape)


def in_flight(schedule: Array, stage: Array, pp: Array, virtual_stages: Array, micro_batches: Array) -> Array:
    """Micro-batches whose activations a stage holds at its fullest, in units of all the layers it holds."""

    def interleaved() -> Array:
        chunks = 2 * (pp - stage - 1) + (virtual_stages - 1) * micro_batch_group(pp, micro_batches) + 1
        return np.asarray(np.minimum(chunks, micro_batches * virtual_stages) / virtual_stages)

    others: dict[int, Callable[[], Array]] = {
        AFAB: lambda: micro_batches,
        INTERLEAVED: interleaved,
        ZERO_BUBBLE_V: lambda: np.minimum(pp, micro_batches),
        DUALPIPE: lambda: np.minimum(pp + 1, micro_batches),
    }
    return _by_schedule(schedule, np.minimum(pp - stage, micro_batches).astype(float), others)


def moves_weight_gradients(schedule: Array) -> bool:
    """Whether some of the schedules fill their bubble with weight gradients."""
    return bool(np.isin(schedule, (ZERO_BUBBLE, ZERO_BUBBLE_V, DUALPIPE)).any())


def bubble(schedule: Array, pp: Array, virtual_stages: Array, micro_batches: Array, times: StageTimes) -> Array:
    """Seconds that each stage is idle in a step, (s, n)."""
    t, m1 = times, micro_batches - 1
    both = t.forward + t.backward
    fill = t.total - both

    def afab() -> Array:
        slowest = t.forward.max(axis=0) + t.backward.max(axis=0)
        return np.asarray(t.total + m1 * slowest - micro_batches * both)

    def zero() -> Array:
        moved = 1 + np.minimum(m1 / np.maximum(pp - 1, 1), 1.0)
        return np.maximum(fill - moved * (t.total_weight - t.weight), 0.0)

    def zero_v() -> Array:
        to_input = t.backward - t.weight
        begun = (np.minimum(micro_batches, pp) - 1) * (t.forward + np.minimum(t.forward, to_input))
        few = 2 * (pp - 1) * (t.forward + to_input) - begun - 2 * t.weight * np.maximum(micro_batches - pp, 0)
        many = np.maximum(np.maximum(to_input, 2 * (to_input - t.weight)), 2 * t.forward - to_input)
        return np.asarray(np.maximum(few, (pp - 1) * many) / 2)

    def dual() -> Array:
        overlapping = both - 2 * t.weight + np.maximum(t.forward, t.backward - t.weight)
        return np.asarray(np.maximum((pp / 2 - 1) * overlapping, 0.0))

    others: dict[int, Callable[[], Array]] = {
        AFAB: afab,
        INTERLEAVED: lambda: fill / virtual_stages,
        ZERO_BUBBLE: zero,
        ZERO_BUBBLE_V: zero_v,
        DUALPIPE: dual,
    }
    return _by_schedule(schedule, fill, others)


def _by_schedule(schedule: Array, usual: Array, others: Mapping[int, Callable[[], Array]]) -> Array:
    """`usual`, and for the schedules that occur among the rows what those have instead."""
    for code, value in others.items():
        mine = schedule == code
        if mine.any():
            usual = np.where(mine, value(), usual)
    return usual
