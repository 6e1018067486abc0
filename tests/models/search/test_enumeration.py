"""The search against brute force, and the certificate against the size of the space."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from models.advice.recommendation import recommend
from models.columns import distinct
from models.cost.predictions import predict
from models.errors import Infeasible, Invalid, OutOfTime
from models.layouts.factors import factorisations, num_ordered_factorisations
from models.layouts.space import (
    Space,
    default_layouts,
)
from models.search import enumeration as search_module
from models.search.enumeration import search
from models.search.incumbent import Incumbent
from models.search.pareto import ROUNDED
from models.search.result import Goal, NothingFaster, SearchAnswer, run_to_completion
from models.search.tables import NoLegalLayout, SearchTables
from models.spec import catalogue
from models.spec.constraints import EVEN_CHANCE, Constraints
from models.spec.hardware import GIB
from models.spec.layout import SCHEDULES, Layouts
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.workload import Workload
from tests.benchmarks.problems import NAMED, problem
from tests.models.search.test_partial_sums import Members, require_bounds
from tests.oracles.brute_force import Found, fitting, legal
from tests.oracles.random_problems import SELECTIVE, small_model, small_problem, with_host
from tests.oracles.random_questions import PINNED, UNSURE, offers

PROFILE = shipped_profile()
SIZES = ("_FIRST_CORES", "_CORES", "_STEPS", "_FOUND")  # of what is done together


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    found = small_problem(lambda values: draw(st.sampled_from(values)))
    if (
        settings.get_current_profile_name() == "same"
    ):  # brute force of these takes a quarter of a minute each
        chips, stack = found.cluster.num_chips, found.stack.id
        assume(not (found.architecture.is_moe and chips == 16 and stack == "generic"))
    return found


def answered(problem: Problem, constraints: Constraints, goal: Goal) -> SearchAnswer | None:
    try:
        return search(Space(problem, constraints), PROFILE, goal)
    except (NoLegalLayout, Infeasible):
        return None


def agree(answer: SearchAnswer | None, found: Found | None, goal: Goal) -> None:
    """The fastest, the ranking, the best of both sides, and the simplest within the tolerance."""
    assert (answer is None) == (found is None)
    if answer is None or found is None:
        return
    best = found.times.min()
    assert answer.times[0] == pytest.approx(best, rel=1e-12)
    ranked = found.ranked(goal.top, goal.tolerance)
    assert answer.times[answer.ranked].tolist() == pytest.approx(ranked, rel=1e-9)
    for row, with_pipeline in ((answer.without, False), (answer.with_pp, True)):
        side = found.times[(found.layouts.pp > 1) == with_pipeline]
        assert (row is None) == (not len(side))
        assert row is None or answer.times[row] == pytest.approx(side.min(), rel=1e-12)
    near = found.times <= best * (1 + goal.tolerance) * ROUNDED
    points = np.unique(found.points[near])
    least = [found.times[near & (found.points <= most)].min() for most in points]
    front = [
        (p, t)
        for i, (p, t) in enumerate(zip(points, least, strict=True))
        if i == 0 or t * ROUNDED < least[i - 1]
    ]
    assert answer.complexities[answer.front].tolist() == [p for p, _ in front]
    assert answer.times[answer.front].tolist() == pytest.approx([t for _, t in front], rel=1e-12)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    problems(),
    st.sampled_from([0.0, 0.03, 0.3]),
    st.sampled_from([1, 5]),
    st.sampled_from(PINNED),
    st.sampled_from([0.0, 0.0, 0.8, 0.9, 0.95]),
    st.sampled_from([2, 8, 1000]),
)
def test_the_search_finds_what_brute_force_finds(
    problem: Problem,
    tolerance: float,
    top: int,
    pinned: dict[str, tuple[object, ...]],
    taken: float,
    together: int,
) -> None:
    assume(offers(problem, pinned))
    reserve = taken * problem.cluster.usable_bytes / GIB
    constraints = Constraints(allowed=pinned, memory_reserve_gib=reserve)
    goal = Goal(tolerance=tolerance, top=top, both_sides=True)
    with pytest.MonkeyPatch.context() as patch:
        for name in SIZES:  # a small problem's are otherwise all opened before the first is known
            patch.setattr(search_module, name, together)
        answer = answered(problem, constraints, goal)
    agree(answer, fitting(problem, PROFILE, constraints), goal)


@settings(max_examples=15)
@given(
    problems(),
    st.sampled_from(PINNED),
    st.sampled_from([0.0, 0.6, 0.8]),
    st.sampled_from([0.6, 0.9, 0.99]),
    st.sampled_from([2, 1000]),
)
def test_the_search_finds_the_fastest_that_fits_with_a_probability(
    problem: Problem,
    pinned: dict[str, tuple[object, ...]],
    taken: float,
    probability: float,
    together: int,
) -> None:
    """As brute force does by the probability that every layout's description says."""
    assume(offers(problem, pinned))
    reserve = taken * problem.cluster.usable_bytes / GIB
    constraints = Constraints(
        allowed=pinned, memory_reserve_gib=reserve, min_fit_probability=probability
    )
    goal = Goal(tolerance=0.03, top=2, both_sides=True)
    with pytest.MonkeyPatch.context() as patch:
        for name in SIZES:
            patch.setattr(search_module, name, together)
        try:
            answer: SearchAnswer | None = search(Space(problem, constraints), UNSURE, goal)
        except (Infeasible, NoLegalLayout, Invalid):
            answer = None
    agree(answer, fitting(problem, UNSURE, constraints), goal)


def test_of_layouts_that_tie_the_simplest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of the simplest exceeds its step time here by a rounding error, and a more complex
    one is met first."""
    question = Problem(
        architecture=small_model(sparse=True, layers=3),
        cluster=with_host(catalogue.cluster("tpu-v5p", 16), None),
        workload=Workload(seq_len=4096, global_batch=6),
        stack=replace(catalogue.stack("maxtext"), selective=SELECTIVE[0], recompute_layers=False),
    )
    constraints, goal = Constraints(allowed=PINNED[0]), Goal(tolerance=0.0, top=1, both_sides=True)
    for name in SIZES:
        monkeypatch.setattr(search_module, name, 2)
    agree(answered(question, constraints, goal), fitting(question, PROFILE, constraints), goal)


@pytest.mark.long
def test_meshes_that_turn_out_to_be_as_fast_as_others_leave_their_places_to_slower_ones() -> None:
    """Two pairs of meshes tie here, found one after the other."""
    question = Problem(
        architecture=small_model(sparse=True, layers=3),
        cluster=catalogue.cluster("tpu-v5p", 16),
        workload=Workload(seq_len=32768, global_batch=48, load_balancing="global_batch_loss"),
        stack=replace(catalogue.stack("generic"), max_virtual_stages=2),
    )
    constraints = Constraints(
        allowed=PINNED[4], memory_reserve_gib=0.9 * question.cluster.usable_bytes / GIB
    )
    goal = Goal(tolerance=0.03, top=5, both_sides=True)
    answer = answered(question, constraints, goal)
    assert answer is not None
    assert len(answer.ranked) == 5
    agree(answer, fitting(question, PROFILE, constraints), goal)
    for faster_than in (np.inf, 2 * answer.times[0]):
        ended = ended_anywhere(Space(question, constraints), replace(goal, faster_than=faster_than))
        first = next(i for i, time in enumerate(ended) if time is not None)
        assert ended[first:] == [answer.times[0]] * (len(ended) - first)


def ended_anywhere(space: Space, goal: Goal) -> list[float | None]:
    """The best when time ends at the first step, at the second, and so on until it no longer does;
    a second search, for what tied in the first, has steps as well."""
    best: list[float | None] = []
    while True:
        left = iter(range(len(best)))
        try:
            answer = search(space, PROFILE, goal, lambda left=left: next(left, None) is not None)
        except (OutOfTime, NothingFaster):
            best.append(None)
            continue
        best.append(float(answer.times[0]))
        if answer.certificate.exact:
            return best


@pytest.mark.parametrize(
    ("name", "pinned"),
    [
        pytest.param("llama-3.1-8b", {"tp": (1, 2), "micro_batch": (1,)}, marks=pytest.mark.long),
        pytest.param("llama-3.1-405b", {"tp": (8,), "dp_shard": (128,)}, marks=pytest.mark.long),
        ("deepseek-v3 15360", {"schedule": ("dualpipe", "1f1b"), "ep": (32,)}),
        pytest.param(
            "deepseek-v3 16384", {"zero_stage": (1,), "ep": (32, 64)}, marks=pytest.mark.long
        ),
        pytest.param("deepseek-v3 v5p", {"tp": (1,), "cp": (1,)}, marks=pytest.mark.long),
        pytest.param("kimi-k2 gb300", {"dp_shard": (576,), "pp": (4,)}, marks=pytest.mark.long),
        pytest.param(
            "megatron-1t", {"dp_shard": (32,), "pp": (32, 64, 128)}, marks=pytest.mark.long
        ),
        ("gpt3-175b 1600", {"pp": (25,), "cp": (2,)}),
        pytest.param(
            "kimi-k2 v7x", {"dp_replicate": (2,), "dp_shard": (12288,)}, marks=pytest.mark.long
        ),
    ],
)
def test_brute_force_agrees_on_the_named_problems_with_two_knobs_pinned(
    name: str, pinned: dict[str, tuple[object, ...]]
) -> None:
    problem, constraints, goal = (
        NAMED[name](),
        Constraints(allowed=pinned),
        Goal(tolerance=0.03, top=5, both_sides=True),
    )
    agree(answered(problem, constraints, goal), fitting(problem, PROFILE, constraints), goal)


@pytest.mark.parametrize("size", [64, 1000])
def test_the_answer_does_not_hang_on_how_many_layouts_are_worked_on_together(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, goal = NAMED["llama-3.1-405b"](), Goal(tolerance=0.03, top=5, both_sides=True)
    usual = search(Space(problem, Constraints()), PROFILE, goal)
    for name in SIZES:
        monkeypatch.setattr(search_module, name, size)
    other = search(Space(problem, Constraints()), PROFILE, goal)
    for answer in (usual, other):
        assert answer.certificate.exact
    take_at = [
        [(a.layouts[i], a.times[i]) for i in (*a.ranked, *a.front, a.without, a.with_pp)]
        for a in (usual, other)
    ]
    assert take_at[0] == take_at[1]


@settings(max_examples=25)
@given(problems())
def test_every_layout_of_the_space_is_counted_once(problem: Problem) -> None:
    answer = answered(problem, Constraints(), Goal(tolerance=0.03))
    if answer is None:
        return
    certificate = answer.certificate
    counts = [*certificate.rejected.values(), certificate.over_memory, certificate.pruned_by_memory]
    counts += [certificate.pruned_by_bound, certificate.evaluated]
    assert min(counts) >= 0
    assert sum(counts) == certificate.space


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(problems(), st.sampled_from(PINNED), st.sampled_from([1, 2, 4]))
def test_no_bound_exceeds_what_it_bounds(
    problem: Problem, pinned: dict[str, tuple[object, ...]], layers: int
) -> None:
    """Of models so many times as deep, too."""
    assume(offers(problem, pinned))
    problem = replace(problem, architecture=problem.architecture.with_depth_scaled(layers))
    agree_with_bounds(problem, Constraints(allowed=pinned))


@pytest.mark.long
@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(problems(), st.sampled_from([2, 4, 8]), st.sampled_from([(2,), (3,), (4,)]))
def test_no_bound_of_a_pipeline_exceeds_what_it_bounds(
    schedule: str, problem: Problem, layers: int, pp: tuple[int, ...]
) -> None:
    """Of deeper models, whose layers fall on stages and chunks in every way."""
    architecture, cluster = (
        problem.architecture.with_depth_scaled(layers),
        problem.cluster.with_changes(num_chips=12),
    )
    deep = replace(
        problem, architecture=architecture, cluster=cluster, stack=catalogue.stack("generic")
    )
    allowed = {
        "schedule": (schedule,),
        "pp": pp,
        "zero_stage": (1,),
        "recompute": ("none", "full"),
        "cp": (1,),
    }
    agree_with_bounds(deep, Constraints(allowed=allowed | {"offload_activations": (False,)}))


def agree_with_bounds(problem: Problem, constraints: Constraints) -> None:
    parts = list(legal(problem, constraints))
    layouts = Layouts.concatenate(parts) if parts else Layouts.of([])
    if not len(layouts):
        return
    layouts = layouts.take(np.arange(0, len(layouts), max(len(layouts) // 4000, 1)))
    tables = SearchTables(Space(problem, constraints), PROFILE)
    require_bounds(tables, Members.of(tables, layouts))


_SIDES = Goal(tolerance=0.03, both_sides=True)


@cache
def _settled(model: str, stack: str) -> tuple[Problem, float]:
    """A question, and what a search takes that nothing stops."""
    question = Problem(
        architecture=catalogue.architecture(model),
        cluster=catalogue.cluster("h100", 64),
        workload=Workload(seq_len=8192, global_batch=128),
        stack=catalogue.stack(stack),
    )
    return question, float(search(Space(question, Constraints()), PROFILE, _SIDES).times[0])


@pytest.mark.long
@settings(max_examples=25)
@given(
    st.sampled_from(
        [("llama-3-8b", "megatron"), ("mixtral-8x7b", "megatron"), ("llama-3-8b", "generic")]
    ),
    st.data(),
)
def test_a_search_that_is_stopped_says_how_far_from_the_best_it_may_be(
    names: tuple[str, str], data: st.DataObject
) -> None:
    question, best = _settled(*names)
    asked = iter([True] * data.draw(st.integers(0, 12)))
    stopped = search(Space(question, Constraints()), PROFILE, _SIDES, lambda: next(asked, False))
    assert best <= stopped.times[0] <= best * (1 + stopped.certificate.gap) * (1 + 1e-12)
    assert stopped.certificate.exact or next(asked, None) is None


@pytest.mark.parametrize("together", [2, 1024])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_what_a_stopped_search_has_not_opened_counts_towards_its_gap(
    after: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Problem(
        architecture=catalogue.architecture("llama-3-8b"),
        cluster=catalogue.cluster("a100-sxm-40gb", 8),
        workload=Workload(seq_len=8192, global_batch=4),
        stack=catalogue.stack("torchtitan"),
    )
    goal, answers = Goal(tolerance=0.03, both_sides=True), iter([True] * after)
    best = search(Space(question, Constraints()), PROFILE, goal).times[0]
    for name in SIZES:
        monkeypatch.setattr(search_module, name, together)
    stopped = search(Space(question, Constraints()), PROFILE, goal, lambda: next(answers, False))
    assert best <= stopped.times[0] <= best * (1 + stopped.certificate.gap) * (1 + 1e-12)


@pytest.mark.parametrize("chips", [512, 1024])
def test_how_the_dims_of_a_torus_are_named_is_nothing_to_the_answer(chips: int) -> None:
    question = problem(
        "deepseek-v3", ("tpu-v5p", chips), "maxtext", seq_len=4096, global_batch=1024
    )
    shapes = set(
        permutations(sorted(question.cluster.slice_shape)[:2] + [max(question.cluster.slice_shape)])
    )
    found = [
        replace(question, cluster=replace(question.cluster, torus_shape=shape))
        for shape in sorted(shapes)
    ]
    times = [search(Space(one, Constraints()), PROFILE, Goal()).times[0] for one in found]
    assert times == pytest.approx([times[0]] * len(times), rel=1e-12)


def test_a_ranking_is_complete_as_far_as_it_goes() -> None:
    """A mesh that gets as fast as another leaves fewer different times than there were: what was
    dropped before is not made up for by what is slower still."""
    held = Incumbent(Goal(top=2, tolerance=10.0))
    for degrees, time in ((1, 8.0), (2, 10.0), (3, 10.5), (2, 8.0), (4, 11.0)):
        layouts = replace(default_layouts(1), dp_shard=np.array([degrees]))
        held.add(layouts, np.array([time]), np.zeros(1, dtype=int))
    assert held.limits.last[0] == 10.0


@pytest.mark.parametrize("after", [0, 3, 20, 40])
def test_a_search_that_is_told_to_stop_stops(after: int) -> None:
    answers: list[bool] = []

    def should_continue() -> bool:
        answers.append(len(answers) < after)
        return answers[-1]

    search(
        Space(NAMED["kimi-k2 gb300"](), Constraints()),
        PROFILE,
        Goal(tolerance=0.03, both_sides=True),
        should_continue,
    )
    steps = 0 if after else 8  # until something fits
    assert answers.count(False) <= 6 + steps  # every level that was at work hears it once


def test_the_factorisations_are_those_one_can_write_down() -> None:
    for n in (1, 2, 12, 30, 64, 97):
        written = [
            [a, b, n // a // b]
            for a in range(1, n + 1) if n % a == 0
            for b in range(1, n // a + 1) if (n // a) % b == 0
        ]  # fmt: skip
        assert num_ordered_factorisations(n, 3) == len(written)
        assert factorisations(n, 3).tolist() == written


def test_the_same_question_has_the_same_answer() -> None:
    question = Problem(
        architecture=catalogue.architecture("llama-3-8b"),
        cluster=catalogue.cluster("h100", 64),
        workload=Workload(seq_len=8192, global_batch=128),
        stack=catalogue.stack("torchtitan"),
    )
    assert recommend(question, PROFILE) == recommend(question, PROFILE)


def test_constraints_are_honoured_and_never_make_the_answer_faster() -> None:
    question = Problem(
        architecture=catalogue.architecture("llama-3-8b"),
        cluster=catalogue.cluster("h100", 64),
        workload=Workload(seq_len=8192, global_batch=128),
        stack=catalogue.stack("megatron"),
    )
    free = recommend(question, PROFILE).fastest.prediction
    for knob, values in (
        ("pp", (2,)),
        ("tp", (4, 8)),
        ("recompute", ("full",)),
        ("zero_stage", (3,)),
        ("dp", (8,)),
    ):
        held = recommend(question, PROFILE, Constraints(allowed={knob: values})).fastest.prediction
        assert getattr(held.layout, knob) in values
        assert held.step_time_s >= free.step_time_s


def test_a_memory_reserve_is_left_free() -> None:
    question = Problem(
        architecture=catalogue.architecture("llama-3-8b"),
        cluster=catalogue.cluster("h100", 8),
        workload=Workload(seq_len=8192, global_batch=16),
        stack=catalogue.stack("torchtitan"),
    )
    held = recommend(question, PROFILE, Constraints(memory_reserve_gib=30)).fastest.prediction
    assert held.needed_gib <= held.usable_gib - 30


def test_what_cannot_fit_says_how_much_is_missing() -> None:
    question = Problem(
        architecture=catalogue.architecture("llama-3.1-405b"),
        cluster=catalogue.cluster("h100", 8),
        workload=Workload(seq_len=8192, global_batch=8),
        stack=catalogue.stack("torchtitan"),
    )
    with pytest.raises(Infeasible) as refused:
        recommend(question, PROFILE, Constraints(min_fit_probability=EVEN_CHANCE))
    assert refused.value.constraint == "memory"
    assert (
        refused.value.needed
        > refused.value.available
        == pytest.approx(question.cluster.usable_bytes / GIB)
    )


def test_a_batch_that_divides_over_no_layout_names_the_rule_and_uses_fewer_chips() -> None:
    question = Problem(
        architecture=catalogue.architecture("llama-3-8b"),
        cluster=catalogue.cluster("h100", 88),
        workload=Workload(seq_len=8192, global_batch=64),
        stack=catalogue.stack("fsdp"),
    )
    found = recommend(question, PROFILE)
    assert found.fewer_chips is not None
    assert found.fewer_chips.rule == "batch_divides"
    assert found.chips_used == found.fewer_chips.num_chips < 88


@pytest.mark.parametrize(
    ("stack", "chips", "allowed", "rule", "reason"),
    [
        (
            "torchtitan",
            16,
            {"ep": (8,)},
            "experts_divide",
            "ep(8) must divide the number of experts",
        ),
        (
            "megatron",
            16,
            {"virtual_stages": (3,), "pp": (1,)},
            "schedule_shape",
            "got 1f1b with virtual_stages(3)",
        ),
        (
            "generic",
            56,
            {"pp": (7,), "balanced": (False,)},
            "layers_divide",
            "32 layers must divide into 7 chunks of one length",
        ),
        ("torchtitan", 16, {"schedule": ("dualpipe",)}, "schedule_offered", "not dualpipe"),
        (
            "torchtitan",
            64,
            {"tp": (64,)},
            "tensor_divides_heads",
            "tp(64) must divide the 32 attention heads",
        ),
        (
            "torchtitan",
            16,
            {"zero_stage": (0,), "dp_shard": (16,)},
            "sharding_shape",
            "stage 0 replicates",
        ),
        (
            "fsdp",
            16,
            {"zero_stage": (2,), "reshard": (False,)},
            "breaks no rule",
            "makes no difference to it",
        ),
        ("torchtitan", 16, {"tp": (3,)}, "multiply to the 16 devices", "no degrees"),
    ],
)
def test_a_contradiction_names_the_rule_that_is_in_the_way(
    stack: str, chips: int, allowed: dict[str, tuple[object, ...]], rule: str, reason: str
) -> None:
    question = Problem(
        architecture=catalogue.architecture("llama-3-8b"),
        cluster=catalogue.cluster("h100", chips),
        workload=Workload(seq_len=8192, global_batch=128),
        stack=catalogue.stack(stack),
    )
    with pytest.raises(Infeasible) as refused:
        recommend(question, PROFILE, Constraints(allowed=allowed))
    assert refused.value.constraint.removeprefix("constraints.") in allowed
    assert rule in refused.value.detail
    assert reason in refused.value.detail


def test_blocks_of_a_torus_can_be_left_out() -> None:
    """Eight experts as 2 x 2 x 2 exchange faster than in line."""
    question = problem(
        "kimi-k2",
        ("tpu-v5p", 1024),
        "maxtext",
        seq_len=4096,
        global_batch=1024,
        load_balancing="bias",
    )
    found = {}
    for blocks in ((1, 2, 4), (1,), (2,)):
        answer = answered(
            question, Constraints(allowed={"torus_block": blocks, "ep": (8,)}), Goal()
        )
        assert answer is not None
        assert answer.layouts[answer.ranked[0]].torus_block in blocks
        found[blocks] = answer.times[0]
        certificate = answer.certificate
        counts = [
            *certificate.rejected.values(),
            certificate.over_memory,
            certificate.pruned_by_memory,
        ]
        assert (
            sum(counts) + certificate.pruned_by_bound + certificate.evaluated == certificate.space
        )
    assert found[1, 2, 4] == min(found.values()) < found[1,]


def test_a_fabric_without_a_torus_has_no_blocks() -> None:
    with pytest.raises(Infeasible, match="torus_block"):
        recommend(NAMED["llama-3.1-8b"](), PROFILE, Constraints(allowed={"torus_block": (2,)}))


@pytest.mark.parametrize("chip", ["h100", "mi300x"])
def test_a_second_search_with_what_the_first_knows_finds_both_sides_again(chip: str) -> None:
    question = Problem(
        architecture=catalogue.architecture("llama-3-70b"),
        cluster=catalogue.cluster(chip, 64),
        workload=Workload(seq_len=8192, global_batch=64),
        stack=catalogue.stack("megatron"),
    )
    tables, goal = (
        SearchTables(Space(question, Constraints()), PROFILE),
        Goal(tolerance=0.03, top=5, both_sides=True),
    )
    held = Incumbent(goal)
    first = search_module._Search(tables, held, run_to_completion).run()
    second = search_module._Search(tables, held.for_second_search(), run_to_completion).run()
    for before, after in ((first.without, second.without), (first.with_pp, second.with_pp)):
        assert before is not None
        assert after is not None
        assert first.times[before] == second.times[after]


_ON_DEVICE = {"etp": (1,), "offload_optimizer": (False,), "recompute": ("none", "selective")}
TOLD = [
    # a ring over so many that attention in chunks takes longer than what hides it
    ("gpt-3-175b", ("mi300x", 64), "megatron", 4096, 4, (1.0, 1.0), {"cp": (32, 64)}),
    ("qwen3-30b-a3b", ("a100-pcie-80gb", 256), "generic", 8192, 1024, (1.0, 1.0),
     {"pp": (1,), "cp": (64,), "tp": (1,), "ep": (32,), "dp_shard": (2,), "micro_batch": (32,),
      "zero_stage": (3,), "recompute": ("none",), "schedule": ("1f1b",)}),
    # what is computed again hides traffic that weight gradients hid, and a bubble is filled with
    # more of those
    ("mixtral-8x7b", ("h200", 64), "generic", 4096, 256, (0.1, 0.03),
     {"pp": (8,), "cp": (1,), "tp": (4,), "ep": (4,), "dp_shard": (2,), "micro_batch": (8,),
      "balanced": (True,), "schedule": ("zero_bubble_v",), "zero_stage": (3,),
      "offload_activations": (False,)}),
    # or what hides less in a forward leaves it more to hide a gather
    ("deepseek-moe-16b", ("gaudi2", 64), "generic", 8192, 256, (0.03, 0.03),
     {"pp": (2,), "cp": (1,), "tp": (1,), "ep": (16,), "dp_shard": (16,), "micro_batch": (1,),
      "balanced": (True,), "schedule": ("interleaved",), "virtual_stages": (7,), "zero_stage": (1,),
      "offload_activations": (False,)}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "cluster", "stack", "seq_len", "global_batch", "links", "pinned"), TOLD
)
def test_who_is_told_what_to_save_is_never_faster(
    model: str,
    cluster: tuple[str, int],
    stack: str,
    seq_len: int,
    global_batch: int,
    links: tuple[float, float],
    pinned: dict[str, tuple[object, ...]],
) -> None:
    """Of models too large for brute force: each way of saving memory by itself."""
    question = Problem(
        architecture=catalogue.architecture(model),
        cluster=catalogue.cluster(*cluster).with_changes(scale_up=links[0], scale_out=links[1]),
        workload=Workload(seq_len=seq_len, global_batch=global_batch, load_balancing="bias"),
        stack=catalogue.stack(stack),
    )
    pinned = _ON_DEVICE | pinned
    free = answered(question, Constraints(allowed=pinned), Goal())
    assert free is not None
    offloads = pinned.get("offload_activations", (False, True))
    for offload, recompute in product(offloads, pinned["recompute"]):
        told = pinned | {"offload_activations": (offload,), "recompute": (recompute,)}
        answer = answered(question, Constraints(allowed=told), Goal())
        assert answer is None or free.times[0] <= answer.times[0] * (1 + 1e-9)


def test_an_answer_predicts_of_a_layout_what_is_predicted_of_it_alone() -> None:
    """Under every schedule, whichever others are in its tables."""
    question = problem("deepseek-v3", ("h100", 256), "generic", seq_len=4096, global_batch=256)
    offered = Constraints(
        allowed={"recompute": ("full",), "pp": (4,), "tp": (1,), "cp": (1,), "micro_batch": (1,)},
        min_fit_probability=EVEN_CHANCE,
    )
    answer = answered(question, offered, Goal(tolerance=1.0, top=100))
    assert answer is not None
    rows, _ = distinct(
        answer.layouts.schedule, answer.layouts.virtual_stages, answer.layouts.balanced
    )
    assert len(rows) > 8
    together = answer.tables.predict(answer.layouts.take(rows))
    for i, row in enumerate(rows):
        alone = predict(
            question, answer.layouts.take(rows[i : i + 1]), PROFILE.coefficients(question.scopes)
        )
        assert together.step_time_s[i] == alone.step_time_s[0] == answer.times[row]
        assert together.needed_bytes[i] == alone.needed_bytes[0]
