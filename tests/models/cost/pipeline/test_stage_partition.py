"""How layers fall on the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, combinations_with_replacement
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.columns import Array
from models.cost.pipeline.layer_split import Layers, layers_of
from models.cost.pipeline.stage_partition import distinct_partitions, layers_of_chunks, partition
from models.cost.rows import StageTables
from models.spec.layout import Layout, Layouts
from tests.long import examples
from tests.models.cost.pipelines import Runs, model
from tests.oracles.random_questions import random_layouts, random_problem

ENCODERS = st.just(0.0) | st.floats(0.0, 6.0)
RUNS = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9)), min_size=1, max_size=3)


def balanced(pp: int, schedule: str = "1f1b", virtual_stages: int = 1) -> Layout:
    return Layout(pp=pp, schedule=schedule, virtual_stages=virtual_stages, balanced=True)


def counts(layers: Layers, layout: Layout) -> Array:
    """How many layers each chunk has."""
    begin, _ = partition(layers, Layouts.of([layout]))
    return np.diff(begin[0])


def costs_of(layers: Layers, chunks: Array) -> Array:
    """What the layers of chunks cost that have so many, the first one with the encoder of images,
    and the last one with the head."""
    costs = np.diff(layers.flops_before[np.append(0, np.cumsum(chunks))])
    costs[0] += layers.encoder
    costs[-1] += layers.head
    return costs


def largest_of_best(costs: Array, chunks: int) -> float:
    """The least that the largest chunk of layers with these costs may be, over all splits."""
    upto = np.append(0.0, np.cumsum(costs))
    cuts = combinations(range(1, len(costs)), chunks - 1)
    return min(float(np.diff(upto[[0, *cut, len(costs)]]).max()) for cut in cuts)


# -- one chunk a stage


@given(RUNS, st.floats(0.0, 6.0), ENCODERS, st.integers(2, 4))
def test_a_balanced_partition_has_the_least_slowest_stage(
    runs: Runs, head: float, encoder: float, pp: int
) -> None:
    layers = model(runs, head, encoder=encoder)
    each = np.diff(layers.flops_before)
    if len(each) < pp:
        return
    each[0] += encoder
    each[-1] += head
    made = costs_of(layers, counts(layers, balanced(pp)))
    assert made.max() == pytest.approx(largest_of_best(each, pp))


@given(RUNS, st.floats(0.0, 6.0), ENCODERS, st.integers(2, 4))
def test_early_stages_have_the_fewest_layers(
    runs: Runs, head: float, encoder: float, pp: int
) -> None:
    layers = model(runs, head, encoder=encoder)
    n = len(layers.kind)
    if n < pp:
        return
    made = counts(layers, balanced(pp))
    most = costs_of(layers, made).max() * (1 + 1e-9)
    for cut in combinations(range(1, n), pp - 1):
        if costs_of(layers, np.diff([0, *cut, n])).max() <= most:
            assert (np.cumsum(made)[:-1] <= cut).all()


@given(RUNS, st.floats(0.0, 6.0), ENCODERS, st.integers(2, 7))
def test_where_all_hold_as_many_micro_batches_no_stage_is_larger_than_it_has_to_be(
    runs: Runs, head: float, encoder: float, pp: int
) -> None:
    layers = model(runs, head, encoder=encoder)
    if len(layers.kind) < pp:
        return
    level, plain = (counts(layers, balanced(pp, which)) for which in ("zero_bubble", "1f1b"))
    assert level[-1] == plain[-1]
    before_last = np.diff(layers.flops_before)[: -level[-1]]
    before_last[0] += encoder
    made = costs_of(layers, level)[:-1]
    assert made.max() == pytest.approx(largest_of_best(before_last, pp - 1))


@given(RUNS, st.integers(0, 6), st.integers(2, 12))
def test_stages_fill_up_to_a_threshold_as_in_nanotron(runs: Runs, head: int, pp: int) -> None:
    """Against its loop over blocks (src/nanotron/models/base.py, build_model), less its last block,
    the head."""
    layers = model(runs, head, [1.0, 6.0], by_threshold=True)
    upto = layers.flops_before[1:]
    if len(upto) < pp:
        return
    thresholds = [(upto[-1] + head) * (rank + 1) / pp for rank in range(pp)]
    rank, held = 0, [0] * pp
    for so_far in upto:
        held[rank] += 1
        if so_far > thresholds[rank]:
            rank = min(rank + 1, pp - 1)
    assert counts(layers, balanced(pp)).tolist() == held


def test_an_even_partition_gives_every_stage_as_many_layers() -> None:
    assert counts(model([(0, 3), (1, 9)], 2.0), Layout(pp=4)).tolist() == [3, 3, 3, 3]


# -- chunks in rounds


@given(st.integers(2, 8), st.integers(2, 6), st.integers(-1, 60), st.floats(0.0, 6.0))
def test_dealt_out_in_rounds_the_slowest_stage_has_least(
    pp: int, v: int, more: int, head: float
) -> None:
    """Against every number of layers that the last stage, with the head, may have."""
    n = pp * v + more
    layers = model([(0, n)], head)
    chunks = counts(layers, balanced(pp, "interleaved", v)).reshape(v, pp)
    stages = costs_of(layers, chunks.ravel()).reshape(v, pp).sum(axis=0)
    on_last = range(v - 1, n - v * (pp - 1) + 1)
    best = min(max(-(-(n - last) // (pp - 1)), last + head) for last in on_last)
    assert stages.max() == pytest.approx(best)
    assert chunks.ravel()[:-1].min() >= 1
    assert (np.diff(chunks[:, :-1], axis=0) <= 0).all()
    assert (chunks[0, :-1] - chunks[-1, :-1] <= 1).all()
    assert chunks[0, -1] - chunks[-2, -1] <= 1  # but the head's


def splits(n: int, chunks: int) -> Array:
    """Every number of layers that chunks may have, (splits, chunks); only the last one may have
    none, and where there are two layers fewer than chunks, the first one too."""
    bare = n < chunks - 1
    cuts = np.array([*combinations(range(1 - bare, n + 1), chunks - 1)], dtype=int)
    ends = np.zeros((len(cuts), 1), dtype=int)
    found = np.diff(np.hstack([ends, cuts, ends + n]))
    return found[(found[:, 1:-1] > 0).all(axis=1)]


def as_even_as_can_be(counts: Array) -> Array:
    """Whether the last axis descends, by one at most."""
    steps = np.diff(counts)
    return (steps <= 0).all(axis=-1) & (steps.sum(axis=-1) >= -1)


@settings(max_examples=examples(80))
@given(st.integers(2, 4), st.integers(2, 4), st.integers(-2, 6), st.floats(0.0, 6.0))
def test_dealt_out_in_rounds_the_largest_chunks_of_rounds_are_least_together(
    pp: int, v: int, more: int, head: float
) -> None:
    """Against every split of chunks that are as even as can be, among those of which the slowest
    stage has least; and of equally good ones the last stage, and there the head's chunk, has the
    most layers."""
    n = min(pp * v + more, 14)
    if n < pp * v - 2 or pp * v > 12:
        return
    layers = model([(0, n)], 0.1 * head, [0.1])
    made = counts(layers, balanced(pp, "interleaved", v))
    chunks = splits(n, pp * v).reshape(-1, v, pp)
    if n >= pp * v - 1:
        even = as_even_as_can_be(chunks[:, :-1, -1])
        even &= as_even_as_can_be(chunks[:, :, :-1].swapaxes(1, 2)).all(axis=1)
        even &= as_even_as_can_be(chunks.sum(axis=1)[:, -2::-1])
        chunks = chunks[even]
    assert (chunks.reshape(-1, pp * v) == made).all(axis=1).any()
    costs = chunks + head * (np.arange(pp * v) == pp * v - 1).reshape(v, pp)
    slowest = costs.sum(axis=1).max(axis=1)
    together = costs.max(axis=2).sum(axis=1)
    best = chunks[slowest <= slowest.min() + 1e-9]
    together = together[slowest <= slowest.min() + 1e-9]
    best = best[together <= together.min() + 1e-9]
    on_last = best[:, :, -1].sum(axis=1)
    best = best[on_last == on_last.max()]
    best = best[best[:, -1, -1] == best[:, -1, -1].max()]
    assert best.reshape(-1, pp * v).tolist() == [made.tolist()]


@settings(max_examples=examples(80))
@given(RUNS, st.sampled_from([0.0, 0.5, 4.0]), st.integers(2, 4), st.integers(2, 3))
def test_where_layers_differ_late_stages_have_one_more_or_early_ones_if_those_are_faster(
    runs: Runs, head: float, pp: int, v: int
) -> None:
    layers = model(runs, head)
    if len(layers.kind) < pp * v:
        return
    made = counts(layers, balanced(pp, "interleaved", v)).reshape(v, pp)
    stages = made.sum(axis=0)[:-1]
    late, early = np.sort(stages), np.sort(stages)[::-1]
    slowest = []
    for of_stages in (late, early):
        rounds = np.arange(v)[:, None]
        chunks = of_stages // v + (rounds < of_stages % v)
        whole = np.hstack([chunks, made[:, -1:]]).ravel()
        costs = np.diff(layers.flops_before[np.append(0, np.cumsum(whole))]).reshape(v, pp)
        slowest.append(costs.sum(axis=0)[:-1].max())
    takes_early = slowest[1] < slowest[0] * (1 - 1e-9)
    assert stages.tolist() == (early if takes_early else late).tolist()


@given(st.integers(2, 12), st.integers(2, 6), st.floats(0.0, 6.0))
def test_ends_may_be_chunks_by_themselves(pp: int, v: int, head: float) -> None:
    n = pp * v - 2
    made = counts(model([(0, n)], head), balanced(pp, "interleaved", v))
    assert made.tolist() == [0, *[1] * n, 0]


def test_a_stage_of_cheap_layers_takes_one_more() -> None:
    """DeepSeek-V3's three dense layers among 61 on seven stages: no other has ten sparse ones."""
    layers = model([(0, 3), (1, 58)], 2.0)
    made = costs_of(layers, counts(layers, balanced(7, "interleaved", 2)))
    assert made.reshape(2, 7).sum(axis=0)[:-1].max() == 9 * 2.5


def test_what_stages_have_in_the_first_and_in_the_last_round() -> None:
    """Six layers and a head of three on two stages in two rounds: 2, 2 and 2 layers, then the head
    alone."""
    layers = model([(0, 6)], 3.0, [1.0])
    _, found = partition(layers, Layouts.of([balanced(2, "interleaved", 2)]))
    assert found.amounts[0].tolist() == [[4.0, 1.0, 0.0], [2.0, 0.0, 1.0]]
    assert found.first[0].tolist() == [[2.0, 1.0, 0.0], [2.0, 0.0, 0.0]]
    assert found.last[0].tolist() == [[2.0, 0.0, 0.0], [0.0, 0.0, 1.0]]


@given(RUNS, st.integers(2, 4), st.integers(2, 4), st.floats(0.0, 6.0))
def test_where_all_forwards_come_first_the_path_is_the_longest_that_never_goes_up(
    runs: Runs, pp: int, v: int, head: float
) -> None:
    """Against every path, in models whose kinds of layers take turns."""
    layers = model([*runs, *runs, (0, 1), (1, 1), (0, 1)], head)
    if len(layers.kind) < pp * v:
        return
    layout = balanced(pp, "interleaved", v)
    made = costs_of(layers, counts(layers, layout)).reshape(v, pp)
    paths = [*combinations_with_replacement(range(pp), v)]

    def length(path: Sequence[int]) -> float:
        return sum(made[turn, stage] for turn, stage in enumerate(path))

    longest = max(map(length, paths))
    _, found = partition(layers, Layouts.of([layout]))
    if found.path_ahead.any():  # some path leaves its stage
        assert found.path_ahead[0] @ layers.costs == pytest.approx(longest)
        ends = {path[-1] for path in paths if length(path) == pytest.approx(longest)}
        assert found.path_last[0] in ends
    else:
        assert made.sum(axis=0).max() == pytest.approx(longest)


# -- chunks that face each other


@given(
    st.booleans(),
    st.integers(2, 3),
    st.integers(0, 5),
    st.floats(0.0, 6.0),
    ENCODERS,
    st.integers(0, 3),
)
def test_with_both_ends_on_one_the_slowest_stage_has_least(
    dualpipe: bool, pairs: int, more: int, head: float, encoder: float, cheap: int
) -> None:
    """In a V and under DualPipe. Of every split that leaves no chunk but the head's without a
    layer; within a layer where layers differ."""
    n = 2 * pairs + more
    layers = model([(0, cheap), (1, n - cheap)], head, encoder=encoder)

    def slowest(chunks: Array) -> float:
        costs = costs_of(layers, chunks)
        return float((costs[:pairs] + costs[::-1][:pairs]).max())

    cuts = combinations(range(1, n + 1), 2 * pairs - 1)
    best = min(slowest(np.diff([0, *cut, n])) for cut in cuts)
    layout = balanced(2 * pairs, "dualpipe") if dualpipe else balanced(pairs, "zero_bubble_v", 2)
    made = slowest(counts(layers, layout))
    assert made <= best * (1 + 1e-9) + (2.5 if cheap else 0.0)


@given(st.booleans(), st.integers(2, 3), st.integers(0, 5), st.floats(0.0, 6.0))
def test_with_both_ends_on_one_the_largest_chunk_is_least_where_the_slowest_stage_has_least(
    dualpipe: bool, pairs: int, more: int, head: float
) -> None:
    """Against every split that gives all other stages as even a number of layers as can be."""
    n = 2 * pairs + more
    layers = model([(0, n)], head, [1.0])
    chunks = splits(n, 2 * pairs)
    stages = (chunks + chunks[:, ::-1])[:, 1:pairs]
    chunks = chunks[np.ptp(stages, axis=1) <= 1]
    costs = chunks + head * (np.arange(2 * pairs) == 2 * pairs - 1)
    slowest = (costs + costs[:, ::-1]).max(axis=1)
    least = costs.max(axis=1)[slowest <= slowest.min() + 1e-9].min()
    layout = balanced(2 * pairs, "dualpipe") if dualpipe else balanced(pairs, "zero_bubble_v", 2)
    made = costs_of(layers, counts(layers, layout))
    assert (made + made[::-1]).max() == pytest.approx(slowest.min())
    assert made.max() == pytest.approx(least)


def test_a_v_puts_both_ends_on_the_first_stage() -> None:
    layout = Layout(pp=4, virtual_stages=2, schedule="zero_bubble_v")
    _, found = partition(model([(0, 2), (1, 6)], 2.0), Layouts.of([layout]))
    assert found.amounts[0, : found.distinct_count[0]].tolist() == [
        [1, 1, 1, 1],
        [1, 1, 0, 0],
        [0, 2, 0, 0],
    ]
    assert found.distinct[0].tolist() == [0, 1, 2, 2]


def test_two_stages_of_dualpipe_hold_half_of_the_same_chunks() -> None:
    layout = Layout(pp=4, schedule="dualpipe")
    _, found = partition(model([(0, 2), (1, 6)], 2.0), Layouts.of([layout]))
    assert found.amounts[0, : found.distinct_count[0]].tolist() == [[1, 1, 0.5, 0.5], [0, 2, 0, 0]]
    assert found.distinct[0].tolist() == [0, 1, 1, 0]


# -- any chunks


@given(st.integers(2, 4), st.integers(1, 3), st.data())
def test_chunks_begin_where_it_is_stated(pp: int, v: int, data: st.DataObject) -> None:
    stated = data.draw(st.lists(st.integers(1, 9), min_size=pp * v, max_size=pp * v))
    schedule = "1f1b" if v == 1 else "interleaved"
    layout = Layout(
        pp=pp, virtual_stages=v, schedule=schedule, balanced=True, layers_per_chunk=tuple(stated)
    )
    layers = model([(0, sum(stated))], 2.0)
    others = balanced(pp, schedule, v)
    begin, _ = partition(layers, Layouts.of([layout, others]))
    assert np.diff(begin[0]).tolist() == stated
    assert np.diff(begin[1]).tolist() == counts(layers, others).tolist()


def test_partitions_of_other_lengths_may_be_stated_together() -> None:
    stated = [(5, 3), (1, 2, 3, 2)]
    layouts = [Layout(pp=len(of), balanced=True, layers_per_chunk=of) for of in stated]
    begin, found = partition(model([(0, 8)], 1.0), Layouts.of(layouts))
    assert begin.tolist() == [[0, 5, 8, 8, 8], [0, 1, 3, 6, 8]]
    assert found.amounts[0, :2, 0].tolist() == [5.0, 3.0]
    assert found.amounts[1, :, 0].tolist() == [1.0, 2.0, 3.0, 2.0]


def test_layers_of_multi_token_prediction_are_where_the_head_is() -> None:
    """And do not count as layers, but as a part of the head, where they are split."""
    layers = model([(0, 1), (1, 7)], 5.0, mtp_layers=2)
    layout = Layout(pp=4, balanced=False)
    _, found = partition(layers, Layouts.of([layout]))
    assert found.amounts[0, : found.distinct_count[0]].tolist() == [
        [1, 1, 1, 0],
        [0, 2, 0, 0],
        [0, 4, 0, 1],
    ]
    without = model([(0, 1), (1, 7)], 5.0)
    assert counts(layers, balanced(4)).tolist() == counts(without, balanced(4)).tolist()


def test_stages_that_differ_are_told_apart_and_stretches_of_equal_ones_are_listed() -> None:
    stated = Layout(pp=8, balanced=True, layers_per_chunk=(2, 1, 1, 1, 2, 2, 1, 1))
    _, found = partition(model([(0, 11)], 1.0), Layouts.of([stated]))
    assert found.distinct[0].tolist() == [0, 1, 1, 1, 2, 2, 1, 3]
    assert found.first_alike[0, : found.distinct_count[0]].tolist() == [0, 1, 4, 7]
    assert found.stretch_ends[0, : found.stretch_end_count[0]].tolist() == [0, 1, 3, 4, 5, 6, 7]


# -- of many layouts of a problem


def assert_same(
    expected: StageTables, i: Any, found: StageTables, j: Any, stages: int, costs: Array
) -> None:
    """That partition i of the one is partition j of the other, of so many stages. Of several paths
    that cost the same, either may have any."""
    assert expected.distinct_count[i] == found.distinct_count[j]
    assert expected.stretch_end_count[i] == found.stretch_end_count[j]
    different, stretch_ends = expected.distinct_count[i], expected.stretch_end_count[i]
    lengths = {"kind": stages, "stretch_ends": stretch_ends}
    for name in ("amounts", "first_alike", "first", "last", "distinct", "stretch_ends"):
        length = lengths.get(name, different)
        of_one, of_other = getattr(expected, name)[i, :length], getattr(found, name)[j, :length]
        assert of_one.tolist() == of_other.tolist(), name
    paths = [
        np.array([tables.path_out[at], tables.path_back[at], tables.path_ahead[at]])
        for tables, at in ((expected, i), (found, j))
    ]
    assert paths[1] @ costs == pytest.approx(paths[0] @ costs)
    if paths[0].any() and paths[1] == pytest.approx(paths[0]):
        assert expected.path_moves[i] == found.path_moves[j]
        assert expected.path_last[i] == found.path_last[j]


def test_each_layout_has_its_own_of_few_partitions() -> None:
    rng = np.random.default_rng(5)
    layouts = Layouts.of([])
    while not len(layouts):  # of some problems no layout is legal
        problem = random_problem(rng)
        layouts = random_layouts(problem, rng, 300)
    tables, code = distinct_partitions(problem, layouts)
    assert len(tables.distinct_count) < len(layouts) / 3
    for row in range(len(layouts)):
        alone, _ = distinct_partitions(problem, Layouts.of([layouts[row]]))
        assert_same(alone, 0, tables, code[row], layouts[row].pp, layers_of(problem).costs)


def test_chunks_have_the_layers_that_are_in_amounts() -> None:
    for problem, layouts in _questions(40):
        tables, code = distinct_partitions(problem, layouts)
        for row, chunks in enumerate(layers_of_chunks(problem, layouts)):
            layout = layouts[row]
            assert len(chunks) == layout.pp * layout.virtual_stages
            order = [kind for kind, count in problem.architecture.layer_runs for _ in range(count)]
            assert [kind for chunk in chunks for kind in chunk] == order
            whole = tables.amounts[code[row], tables.distinct[code[row], : layout.pp]].sum(axis=0)
            ends = [1, 1]
            assert whole.tolist() == [*problem.architecture.layers_per_kind_with_mtp, *ends]


def test_tables_have_what_stages_hold() -> None:
    """Each stage's is that of a different one, as numbered in the order in which these first come;
    stretches of equal ones begin or end at corners."""
    for problem, layouts in _questions(15):
        tables, code = distinct_partitions(problem, layouts)
        for row, chunks in enumerate(layers_of_chunks(problem, layouts)):
            layout, i = layouts[row], code[row]
            pp = layout.pp
            stages = stages_of(layout, chunks, layers_of(problem))
            kind = tables.distinct[i, :pp].tolist()
            distinct = list(dict.fromkeys(stages))
            assert tables.distinct_count[i] == len(distinct)
            assert kind == [distinct.index(stage) for stage in stages]
            for of, (amounts, first, last) in enumerate(distinct):
                assert tables.first_alike[i, of] == kind.index(of)
                assert tables.amounts[i, of].tolist() == [*amounts]
                assert tables.first[i, of].tolist() == [*first]
                assert tables.last[i, of].tolist() == [*last]
            beside = [None, *kind, None]
            stretch_ends = [at for at in range(pp) if not beside[at] == kind[at] == beside[at + 2]]
            assert tables.stretch_ends[i, : tables.stretch_end_count[i]].tolist() == stretch_ends


Amounts = tuple[float, ...]


def stages_of(
    layout: Layout, chunks: list[list[int]], layers: Layers
) -> list[tuple[Amounts, Amounts, Amounts]]:
    """What each stage has, and what of it in the first and in the last round, where these count."""
    pp, parts = layout.pp, len(layers.costs)
    held = np.array([[chunk.count(part) for part in range(parts)] for chunk in chunks], dtype=float)
    held[-1, layers.kind[-1]] += layers.mtp_layers
    held[0, -2] = held[-1, -1] = 1
    first = last = np.zeros((pp, parts))
    if layout.schedule == "dualpipe":
        amounts = (held + held[::-1]) / 2
    elif layout.schedule == "zero_bubble_v":
        amounts = (held + held[::-1])[:pp]
    else:
        amounts = held.reshape(-1, pp, parts).sum(axis=0)
        if layout.virtual_stages > 1 and pp > 1:
            first, last = held[:pp], held[-pp:]
    return [(tuple(a), tuple(b), tuple(c)) for a, b, c in zip(amounts, first, last, strict=True)]


def _questions(count: int) -> Iterator[tuple[Any, Layouts]]:
    """Random problems with random layouts."""
    for seed in range(count):
        rng = np.random.default_rng([29, seed])
        problem = random_problem(rng)
        layouts = random_layouts(problem, rng, 50)
        if len(layouts):
            yield problem, layouts
