"""Which devices an axis of the mesh spans, on switched fabrics and on tori."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.layouts.placement import groups
from models.layouts.rules import RULES_BY_NAME
from models.spec import catalogue
from models.spec.hardware import Cluster
from models.spec.layout import PLACEMENTS, TORUS_AXES, TORUS_BLOCKS, Layout, Layouts
from tests.benchmarks.problems import problem
from tests.long import examples


@given(
    st.sampled_from([1, 2, 3, 4, 6, 8]),
    st.sampled_from([1, 2, 4, 9]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 3, 4]),
    st.integers(0, len(PLACEMENTS) - 1),
)
def test_members_of_all_dims_make_up_every_axis(
    tp: int, shard: int, cp: int, pp: int, placement: int
) -> None:
    layouts = Layouts.of(
        [Layout(tp=tp, dp_shard=shard, cp=cp, pp=pp, placement=PLACEMENTS[placement])]
    )
    cluster = catalogue.cluster("gb300", tp * shard * cp * pp)
    placed = groups(cluster, layouts)
    for axis in ("tp", "dp_shard", "cp", "pp"):
        members = getattr(placed, axis).table.members
        assert np.prod(members) == pytest.approx(getattr(layouts, axis)[0])


@given(
    st.sampled_from([(2, 4, 8), (8, 4, 2), (4, 4, 4), (1, 8, 4), (12, 4, 4), (3, 2, 4)]),
    st.sampled_from(TORUS_AXES),
    st.sampled_from(TORUS_BLOCKS),
    st.integers(0, 200),
)
def test_members_lie_where_counting_along_a_torus_puts_them(
    shape: tuple[int, int, int], order: tuple[str, ...], block: int, pick: int
) -> None:
    """Devices numbered one by one, through one block after the other."""
    cluster = replace(catalogue.cluster("tpu-v5p", int(np.prod(shape))), torus_shape=shape)
    inner = [d for d in range(1, cluster.num_devices + 1) if cluster.num_devices % d == 0]
    pairs = [(a, b) for a in inner for b in inner if cluster.num_devices % (a * b) == 0 and b > 1]
    stride, degree = pairs[pick % len(pairs)]
    layout = Layout(tp=stride, dp_shard=degree,
                    dp_replicate=cluster.num_devices // (stride * degree), torus_axes=order,
                    torus_block=block)  # fmt: skip
    if first_broken_of(layout, cluster, "block_divides_torus"):
        return
    group = groups(cluster, Layouts.of([layout])).dp_shard.table
    if not group.whole[0]:
        return
    at = counted(dict(zip("xyz", shape, strict=True)), order, block)[: stride * degree : stride]
    for dim, members, apart in zip(
        cluster.dims, group.members[:, 0], group.stride[:, 0], strict=True
    ):
        places = sorted({place["xyz".index(dim.name)] for place in at})
        assert len(places) == members
        if members > 1:
            assert set(np.diff(places)) == {apart}


@pytest.mark.parametrize(
    ("chips", "shape"),
    [
        (24, (2, 2, 2)),
        (24, (1, 2, 4)),
        pytest.param(48, (2, 2, 4), marks=pytest.mark.long),
        pytest.param(40, (2, 4, 1), marks=pytest.mark.long),
    ],
)
@settings(max_examples=examples(30))  # of twenty layouts each
@given(st.integers(0, 2**32 - 1))
def test_a_group_is_the_same_among_others(chips: int, shape: tuple[int, ...], seed: int) -> None:
    """Of several slices of a torus, whose number need not be a power of two; in any filling."""
    cluster = replace(catalogue.cluster("tpu-v5p", chips), torus_shape=shape)
    fillings = cluster.device_orders.fillings
    divisors = [d for d in range(1, chips + 1) if chips % d == 0]
    degrees = [d for d in product(divisors, repeat=4) if chips % np.prod(d) == 0]
    random = np.random.default_rng(seed)
    layouts = []
    for tp, cp, shard, pp in random.permutation(degrees)[:20].tolist():
        order, length = fillings[random.integers(len(fillings))]
        layouts.append(
            Layout(
                tp=tp, cp=cp, dp_shard=shard, pp=pp, dp_replicate=chips // (tp * cp * shard * pp),
                ep=cp, placement=PLACEMENTS[random.integers(len(PLACEMENTS))],
                torus_axes=TORUS_AXES[order], torus_block=int(length),
            )
        )  # fmt: skip
    together = groups(cluster, Layouts.of(layouts))
    for row, layout in enumerate(layouts):
        alone = groups(cluster, Layouts.of([layout]))
        for axis in ("tp", "cp", "dp_shard", "dp_replicate", "pp", "ep", "edp"):
            mine, own = getattr(together, axis), getattr(alone, axis).table
            mine = mine.table.take(mine.code[[row]])
            assert mine.whole == own.whole
            assert (mine.members == own.members).all()
            assert (mine.stride == own.stride)[own.members > 1].all()


def counted(lengths: dict[str, int], order: tuple[str, ...], block: int) -> list[tuple[int, ...]]:
    """Coordinates (x, y, z) of one device after the other."""
    found = []
    blocks = product(
        *(range(0, lengths[name], min(block, lengths[name])) for name in reversed(order))
    )
    for corner in blocks:
        within = product(*(range(min(block, lengths[name])) for name in reversed(order)))
        for step in within:
            at = {name: c + s for name, c, s in zip(reversed(order), corner, step, strict=True)}
            found.append(tuple(at[name] for name in "xyz"))
    return found


def first_broken_of(layout: Layout, cluster: Cluster, rule: str) -> bool:
    question = problem("llama-3.1-8b", ("tpu-v5p", 64), "maxtext", seq_len=4096, global_batch=64)
    return not RULES_BY_NAME[rule].test(replace(question, cluster=cluster), Layouts.of([layout]))[0]


def test_groups_of_sixteen_on_racks_of_seventy_two_straddle() -> None:
    """72 = 4 x 16 + 8: the worst group has 8 on either side."""
    cluster = catalogue.cluster("gb300", 144)
    group = groups(cluster, Layouts.of([Layout(tp=16, dp_shard=9)])).tp.table
    assert group.members[:, 0].tolist() == [8.0, 2.0]


def test_racks_are_filled_as_evenly_as_the_count_allows() -> None:
    assert catalogue.cluster("gb300", 256).dims[0].domain == 64
    assert catalogue.cluster("gb300", 4608).dims[0].domain == 72
