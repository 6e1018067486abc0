"""How layers fall on the stages of a pipeline."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.columns import Array
from models.cost.stage_partition import boundaries, facing, partition


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 5)), min_size=1, max_size=3),
    st.floats(0.0, 4.0),
    st.integers(2, 4),
)
def test_a_balanced_partition_has_the_least_slowest_stage(
    runs: list[tuple[int, int]], head: float, pp: int
) -> None:
    cost = np.array([1.0, 2.7])
    layers = [cost[kind] for kind, count in runs for _ in range(count)]
    if len(layers) < pp:
        return
    layers[-1] += head
    cuts = ((0, *cut, len(layers)) for cut in combinations(range(1, len(layers)), pp - 1))
    best = min(max(sum(layers[a:b]) for a, b in zip(cut, cut[1:], strict=False)) for cut in cuts)
    found = partition(
        tuple(runs),
        cost,
        head,
        np.array([pp]),
        np.array([1]),
        np.array([True]),
        *[np.array([False])] * 2,
    )
    *layers_of_kind, _, last = found.amounts[:, :, 0]
    stages = cost @ np.array(layers_of_kind) + last * head
    assert stages.max() == pytest.approx(best)


def test_an_even_partition_gives_every_stage_as_many_layers() -> None:
    no = np.array([False])
    found = partition(
        ((0, 3), (1, 9)), np.array([1.0, 5.0]), 2.0, np.array([4]), np.array([1]), no, no, no
    )
    assert set(found.amounts[:2, :, 0].sum(axis=0)) == {3.0}


def test_a_v_puts_both_ends_on_the_first_stage() -> None:
    no, yes = np.array([False]), np.array([True])
    found = partition(
        ((0, 2), (1, 6)), np.array([1.0, 5.0]), 2.0, np.array([4]), np.array([2]), no, no, yes
    )
    first, others = found.amounts[:, 0, 0], found.amounts[:, 1:, 0]
    assert first.tolist() == [1, 1, 1, 1]
    assert (others[2:] == 0).all()
    assert [1, 1, 0, 0] in others.T.tolist()
    assert [0, 2, 0, 0] in others.T.tolist()


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9)), min_size=1, max_size=3),
    st.integers(0, 6),
    st.integers(2, 12),
)
def test_stages_fill_up_to_a_threshold_as_in_nanotron(
    runs: list[tuple[int, int]], head: int, pp: int
) -> None:
    """Against its loop over blocks (src/nanotron/models/base.py, build_model), less its last block,
    the head."""
    layers = np.array([[1.0, 2.5][kind] for kind, count in runs for _ in range(count)])
    if len(layers) < pp:
        return
    thresholds, upto = (
        [(layers.sum() + head) * (rank + 1) / pp for rank in range(pp)],
        np.cumsum(layers),
    )
    rank, held = 0, [0] * pp
    for so_far in upto:
        held[rank] += 1
        if so_far > thresholds[rank]:
            rank = min(rank + 1, pp - 1)
    one, no, yes = np.array([1]), np.array([False]), np.array([True])
    begin = boundaries(layers, head, np.array([pp]), one, yes, no, by_threshold=True)
    assert np.diff(begin[0]).tolist() == held


@given(st.integers(2, 8), st.integers(2, 6), st.integers(-1, 60), st.floats(0.0, 6.0))
def test_dealt_out_in_rounds_the_slowest_stage_has_least(
    pp: int, v: int, more: int, head: float
) -> None:
    """Against every number of layers that the last stage, with the head, may have."""
    layers, no, yes = pp * v + more, np.array([False]), np.array([True])
    found = partition(
        ((0, layers),), np.array([1.0]), head, np.array([pp]), np.array([v]), yes, no, no
    )
    stages = found.amounts[0, :, 0] + found.amounts[2, :, 0] * head
    splits = [
        (-(-(layers - last) // (pp - 1)), last + head)
        for last in range(v - 1, layers - v * (pp - 1) + 1)
    ]
    assert stages.max() == pytest.approx(min(map(max, splits)))
    begin = boundaries(np.ones(layers), head, np.array([pp]), np.array([v]), yes, no)[0]
    chunks = np.diff(begin).reshape(v, pp)
    assert chunks.ravel()[:-1].min() >= 1
    assert (np.diff(chunks[:, :-1], axis=0) <= 0).all()
    assert (chunks[0, :-1] - chunks[-1, :-1] <= 1).all()
    assert chunks[0, -1] - chunks[-2, -1] <= 1  # but the head's


@given(st.integers(2, 12), st.integers(2, 6), st.floats(0.0, 6.0))
def test_ends_may_be_chunks_by_themselves(pp: int, v: int, head: float) -> None:
    layers, no, yes = pp * v - 2, np.array([False]), np.array([True])
    begin = boundaries(np.ones(layers), head, np.array([pp]), np.array([v]), yes, no)[0]
    assert np.diff(begin).tolist() == [0, *[1] * layers, 0]


@given(st.booleans(), st.integers(2, 3), st.integers(0, 5), st.floats(0.0, 6.0), st.integers(0, 3))
def test_with_both_ends_on_one_the_slowest_stage_has_least(
    mirrored: bool, pairs: int, more: int, head: float, cheap: int
) -> None:
    """In a V and under DualPipe. Of every split that leaves no chunk but the head's without a
    layer; within a layer where layers differ."""
    layers = np.where(np.arange(2 * pairs + more) < cheap, 1.0, 2.5)
    n, yes = len(layers), np.array([True])

    def slowest(begin: Array) -> float:
        chunks = np.array([layers[a:b].sum() for a, b in pairwise(begin)])
        chunks[-1] += head
        return float((chunks[:pairs] + chunks[::-1][:pairs]).max())

    cuts = ((0, *cut, n) for cut in combinations(range(1, n + 1), 2 * pairs - 1))
    best = min(slowest(np.array(cut)) for cut in cuts)
    pp, virtual = (2 * pairs, 1) if mirrored else (pairs, 2)
    pp_, faces = (
        np.array([pp]),
        facing(np.array([pp]), np.array([mirrored]), np.array([not mirrored])),
    )
    made = slowest(
        boundaries(layers, head, pp_, np.array([virtual]), yes, faces)[0][: 2 * pairs + 1]
    )
    assert made <= best * (1 + 1e-9) + (2.5 if cheap else 0.0)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9)), min_size=1, max_size=3),
    st.floats(0.0, 6.0),
    st.integers(2, 7),
)
def test_where_all_hold_as_many_micro_batches_no_stage_is_larger_than_it_has_to_be(
    runs: list[tuple[int, int]], head: float, pp: int
) -> None:
    layers = np.array([[1.0, 2.5][kind] for kind, count in runs for _ in range(count)])
    if len(layers) < pp:
        return
    rows = np.array([pp]), np.array([1]), np.array([True]), np.array([0])
    level, plain = (boundaries(layers, head, *rows, np.array([flat]))[0] for flat in (True, False))
    assert level[-2] == plain[-2]
    chunks = [layers[a:b].sum() for a, b in pairwise(level)][:-1]
    cuts = ((0, *cut, int(level[-2])) for cut in combinations(range(1, int(level[-2])), pp - 2))
    assert max(chunks) == pytest.approx(
        min(max(layers[a:b].sum() for a, b in pairwise(cut)) for cut in cuts)
    )


def test_a_stage_of_cheap_layers_takes_one_more() -> None:
    """DeepSeek-V3's three dense layers among 61 on seven stages: no other has ten sparse ones."""
    layers, no, yes = np.where(np.arange(61) < 3, 1.0, 2.5), np.array([False]), np.array([True])
    begin = boundaries(layers, 2.0, np.array([7]), np.array([2]), yes, no)[0]
    held = np.array([layers[a:b].sum() for a, b in pairwise(begin)]).reshape(2, 7).sum(axis=0)
    assert held[:-1].max() == 9 * 2.5


def test_what_stages_have_in_the_first_and_in_the_last_round() -> None:
    """Six layers and a head of three on two stages in two rounds: 2, 2 and 2 layers, then the head
    alone."""
    no, yes = np.array([False]), np.array([True])
    found = partition(((0, 6),), np.array([1.0]), 3.0, np.array([2]), np.array([2]), yes, no, no)
    assert found.amounts[0, :, 0].tolist() == [4.0, 2.0]
    first, last = found.of_rounds(np.zeros(1, dtype=int))[:, :, :, 0]
    assert first.tolist() == [[2.0, 2.0], [1.0, 0.0], [0.0, 0.0]]
    assert last.tolist() == [[2.0, 0.0], [0.0, 0.0], [0.0, 1.0]]


@given(st.integers(2, 4), st.integers(1, 3), st.data())
def test_chunks_begin_where_it_is_stated(pp: int, rounds: int, data: st.DataObject) -> None:
    chunks = pp * rounds
    counts = data.draw(st.lists(st.integers(1, 9), min_size=chunks, max_size=chunks))
    layers = np.ones(sum(counts))
    rows = np.full(2, pp), np.full(2, rounds), np.array([True, False]), np.zeros(2, dtype=int)
    stated = np.array([counts, [0] * chunks])
    begin = boundaries(layers, 2.0, *rows, stated=stated)
    assert np.diff(begin[0]).tolist() == counts
    assert begin[1].tolist() == boundaries(layers, 2.0, *rows)[1].tolist()


def test_partitions_of_other_lengths_may_be_stated_together() -> None:
    stated = np.array([[5, 3, 0, 0], [1, 2, 3, 2]])
    no, yes = np.zeros(2, dtype=bool), np.ones(2, dtype=bool)
    found = partition(
        ((0, 8),), np.array([1.0]), 1.0, np.array([2, 4]), np.array([1, 1]), yes, no, no,
        stated=stated,
    )  # fmt: skip
    held = found.amounts[0]
    assert held[:2, 0].tolist() == [5.0, 3.0]
    assert held[:, 1].tolist() == [1.0, 2.0, 3.0, 2.0]
