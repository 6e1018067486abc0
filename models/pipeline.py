"""Pipeline schedules: how layers fall on stages, what is in flight, and the bubble.

Closed forms, with F, B, W the forward, full backward and weight-gradient seconds a micro-batch spends on a stage,
m micro-batches and p stages. A discrete-event simulation of the same schedules agrees (tests): for any stages
under afab, for equal stages under 1f1b and interleaved; with unequal stages these two are upper bounds, since a
slow early stage hides part of its fill behind warm-up forwards.

schedule      time of a step                                                      source
afab          ΣF + (m-1) max F + ΣB + (m-1) max B                                 GPipe, arXiv 1811.06965
1f1b          Σ(F+B) + (m-1) max (F+B)                                            arXiv 2006.09503
interleaved   m max (F+B) + [Σ(F+B) - max (F+B)] / v                              arXiv 2104.04473 §2.2
zero_bubble   m max (F+B) + Σ(F+B-2W) over all but the slowest stage (ZB-H1: W    arXiv 2401.10241 table 2
              moved into the bubble once on each side, memory as 1f1b)
dualpipe      m max (F+B) + (p/2-1)(max(F+B) + B - 3W)                            arXiv 2412.19437 table 2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.array import Array
from models.layout import AFAB, DUALPIPE, INTERLEAVED, ZERO_BUBBLE, ZERO_BUBBLE_V

_BISECTIONS = 12


@dataclass(frozen=True, slots=True)
class Stages:
    """Layers on the stages that can be slowest or fullest: the first of every run of equal stages.

    For u rows, s stages and k layer kinds: `counts` (u, s, k) layers of each kind, `index` (u, s) the stage's
    number, `first` and `last` (u, s) how much of the embedding and of the head it has. Padding repeats the last
    stage.
    """

    counts: Array
    index: Array
    first: Array
    last: Array

    @classmethod
    def stack(cls, parts: Sequence[Stages]) -> Stages:
        """The rows of all parts, the narrower ones padded."""
        width = max(part.index.shape[1] for part in parts)

        def padded(name: str) -> Array:
            columns = [np.minimum(np.arange(width), part.index.shape[1] - 1) for part in parts]
            return np.concatenate([getattr(part, name)[:, c] for part, c in zip(parts, columns, strict=True)])

        return cls(*(padded(name) for name in cls.__slots__))

    def take(self, rows: Array) -> Stages:
        return Stages(self.counts[rows], self.index[rows], self.first[rows], self.last[rows])


def partition(
    runs: tuple[tuple[int, int], ...],
    layer_cost: Array,
    head_cost: float,
    pp: Array,
    virtual_stages: Array,
    balanced: Array,
    mirrored: Array,
) -> Stages:
    """Contiguous chunks of layers for u rows.

    `layer_cost` (k,): a layer of each kind; `head_cost`: output head and MTP, which stay with the last layer. Rows
    that are `balanced` get the split whose slowest chunk is fastest; the others an equal number of layers.
    `mirrored` rows (DualPipe) hold chunk i and chunk p-1-i on device i.
    """
    order = np.concatenate([np.full(count, kind) for kind, count in runs])
    chunks = pp * virtual_stages
    items = np.repeat(layer_cost[order].astype(float)[None, :], len(pp), axis=0)
    items[:, -1] += head_cost
    chunk_of = np.empty(items.shape, dtype=np.int64)
    even = ~balanced
    chunk_of[even] = (np.arange(len(order))[None, :] * chunks[even, None]) // len(order)
    if balanced.any():
        chunk_of[balanced] = _balanced_chunks(items[balanced], chunks[balanced])
    return _stages(chunk_of, order, len(layer_cost), pp, mirrored)


def _balanced_chunks(items: Array, chunks: Array) -> Array:
    """The chunk of every layer (u, layers), minimising the largest chunk sum.

    Bisection over the bound; a bound is met by filling chunks greedily. Filling starts from the last layer, so
    that of all splits within the bound the early stages, which hold most micro-batches, get the fewest layers.
    """
    largest = items.max(axis=1)
    low = np.maximum(largest, items.sum(axis=1) / chunks)
    high = low + largest
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        fits = _fill(items, chunks, middle)[:, 0] >= 0
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return np.maximum(_fill(items, chunks, high), 0)


def _fill(items: Array, chunks: Array, bound: Array) -> Array:
    """Greedy from the last layer back; the first layer's chunk is negative where the bound is too tight."""
    layers = items.shape[1]
    chunk = chunks - 1
    load = np.zeros(len(items))
    result = np.empty(items.shape, dtype=np.int64)
    limit = bound * (1 + 1e-12)
    for layer in range(layers - 1, -1, -1):
        cost = items[:, layer]
        full = (load + cost > limit) & (layer < layers - 1)
        scarce = layer < chunk  # every chunk gets at least one layer
        advance = full | (scarce & (layer < layers - 1))
        chunk = chunk - advance
        load = np.where(advance, cost, load + cost)
        result[:, layer] = chunk
    return result


def _stages(chunk_of: Array, order: Array, kinds: int, pp: Array, mirrored: Array) -> Stages:
    rows = len(pp)
    width = int(pp.max())
    device = np.minimum(chunk_of, 10**9) % pp[:, None]
    counts = np.zeros((rows, width, kinds))
    row = np.broadcast_to(np.arange(rows)[:, None], device.shape)
    np.add.at(counts, (row, device, np.broadcast_to(order, device.shape)), 1.0)
    number = np.broadcast_to(np.arange(width), (rows, width))
    first = (number == 0).astype(float)
    last = (number == pp[:, None] - 1).astype(float)
    mirror = np.clip(pp[:, None] - 1 - number, 0, None)
    both = mirrored[:, None]
    paired = np.take_along_axis(counts, np.broadcast_to(mirror[:, :, None], counts.shape), axis=1)
    counts = np.where(both[:, :, None], (counts + paired) / 2, counts)
    ends = (first + last) / 2
    first, last = np.where(both, ends, first), np.where(both, ends, last)
    return _representatives(counts, number, first, last, pp)


def _representatives(counts: Array, number: Array, first: Array, last: Array, pp: Array) -> Stages:
    """Keep a stage only if it differs from the one before: of equal neighbours the earlier holds no less."""
    signature = np.concatenate([counts, first[:, :, None], last[:, :, None]], axis=2)
    differs = np.ones(number.shape, dtype=bool)
    differs[:, 1:] = (signature[:, 1:] != signature[:, :-1]).any(axis=2)
    differs &= number < pp[:, None]
    width = int(differs.sum(axis=1).max())
    rank = np.cumsum(differs, axis=1) - 1
    chosen = np.repeat((pp - 1)[:, None], width, axis=1)
    row, stage = np.nonzero(differs)
    chosen[row, rank[row, stage]] = stage
    pick = np.arange(len(pp))[:, None]
    return Stages(counts[pick, chosen], chosen, first[pick, chosen], last[pick, chosen])


def in_flight(schedule: Array, stage: Array, pp: Array, virtual_stages: Array, micro_batches: Array) -> Array:
    """Micro-batches whose activations a stage holds at its fullest, in units of all the layers it holds."""
    depth = pp - stage
    one_f_one_b = np.minimum(depth, micro_batches)
    chunks = 2 * (depth - 1) + (virtual_stages - 1) * pp + 1
    interleaved = np.minimum(chunks, micro_batches * virtual_stages) / virtual_stages
    dual = np.minimum(pp + 1, micro_batches)
    return np.select(
        [schedule == AFAB, (schedule == INTERLEAVED) | (schedule == ZERO_BUBBLE_V), schedule == DUALPIPE],
        [micro_batches, interleaved, dual],
        one_f_one_b,
    ).astype(float)


def bubble(
    schedule: Array,
    pp: Array,
    virtual_stages: Array,
    total: Array,
    slowest: Array,
    weight: Array,
    backward: Array,
    forward_slowest: Array,
    backward_slowest: Array,
    micro_batches: Array,
) -> Array:
    """Seconds the slowest stage is idle in a step: the step is m·slowest + bubble.

    `total` Σ(F+B) over stages, `slowest` max(F+B); `weight`, `backward` W and B of the slowest stage;
    `forward_slowest` max F, `backward_slowest` max B (their maxima may lie on other stages).
    """
    fill = total - slowest
    m1 = micro_batches - 1
    afab = total + m1 * (forward_slowest + backward_slowest) - micro_batches * slowest
    zero = np.maximum(fill - 2 * (pp - 1) * weight, 0.0)
    dual = np.maximum((pp / 2 - 1) * (slowest + backward - 3 * weight), 0.0)
    return np.select(
        [
            schedule == AFAB,
            schedule == INTERLEAVED,
            schedule == ZERO_BUBBLE,
            schedule == ZERO_BUBBLE_V,
            schedule == DUALPIPE,
        ],
        [afab, fill / virtual_stages, zero, zero / virtual_stages, dual],
        fill,
    )
