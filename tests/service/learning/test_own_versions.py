"""What a tenant measured moves its own predictions at once, and nobody else's."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.calibration.calibrate import Calibration
from models.calibration.posterior import Posterior
from models.spec.profile import shipped_profile
from service import api_keys
from service.errors import Conflict, NothingToLearn
from service.learning.calibration_input import read_own_input
from service.learning.calibrations import Calibrations
from service.learning.promotion import judge
from service.own_profile import own_profile_id
from service.runtime.idempotency import SaveRows
from service.schemas.profile import CalibrationRequest, Policy, Promotion
from service.store import Store, database
from service.store.benchmarks import BenchmarkQueries
from tests.long import one_in
from tests.service.asking import (
    LAYOUT,
    ON_POSTGRESQL_FIRST,
    PREDICTION,
    QUESTION,
    assert_problem,
    changed,
    scraped,
)
from tests.service.learning.test_benchmarks import gemms
from tests.service.learning.test_drift_flags import level, report_runs
from tests.waiting import wait_for

SLOWER = 1.4
_SOME_LOOKS_S = 0.2  # in which a service that looks every 0.05 s would have made a version
OWN = "/v1/profiles/own"
SHARED = "/v1/profiles/default"
ANY_STATE = {"If-Match": "*"}
Headers = dict[str, str]
Document = dict[str, Any]


class Tenants:
    """A service with keys, and what its tenants ask and report. `made` makes more processes on the
    same database."""

    def __init__(self, make: Callable[..., TestClient], **settings: Any) -> None:
        self._make = make
        self._settings = {"require_api_keys": True, "unattended_look_s": 3600, **settings}
        self.client = self.process()
        self._keys: dict[tuple[str, ...], Headers] = {}

    def process(self) -> TestClient:
        return self._make(**self._settings)

    @property
    def store(self) -> Store:
        store: Store = self.client.app.state.services.store
        return store

    def key(self, tenant: str, *scopes: str) -> Headers:
        asked = tenant, *(scopes or ("recommend", "report"))
        if asked not in self._keys:
            key = api_keys.create(self.store, tenant, asked[1:])
            self._keys[asked] = {"Authorization": f"Bearer {key}"}
        return self._keys[asked]

    @property
    def operator(self) -> Headers:
        return self.key("operators", "calibrate", "recommend")

    @property
    def admin(self) -> Headers:
        return self.key("operators", "admin")

    def post(self, tenant: str, path: str, body: Any = None, **headers: str) -> Any:
        return self.client.post(path, json=body, headers={**self.key(tenant), **headers})

    def get(self, tenant: str, path: str) -> Any:
        return self.client.get(path, headers=self.key(tenant))

    def ask(self, tenant: str, question: Document = PREDICTION) -> Document:
        made = self.post(tenant, "/v1/predictions", question)
        assert made.status_code in (200, 201), made.text
        answer: Document = made.json()
        return answer

    def step_s(self, tenant: str, question: Document = PREDICTION) -> float:
        seconds: float = self.ask(tenant, question)["layouts"][0]["step_time_s"]
        return seconds

    def report(
        self, tenant: str, count: int, factor: float = SLOWER, question: Document = PREDICTION
    ) -> list[str]:
        """So many runs that took `factor` times what the shared version predicts; their ids."""
        shared = {**question, "profile": {"version": 1}}
        usual = self.step_s(tenant, shared)
        noise = np.exp(np.random.default_rng(count).normal(0, 0.01, count))
        reports = [
            {**question, "outcome": "ok", "measured": {"step_time_s": usual * factor * float(away)}}
            for away in noise
        ]
        made = self.post(tenant, "/v1/reports", {"reports": reports}).json()
        assert made["refused"] == 0, made
        return [item["id"] for item in made["items"]]

    def calibrate(self, tenant: str, body: Document | None = None) -> Document:
        made = self.post(tenant, f"{OWN}/calibrations", body)
        assert made.status_code == 201, made.text
        version: Document = made.json()
        return version

    def withdraw(self, tenant: str, id_: str) -> None:
        gone = self.client.delete(f"/v1/reports/{id_}", headers=self.key(tenant))
        assert gone.status_code == 200, gone.text

    def own(self, tenant: str) -> Document:
        profile: Document = self.get(tenant, OWN).json()
        return profile

    def wait_for_own(self, tenant: str, active: int | None, versions: int) -> None:
        """Waits until the tenant's own profile is so."""

        def is_so() -> bool:
            found = self.get(tenant, OWN)
            if found.status_code != 200:
                return False
            own = found.json()
            return (own["active_version"], len(own["versions"])) == (active, versions)

        wait_for(is_so)


@pytest.fixture
def tenants(make_client: Callable[..., TestClient]) -> Callable[..., Tenants]:
    return lambda **settings: Tenants(make_client, **settings)


@ON_POSTGRESQL_FIRST
def test_three_reports_move_the_predictions_of_their_tenant_alone(tenants) -> None:
    service = tenants()
    before = {tenant: service.ask(tenant) for tenant in "ab"}
    shared_s = before["a"]["layouts"][0]["step_time_s"]
    service.report("a", 3)
    made = service.calibrate("a")
    assert made["calibration"]["promotion"]["promoted"], made["calibration"]["promotion"]

    after = {tenant: service.ask(tenant) for tenant in "ab"}
    assert 1.1 * shared_s < after["a"]["layouts"][0]["step_time_s"] < SLOWER * shared_s
    assert after["a"]["profile"] == {"id": own_profile_id("a"), "version": 1}
    assert after["a"]["profile"] == {"id": made["id"], "version": made["version"]}
    assert any("of the tenant's own" in line for line in after["a"]["assumptions"])
    assert after["a"]["id"] != before["a"]["id"]
    assert after["b"] == before["b"]  # the answer that is stored, with its id
    assert service.ask("c")["layouts"] == before["b"]["layouts"]
    pinned = service.ask("a", {**PREDICTION, "profile": {"version": 1}})
    assert pinned["layouts"] == before["b"]["layouts"]

    service.client = service.process()  # as after a restart
    assert service.ask("a") == after["a"]
    assert service.ask("b") == before["b"]


def test_an_own_version_is_seen_by_its_tenant_and_by_admins_only(tenants) -> None:
    service = tenants()
    service.report("a", 3)
    service.calibrate("a")
    id_ = own_profile_id("a")
    for path in (f"/v1/profiles/{id_}", f"/v1/profiles/{id_}/versions/1"):
        assert service.get("a", path).status_code == 200
        assert service.client.get(path, headers=service.admin).status_code == 200
        assert_problem(service.get("b", path), "not-found")
        assert_problem(service.client.get(path, headers=service.operator), "not-found")
    listed = {
        who: [one["id"] for one in service.client.get("/v1/profiles", headers=key).json()["items"]]
        for who, key in (
            ("a", service.key("a")),
            ("b", service.key("b")),
            ("admin", service.admin),
        )
    }
    assert listed == {"a": ["default", id_], "b": ["default"], "admin": ["default", id_]}
    assert service.own("a")["tenant"] == "a"
    assert_problem(service.get("b", OWN), "not-found")

    mine = service.step_s("a")
    pinned = {**PREDICTION, "profile": {"id": id_, "version": 1}}
    assert service.step_s("a", pinned) == mine
    refused = service.post("b", "/v1/predictions", pinned)
    (error,) = assert_problem(refused, "unknown-name", "/profile/id")["errors"]
    assert id_ not in error["rule"]
    asked = service.client.post("/v1/predictions", json=pinned, headers=service.admin).json()
    assert asked["layouts"][0]["step_time_s"] == mine
    for path in ("calibrations", "versions/1/activate", "deactivate", "versions/1/replay"):
        answer = service.post("b", f"/v1/profiles/{id_}/{path}", **ANY_STATE)
        assert_problem(answer, "not-found")
    service.report("a", 1)
    made = service.client.post(f"/v1/profiles/{id_}/calibrations", headers=service.admin)
    assert made.json()["calibration"]["window"]["reports"] == 4
    assert service.own("a")["active_version"] == 2


def test_own_versions_of_two_tenants_have_different_etags(tenants) -> None:
    """Though both may be at the same address."""
    service = tenants()
    etags = set()
    for tenant in "ab":
        service.report(tenant, 3)
        service.calibrate(tenant)
        etags |= {service.get(tenant, path).headers["etag"] for path in (OWN, f"{OWN}/versions/1")}
    assert len(etags) == 4


def test_what_all_share_still_takes_its_scope(tenants) -> None:
    service = tenants()
    service.report("a", 3)
    service.calibrate("a")
    for path in ("calibrations", "versions/1/activate", "deactivate", "versions/1/replay"):
        answer = service.post("a", f"{SHARED}/{path}", **ANY_STATE)
        assert_problem(answer, "forbidden")
    asks_only = service.key("a", "recommend")
    refused = service.client.post(f"{OWN}/calibrations", headers=asks_only)
    assert "scope report" in assert_problem(refused, "forbidden")["detail"]
    kept = service.client.post(f"{SHARED}/deactivate", headers={**service.operator, **ANY_STATE})
    assert "activate another" in assert_problem(kept, "conflict")["detail"]


def test_without_keys_there_is_no_own_profile(client) -> None:
    assert_problem(client.get(OWN), "not-found")
    assert_problem(client.post(f"{OWN}/calibrations"), "not-found")


@ON_POSTGRESQL_FIRST
def test_a_withdrawal_gives_the_shared_version_back(tenants) -> None:
    service = tenants()
    shared = service.ask("a")
    ids = service.report("a", 3)
    service.calibrate("a")
    assert service.ask("a")["id"] != shared["id"]
    other = service.report("a", 1, factor=1.0)[0]  # came later, and is in no version yet
    service.withdraw("a", other)
    assert service.own("a")["active_version"] == 1
    service.withdraw("a", ids[0])
    assert service.own("a")["active_version"] is None
    assert service.ask("a") == shared
    made = service.calibrate("a")
    assert made["calibration"]["window"]["reports"] == 2
    assert service.ask("a")["profile"]["version"] == 2
    for id_ in ids[1:]:
        service.withdraw("a", id_)
    assert service.ask("a") == shared
    assert_problem(service.post("a", f"{OWN}/calibrations"), "nothing-to-learn")


def test_a_version_that_learnt_what_is_withdrawn_meanwhile_is_not_stored(tenants) -> None:
    service = tenants()
    id_ = service.report("a", 3)[0]
    store = service.store.of("a", sees_all=False)
    calibrations = service.client.app.state.services.calibrations.of(store)
    save = calibrations.calibrate(own_profile_id("a"), CalibrationRequest())
    service.withdraw("a", id_)
    with pytest.raises(Conflict, match="try again"), store.writing() as rows:
        save(rows)
    assert_problem(service.get("a", OWN), "not-found")


def test_the_same_is_not_learnt_twice(tenants) -> None:
    service = tenants()
    service.report("a", 3)
    service.calibrate("a")
    assert_problem(service.post("a", f"{OWN}/calibrations"), "nothing-to-learn")
    service.report("a", 1)
    assert service.calibrate("a")["version"] == 2


def test_own_versions_count_for_what_a_tenant_may_store(tenants) -> None:
    service = tenants(max_stored_bytes_per_tenant=400_000)
    service.report("a", 3)  # and a prediction
    for _ in range(2):
        service.calibrate("a")
        service.report("a", 1)
    assert_problem(service.post("a", f"{OWN}/calibrations"), "storage-full")
    service.report("b", 3)
    service.calibrate("b")


@ON_POSTGRESQL_FIRST
def test_a_version_that_is_just_being_stored_ends_with_its_report(tenants) -> None:
    service = tenants()
    id_ = service.report("a", 3)[0]
    store = service.store.of("a", sees_all=False)
    calibrations = service.client.app.state.services.calibrations.of(store)
    save = calibrations.calibrate(own_profile_id("a"), CalibrationRequest())
    with ThreadPoolExecutor(1) as pool:
        with store.writing() as rows:
            save(rows)
            withdrawn = pool.submit(service.withdraw, "a", id_)
            time.sleep(0.5)
        withdrawn.result()
    own = service.own("a")
    assert (own["active_version"], len(own["versions"])) == (None, 1)


@pytest.mark.long
@ON_POSTGRESQL_FIRST
def test_two_processes_may_calibrate_at_once(tenants) -> None:
    service = tenants()
    processes = [service.client, service.process()]
    service.report("a", 3)
    key = service.key("a")
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(one.post, f"{OWN}/calibrations", headers=key) for one in processes]
        statuses = [future.result().status_code for future in asked]
    assert {201} <= {*statuses} <= {201, 409, 422}  # the other came too early, or too late
    own = service.own("a")
    assert own["active_version"] == len(own["versions"]) == statuses.count(201)


def test_a_rollback_gives_the_shared_version_back(tenants) -> None:
    service = tenants()
    shared = service.ask("a")
    service.report("a", 3)
    service.calibrate("a")
    moved = service.ask("a")
    assert_problem(service.post("a", f"{OWN}/deactivate"), "precondition-required")
    stale = service.post("a", f"{OWN}/deactivate", **{"If-Match": '"stale"'})
    assert_problem(stale, "precondition-failed")
    ended = service.post("a", f"{OWN}/deactivate", **ANY_STATE)
    assert (ended.json()["active_version"], ended.json()["policy"]["mode"]) == (None, "manual")
    assert service.ask("a") == shared
    asked = service.calibrate("a", {"activate": True})  # from the same reports
    assert asked["calibration"]["promotion"]["promoted"]
    assert service.ask("a") != shared
    service.post("a", f"{OWN}/deactivate", **ANY_STATE)
    service.report("a", 3)
    assert "the policy is manual" in service.calibrate("a")["calibration"]["promotion"]["reason"]
    assert service.ask("a") == shared
    again = service.post("a", f"{OWN}/versions/1/activate", **ANY_STATE)
    assert again.json()["active_version"] == 1
    assert service.ask("a") == moved
    trail = service.client.get("/v1/audit", headers=service.admin).json()["items"]
    actions = [(one["action"], one["subject"]) for one in trail if "profile" in one["action"]]
    id_ = own_profile_id("a")
    assert actions == [
        ("profile.activated", f"{id_}/1"),
        ("profile.deactivated", id_),
        ("profile.promoted", f"{id_}/2"),
        ("profile.deactivated", id_),
        ("profile.promoted", f"{id_}/1"),
    ]


def test_the_audit_trail_names_the_tenant_that_a_change_is_of(tenants) -> None:
    service = tenants()
    service.report("a", 3)
    service.calibrate("a")
    service.post("a", f"{OWN}/deactivate", **ANY_STATE)
    service.post("a", f"{OWN}/versions/1/activate", **ANY_STATE)
    key = {**service.key("a"), **ANY_STATE}
    service.client.put(f"{OWN}/policy", json={"mode": "manual"}, headers=key)
    operator = {**service.operator, **ANY_STATE}
    service.client.post(f"{SHARED}/versions/1/activate", headers=operator)
    trail = service.client.get("/v1/audit", headers=service.admin).json()["items"]
    whose = [(one["action"], one["details"].get("of_tenant")) for one in trail]
    assert [one for one in whose if not one[0].startswith("key")] == [
        ("profile.activated", None),  # all share it
        ("policy.set", "a"),
        ("profile.activated", "a"),
        ("profile.deactivated", "a"),
        ("profile.promoted", "a"),
    ]


@pytest.mark.long
@pytest.mark.parametrize("count", [3, 300])
def test_a_flood_moves_its_own_tenant_and_nobody_else(tenants, count: int) -> None:
    service = tenants()
    policy = {"mode": "automatic", "after_reports": 100}
    key = {**service.operator, **ANY_STATE}
    assert service.client.put(f"{SHARED}/policy", json=policy, headers=key).status_code == 200
    chips = [changed(PREDICTION, "cluster.preset", chip) for chip in ("h100", "mi300x")]
    before = {who: [service.step_s(who, chip) for chip in chips] for who in "ab"}
    service.report("a", count, factor=3.0, question=chips[1])
    service.calibrate("a")
    service.client.post(f"{SHARED}/calibrations", headers=service.operator)
    assert [service.step_s("b", chip) for chip in chips] == before["b"]
    moved = service.step_s("a", chips[1]) / before["a"][1]
    assert 1.3 < moved < 3.1
    assert count == 3 or moved > 2.5


@pytest.mark.long
def test_what_the_shared_version_explains_ends_the_own_one(tenants) -> None:
    """As where the first runs were slow and the others are not."""
    service = tenants()
    shared = service.ask("a")
    service.report("a", 3)
    service.calibrate("a")
    service.report("a", 40, factor=1.0)
    made = service.calibrate("a")["calibration"]
    assert not made["promotion"]["promoted"], made["promotion"]
    assert service.ask("a") == shared


def test_every_kind_of_answer_uses_the_own_version(tenants) -> None:
    service = tenants()
    service.report("a", 6)
    service.calibrate("a")
    used = {"id": own_profile_id("a"), "version": 1}
    small = changed(QUESTION, "cluster.num_chips", 8)
    sides = {"first": {"layout": LAYOUT}, "second": {"layout": {**LAYOUT, "micro_batch": 2}}}
    asked = {
        "/v1/recommendations": small,
        "/v1/checks": PREDICTION,
        "/v1/comparisons": {**QUESTION, **sides},
        "/v1/frontiers": {**small, "grid": {"num_chips": [8]}},
        "/v1/reports": {**PREDICTION, "outcome": "crashed"},
    }
    for path, body in asked.items():
        made = service.post("a", path, body)
        assert made.status_code in (200, 201), (path, made.text)
        assert made.json()["profile"] == used, path
        others = service.post("b", path, body).json()["profile"]
        assert others == {"id": "default", "version": 1}, path
    sweep = {"models": ["llama-3.1-8b"], "clusters": [small["cluster"]], "stacks": ["torchtitan"]}
    sweep["workloads"] = [small["workload"]]
    made = service.post("a", "/v1/sweeps", sweep)
    assert made.json()["profile"] == used, made.text
    replay = service.post("a", f"{OWN}/versions/1/replay").json()
    assert (replay["profile"], replay["active"]) == (used, used)
    drift = service.get("a", f"{OWN}/drift").json()
    assert (drift["profile"], drift["runs"]) == (used, 6)
    summary = service.get("a", "/v1/reports/summary").json()
    assert summary["by"]["profile_version"].keys() == {"default/1", f"{used['id']}/1"}


@pytest.mark.long
def test_the_shared_profile_learns_from_runs_that_own_versions_predicted(tenants) -> None:
    service = tenants()
    service.report("a", 3)
    service.calibrate("a")
    service.report("a", 3)
    made = service.client.post(f"{SHARED}/calibrations", headers=service.operator).json()
    assert made["calibration"]["window"]["reports"] == 6
    drift = service.client.get(f"{SHARED}/drift", headers=service.admin).json()
    assert drift["runs"] == 6


def test_metrics_name_no_own_profile(tenants) -> None:
    service = tenants()
    service.report("a", 3)
    service.calibrate("a")
    service.report("a", 3)
    text = scraped(service.client)
    assert "shardwright_own_versions 1.0" in text
    assert 'shardwright_report_residual_count{profile="own"}' in text
    assert own_profile_id("a") not in text


@ON_POSTGRESQL_FIRST
def test_the_service_makes_own_versions_by_itself(tenants) -> None:
    """Once, however many processes there are, and again when there is enough that is new."""
    service = tenants(unattended_look_s=0.05)
    service.process()
    service.report("a", 2)
    time.sleep(_SOME_LOOKS_S)
    assert_problem(service.get("a", OWN), "not-found")
    last = service.report("a", 1)[0]
    service.wait_for_own("a", active=1, versions=1)
    time.sleep(_SOME_LOOKS_S)
    service.wait_for_own("a", active=1, versions=1)
    service.report("a", 3)
    service.wait_for_own("a", active=2, versions=2)
    service.report("a", 2)
    time.sleep(_SOME_LOOKS_S)
    service.wait_for_own("a", active=2, versions=2)
    service.withdraw("a", last)
    service.wait_for_own("a", active=3, versions=3)
    assert_problem(service.get("b", OWN), "not-found")


@pytest.mark.long
def test_an_own_version_holds_still_while_runs_have_become_slower(tenants) -> None:
    """A broken machine would otherwise become the one that is expected. A repair is learnt."""
    service = tenants()
    usual = level(14, 1.1)
    sent = {"headers": service.key("a")}
    report_runs(service.client, usual, **sent)
    assert service.calibrate("a")["calibration"]["promotion"]["promoted"]
    before = service.step_s("a")
    shared = {**PREDICTION, "profile": {"version": 1}}
    step_time_s = service.step_s("a", shared)
    report_runs(service.client, level(10, 1.3), since=14, step_time_s=step_time_s, **sent)
    made = service.calibrate("a")
    held = made["calibration"]["promotion"]
    assert not held["promoted"]
    assert "slower since" in held["reason"]
    assert service.step_s("a") == before
    activated = service.post("a", f"{OWN}/versions/{made['version']}/activate", **ANY_STATE)
    assert activated.status_code == 200, activated.text
    assert service.step_s("a") > before


@pytest.mark.long
def test_an_own_version_follows_a_repair(tenants) -> None:
    service = tenants()
    sent = {"headers": service.key("a")}
    step_time_s = service.step_s("a")
    report_runs(service.client, level(14, 1.4), step_time_s=step_time_s, **sent)
    assert service.calibrate("a")["calibration"]["promotion"]["promoted"]
    before = service.step_s("a")
    report_runs(service.client, level(14, 1.1), since=14, step_time_s=step_time_s, **sent)
    service.calibrate("a")
    assert service.step_s("a") < before


@pytest.mark.long
def test_an_own_version_is_made_anew_on_top_of_another_shared_one(tenants) -> None:
    service = tenants(unattended_look_s=0.05)
    service.report("a", 3)
    service.wait_for_own("a", active=1, versions=1)
    service.report("b", 2, factor=1.2)
    etag = {**service.operator, "If-Match": "*"}
    service.client.post(f"{SHARED}/calibrations", headers=service.operator)
    for shared, own in ((2, 2), (1, 3)):
        service.client.post(f"{SHARED}/versions/{shared}/activate", headers=etag)
        service.wait_for_own("a", active=own, versions=own)
        made = service.get("a", f"{OWN}/versions/{own}").json()
        assert made["calibration"]["based_on"] == shared


@pytest.mark.parametrize("who", one_in(2, ["operators", "a"]))
def test_nothing_is_made_unasked_where_a_policy_says_so(tenants, who: str) -> None:
    service = tenants(unattended_look_s=0.05)
    if who == "operators":
        policy, key = {"own_after_reports": None}, service.operator
    else:
        service.report("a", 1)
        service.calibrate("a")
        policy, key = {"mode": "manual"}, service.key("a")
    path = SHARED if who == "operators" else OWN
    set_ = service.client.put(f"{path}/policy", json=policy, headers={**key, **ANY_STATE})
    assert set_.status_code == 200, set_.text
    service.report("a", 6)
    time.sleep(_SOME_LOOKS_S)
    found = service.get("a", OWN)
    assert found.status_code == 404 if who == "operators" else len(found.json()["versions"]) == 1


@pytest.mark.long
@ON_POSTGRESQL_FIRST
def test_a_tenant_may_opt_out_before_there_is_a_version(tenants) -> None:
    service = tenants(unattended_look_s=0.05)

    def set_policy(tenant: str, path: str, **policy: Any) -> Any:
        headers = {**service.key(tenant, "report", "recommend"), **ANY_STATE}
        return service.client.put(f"/v1/profiles/{path}/policy", json=policy, headers=headers)

    id_ = own_profile_id("a")
    assert_problem(set_policy("b", id_, mode="manual"), "not-found")  # another tenant's
    made = set_policy("a", OWN.rsplit("/", 1)[-1], mode="manual").json()
    assert (made["id"], made["tenant"]) == (id_, "a")
    assert (made["active_version"], made["versions"]) == (None, [])
    shared = service.ask("a")
    service.report("a", 6)
    time.sleep(_SOME_LOOKS_S)
    assert service.own("a")["versions"] == []
    assert service.ask("a") == shared
    named = {**PREDICTION, "profile": {"id": id_, "version": 1}}
    refused = assert_problem(service.post("a", "/v1/predictions", named), "invalid")
    assert refused["errors"][0]["rule"].endswith("has no such version; it has none yet")
    asked = service.calibrate("a", {"activate": True})
    assert (asked["version"], asked["calibration"]["promotion"]["promoted"]) == (1, True)
    set_policy("a", id_, mode="automatic")
    service.report("a", 6)
    service.wait_for_own("a", active=2, versions=2)


def test_a_policy_is_replaced_as_a_whole(tenants) -> None:
    service = tenants()

    def set_policy(**policy: Any) -> Document:
        headers = {**service.operator, **ANY_STATE}
        answer = service.client.put(f"{SHARED}/policy", json=policy, headers=headers).json()
        said: Document = answer["policy"]
        return said

    first = set_policy(mode="automatic", margin=0.05, own_after_reports=None)
    assert set_policy(after_reports=7) == {**Policy().model_dump(), "after_reports": 7}
    trail = service.client.get("/v1/audit", headers=service.admin).json()["items"]
    last = next(one for one in trail if one["action"] == "policy.set")
    assert last["details"]["before"] == first


def test_what_cannot_be_learnt_is_tried_once(tenants, monkeypatch) -> None:
    tried: list[str] = []

    def learns_nothing(self: Calibrations, id_: str, request: object) -> SaveRows:
        tried.append(id_)
        raise NothingToLearn(3, 1)

    monkeypatch.setattr(Calibrations, "calibrate", learns_nothing)
    service = tenants(unattended_look_s=0.05)
    service.report("a", 3)
    wait_for(lambda: tried)
    time.sleep(_SOME_LOOKS_S)
    assert tried == [own_profile_id("a")]


@ON_POSTGRESQL_FIRST
def test_a_migration_down_leaves_nobodys_own_version(tenants, database_url: str) -> None:
    service = tenants()
    service.report("a", 3)
    service.calibrate("a")
    made = service.ask("a")
    engine = database.connect(database_url)
    database.downgrade(engine, "0018")
    database.migrate(engine)
    engine.dispose()
    service.client = service.process()
    assert_problem(service.get("a", OWN), "not-found")
    assert service.get("a", f"/v1/predictions/{made['id']}").json()["layouts"] == made["layouts"]
    listed = service.get("a", "/v1/predictions").json()["items"]
    assert {one["profile"]["id"] for one in listed} == {"default"}
    service.calibrate("a")
    assert service.ask("a")["layouts"] == made["layouts"]


def test_few_own_runs_are_judged_by_what_they_measured() -> None:
    def judged(policy: str = "automatic", **errors: float | None) -> Promotion:
        names = ("error_before", "error_after", "memory_error_before", "memory_error_after")
        found = Calibration(
            profile=shipped_profile(),
            posterior=Posterior.independent(),
            moved=(),
            unidentified=(),
            outliers=(),
            held_out=None,
            held_out_memory=None,
            observations=3,
            **{**dict.fromkeys(names), **errors},
        )
        return judge(Policy(mode=policy), found, None, requested=False, is_own=True)

    assert judged(error_before=0.3, error_after=0.2).promoted
    assert judged(memory_error_before=0.3, memory_error_after=0.2).promoted
    assert not judged(error_before=0.3, error_after=0.3).promoted
    assert not judged("manual", error_before=0.3, error_after=0.2).promoted
    assert not judged().promoted


def test_of_many_benchmarks_no_more_are_read_than_count(tenants, monkeypatch) -> None:
    most = 3
    monkeypatch.setattr("service.learning.calibration_input.MOST_OWN", most)
    service = tenants()
    posted = [service.post("a", "/v1/benchmarks", gemms(500.0 + 10 * at)).json() for at in range(9)]
    service.post("b", "/v1/benchmarks", gemms(400.0))
    ids = [one["id"] for one in posted]
    with service.store.writing() as rows:  # the last but one has no chip any more
        row = rows.benchmarks.get(ids.pop(-2))
        row.question = changed(row.question, "cluster", {"preset": "withdrawn", "num_chips": 1})

    pages: list[int] = []
    read = BenchmarkQueries.newest

    def newest(self: BenchmarkQueries, limit: int, *args: Any, **span: Any) -> Any:
        pages.append(limit)
        return read(self, limit, *args, **span)

    monkeypatch.setattr(BenchmarkQueries, "newest", newest)
    monkeypatch.setattr(BenchmarkQueries, "created_between", None)  # which reads them all
    with service.store.of("a", sees_all=False).reading() as rows:
        given = read_own_input(rows, "a", CalibrationRequest())
        assert given.benchmark_ids == ids[-most:]
        assert pages == [most, most]  # one page more, for the one that is left out
        until = posted[4]["created_at"]
        asked = CalibrationRequest.model_validate({"until": until})
        assert read_own_input(rows, "a", asked).benchmark_ids == ids[1:4]
        since = CalibrationRequest.model_validate({"since": posted[6]["created_at"]})
        assert read_own_input(rows, "a", since).benchmark_ids == ids[6:]
