"""What an answer is made of."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from models.advice.frontier import frontier
from models.advice.recommendation import recommend
from models.advice.safe_fit import SURE
from models.advice.thresholds import thresholds
from models.errors import Infeasible
from models.layouts.complexity import POINTS, WORDS
from models.layouts.space import Space
from models.prediction.prediction import predict_layouts
from models.search.branch_and_bound import search
from models.search.pareto import pareto_front, staircase
from models.search.result import Goal
from models.search.tables import NoLegalLayout
from models.spec import catalogue
from models.spec.constraints import CHOICES, FLAGS, Constraints
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.workload import Workload
from tests.benchmarks.problems import NAMED, problem
from tests.paths import ROOT

PROFILE = shipped_profile()
rows = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30
)


@given(rows)
def test_the_front_is_what_nothing_beats(choices: list[tuple[int, int, int]]) -> None:
    times, points, free = (np.array(column) for column in zip(*choices, strict=True))

    def beaten(a: tuple[int, int, int]) -> bool:
        return any(b[0] <= a[0] and b[1] <= a[1] and b[2] >= a[2] and b != a for b in choices)

    front = [choices[row] for row in pareto_front(times, points, free)]
    assert sorted(front) == sorted({one for one in choices if not beaten(one)})
    plane = [(int(times[row]), int(points[row])) for row in staircase(times, points)]
    pairs = {one[:2] for one in choices}
    assert sorted(plane) == sorted(
        a for a in pairs if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in pairs)
    )


def test_the_front_goes_from_the_fastest_to_the_simplest() -> None:
    found = recommend(NAMED["llama-3.1-405b"](), PROFILE)
    assert found.front[0] == found.fastest
    assert found.simplest in found.front
    assert min(candidate.complexity for candidate in found.front) == found.simplest.complexity
    assert (
        max(candidate.prediction.step_time_s for candidate in found.front)
        <= found.fastest.prediction.step_time_s * 1.03
    )


def llama(chips: int, global_batch: int, cluster: str = "h100") -> Problem:
    return Problem(
        architecture=catalogue.architecture("llama-3-8b"),
        cluster=catalogue.cluster(cluster, chips),
        workload=Workload(seq_len=4096, global_batch=global_batch),
        stack=catalogue.stack("megatron"),
    )


def fastest(problem: Problem) -> float:
    try:
        return float(search(Space(problem, Constraints()), PROFILE, Goal()).times[0])
    except (NoLegalLayout, Infeasible):
        return np.inf


@pytest.mark.parametrize("chips", [37, 43])
def test_where_no_layout_uses_all_chips_the_fastest_of_fewer_does(chips: int) -> None:
    found = recommend(llama(chips, 48), PROFILE)
    assert found.fewer_chips is not None
    assert (
        found.fewer_chips.rule in found.fewer_chips.message or "batch" in found.fewer_chips.message
    )
    times = {count: fastest(llama(count, 48)) for count in range(1, chips)}
    assert (
        found.chips_used
        == found.fewer_chips.num_chips
        == min(times, key=lambda count: times[count])
    )
    assert found.fastest.prediction.step_time_s == min(times.values())


def test_fewer_chips_need_no_more_racks_than_there_are() -> None:
    """63 racks of 72: 4,096 of the chips would be 64 of each of 64."""
    asked = problem(
        "kimi-k2", ("gb300", 4536), "megatron", seq_len=4096, global_batch=18432, precision="mxfp8"
    )
    used = recommend(asked, PROFILE).problem.cluster
    assert used.num_chips < 4536
    assert -(-used.num_chips // used.chips_joined) <= 63


@pytest.mark.parametrize("allowed", [{"pp": (7,)}, {"pp": (9,)}, {"ep": (8,)}])
def test_what_constraints_leave_of_fewer_chips_is_no_faster(
    allowed: dict[str, tuple[int, ...]],
) -> None:
    """224 chips in seven stages, beside 240, which divide in more ways."""
    asked = problem("deepseek-v3", ("gb200", 250), "megatron", seq_len=4096, global_batch=9216)
    free, bound = recommend(asked, PROFILE), recommend(asked, PROFILE, Constraints(allowed=allowed))
    assert free.fastest.prediction.step_time_s <= bound.fastest.prediction.step_time_s


@pytest.mark.parametrize("asked", [1, 20, 40, 60, 80, 120, 200])
def test_numbers_of_chips_that_there_was_no_time_for_are_owned_up_to(asked: int) -> None:
    whole, left = recommend(llama(37, 48), PROFILE), asked

    def should_continue() -> bool:
        nonlocal left
        left -= 1
        return left > 0

    found = recommend(llama(37, 48), PROFILE, should_continue=should_continue)
    assert found.fewer_chips is not None
    assert found.certificate.exact or left <= 0  # which may be when the proof is done
    best, most = whole.fastest.prediction.step_time_s, found.fastest.prediction.step_time_s
    assert best <= most <= best * (1 + found.certificate.gap) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("chips", "cluster"), [(9, "h100"), (10, "h100"), (14, "h100"), (138, "gb200"), (22, "h100")]
)
def test_fewer_chips_are_named_where_they_are_faster(chips: int, cluster: str) -> None:
    problem = llama(chips, 144, cluster)
    best = fastest(problem)
    found = recommend(problem, PROFILE)
    named = [reason for reason in found.reasons if "chips would be faster" in reason]
    if found.faster_on_fewer:
        count = found.faster_on_fewer.num_chips
        assert named[0].startswith(f"{count} chips")
        assert fastest(llama(count, 144, cluster)) == found.faster_on_fewer.step_time_s < best
    else:
        assert not named
        assert fastest(llama(chips // 8 * 8, 144, cluster)) >= best


@pytest.mark.parametrize(("chips", "stack"), [(46, "torchtitan"), (22, "megatron")])
def test_of_few_chips_no_smaller_number_is_faster_than_the_one_that_is_named(
    chips: int, stack: str
) -> None:
    """42 chips, of which no degree has a larger one's ways, but a pipeline of seven stages."""

    def asked(count: int) -> Problem:
        return problem("deepseek-v2-lite", ("gh200", count), stack, seq_len=4096, global_batch=144)

    def seconds(count: int) -> float:
        try:
            return fastest(asked(count))
        except (Infeasible, NoLegalLayout):
            return np.inf

    found = recommend(asked(chips), PROFILE)
    assert found.faster_on_fewer
    named = found.faster_on_fewer
    assert (
        named.step_time_s
        == seconds(named.num_chips)
        == min(map(seconds, range(chips // 2, chips + 1)))
    )


def test_of_racks_that_experts_divide_badly_part_is_looked_at() -> None:
    """256 experts divide 64 chips of 72."""
    asked = problem(
        "deepseek-v3",
        ("gb200-nvl72", 1152),
        "megatron",
        seq_len=4096,
        global_batch=4608,
        precision="mxfp8",
    )
    found = recommend(asked, PROFILE)
    assert found.faster_on_fewer
    assert found.faster_on_fewer.num_chips == 1024
    assert found.faster_on_fewer.step_time_s < found.fastest.prediction.step_time_s


def test_fewer_chips_than_a_domain_is_to_hold_are_asked_for_with_smaller_domains() -> None:
    whole = llama(46, 144, "gb200")
    problem = replace(whole, cluster=replace(whole.cluster, chips_per_domain=46))
    found = recommend(problem, PROFILE)
    assert found.faster_on_fewer
    (named,) = (reason for reason in found.reasons if "chips would be faster" in reason)
    knobs = {knob: int(count) for knob, count in re.findall(r"cluster\.(\w+) = (\d+)", named)}
    other = replace(problem, cluster=replace(problem.cluster, **knobs))
    assert fastest(other) == found.faster_on_fewer.step_time_s


@pytest.mark.parametrize("cluster", [("h100", 64), ("gb200-nvl72", 64), ("tpu-v5p", 64)])
def test_verdicts_thresholds_and_frontiers_mean_the_same_by_needed(
    cluster: tuple[str, int],
) -> None:
    stack = "maxtext" if cluster[0].startswith("tpu") else "megatron"
    question = problem("llama-3-70b", cluster, stack, seq_len=8192, global_batch=64)
    gap = recommend(question, PROFILE).pipelining.gap
    assert gap is not None
    tolerances = {0.0: gap > 0, 1.0: gap > 1}
    if gap > 0:
        tolerances |= {0.9 * gap: True, 1.1 * gap: False}
    for tolerance, needed in tolerances.items():
        found = recommend(question, PROFILE, tolerance=tolerance).pipelining
        assert found.needed == needed
        assert found.verdict.startswith("needed: worth" if needed else "not needed: ")
        terms = re.findall(r"([+-][\d.e-]+) s", found.verdict) if gap > 0 else []
        assert not terms or float(terms[0]) == pytest.approx(
            sum(map(float, terms[1:])), rel=0.02, abs=0.01
        )
        (point,) = frontier(question, PROFILE, Constraints(), {"scale_out": [1.0]})
        assert point.is_simple(tolerance) != needed
        stopped = thresholds(question, PROFILE, Constraints(), tolerance, lambda: False)
        assert {one.needed for one in stopped} <= {needed}


def test_the_verdict_says_why_one_side_has_no_layout() -> None:
    question = problem("llama-3-8b", ("h100", 12), "megatron", seq_len=8192, global_batch=8)
    found = recommend(question, PROFILE).pipelining
    assert found.verdict.startswith("needed: of layouts without a pipeline none is legal")
    assert "dp(12)" in found.verdict
    assert found.needed
    even = replace(question, cluster=catalogue.cluster("h100", 8))
    one_sided = recommend(even, PROFILE, Constraints(allowed={"pp": (1,)})).pipelining
    assert one_sided.verdict == "not known: of layouts with a pipeline the constraints allow none"
    assert one_sided.needed is None
    assert recommend(even, PROFILE).pipelining.gap is not None


def test_offload_fills_no_more_than_there_is_on_the_host() -> None:
    """405B on 512 v5p would keep 374 GiB a chip in hosts of 112 GB a chip."""
    question = problem(
        "llama-3.1-405b", ("tpu-v5p", 512), "maxtext", seq_len=8192, global_batch=512
    )
    limited = recommend(question, PROFILE).fastest.prediction
    assert limited.host_usable_gib == pytest.approx(112e9 / 2**30)
    assert limited.host_gib <= 112e9 / 2**30
    unknown = replace(question.cluster, chip=replace(question.cluster.chip, host_memory_gb=None))
    free = recommend(replace(question, cluster=unknown), PROFILE).fastest.prediction
    assert free.host_usable_gib is None
    assert free.host_gib > 2 * 112e9 / 2**30
    assert free.step_time_s < limited.step_time_s


@pytest.mark.parametrize(("stack", "left"), [("megatron", "no schedule"), ("torchtitan", "afab")])
def test_schedules_that_the_recipe_rules_out_are_named_with_the_rule(stack: str, left: str) -> None:
    question = problem("deepseek-v3", ("h800", 256), stack, seq_len=4096, global_batch=1024)
    strict = replace(
        question, workload=replace(question.workload, load_balancing="global_batch_loss")
    )
    found, free = recommend(strict, PROFILE), recommend(question, PROFILE)
    assert found.pipelining.forbidden == ("1f1b", "interleaved")
    assert found.pipelining.verdict.endswith(
        f"this rules out 1f1b, interleaved, which leaves stack {stack} {left} with more than one"
        " micro-batch"
    )
    assert "load_balancing(global_batch_loss)" in found.pipelining.verdict
    assert free.pipelining.forbidden == ()
    assert "load_balancing" not in free.pipelining.verdict


def test_layouts_that_no_schedule_serves_count_against_the_rule_that_each_schedule_breaks_first() -> (
    None
):
    question = problem("deepseek-v3", ("h800", 256), "megatron", seq_len=4096, global_batch=1024)
    strict = replace(
        question, workload=replace(question.workload, load_balancing="global_batch_loss")
    )
    rejected, free = (recommend(one, PROFILE).certificate.rejected for one in (strict, question))
    rows = Space(strict, Constraints()).trunks[0].rows
    assert rejected["balancing_needs_all_forwards_first"] > 0
    assert "balancing_needs_all_forwards_first" not in free
    assert (rows.num_micro_batches(1024)[rows.pp > 1] == 1).all()


def test_what_no_host_can_hold_is_told() -> None:
    question = problem("llama-3-8b", ("h100", 8), "megatron", seq_len=8192, global_batch=8)
    little = replace(question.cluster, chip=replace(question.cluster.chip, host_memory_gb=0.001))
    with pytest.raises(Infeasible, match="GiB of host memory"):
        recommend(
            replace(question, cluster=little),
            PROFILE,
            Constraints(allowed={"offload_activations": (True,)}),
        )


def test_constraints_that_no_number_of_chips_can_meet_are_named() -> None:
    with pytest.raises(Infeasible) as refused:
        recommend(llama(61, 512), PROFILE, Constraints(allowed={"ep": (8,)}))
    assert refused.value.constraint == "constraints.ep"


KNOBS: dict[str, tuple[object, ...]] = {
    **CHOICES,
    **dict.fromkeys(FLAGS, (False, True)),
    "virtual_stages": (1, 2, 99),
}


@pytest.mark.parametrize("stack", ["megatron", "fsdp", "deepspeed", "deepseek"])
@pytest.mark.parametrize(
    ("knob", "value"), [(knob, value) for knob, values in KNOBS.items() for value in values]
)
def test_any_value_of_a_knob_is_answered_or_refused_by_name(
    stack: str, knob: str, value: object
) -> None:
    question = replace(llama(8, 16), stack=catalogue.stack(stack))
    fault = refusal(question, Constraints(allowed={knob: (value,)}))
    assert fault is None or fault.constraint in (f"constraints.{knob}", "memory")
    assert fault is None or fault.constraint == "memory" or str([value]) in fault.detail


def refusal(question: Problem, constraints: Constraints) -> Infeasible | None:
    try:
        found = recommend(question, PROFILE, constraints).fastest.prediction.layout
    except Infeasible as fault:
        return fault
    assert all(getattr(found, knob) in values for knob, values in constraints.allowed.items())
    return None


def test_sharding_and_offload_that_go_together_nowhere_are_both_named() -> None:
    fault = refusal(
        llama(8, 16), Constraints(allowed={"zero_stage": (0,), "offload_optimizer": (True,)})
    )
    assert fault
    assert [one.field for one in fault.blamed] == [
        "constraints.zero_stage",
        "constraints.offload_optimizer",
    ]
    assert "offload_needs_sharding" in fault.detail


@pytest.mark.parametrize("asked", [8, 20, 32, 40, 48, 53, 60])
def test_that_there_was_no_time_for_fewer_chips_is_said(asked: int) -> None:
    """Unless there was: 20 chips are faster than 22."""
    left = iter(range(asked))
    found = recommend(llama(22, 144), PROFILE, should_continue=lambda: next(left, None) is not None)
    late = any(
        "ran out before it was known whether the job is faster on fewer" in reason
        for reason in found.reasons
    )
    assert late == (not found.tried_fewer and found.faster_on_fewer is None)
    assert late or found.faster_on_fewer is not None


@pytest.mark.parametrize(
    ("allowed", "rule"),
    [({"reshard": (False,)}, "reshard_offered"), ({"torus_block": (4,)}, "block_divides_torus")],
)
def test_a_constraint_that_a_stack_or_a_fabric_does_not_know_is_told_by_its_rule(
    allowed: dict[str, tuple[object, ...]], rule: str
) -> None:
    fault = refusal(llama(64, 64), Constraints(allowed=allowed))
    assert fault
    assert f"breaks {rule}: " in fault.detail


def test_a_stopped_search_claims_nothing_it_does_not_know() -> None:
    found = recommend(NAMED["llama-3.1-405b"](), PROFILE, should_continue=lambda: False)
    assert not found.certificate.exact
    assert found.pipelining.needed is None
    assert found.pipelining.verdict.startswith("not known")


def test_memory_has_an_interval_and_a_chance_to_fit() -> None:
    """Even where it is predicted to need what there is, nine in ten where the upper end of the
    interval fits."""
    base = problem("llama-3-8b", ("h100", 8), "megatron", seq_len=8192, global_batch=64)
    layout = Layout(dp_shard=8, zero_stage=1)
    (found,) = predict_layouts(base, [layout], PROFILE)
    assert found.needed_low_gib < found.needed_gib < found.needed_high_gib

    def chance(usable_gib: float) -> float:
        cluster = replace(
            base.cluster, chip=replace(base.cluster.chip, usable_memory_gib=usable_gib)
        )
        return predict_layouts(replace(base, cluster=cluster), [layout], PROFILE)[0].fit_probability

    assert chance(found.needed_gib) == pytest.approx(0.5)
    assert chance(found.needed_high_gib) == pytest.approx(0.9)
    assert chance(found.needed_low_gib) == pytest.approx(0.1)
    assert chance(0.1) == 0


@pytest.mark.parametrize(("chips", "hides"), [(128, False), (1024, False), (32, True)])
def test_traffic_that_stays_exposed_is_held_against_the_roofline(chips: int, hides: bool) -> None:
    asked = problem("llama-3.1-8b", ("h100", chips), "torchtitan", seq_len=8192, global_batch=128)
    slowed = replace(asked, cluster=asked.cluster.changed(scale_out=0.1))
    found = recommend(slowed, PROFILE)
    line, told = (
        found.pipelining.roofline,
        [one for one in found.reasons if one.startswith("roofline")],
    )
    assert line is not None
    assert len(told) == 1
    assert (line.tokens >= line.tokens_needed) == ("all the same" in told[0]) == hides


def test_where_the_fastest_may_not_fit_something_surer_is_named() -> None:
    found = recommend(
        problem("llama-3.1-405b", ("h100", 2048), "megatron", seq_len=8192, global_batch=2048),
        PROFILE,
    )
    surer = [reason for reason in found.reasons if reason.startswith("surer to fit")]
    assert found.fastest.prediction.fit_probability < 0.9
    assert found.surer is not None
    named = found.surer.prediction
    assert named.layout.summary() in surer[0]
    assert named.fit_probability >= 0.9
    assert (
        found.fastest.prediction.step_time_s
        < named.step_time_s
        <= 1.03 * found.fastest.prediction.step_time_s
    )
    assert all(
        c.prediction.step_time_s >= named.step_time_s
        for c in found.ranked
        if c.prediction.fit_probability >= 0.9
    )


def test_a_pipeline_that_only_the_batch_asks_for_is_told_apart() -> None:
    asked = problem("llama-3-70b", ("h100", 96), "megatron", seq_len=8192, global_batch=128)
    verdict = recommend(asked, PROFILE).pipelining.verdict
    assert verdict.startswith("needed: of layouts without a pipeline none is legal")
    assert verdict.endswith("neither bandwidth nor memory")


@pytest.mark.long
@settings(max_examples=20)
@given(
    st.sampled_from(["qwen3-14b", "llama-3-70b", "qwen3-30b-a3b"]),
    st.sampled_from(
        [
            ("h100", "megatron"),
            ("h100", "torchtitan"),
            ("mi300x", "generic"),
            ("tpu-v5p", "maxtext"),
        ]
    ),
    st.sampled_from([32, 64, 96]),
    st.sampled_from([64, 192, 960]),
    st.sampled_from([0.01, 0.03, 0.2]),
    st.sampled_from([1, 5, 50]),
    st.booleans(),
)
@example("qwen3-14b", ("h100", "megatron"), 96, 960, 0.03, 5, False)
@example("qwen3-30b-a3b", ("h100", "megatron"), 64, 192, 0.03, 50, True)
def test_the_surer_is_the_fastest_that_is_sure_to_fit(
    model: str,
    place: tuple[str, str],
    chips: int,
    batch: int,
    tolerance: float,
    top: int,
    again: bool,
) -> None:
    """Found whether or not the search for the fastest met it; and where layers are computed again,
    with more."""
    asked = problem(model, (place[0], chips), place[1], seq_len=4096, global_batch=batch)
    constraints = Constraints(
        allowed={"recompute": ("full",), "recompute_layers": tuple(range(80))} if again else {}
    )
    try:
        found = recommend(asked, PROFILE, constraints, tolerance=tolerance, top=top)
    except Infeasible:
        return
    best = found.fastest.prediction
    if best.fit_probability >= SURE:
        assert found.surer is None
        return
    surely = replace(constraints, min_fit_probability=SURE)
    try:
        sure = recommend(found.problem, PROFILE, surely).fastest.prediction
    except Infeasible:
        assert found.surer is None
        return
    if sure.step_time_s <= best.step_time_s * (1 + tolerance):
        assert found.surer is not None
        assert found.surer.prediction.step_time_s == pytest.approx(sure.step_time_s, rel=1e-9)
    else:
        assert found.surer is None


def test_what_surely_fits_can_be_asked_for() -> None:
    """Where nothing within the tolerance does, the constraint that the answer names finds it."""
    asked = problem("llama-3.1-70b", ("h100", 8), "torchtitan", seq_len=8192, global_batch=512)
    found = recommend(asked, PROFILE)
    assert found.surer is None
    told = next(reason for reason in found.reasons if "min_fit_probability" in reason)
    probability = float(told.split("min_fit_probability = ")[1].split(" ")[0])
    surely = recommend(asked, PROFILE, Constraints(min_fit_probability=probability))
    assert surely.fastest.prediction.fit_probability >= 0.899


@pytest.mark.parametrize(
    ("stack", "chip"),
    [
        ("megatron", "h100"),
        ("generic", "trainium2"),
        ("generic", "ascend-910c"),
        ("torchtitan", "b200"),
    ],
)
@pytest.mark.parametrize("probability", [0.5, 0.75, 0.95])
def test_what_is_recommended_fits_as_surely_as_was_asked(
    stack: str, chip: str, probability: float
) -> None:
    """Whether the runs of its kind were measured, or much is uncertain about them."""
    asked = problem("llama-3-70b", (chip, 64), stack, seq_len=8192, global_batch=256)
    found = recommend(
        asked, PROFILE, Constraints(min_fit_probability=probability), top=20, tolerance=0.2
    )
    sides = [one for one in (found.pipelining.without, found.pipelining.with_pp) if one]
    for one in (found.fastest, found.simplest, *found.ranked, *found.front, *sides):
        assert one.prediction.fit_probability >= probability - 2e-3
    assert found.ranked[0] == found.fastest
    assert found.simplest in found.front


def test_what_has_run_out_of_memory_is_left_out() -> None:
    asked = problem("llama-3-70b", ("h100", 64), "megatron", seq_len=8192, global_batch=256)
    first = recommend(asked, PROFILE).fastest.prediction
    again = recommend(asked, PROFILE, failed_gib=first.needed_gib)
    shown = (again.fastest, again.simplest, *again.ranked, *again.front)
    assert max(one.prediction.needed_gib for one in shown) < first.needed_gib
    assert again.fastest.prediction.step_time_s >= first.step_time_s


def test_a_chip_that_nobody_ran_on_has_a_wider_interval() -> None:
    known = llama(16, 64)
    chip = replace(known.cluster.chip, id="my-chip", generation="of-my-own")
    unknown = replace(known, cluster=replace(known.cluster, chip=chip))
    layout = [Layout(dp_shard=16, zero_stage=1)]
    widths = []
    for one in (
        known,
        replace(known, cluster=replace(known.cluster, chip=replace(chip, generation="hopper"))),
        unknown,
    ):
        found = predict_layouts(one, layout, PROFILE)[0]
        widths.append(found.step_time_high_s / found.step_time_low_s)
    assert widths[0] < widths[1] < widths[2]


def test_what_no_run_supports_is_said_and_can_be_left_out() -> None:
    question = problem("deepseek-v3", ("tpu-v5p", 2048), "maxtext", seq_len=4096, global_batch=8192)
    without = replace(PROFILE, seen=tuple(one for one in PROFILE.seen if one.term != "expert_s"))
    said = [
        reason for reason in recommend(question, without).reasons if reason.startswith("evidence")
    ]
    assert len(said) == 1
    assert "expert_s" in said[0]
    assert "constraints.ep = 1" in said[0]
    found = recommend(question, without, Constraints(allowed={"ep": (1,)}))
    assert found.fastest.prediction.layout.ep == 1
    assert found.fastest.prediction.provenance.grade == "measured"
    assert not [reason for reason in found.reasons if reason.startswith("evidence")]


def test_what_the_simplest_does_without_is_told_in_words() -> None:
    assert WORDS.keys() == POINTS.keys()


def test_the_documented_order_of_complexity_is_the_one_that_counts() -> None:
    page = (ROOT / "docs" / "model.md").read_text()
    (told,) = [part for part in page.split("\n\n") if part.startswith("**Simplicity**")]
    points = " ".join(told.split()).split(": ", 1)[1].split(". ")[0]
    assert set(points.split(", ")) == {f"{WORDS[name]} {value}" for name, value in POINTS.items()}


def test_what_simplicity_costs_is_a_number() -> None:
    found = recommend(NAMED["gpt3-175b 1600"](), PROFILE)
    times = [one.prediction.step_time_s for one in (found.fastest, found.simplest)]
    assert 0 < found.simplest_gap == times[1] / times[0] - 1 <= 0.03
    (named,) = [reason for reason in found.reasons if reason.startswith("simplest within")]
    assert f"{found.simplest_gap:.2%} slower" in named
    found = recommend(NAMED["gpt3-175b 1600"](), PROFILE, tolerance=1.0)
    dropped = found.fastest.complexity_terms.keys() - found.simplest.complexity_terms.keys()
    assert dropped
    (named,) = [reason for reason in found.reasons if reason.startswith("simplest within")]
    for name in dropped:
        assert WORDS[name] in named
    assert "_" not in named.split("without ")[1].split(";")[0]


def test_of_layouts_that_differ_by_rounding_the_plain_schedule_is_taken() -> None:
    """All forwards first takes as long as 1f1b where the last stage is slowest, to the last digit
    but one, and holds 29 GiB more."""
    plain = Constraints(
        allowed={"schedule": ("1f1b", "afab"), "balanced": (False,), "pp": (2, 4, 8)}
    )
    found = recommend(
        problem("llama-3-70b", ("h100", 64), "generic", seq_len=2048, global_batch=64),
        PROFILE,
        plain,
    )
    assert found.fastest.prediction.layout.schedule == "1f1b"
    other = replace(found.fastest.prediction.layout, schedule="afab")
    (afab,) = predict_layouts(found.problem, [other], PROFILE)
    assert afab.step_time_s == pytest.approx(found.fastest.prediction.step_time_s, rel=1e-12)
    assert afab.needed_gib > found.fastest.prediction.needed_gib + 29
