"""Where keys are asked for, nobody comes in without one, and each tenant sees its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from service import api_keys
from service.errors import Unauthenticated
from service.resolve.calibration_targets import observation
from service.resolve.disclosure import Disclosure
from service.resolve.stored_runs import StoredRuns
from service.runtime.process_pool import MAX_INLINE_REPORTS
from service.store import Store, database
from service.store.reports import ReportFilter
from tests.long import one_in
from tests.openapi import openapi
from tests.service.asking import (
    CHIP,
    PREDICTION,
    QUESTION,
    REPORT,
    SHAPE,
    assert_problem,
    changed,
)

Headers = dict[str, str]
ASKING = ("recommend", "report")


@pytest.fixture
def guarded(make_client) -> TestClient:
    return make_client(require_api_keys=True)


@pytest.fixture
def key(guarded: TestClient) -> Callable[..., Headers]:
    store: Store = guarded.app.state.services.store

    def make(tenant: str, *scopes: str) -> Headers:
        return {"Authorization": f"Bearer {api_keys.create(store, tenant, scopes or ASKING)}"}

    return make


def operations() -> list[tuple[str, str]]:
    return [
        (method, path)
        for path, methods in openapi()["paths"].items()
        for method in methods
        if path.startswith("/v1")
    ]


def test_no_operation_answers_without_a_key(guarded: TestClient) -> None:
    assert operations()
    for method, path in operations():
        answer = guarded.request(method, path.replace("{kind}", "chips"), content=b"{")
        assert answer.headers["www-authenticate"] == "Bearer", path
        assert_problem(answer, "unauthenticated")


@pytest.mark.parametrize(
    "path", ["/", "/livez", "/readyz", "/docs", "/openapi.json", "/problems/unauthenticated"]
)
def test_health_and_documentation_are_for_everybody(guarded: TestClient, path: str) -> None:
    assert guarded.get(path).status_code == 200


def test_every_operation_needs_a_scope_or_is_the_same_for_all(guarded: TestClient, key) -> None:
    """A key without a scope comes no further than what shows nobody's rows and changes nothing."""
    nothing = key("a", "none")
    free = {path for method, path in operations() if _allowed(guarded, method, path, nothing)}
    assert free == {
        "/v1/catalog/{kind}", "/v1/catalog/{kind}/{name}", "/v1/profiles", "/v1/profiles/{id}",
        "/v1/profiles/{id}/versions", "/v1/profiles/{id}/versions/{version}",
        "/v1/stream-tickets",
    }  # fmt: skip


def _allowed(client: TestClient, method: str, path: str, headers: Headers) -> bool:
    for name, value in {
        "{kind}": "chips",
        "{name}": "h100",
        "{id}": "default",
        "{version}": "1",
    }.items():
        path = path.replace(name, value)
    body = None if method in ("get", "delete") or path.endswith("/activate") else {}
    answer = client.request(method, path, headers={**headers, "If-Match": "*"}, json=body)
    if answer.status_code == 403:
        assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]
        assert_problem(answer, "forbidden")
    return answer.status_code != 403


@pytest.mark.parametrize(
    "authorization",
    [
        "Basic YTpi",
        "Bearer",
        "Bearer x",
        "Bearer sw_0_1",
        "Bearer sw_é_1",
        "Bearer sw__",
        "bearer sw_a'b_c",
        "sw_0_1",
    ],
)
def test_what_is_no_key_is_refused(guarded: TestClient, authorization: str) -> None:
    answer = guarded.get("/v1/profiles", headers={"Authorization": authorization.encode("latin-1")})
    assert_problem(answer, "unauthenticated")


def test_a_request_with_two_keys_is_unauthenticated(guarded: TestClient, key) -> None:
    """A proxy may read the other one."""
    both = [("Authorization", key(tenant)["Authorization"]) for tenant in "ab"]
    assert_problem(guarded.get("/v1/profiles", headers=both), "unauthenticated")


def test_a_key_with_another_secret_or_a_revoked_one_is_refused(guarded: TestClient, key) -> None:
    mine = key("a")
    assert guarded.get("/v1/profiles", headers=mine).status_code == 200
    forged = {
        "Authorization": mine["Authorization"][:-1]
        + ("A" if mine["Authorization"][-1] != "A" else "B")
    }
    assert_problem(guarded.get("/v1/profiles", headers=forged), "unauthenticated")
    api_keys.revoke(guarded.app.state.services.store, mine["Authorization"].split("_")[1])
    assert_problem(guarded.get("/v1/profiles", headers=mine), "unauthenticated")


def test_reports_are_seen_by_their_tenant_and_by_admins(guarded: TestClient, key) -> None:
    a, b, admin = key("a"), key("b"), key("platform", "admin")
    id_ = guarded.post("/v1/reports", json=REPORT, headers=a).json()["id"]
    other = guarded.post(
        "/v1/reports", json=changed(REPORT, "measured.step_time_s", 1.5), headers=b
    ).json()["id"]
    for headers, seen in ((a, {id_}), (b, {other}), (admin, {id_, other})):
        assert {
            item["id"] for item in guarded.get("/v1/reports", headers=headers).json()["items"]
        } == seen
        lines = guarded.get(
            "/v1/reports", params={"format": "csv"}, headers=headers
        ).text.splitlines()
        assert {line.split(",")[0] for line in lines[1:]} == seen
        summary = guarded.get("/v1/reports/summary", headers=headers).json()
        assert summary["overall"]["reports"] == len(seen)
        drift = guarded.get("/v1/profiles/default/drift", headers=headers).json()
        assert drift["runs"] == len(seen)
    assert summary["by"]["tenant"].keys() == {"a", "b"}
    assert guarded.get(f"/v1/reports/{id_}", headers=a).status_code == 200
    assert_problem(guarded.get(f"/v1/reports/{id_}", headers=b), "not-found")


def test_a_report_is_withdrawn_by_its_tenant_and_by_admins_only(guarded: TestClient, key) -> None:
    a, b, admin = key("a"), key("b"), key("platform", "admin")
    for who in (a, admin):
        mine = guarded.post("/v1/reports", json=REPORT, headers=a).headers["location"]
        assert_problem(guarded.delete(mine, headers=b), "not-found")
        assert guarded.get(mine, headers=a).json()["withdrawn_at"] is None
        assert guarded.delete(mine, headers=who).json()["withdrawn_at"]


def test_two_tenants_may_report_the_same_log(guarded: TestClient, key) -> None:
    log = "".join(f"completed step: {step}, seconds: 2.0, loss: 9.1\n" for step in range(6))
    body = {**changed(PREDICTION, "stack", "maxtext"), "log": log}
    asking = [key("a"), key("b"), key("b")]
    made = [
        guarded.post("/v1/reports/logs", json=body, headers=headers).json() for headers in asking
    ]
    assert [answer["repeated"] for answer in made] == [False, False, True]


def test_answers_and_benchmarks_are_seen_by_their_tenant(guarded: TestClient, key) -> None:
    a, b = key("a"), key("b")
    gemm = {
        "cluster": QUESTION["cluster"],
        "stack": "torchtitan",
        "gemms": [{"m": 8192, "n": 8192, "k": 8192, "tflops": 500}],
    }
    asked = [
        ("/v1/predictions", PREDICTION),
        ("/v1/recommendations", QUESTION),
        ("/v1/benchmarks", gemm),
    ]
    for path, body in asked:
        made = guarded.post(path, json=body, headers=a)
        assert made.status_code == 201, made.text
        mine = made.headers["location"]
        parts = ("", "/timeline", "/launch/torchtitan") if path != "/v1/benchmarks" else ("",)
        for where in (f"{mine}{part}" for part in parts):
            assert guarded.get(where, headers=a).status_code == 200
            assert_problem(guarded.get(where, headers=b), "not-found")
        assert [len(guarded.get(path, headers=who).json()["items"]) for who in (a, b)] == [1, 0]
    for what in ("prediction", "recommendation"):
        body = PREDICTION if what == "prediction" else QUESTION
        id_ = guarded.post(f"/v1/{what}s", json=body, headers=a).json()["id"]
        assert guarded.get("/v1/evidence", params={f"{what}_id": id_}, headers=a).status_code == 200
        nobodys = guarded.get("/v1/evidence", params={f"{what}_id": "0" * 32}, headers=b)
        others = guarded.get("/v1/evidence", params={f"{what}_id": id_}, headers=b)
        assert others.status_code == nobodys.status_code in (404, 422)


@pytest.mark.parametrize("reports", one_in(2, [1, MAX_INLINE_REPORTS + 1]))
def test_a_report_cannot_be_linked_to_the_answer_of_another(
    guarded: TestClient, key, reports: int
) -> None:
    """Nor one of a batch that another process takes in."""
    a, b = key("a"), key("b")
    prediction = guarded.post("/v1/predictions", json=PREDICTION, headers=a).json()["id"]
    report = {"prediction_id": prediction, "outcome": "ok", "measured": {"step_time_s": 2.0}}
    batch = {"reports": [report] * reports}
    assert guarded.post("/v1/reports", json=report, headers=b).status_code in (404, 422)
    assert guarded.post("/v1/reports", json=batch, headers=b).status_code == 422
    assert guarded.post("/v1/reports", json=batch, headers=a).json()["accepted"] == reports
    assert [len(guarded.get("/v1/reports", headers=who).json()["items"]) > 0 for who in (a, b)] == [
        True,
        False,
    ]


def test_a_replay_is_of_ones_own_answers(guarded: TestClient, key) -> None:
    a, b = key("a", *ASKING, "calibrate"), key("b", *ASKING, "calibrate")
    guarded.post("/v1/predictions", json=PREDICTION, headers=a)
    guarded.post("/v1/reports", json=REPORT, headers=a)
    for headers, seen in ((a, 1), (b, 0)):
        replay = guarded.post("/v1/profiles/default/versions/1/replay", headers=headers).json()
        assert (len(replay["answers"]), replay["reports"]["runs"]) == (seen, seen)


def test_an_unknown_name_shows_no_names_of_others(guarded: TestClient, key) -> None:
    a, b = key("a"), key("b")
    secret = changed(REPORT, "model", {"name": "secret-model", **SHAPE})
    assert guarded.post("/v1/reports", json=secret, headers=a).status_code == 201
    answer = guarded.get("/v1/reports", params={"architecture": "secret-mode"}, headers=b)
    assert "secret-model" not in answer.text
    assert (
        guarded.get("/v1/reports", params={"architecture": "secret-model"}, headers=b).status_code
        == 422
    )


def test_two_tenants_may_use_the_same_idempotency_key(guarded: TestClient, key) -> None:
    a, b = ({**key(name), "Idempotency-Key": "k" * 255} for name in "ab")
    first, again = (guarded.post("/v1/reports", json=REPORT, headers=a) for _ in range(2))
    other = guarded.post(
        "/v1/reports", json=changed(REPORT, "measured.step_time_s", 3.0), headers=b
    )
    assert again.json()["id"] == first.json()["id"]
    assert other.status_code == 201
    assert other.json()["id"] != first.json()["id"]


def test_a_calibration_learns_from_all_and_what_all_share_needs_its_scope(
    guarded: TestClient, key
) -> None:
    a, b, operator = key("a"), key("b"), key("platform", "calibrate")
    for headers in (a, b):
        guarded.post("/v1/reports", json=REPORT, headers=headers)
    assert_problem(guarded.post("/v1/profiles/default/calibrations", headers=a), "forbidden")
    assert_problem(
        guarded.post("/v1/catalog/chips", json={"name": "x", "chip": CHIP}, headers=a), "forbidden"
    )
    made = guarded.post("/v1/profiles/default/calibrations", headers=operator)
    assert made.json()["calibration"]["window"]["reports"] == 2


def test_outliers_are_named_to_whom_they_belong(guarded: TestClient, key) -> None:
    a, b, admin, operator = (
        key("a"),
        key("b"),
        key("platform", "admin"),
        key("operator", "calibrate"),
    )
    predicted = guarded.post("/v1/predictions", json=PREDICTION, headers=a).json()["layouts"][0][
        "step_time_s"
    ]
    times = [1.1 * predicted] * 18 + [8 * predicted]
    reports = [changed(REPORT, "measured.step_time_s", time) for time in times]
    odd = guarded.post("/v1/reports", json={"reports": reports}, headers=a).json()["items"][-1][
        "id"
    ]
    made = guarded.post("/v1/profiles/default/calibrations", headers=operator)
    assert made.json()["calibration"]["outliers"] == []
    version = made.headers["location"]
    seen = [
        guarded.get(version, headers=who).json()["calibration"]["outliers"] for who in (a, b, admin)
    ]
    assert seen == [[odd], [], [odd]]


def test_a_version_names_no_chip_of_another_and_not_when_it_measured(
    guarded: TestClient, key
) -> None:
    a, b, admin, operator = (
        key("a"),
        key("b"),
        key("platform", "admin"),
        key("operator", "calibrate"),
    )
    secret = {"chip": {"name": "secret-chip", **CHIP}, "num_chips": REPORT["cluster"]["num_chips"]}
    reports = [changed(REPORT, "cluster", secret)] * 8
    guarded.post("/v1/reports", json={"reports": reports}, headers=a)
    version = guarded.post("/v1/profiles/default/calibrations", headers=operator).headers[
        "location"
    ]
    for headers, seen in ((a, True), (b, False), (operator, False), (admin, True)):
        answer = guarded.get(version, headers=headers)
        found = answer.json()
        assert ("secret-chip" in answer.text) == seen
        assert any("secret-chip" in term["scope"] for term in found["terms"]) == seen
        assert any(term["scope"] == "fleet:stack:torchtitan" for term in found["terms"])
        assert (found["calibration"]["window"]["last"] is not None) == (headers is admin)


def test_the_reason_of_a_promotion_names_no_chip_of_another(guarded: TestClient) -> None:
    kinds = [{"kind": "chip:secret", "runs": 5, "error_before": 0.1, "error_after": 0.2}]
    reason = "the error on 5 step times of unseen reports of chip:secret grows from 10.0% to 20.0%"
    document = {
        "window": {}, "outliers": [], "unusable": [], "moved": [], "unidentified": [],
        "unseen": {"kinds": kinds}, "promotion": {"reason": reason},
    }  # fmt: skip
    with guarded.app.state.services.store.of("b", sees_all=False).reading() as rows:
        shown = Disclosure(rows).calibration(document)
    assert "secret" not in str(shown)
    assert "grows by more than the margin" in shown["promotion"]["reason"]


def test_no_model_of_another_is_named(guarded: TestClient) -> None:
    scopes = ["fleet:model:671026419200", "fleet:h100-sxm-80gb/megatron/sparse"]
    with guarded.app.state.services.store.of("b", sees_all=False).reading() as rows:
        shown = Disclosure(rows).terms([{"scope": scope} for scope in scopes])
    assert shown == [{"scope": scopes[1]}]


def test_a_flood_of_one_tenant_weighs_as_one_source(guarded: TestClient, key) -> None:
    """Whatever sources its reports name."""
    flood: list[Any] = [
        {**changed(REPORT, "measured.step_time_s", 2.0), "source": f"s{i}"} for i in range(3)
    ]
    guarded.post("/v1/reports", json={"reports": flood}, headers=key("a"))
    with guarded.app.state.services.store.reading() as rows:
        runs, _ = StoredRuns(rows).read(rows.reports.informative(ReportFilter()))
    assert {observation(run).source for run in runs} == {"a"}


@pytest.mark.parametrize(
    "flood", [pytest.param(number, marks=pytest.mark.long) for number in (60, 300)]
)
def test_a_flood_of_one_tenant_is_not_promoted_at_the_cost_of_another(
    guarded: TestClient, key, flood: int
) -> None:
    """Of one whose runs are as predicted, and who reported before or in the same calibration."""
    honest, hostile, operator = key("a"), key("b"), key("platform", "calibrate")
    policy = {"mode": "automatic", "margin": 0.02}
    guarded.put("/v1/profiles/default/policy", json=policy, headers={**operator, "If-Match": "*"})

    def runs(who: Headers, factor: float, count: int) -> None:
        usual = guarded.post("/v1/predictions", json=PREDICTION, headers=who).json()["layouts"][0][
            "step_time_s"
        ]
        spread = np.random.default_rng(count).normal(0, 0.01, count)
        times = [usual * factor * float(np.exp(away)) for away in spread]
        bodies = [changed(REPORT, "measured.step_time_s", time) for time in times]
        assert guarded.post("/v1/reports", json={"reports": bodies}, headers=who).status_code == 201

    def promoted() -> bool:
        made = guarded.post("/v1/profiles/default/calibrations", headers=operator)
        return bool(made.json()["calibration"]["promotion"]["promoted"])

    runs(honest, 1.0, 20)
    runs(hostile, 1.3, flood)
    assert not promoted()
    runs(hostile, 1.3, flood)
    assert not promoted()


def test_without_keys_a_service_shows_what_tenants_left(
    guarded: TestClient, make_client, key
) -> None:
    id_ = guarded.post("/v1/reports", json=REPORT, headers=key("a")).json()["id"]
    assert make_client().get(f"/v1/reports/{id_}").status_code == 200


@pytest.mark.long
def test_keys_are_made_listed_and_revoked_on_the_command_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.db'}"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "service.api_keys", *arguments]
        env = {"SHARDWRIGHT_DATABASE_URL": url, "PATH": ""}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    made = run("create", "--tenant", "team-a").stdout.strip()
    store = Store(database.connect(url))
    id_, secret = made.split("_", 2)[1:]
    caller = api_keys.Caller("team-a", frozenset(ASKING), id_)
    assert api_keys.caller_of(store, [f"Bearer {made}"]) == caller
    listed = run("list").stdout
    assert "team-a  recommend report" in listed
    assert secret not in listed
    ending = run("create", "--tenant", "b", "--expires-in", "90d").stdout.strip()
    rotated = run("rotate", ending.split("_")[1], "--overlap", "0m").stdout.strip()
    with pytest.raises(Unauthenticated):
        api_keys.caller_of(store, [f"Bearer {ending}"])
    assert api_keys.caller_of(store, [f"Bearer {rotated}"]).tenant == "b"
    assert len(re.findall("expires 20", run("list").stdout)) == 2
    assert run("revoke", id_).stdout == f"{id_} is revoked\n"
    assert "revoked" in run("list").stdout
    for wrong in (
        "revoke nothing",
        "rotate nothing",
        f"rotate {id_}",
        "create --tenant a --expires-in 90",
        "create",
        "create --tenant \t",
        "create --tenant a --scope x",
        "list all",
    ):
        refused = run(*wrong.split(" "))
        assert refused.returncode == 2, wrong
        assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("url", one_in(2, ["sqlite:////nowhere/at/all/keys.db", "mysql://h/n"]))
def test_a_database_that_has_no_keys_is_said_without_a_traceback(url: str) -> None:
    command = [sys.executable, "-m", "service.api_keys", "list"]
    refused = subprocess.run(
        command,
        env={"SHARDWRIGHT_DATABASE_URL": url, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "database" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_runs_out_of_memory_narrow_the_frontier_of_their_own_tenant_alone(
    guarded: TestClient, key
) -> None:
    a, b = key("a"), key("b")
    report = {**PREDICTION, "outcome": "out_of_memory"}
    assert guarded.post("/v1/reports", json=report, headers=a).status_code == 201
    question = {**QUESTION, "grid": {"num_chips": [8]}}
    told = [
        any("left out" in reason for reason in answer.json()["reasons"])
        for answer in (guarded.post("/v1/frontiers", json=question, headers=who) for who in (a, b))
    ]
    assert told == [True, False]


def test_runs_out_of_memory_warn_their_own_tenant_alone(guarded: TestClient, key) -> None:
    ours, theirs = key("a"), key("b")
    report = {**PREDICTION, "outcome": "out_of_memory"}
    made = guarded.post("/v1/reports", json=report, headers=ours)
    assert made.status_code == 201, made.text
    id_ = made.json()["id"]
    first = {"layout": PREDICTION["layout"]}
    bodies = {
        "/v1/checks": PREDICTION,
        "/v1/comparisons": {**QUESTION, "first": first, "second": first},
    }
    for path, body in bodies.items():
        assert id_ in guarded.post(path, json=body, headers=ours).text, path
        assert id_ not in guarded.post(path, json=body, headers=theirs).text, path
