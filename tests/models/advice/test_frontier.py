"""What more of anything is worth, holding all else fixed."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from models.advice import sweep
from models.advice.frontier import crossings, frontier
from models.advice.sweep import FrontierSweep, LinkBlock, Point
from models.advice.thresholds import thresholds
from models.cost.predictions import predict
from models.errors import Infeasible
from models.layouts.space import Space
from models.search.enumeration import search
from models.search.result import Goal
from models.search.tables import NoLegalLayout
from models.spec import catalogue
from models.spec.architecture import Architecture
from models.spec.constraints import Constraints
from models.spec.hardware import Cluster
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.recompute import policy_code
from models.spec.workload import Workload
from tests.benchmarks.problems import NAMED, problem
from tests.models.search.test_enumeration import problems
from tests.oracles.brute_force import legal
from tests.oracles.random_questions import PINNED, offers

PROFILE = shipped_profile()
# where unlike stages take turns in being the last, closed forms of schedules are that close
CLOSE = 1e-3
SMALL = Problem(
    architecture=catalogue.architecture("llama-3-70b"),
    cluster=catalogue.cluster("h100", 256),
    workload=Workload(seq_len=8192, global_batch=256),
    stack=catalogue.stack("megatron"),
)


def fastest(problem: Problem, **allowed: tuple[object, ...]) -> float:
    try:
        return float(search(Space(problem, Constraints(allowed=allowed)), PROFILE, Goal()).times[0])
    except (NoLegalLayout, Infeasible):
        return np.inf


@pytest.mark.long
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(problems(), st.sampled_from([1.1, 2.0, 10.0]))
def test_more_of_anything_never_makes_the_best_slower(problem: Problem, times: float) -> None:
    best, chip = fastest(problem) * (1 + CLOSE), problem.cluster.chip
    roomier = replace(
        problem.cluster, chip=replace(chip, usable_memory_gib=chip.usable_memory_gib * times)
    )
    for cluster in (roomier, *better(problem.cluster, times)):
        assert fastest(replace(problem, cluster=cluster)) <= best


def better(cluster: Cluster, times: float) -> list[Cluster]:
    """With more of one thing each."""
    chip = cluster.chip
    peaks = {dtype: peak * times for dtype, peak in chip.peak_tflops.items()}
    return [
        cluster.with_changes(scale_up=times),
        cluster.with_changes(scale_out=times),
        replace(
            cluster, chip=replace(chip, memory_bandwidth_gb_s=chip.memory_bandwidth_gb_s * times)
        ),
        replace(cluster, chip=replace(chip, peak_tflops=peaks)),
    ]


SPEED = st.sampled_from([0.01, 0.1, 1.0])


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(problems(), st.sampled_from(PINNED), st.sampled_from([1.1, 2.0, 10.0]), SPEED, SPEED)
def test_more_of_anything_never_makes_a_layout_slower(
    problem: Problem,
    pinned: dict[str, tuple[object, ...]],
    times: float,
    inside: float,
    outside: float,
) -> None:
    """Nor where links are so slow that whatever can hide traffic does."""
    assume(offers(problem, pinned))
    slow = replace(
        problem, cluster=problem.cluster.with_changes(scale_up=inside, scale_out=outside)
    )
    for layouts in islice(legal(slow, Constraints(allowed=pinned)), 20):
        took = predict(slow, layouts, PROFILE.coefficients(slow.scopes)).step_time_s * (1 + CLOSE)
        for cluster in better(slow.cluster, times):
            faster = replace(slow, cluster=cluster)
            assert (
                predict(faster, layouts, PROFILE.coefficients(faster.scopes)).step_time_s <= took
            ).all()


@pytest.mark.parametrize(("domain", "layers", "batch"), [(3, 8, 2), (8, 6, 2), (8, 6, 6)])
def test_computing_attention_again_never_makes_a_step_shorter(
    domain: int, layers: int, batch: int
) -> None:
    """Nor where stages that wait for one another are unlike, and kinds of layers take turns: the
    search leaves it out, since it keeps nothing less."""
    cluster = catalogue.cluster("h800", 16)
    first, *others = cluster.fabric.levels
    model = Architecture.from_shape(
        name="chunked",
        num_layers=layers,
        hidden_size=1536,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=128,
        intermediate_size=2816,
        vocab_size=128256,
        sliding_window=128,
        chunked_attention=True,
        full_attention_period=2,
        num_norms=4,
    )
    asked = Problem(
        architecture=model,
        cluster=replace(
            cluster, fabric=replace(cluster.fabric, levels=(replace(first, size=domain), *others))
        ),
        workload=Workload(seq_len=4096, global_batch=batch, precision="fp32"),
        stack=catalogue.stack("megatron"),
    )
    pinned = {
        "recompute": ("none",),
        "cp": (2, 4),
        "schedule": ("1f1b", "interleaved"),
        "micro_batch": (1,),
    }
    again, c = int(policy_code("selective", ("core_attn",))), PROFILE.coefficients(asked.scopes)
    for plain in legal(asked, Constraints(allowed=pinned)):
        more = plain.with_columns(recompute=np.full(len(plain), again))
        seconds, with_more = (predict(asked, rows, c).step_time_s for rows in (plain, more))
        assert (with_more >= seconds * (1 - 1e-9)).all()


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    problems(),
    st.sampled_from(
        [{"tp": (1, 2)}, {"pp": (1,)}, {"zero_stage": (1, 3)}, {"recompute": ("full",)}]
    ),
)
def test_a_constraint_never_makes_the_best_faster(
    problem: Problem, allowed: dict[str, tuple[object, ...]]
) -> None:
    assert fastest(problem, **allowed) >= fastest(problem)


def test_a_point_is_the_search_of_its_place() -> None:
    grid = {"scale_out": [0.25, 4.0], "num_chips": [128, 256]}
    points = frontier(SMALL, PROFILE, Constraints(), grid)
    assert [p.at for p in points] == [
        {"scale_out": s, "num_chips": n} for s in (0.25, 4.0) for n in (128, 256)
    ]
    for found in points:
        cluster = SMALL.cluster.with_changes(
            scale_out=found.at["scale_out"], num_chips=int(found.at["num_chips"])
        )
        there = replace(SMALL, cluster=cluster)
        assert found.without_s == fastest(there, pp=(1,))
        assert found.with_s == fastest(there, pp=tuple(range(2, 81)))


@pytest.mark.parametrize(
    "cluster",
    [
        catalogue.cluster("gb200", 512, chips_per_domain=32),
        catalogue.cluster("v5p", 64, torus_shape=(2, 2, 16)),
        catalogue.cluster("v5p", 128, torus_shape=(2, 4, 8)),
    ],
)
def test_the_number_of_chips_that_there_are_is_the_cluster_as_it_is(cluster: Cluster) -> None:
    assert (
        cluster.with_changes(num_chips=cluster.num_chips)
        == cluster.with_changes(scale_out=1.0)
        == cluster
    )


def test_other_numbers_of_chips_hold_as_many_of_each_domain_and_whole_slices() -> None:
    racks = catalogue.cluster("gb200", 512, chips_per_domain=32)
    assert [racks.with_changes(num_chips=n).scale_up_domain for n in (1024, 64, 16)] == [32, 32, 16]
    assert racks.with_changes(num_chips=64, domain=48).chips_per_domain is None
    slices = catalogue.cluster("v5p", 128, torus_shape=(2, 4, 8))
    assert [slices.with_changes(num_chips=n).slice_shape for n in (64, 256, 32)] == [
        (2, 4, 8),
        (2, 4, 8),
        (2, 4, 4),
    ]
    assert catalogue.cluster("v5p", 64, torus_shape=(2, 4, 8)).with_changes(
        num_chips=128
    ).slice_shape == (4, 4, 8)


def test_points_that_time_does_not_reach_are_named_and_so_are_models_too_deep() -> None:
    late = frontier(SMALL, PROFILE, Constraints(), {"layers": (1.0, 2.0, 3.0)}, lambda: False)
    assert [point.refused for point in late[1:]] == ["time ran out before this point"] * 2
    assert not any(point.exact for point in late[1:])
    (deep,) = frontier(SMALL, PROFILE, Constraints(), {"layers": (100.0,)})
    assert "makes 8000 layers" in (deep.refused or "")


@pytest.mark.long
@pytest.mark.parametrize("chips", [64, 96])
def test_domains_that_are_filled_alike_are_places_of_their_own(chips: int) -> None:
    question = replace(SMALL, cluster=replace(SMALL.cluster, num_chips=chips))
    grid = {"scale_up": (0.5, 2.0), "domain": (4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 72.0, 500.0)}
    points = frontier(question, PROFILE, Constraints(), grid)
    joined = [point.chips_per_domain for point in points]
    assert len(set(joined)) < len(grid["domain"])
    for point in points:
        alone = FrontierSweep(question, PROFILE, Constraints()).point(point.at)
        assert replace(point, gap_spread=0.0) == replace(alone, gap_spread=0.0)


def test_whenever_time_ends_the_points_that_are_exact_are_those_of_a_frontier_with_time() -> None:
    question = problem("llama-3-8b", ("h100", 16), "megatron", seq_len=8192, global_batch=16)
    grid = {"scale_up": (1.0, 1.05), "scale_out": (1.0, 1.02, 1.04, 1.06)}
    whole, exact = frontier(question, PROFILE, Constraints(), grid), set()
    for looks in range(100):
        left = iter(range(looks))
        points = frontier(
            question, PROFILE, Constraints(), grid, lambda left=left: next(left, None) is not None
        )
        assert [point.at for point in points] == [point.at for point in whole]
        assert all(
            point == other for point, other in zip(points, whole, strict=True) if point.exact
        )
        exact.add(sum(point.exact for point in points))
        if len(whole) in exact:
            break
    assert min(exact) < len(whole) in exact


def test_a_deeper_model_is_as_many_times_the_parameters() -> None:
    sparse = catalogue.architecture("deepseek-v3")
    twice = sparse.with_depth_scaled(2)
    body = sum(layer.parameters(sparse.hidden_size) for layer in sparse.layers)
    assert sum(layer.parameters(twice.hidden_size) for layer in twice.layers) == 2 * body
    assert sparse.with_depth_scaled(1) == sparse


def test_where_the_gap_crosses_the_tolerance_lies_between_the_points_on_either_side() -> None:
    grid = {"scale_out": [1.0, 2.0, 4.0, 8.0, 16.0]}
    points = frontier(NAMED["llama-3.1-405b"](), PROFILE, Constraints(), grid)
    sides = [p.needs_no_pipeline(0.03) for p in points]
    found = crossings(points, grid, 0.03)
    changes = [i for i in range(len(sides) - 1) if sides[i] != sides[i + 1]]
    assert len(found) == len(changes) > 0
    for i, crossing in zip(changes, found, strict=True):
        assert (crossing.above, crossing.below) == (
            points[i].at["scale_out"],
            points[i + 1].at["scale_out"],
        )
        assert crossing.axis == "scale_out"
        assert crossing.above <= crossing.estimate <= crossing.below
    assert (
        crossings([*points[3:], *points[:3]], grid, 0.03) == found
    )  # whatever order they were asked in


@pytest.mark.long
def test_whenever_time_ends_a_threshold_names_no_change_that_is_none() -> None:
    question = problem("llama-3-70b", ("h100", 64), "megatron", seq_len=8192, global_batch=64)
    gap = FrontierSweep(question, PROFILE, Constraints()).point({}).gap
    assert gap is not None
    sides, some, proved = dict[tuple[str, float], bool](), set[bool](), 0

    def side(axis: str, value: float, place: float) -> bool:
        at = {axis: place if axis == "domain" else place / value}
        if (axis, place) not in sides:
            sides[axis, place] = (
                FrontierSweep(question, PROFILE, Constraints()).point(at).needs_no_pipeline(gap / 2)
            )
        return sides[axis, place]

    for calls in range(0, 200, 9):
        left = iter([True] * calls)
        for one in thresholds(
            question, PROFILE, Constraints(), gap / 2, lambda left=left: next(left, False)
        ):
            some.add(one.exact)
            assert side(one.axis, one.value, one.holds_at) != one.is_above
            if one.changes_at is not None:
                proved += 1
                assert side(one.axis, one.value, one.changes_at) == one.is_above
    assert some == {True, False}
    assert proved


def test_a_threshold_of_a_torus_is_that_of_its_links() -> None:
    """And not of those within a package of two dies."""
    question = problem("llama-3.1-8b", ("tpu-v7x", 8), "maxtext", seq_len=4096, global_batch=64)
    found = thresholds(question, PROFILE, Constraints(), 0.03, lambda: True)
    assert [(one.axis, one.value) for one in found] == [
        ("scale_up", question.cluster.fabric.torus.gb_s_per_link)
    ]


@pytest.mark.parametrize("name", ["llama-3.1-405b"])
def test_a_threshold_lies_between_two_searches_that_differ(name: str) -> None:
    problem = NAMED[name]()
    found = {
        one.axis: one for one in thresholds(problem, PROFILE, Constraints(), 0.03, lambda: True)
    }
    assert found.keys() == {"scale_up", "scale_out", "domain"}
    changing = [one for one in found.values() if one.changes_at is not None]
    assert changing
    for one in changing:
        places = [one.holds_at, one.changes_at]
        if one.axis != "domain":
            places = [place / one.value for place in places]
        sides = [
            FrontierSweep(problem, PROFILE, Constraints())
            .point({one.axis: place})
            .needs_no_pipeline(0.03)
            for place in places
        ]
        assert sides == [not one.is_above, one.is_above]


@pytest.mark.long
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    problems(),
    st.permutations([1.0, 0.1, 3.0, 1.0]),
    st.sampled_from(["scale_up", "scale_out", "num_chips"]),
)
def test_a_search_after_others_finds_what_it_finds_by_itself(
    question: Problem, values: list[float], axis: str
) -> None:
    places = [{axis: float(int(4 * value)) if axis == "num_chips" else value} for value in values]
    places = [place for place in places if axis != "num_chips" or place[axis] >= 1]
    one_after_the_other = FrontierSweep(question, PROFILE, Constraints())
    for place in places:
        assert one_after_the_other.point(place) == FrontierSweep(
            question, PROFILE, Constraints()
        ).point(place)


@pytest.mark.long
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(problems(), st.permutations([1.0, 0.1, 3.0, 0.8]), st.sampled_from([0.0, 0.03, 0.5]))
def test_the_verdict_at_a_place_is_what_its_point_says(
    question: Problem, values: list[float], tolerance: float
) -> None:
    one_after_the_other = FrontierSweep(question, PROFILE, Constraints())
    for axis, value in product(("scale_up", "scale_out"), values):
        point = FrontierSweep(question, PROFILE, Constraints()).point({axis: value})
        simple = None if point.gap is None else point.needs_no_pipeline(tolerance)
        assert one_after_the_other.verdict_at({axis: value}, tolerance) == (simple, True)


@pytest.mark.parametrize(
    ("few", "most"),
    [(1, 100_000), *(pytest.param(2_000, most, marks=pytest.mark.long) for most in (100_000, 0))],
)
@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(problems(), st.sampled_from([0.01, 0.3, 1.0]), st.sampled_from([1.01, 1.3, 4.0]))
def test_the_places_of_a_block_are_searches_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
    few: int,
    most: int,
    question: Problem,
    slowest: float,
    times: float,
) -> None:
    """Whether layouts are shared by all of them, by ever fewer, or by none."""
    monkeypatch.setattr(sweep, "_FEW_LAYOUTS", few)
    monkeypatch.setattr(sweep, "_MAX_LAYOUTS", most)
    factors = {
        axis: tuple(slowest * times**i for i in range(3)) for axis in ("scale_up", "scale_out")
    }
    block = LinkBlock({}, factors)
    points = list(FrontierSweep(question, PROFILE, Constraints()).points(block))
    found = {tuple(point.at.values()): point for point in points}
    assert len(points) == len(found) == len(block) == 9
    for place in block.places:
        point, alone = (
            found[tuple(place.values())],
            FrontierSweep(question, PROFILE, Constraints()).point(place),
        )
        assert (point.without, point.with_pp, point.refused) == (
            alone.without,
            alone.with_pp,
            alone.refused,
        )
        assert (point.without_s, point.with_s) == (alone.without_s, alone.with_s)


@pytest.mark.parametrize(
    ("question", "grid"),
    [
        (problem("qwen3-30b-a3b", ("gb200", 144), "megatron", seq_len=4096, global_batch=512),
         {"domain": (8.0, 72.0), "scale_up": (0.1, 1.0), "num_chips": (72.0, 144.0)}),
        (problem("llama-3-70b", ("tpu-v5p", 128), "maxtext", seq_len=8192, global_batch=128),
         {"num_chips": (64.0, 128.0), "scale_up": (0.1, 1.0)}),
        (problem("llama-3.1-8b", ("h100", 64), "megatron", seq_len=8192, global_batch=64),
         {"layers": (1.0, 2.0), "scale_out": (0.1, 1.0)}),
    ],
)  # fmt: skip
def test_the_points_of_a_frontier_are_searches_of_their_own(
    question: Problem, grid: dict[str, tuple[float, ...]]
) -> None:
    points = frontier(question, PROFILE, Constraints(), grid)
    assert [list(point.at.values()) for point in points] == [
        list(values) for values in product(*grid.values())
    ]
    assert [replace(point, gap_spread=0.0) for point in points] == [
        FrontierSweep(question, PROFILE, Constraints()).point(point.at) for point in points
    ]


def test_the_gap_crosses_along_every_axis() -> None:
    """Of a grid of two by two one corner needs a pipeline: one crossing along each axis, to its
    neighbours."""

    def point(a: float, b: float) -> Point:
        gap = 0.07 if (a, b) == (1.0, 2.0) else 0.0
        at, layouts = {"scale_up": a, "scale_out": b}, dict.fromkeys(("without", "with_pp"))
        return Point(at=at, without_s=1 + gap, with_s=1.0, gap=gap, exact=True, **layouts)

    grid = {"scale_up": [1.0, 3.0], "scale_out": [2.0, 4.0]}
    found = crossings(
        [point(a, b) for a in grid["scale_up"] for b in grid["scale_out"]], grid, 0.035
    )
    assert [(one.axis, one.at, one.above, one.below, one.estimate) for one in found] == [
        ("scale_up", {"scale_out": 2.0}, 1.0, 3.0, pytest.approx(2.0)),
        ("scale_out", {"scale_up": 1.0}, 2.0, 4.0, pytest.approx(3.0)),
    ]
