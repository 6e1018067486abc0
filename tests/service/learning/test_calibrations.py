from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from models.calibration.calibrate import Calibration
from models.calibration.cross_validation import ProfileComparison
from models.calibration.posterior import Posterior
from models.errors import Invalid
from models.spec.profile import shipped_profile
from service.learning import calibration_input, calibrations
from service.learning.benchmarks import Benchmarks
from service.learning.drift_flags import DriftFlags
from service.learning.promotion import judge
from service.learning.reports import Reports
from service.resolve.resolution import ResolvedQuestion, Resolver
from service.runtime.cost_model import CostModel
from service.runtime.idempotency import SaveRows
from service.schemas.benchmark import BenchmarkSubmission, GemmFields
from service.schemas.cluster import ClusterPreset
from service.schemas.profile import CalibrationRequest, Policy
from service.schemas.question import Question
from service.schemas.report import ReportSubmission
from service.store import Store
from tests.service.asking import (
    CHIP,
    LAYOUT,
    ON_POSTGRESQL_FIRST,
    PREDICTION,
    QUESTION,
    REPORT,
    assert_problem,
    candidate,
    changed,
)

LAYOUTS = [
    {**LAYOUT, "recompute": recompute, "micro_batch": micro_batch}
    for recompute in ("none", "selective", "full")
    for micro_batch in (1, 2)
]
ADDRESS = "/v1/profiles/default/calibrations"


def report(client, factors: list[float]) -> list[str]:
    """Runs that took so much longer than predicted, one layout after the other; their ids."""
    prediction = client.post("/v1/predictions", json={**QUESTION, "layouts": LAYOUTS}).json()
    ids = []
    for index, factor in enumerate(factors):
        rank = index % len(LAYOUTS) + 1
        step = prediction["layouts"][rank - 1]["step_time_s"] * factor
        body = {
            "prediction_id": prediction["id"],
            "rank": rank,
            "outcome": "ok",
            "measured": {"step_time_s": step},
        }
        ids.append(client.post("/v1/reports", json=body).json()["id"])
    return ids


def activate(client, version: int) -> None:
    etag = client.get("/v1/profiles/default").headers["etag"]
    address = f"/v1/profiles/default/versions/{version}/activate"
    assert client.post(address, headers={"If-Match": etag}).status_code == 200


def predicted(client) -> tuple[int, float]:
    found = client.post("/v1/predictions", json=PREDICTION).json()
    return found["profile"]["version"], found["layouts"][0]["step_time_s"]


def test_without_reports_there_is_nothing_to_learn(client) -> None:
    answer = client.post(ADDRESS)
    assert answer.status_code == 422
    assert_problem(answer, "nothing-to-learn")
    crashed = {**PREDICTION, "outcome": "crashed"}
    assert client.post("/v1/reports", json=crashed).status_code == 201
    assert_problem(client.post(ADDRESS, json={}), "nothing-to-learn")
    some_steps = {**crashed, "measured": {"step_time_s": 2.0}}
    assert client.post("/v1/reports", json=some_steps).status_code == 201
    assert client.post(ADDRESS, json={}).json()["calibration"]["observations"] == 1


def test_slow_runs_teach_slow_predictions_and_can_be_unlearnt(client) -> None:
    report(client, [1.3] * 12)
    _, before = predicted(client)
    made = client.post(ADDRESS)
    assert made.status_code == 201
    assert made.headers["location"] == "/v1/profiles/default/versions/2"
    assert client.get(made.headers["location"]).json() == made.json()
    found = made.json()["calibration"]
    assert (found["based_on"], found["observations"], found["unusable"]) == (1, 12, [])
    assert found["error_after"] < found["error_before"]
    assert found["moved"]
    assert predicted(client) == (1, before)
    activate(client, 2)
    version, after = predicted(client)
    assert version == 2
    assert before < after < 1.3 * before * 1.01
    activate(client, 1)
    assert predicted(client) == (1, before)


def test_an_outlier_is_named(client) -> None:
    ids = report(client, [1.1] * 18 + [8.0])
    found = client.post(ADDRESS).json()["calibration"]
    assert found["outliers"] == [ids[-1]]
    assert found["reports"] == {
        "found": 19,
        "used": 19,
        "down_weighted": 1,
        "left_out": 0,
        "waiting": 0,
    }


def test_a_report_the_models_no_longer_understand_is_left_out_with_its_reason(
    client, monkeypatch
) -> None:
    (kept,) = report(client, [1.1])
    other = {
        **PREDICTION,
        "workload": {**PREDICTION["workload"], "global_batch": 256},
        "outcome": "ok",
    }
    lost = client.post("/v1/reports", json={**other, "measured": {"step_time_s": 4.0}}).json()["id"]
    resolve = Resolver.resolve

    def forgetful(self: Resolver, question: Question) -> ResolvedQuestion:
        resolved = resolve(self, question)
        forgetful.calls += 1
        if forgetful.calls == 2:
            raise Invalid("model", None, "is forgotten")
        return resolved

    forgetful.calls = 0
    monkeypatch.setattr(Resolver, "resolve", forgetful)
    found = client.post(ADDRESS).json()["calibration"]
    assert found["reports"] == {
        "found": 2,
        "used": 1,
        "down_weighted": 0,
        "left_out": 1,
        "waiting": 0,
    }
    assert found["unusable"] == [{"report": lost, "reason": "model: is forgotten"}]


def test_runs_out_of_memory_and_peaks_teach_memory(client) -> None:
    def held() -> float:
        return client.post("/v1/predictions", json=PREDICTION).json()["layouts"][0]["reserved_gib"]

    before = held()
    for _ in range(10):
        peak = {
            **PREDICTION,
            "outcome": "ok",
            "measured": {"mfu": {"value": 0.4, "attention": "causal"}},
        }
        memory = {"memory": {"reserved_gib": before * 1.3}}
        assert client.post("/v1/reports", json={**peak, **memory}).status_code == 201
        assert (
            client.post("/v1/reports", json={**PREDICTION, "outcome": "out_of_memory"}).status_code
            == 201
        )
    made = client.post(ADDRESS).json()
    found = made["calibration"]
    assert found["reports"]["used"] == 20
    assert found["memory_error_after"] < found["memory_error_before"]
    activate(client, made["version"])
    assert held() > before


def test_only_the_time_span_counts(client) -> None:
    report(client, [1.2] * 3)
    assert_problem(client.post(ADDRESS, json={"since": "2100-01-01T00:00:00Z"}), "nothing-to-learn")
    assert_problem(
        client.post(ADDRESS, json={"until": "2020-01-01T00:00:00+01:00"}), "nothing-to-learn"
    )
    assert client.post(ADDRESS, json={"since": "2020-01-01T00:00:00Z"}).status_code == 201


def test_what_a_time_span_left_out_is_learnt_later(client, monkeypatch) -> None:
    monkeypatch.setattr(calibration_input, "_MAX_CLOCK_SKEW", timedelta(0))
    report(client, [1.2] * 3)
    between = datetime.now(UTC).isoformat()
    report(client, [1.2] * 4)
    for body, count in (({"since": between}, 4), ({}, 3)):
        made = client.post(ADDRESS, json=body).json()
        assert made["calibration"]["window"]["reports"] == count
        activate(client, made["version"])
    assert_problem(client.post(ADDRESS), "nothing-to-learn")


def slow_report(store: Store) -> SaveRows:
    reports = Reports(store, DriftFlags(CostModel(lambda: None, 0.0)))
    return reports.prepare(ReportSubmission.model_validate(REPORT), json.dumps(REPORT))


@ON_POSTGRESQL_FIRST
def test_a_report_that_takes_long_to_compute_is_learnt(client, monkeypatch) -> None:
    """Another came, and was learnt, before it was written."""
    monkeypatch.setattr(calibration_input, "_MAX_CLOCK_SKEW", timedelta(0))
    store = client.app.state.services.store
    benchmark = BenchmarkSubmission(
        cluster=ClusterPreset(preset="h100"), gemms=[GemmFields(m=8, n=8, k=8, tflops=1.0)]
    )
    benchmarks: Benchmarks = client.app.state.services.benchmarks
    slow = [slow_report(store), benchmarks.prepare(benchmark, "", None)]
    report(client, [1.2])
    activate(client, client.post(ADDRESS).json()["version"])
    for save in slow:
        with store.writing() as rows:
            made = save(rows)
        kept = client.get(made.location).json()
        assert {name: kept[name] for name in ("id", "created_at")}.items() <= made.document.items()
        assert kept["id"] == made.location.split("/")[-1]
    window = client.post(ADDRESS).json()["calibration"]["window"]
    assert (window["reports"], window["benchmarks"]) == (1, 1)


@ON_POSTGRESQL_FIRST
def test_a_report_that_takes_long_to_write_is_learnt(client, monkeypatch) -> None:
    """Another that began later was written before it."""
    monkeypatch.setattr(calibration_input, "_MAX_CLOCK_SKEW", timedelta(0))
    store = client.app.state.services.store
    save = slow_report(store)
    with ThreadPoolExecutor(1) as pool:
        with store.writing() as rows:
            save(rows)
            if (
                several := store._engine.dialect.name == "postgresql"
            ):  # SQLite has one writer at a time
                report(client, [1.2])
            learnt = pool.submit(calibrations.learn, store, "default", CalibrationRequest())
            time.sleep(0.5)
        assert learnt.result().learnt["reports"] == (2 if several else 1)


@pytest.mark.long
def test_what_is_learnt_of_a_chip_of_ones_own_is_said_of_no_other(client) -> None:
    """Nor of the same name."""
    own = {
        **QUESTION,
        "cluster": {"chip": {**CHIP, "name": "mine"}, "num_chips": 64},
        "layout": LAYOUT,
    }
    other = changed(own, "cluster.chip.memory_bandwidth_gb_s", 3000)
    before = client.post("/v1/predictions", json=other).json()["layouts"][0]
    for _ in range(12):
        slow = {**own, "outcome": "ok", "measured": {"step_time_s": 1.25 * before["step_time_s"]}}
        assert client.post("/v1/reports", json=slow).status_code == 201
    made = client.post(ADDRESS, json={"activate": True}).json()["calibration"]
    assert made["promotion"]["promoted"], made["promotion"]
    after = client.post("/v1/predictions", json=other).json()["layouts"][0]
    assert after["provenance"]["grade"] == before["provenance"]["grade"]
    assert (
        client.post("/v1/predictions", json=own).json()["layouts"][0]["step_time_s"]
        > after["step_time_s"]
    )


@pytest.mark.usefixtures("whole_published_sample")
def test_a_calibration_says_what_it_changes_by_chip_and_stack(client) -> None:
    report(client, [1.3] * 12)
    made = client.post(ADDRESS).json()
    changes = made["calibration"]["changes"]
    sizes = [abs(change["step_time_change"]) for change in changes]
    assert sizes == sorted(sizes, reverse=True)
    reported = next(
        change
        for change in changes
        if (change["chip"], change["stack"]) == ("h100-sxm-80gb", QUESTION["stack"])
    )
    before = client.post("/v1/predictions", json={**QUESTION, "layouts": LAYOUTS}).json()
    activate(client, made["version"])
    after = client.post("/v1/predictions", json={**QUESTION, "layouts": LAYOUTS}).json()
    ratios = [
        new["step_time_s"] / old["step_time_s"] - 1
        for old, new in zip(before["layouts"], after["layouts"], strict=True)
    ]
    assert min(ratios) * 0.5 < reported["step_time_change"] < max(ratios) * 1.5
    assert reported["runs"] > 12


@pytest.mark.usefixtures("whole_published_sample")
def test_a_calibration_may_be_used_at_once(client) -> None:
    report(client, [1.2] * 6)
    found = client.post(ADDRESS, json={"activate": True}).json()["calibration"]
    assert found["promotion"]["promoted"], found["promotion"]
    assert found["unseen"]["error_after"] < found["unseen"]["error_before"]
    assert found["published"]["runs"] > 100
    assert client.get("/v1/profiles/default").json()["active_version"] == 2
    assert predicted(client)[0] == 2


@pytest.mark.long
def test_what_cannot_be_judged_or_does_not_improve_is_kept_with_the_reason(client) -> None:
    report(client, [1.2] * 3)
    few = client.post(ADDRESS, json={"activate": True}).json()["calibration"]
    assert few["unseen"] is None
    assert "fewer than 5" in few["promotion"]["reason"]
    assert client.get("/v1/profiles/default").json()["active_version"] == 1


@pytest.mark.long
def test_a_calibration_that_does_not_improve_is_not_promoted(client) -> None:
    report(client, [0.9, 1.1] * 3 + [1.1, 0.9] * 3)
    found = client.post(ADDRESS, json={"activate": True}).json()["calibration"]
    assert not found["promotion"]["promoted"]
    assert "which is no fall of 0.1 percentage points or more" in found["promotion"]["reason"]


@pytest.mark.long
def test_reports_that_no_coefficient_explains_are_named_and_not_promoted(client) -> None:
    """Though they are all alike: milliseconds for seconds, or the wrong model."""
    ids = report(client, [10.0, 10.1] * 6)
    found = client.post(ADDRESS, json={"activate": True}).json()["calibration"]
    assert not found["promotion"]["promoted"]
    assert "outliers" in found["promotion"]["reason"]
    assert set(found["outliers"]) == set(ids)


@pytest.mark.long
@pytest.mark.parametrize("peak", ["reserved_gib", "allocated_gib"])
def test_what_is_learnt_of_memory_alone_is_promoted(client, peak: str) -> None:
    prediction = client.post("/v1/predictions", json={**QUESTION, "layouts": LAYOUTS}).json()
    for index in range(18):
        layout = prediction["layouts"][index % len(LAYOUTS)]
        step = layout["step_time_s"] * (0.99, 1.0, 1.01)[index // len(LAYOUTS)]
        memory = {peak: 0.9 * layout[peak]}
        ran = {"prediction_id": prediction["id"], "rank": index % len(LAYOUTS) + 1, "outcome": "ok"}
        ran |= {"measured": {"step_time_s": step}, "memory": memory}
        assert client.post("/v1/reports", json=ran).status_code == 201
    found = client.post(ADDRESS, json={"activate": True}).json()["calibration"]
    assert found["unseen_memory"]["error_after"] < found["unseen_memory"]["error_before"] - 0.02
    assert found["promotion"]["promoted"], found["promotion"]


@pytest.mark.long
def test_runs_that_fit_well_say_little_of_memory(client) -> None:
    before = client.post("/v1/predictions", json=PREDICTION).json()["layouts"][0]
    assert before["needed_gib"] < 0.9 * before["usable_gib"]
    ran = {**PREDICTION, "outcome": "ok", "measured": {"step_time_s": before["step_time_s"]}}
    batch = {"reports": [{**ran, "source": f"s{index % 4}"} for index in range(120)]}
    assert client.post("/v1/reports", json=batch).status_code == 201
    activate(client, client.post(ADDRESS).json()["version"])
    after = client.post("/v1/predictions", json=PREDICTION).json()["layouts"][0]
    assert after["needed_gib"] == pytest.approx(before["needed_gib"], rel=0.02)


def test_runs_that_fail_where_they_just_fit_teach_that_they_do_not(client) -> None:
    body = {**QUESTION, "model": "llama-3-70b", "stack": "megatron"}
    body |= {
        "cluster": {"preset": "h100", "num_chips": 64},
        "workload": {"seq_len": 8192, "global_batch": 256},
    }
    made = client.post("/v1/recommendations", json=body).json()
    before = candidate(made, "fastest")["prediction"]
    assert before["fit_probability"] > 0.45
    for index in range(10):
        failed = {
            "recommendation_id": made["id"],
            "outcome": "out_of_memory",
            "source": f"s{index}",
        }
        assert client.post("/v1/reports", json=failed).status_code == 201
    activate(client, client.post(ADDRESS).json()["version"])
    after = client.post("/v1/predictions", json={**body, "layout": before["layout"]}).json()[
        "layouts"
    ][0]
    assert after["fit_probability"] < 0.3
    assert not after["fits"]


def set_policy(client, **policy: object) -> None:
    etag = client.get("/v1/profiles/default").headers["etag"]
    answer = client.put("/v1/profiles/default/policy", json=policy, headers={"If-Match": etag})
    assert answer.status_code == 200
    assert answer.json()["policy"].items() >= policy.items()


@pytest.mark.usefixtures("whole_published_sample")
def test_an_automatic_policy_promotes_what_improves(client) -> None:
    report(client, [1.2] * 6)
    assert "manual" in client.post(ADDRESS).json()["calibration"]["promotion"]["reason"]
    set_policy(client, mode="automatic")
    assert client.post(ADDRESS).json()["calibration"]["promotion"]["promoted"]
    assert client.get("/v1/profiles/default").json()["active_version"] == 3
    audited = client.get("/v1/audit").json()["items"][0]
    assert (audited["action"], audited["subject"]) == ("profile.promoted", "default/3")
    assert audited["details"] == {"before": 1}


@pytest.mark.long
def test_what_was_rolled_back_is_not_promoted_again(client) -> None:
    report(client, [1.2] * 6)
    set_policy(client, mode="automatic", margin=0.02, after_reports=10**6)
    assert client.post(ADDRESS).json()["calibration"]["promotion"]["promoted"]
    activate(client, 1)
    policy = client.get("/v1/profiles/default").json()["policy"]
    assert policy.items() >= {"mode": "manual", "margin": 0.02, "after_reports": 10**6}.items()
    assert not client.post(ADDRESS).json()["calibration"]["promotion"]["promoted"]
    set_policy(client, mode="automatic")
    activate(client, 3)  # no roll-back
    assert client.get("/v1/profiles/default").json()["policy"]["mode"] == "automatic"


@pytest.mark.long
@pytest.mark.usefixtures("whole_published_sample")
def test_what_makes_anything_worse_by_more_than_the_margin_is_not_promoted(client) -> None:
    report(client, [1.2] * 6)
    set_policy(client, mode="automatic", margin=0.0)
    found = client.post(ADDRESS).json()["calibration"]
    assert not found["promotion"]["promoted"]
    assert "more than the margin of 0.0%" in found["promotion"]["reason"]


def held_out(before: float, after: float) -> ProfileComparison:
    """Four runs on each of two chips: too few of either to be judged by themselves."""
    kinds = tuple((f"chip:{index % 2}",) for index in range(8))
    old, new = (np.full(8, np.log1p(error)) for error in (before, after))
    return ProfileComparison(
        measured=np.zeros(8), before=old, after=new, spread=np.full(8, 0.1), kinds=kinds
    )


def calibration(times: ProfileComparison, memory: ProfileComparison | None = None) -> Calibration:
    """Of which nothing is known but how it did on runs that it did not see."""
    return Calibration(
        profile=shipped_profile(),
        posterior=Posterior.independent(),
        moved=(),
        unidentified=(),
        outliers=(),
        error_before=None,
        error_after=None,
        memory_error_before=None,
        memory_error_after=None,
        held_out=times,
        held_out_memory=memory,
        observations=8,
    )


def test_what_gets_better_in_memory_alone_may_not_get_worse_in_time() -> None:
    found = calibration(held_out(0.05, 0.40), held_out(0.05, 0.04))
    judged = judge(Policy(mode="automatic"), found, None, requested=False)
    assert not judged.promoted
    assert "the error on 8 step times of unseen reports grows from 5.0% to 40.0%" in judged.reason
    assert judge(
        Policy(), replace(found, held_out=held_out(0.05, 0.055)), None, requested=True
    ).promoted


def test_what_is_at_the_cost_of_somebody_is_not_promoted_and_names_nobody() -> None:
    """Six runs of each of two sources: of all together the error falls."""
    kinds = tuple((f"tenant-{index % 2}",) for index in range(12))
    before = np.array([np.log1p(0.01 if index % 2 else 0.30) for index in range(12)])
    everybody = ProfileComparison(
        measured=np.zeros(12),
        before=before,
        after=np.full(12, np.log1p(0.1)),
        spread=np.full(12, 0.1),
        kinds=kinds,
    )
    found = calibration(held_out(0.30, 0.10))
    judged = judge(Policy(mode="automatic"), found, None, everybody, requested=False)
    assert not judged.promoted
    assert (
        "of the last 6 runs that somebody reported the error grows from 1.0% to 10.0%"
        in judged.reason
    )
    assert "tenant" not in judged.reason
    assert judge(Policy(mode="automatic"), found, None, requested=False).promoted


def test_what_no_two_tenants_agree_on_is_not_promoted_however_much_better_it_is() -> None:
    found = calibration(held_out(0.60, 0.01))
    policy = Policy(mode="automatic", min_tenants=3)
    judged = judge(policy, found, None, requested=True, is_agreed=False)
    assert not judged.promoted
    assert "fewer than 3 tenants measured alike" in judged.reason


def test_a_policy_is_set_by_whoever_saw_the_profile(client) -> None:
    address = "/v1/profiles/default/policy"
    assert_problem(client.put(address, json={"mode": "automatic"}), "precondition-required")
    assert_problem(
        client.put(address, json={}, headers={"If-Match": '"old"'}), "precondition-failed"
    )
    assert_problem(
        client.put(address, json={"mode": "wild"}, headers={"If-Match": "*"}), "invalid", "/mode"
    )
    assert_problem(
        client.put(address, json={"margin": -1}, headers={"If-Match": "*"}), "invalid", "/margin"
    )


@pytest.mark.long
def test_a_version_learns_what_the_one_before_had_not(client) -> None:
    report(client, [1.2] * 6)
    first = client.post(ADDRESS, json={"activate": True}).json()["calibration"]
    assert first["window"]["all_reports"] == 6
    assert_problem(client.post(ADDRESS), "nothing-to-learn")
    report(client, [1.0] * 7)
    second = client.post(ADDRESS).json()["calibration"]
    assert (second["based_on"], second["observations"]) == (2, 7)
    assert (second["window"]["reports"], second["window"]["all_reports"]) == (7, 13)
    anew = client.post(ADDRESS, json={"from_scratch": True}).json()["calibration"]
    assert (anew["based_on"], anew["observations"]) == (1, 13)


@pytest.mark.long
def test_what_one_chip_taught_makes_no_other_one_surer(client) -> None:
    """The interval narrows where runs were, not on chips that nobody measured."""

    def width(preset: str) -> float:
        question = {**PREDICTION, "cluster": {"preset": preset, "num_chips": 64}}
        layout = client.post("/v1/predictions", json=question).json()["layouts"][0]
        return layout["step_time_high_s"] / layout["step_time_s"]

    here, elsewhere = width("h100"), width("mi300x")
    report(client, [1.1, 1.12, 1.08] * 6)
    assert client.post(ADDRESS, json={"activate": True}).json()["calibration"]["promotion"][
        "promoted"
    ]
    assert width("h100") < here
    assert width("mi300x") > 0.98 * elsewhere


@pytest.mark.long
def test_a_fleet_moves_its_own_offsets_before_what_is_published(client) -> None:
    """A stack that reports nothing is not predicted worse on its published runs."""
    report(client, [1.25] * 12)
    found = client.post(ADDRESS, json={"activate": True}).json()["calibration"]
    assert found["moved"][0]["scope"].startswith("fleet:")
    published = found["published"]
    assert published["error_after"] < published["error_before"] + 0.005
    evidence = client.get(
        "/v1/evidence", params={"stack": "torchtitan", "cluster": "h100", "limit": 20}
    ).json()
    assert evidence["profile"]["version"] == 2
    residuals = [
        abs(item["residual"]) for item in evidence["items"] if item["residual"] is not None
    ]
    assert sorted(residuals)[len(residuals) // 2] < 0.15


def test_the_same_reports_teach_the_same(client) -> None:
    report(client, [1.2, 1.1, 1.3])
    first, second = (client.post(ADDRESS).json() for _ in range(2))
    assert (first["version"], second["version"]) == (2, 3)
    assert first["calibration"] == second["calibration"]
    assert first["terms"] == second["terms"]


@ON_POSTGRESQL_FIRST
def test_calibrations_at_once_make_a_version_each(client) -> None:
    report(client, [1.2] * 3)
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: client.post(ADDRESS), range(3)))
    assert sorted(answer.json()["version"] for answer in made) == [2, 3, 4]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"since": "yesterday"}, "/since"),
        ({"since": "2026-01-01T00:00:00"}, "/since"),
        ({"activate": "yes"}, "/activate"),
        ({"reports": []}, "/reports"),
        ([], ""),
        (None, ""),
        ({"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "/until"),
    ],
)
def test_a_bad_calibration_is_refused_at_its_field(client, body: object, pointer: str) -> None:
    sent = {"content": json.dumps(body), "headers": {"content-type": "application/json"}}
    assert_problem(client.post(ADDRESS, **sent), "invalid", pointer)


@pytest.mark.long
def test_a_version_made_anew_is_judged_by_the_one_it_would_replace(client) -> None:
    report(client, [1.3] * 18)
    assert client.post(ADDRESS, json={"activate": True}).json()["calibration"]["promotion"][
        "promoted"
    ]
    since = datetime.now(UTC).isoformat()
    report(client, [1.0] * 6)  # as the active version predicts
    anew = client.post(
        ADDRESS, json={"from_scratch": True, "since": since, "activate": True}
    ).json()["calibration"]
    assert (anew["based_on"], anew["observations"]) == (1, 6)
    assert anew["unseen"]["error_before"] < 0.02
    assert not anew["promotion"]["promoted"]
