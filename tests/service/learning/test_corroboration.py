"""What one tenant measured moves the predictions of others only where others agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from models.calibration.observation import Observation
from models.spec.profile import shipped_profile
from service import api_keys
from service.learning import corroboration
from service.learning.calibration_input import read_input
from service.learning.corroboration import Corroborated, Group, TenantBenchmark, corroborated
from service.resolve.stored_runs import StoredRun
from service.schemas.profile import CalibrationRequest
from tests.service.asking import PREDICTION, changed

PROFILE = "/v1/profiles/default"
Headers = dict[str, str]


def run(
    tenant: str | None,
    time: float | None = None,
    memory: float | None = None,
    chip: str = "h100",
    **more: Any,
) -> StoredRun:
    """A run that took so many times the predicted time, and held so many times the predicted
    memory."""
    values = dict.fromkeys(StoredRun.__dataclass_fields__)
    values |= {"tenant": tenant, "chip": chip, "stack": "torchtitan", "out_of_memory": False}
    values |= {"step_time_s": time, "reserved_bytes": memory, "report_id": f"{tenant} {time}"}
    return StoredRun(**{**values, **more})


@pytest.fixture(autouse=True)
def _predicted_is_one(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "client" in request.fixturenames or "make_client" in request.fixturenames:
        return
    for name, measured in (
        ("log_residuals", "step_time_s"),
        ("log_memory_residuals", "reserved_bytes"),
    ):

        def residuals(runs: list[StoredRun], _: object, measured: str = measured) -> np.ndarray:
            return np.log([getattr(one, measured) for one in runs])

        monkeypatch.setattr(corroboration, name, residuals)


def found(runs: list[StoredRun], benchmarks: Any = (), tenants: int = 2) -> Corroborated:
    return corroborated(runs, benchmarks, shipped_profile(), min_tenants=tenants, margin=0.01)


@pytest.mark.parametrize(
    ("mine", "theirs", "agree"),
    [
        (3.0, 3.2, True),
        (3.0, 1.0, False),
        (1.25, 1.0, False),
        (1.25, 1.02, False),
        (1.25, 0.8, False),
        (1.004, 0.997, False),  # within the margin, and of opposite signs
        (1.10, 1.08, True),
        (0.7, 0.75, True),
        (1.005, 1.0, True),  # within the margin
    ],
)
def test_two_agree_where_one_tells_more_of_the_other_than_the_profile_does(
    mine: float, theirs: float, agree: bool
) -> None:
    runs = [run("a", mine) for _ in range(300)] + [run("b", theirs)]
    smaller = min(mine, theirs, key=lambda time: abs(math.log(time)))
    for ordered in (runs, runs[::-1]):
        kept = found(ordered).runs
        assert [one.tenant for one in kept] == ([one.tenant for one in ordered] if agree else [])
        assert [one.step_time_s for one in kept] == pytest.approx([smaller] * len(kept))


_FACTORS = st.floats(0.2, 5.0)


@given(honest=st.lists(_FACTORS, min_size=1, max_size=4), hostile=_FACTORS, more=_FACTORS)
def test_one_tenant_moves_others_no_further_than_the_others_say(
    honest: list[float], hostile: float, more: float
) -> None:
    """And saying more moves nobody further, while it stays the only one who does."""

    def furthest(*liars: float) -> tuple[float, float]:
        runs = [run(f"honest {i}", factor) for i, factor in enumerate(honest)]
        runs += [run("hostile", factor) for factor in liars]
        kept = [math.log(one.step_time_s or 1.0) for one in found(runs).runs]
        return min([0.0, *kept]), max([0.0, *kept])

    said = [0.0, *map(math.log, honest)]
    low, high = furthest(hostile)
    assert min(said) - 1e-9 <= low
    assert high <= max(said) + 1e-9
    if max(honest) < hostile < more:
        assert furthest(more)[1] <= high + 1e-9
    if min(honest) > hostile > more:
        assert furthest(more)[0] >= low - 1e-9


@given(up=st.floats(1.0001, 5.0), down=st.floats(0.2, 0.9999))
def test_opposite_signs_agree_on_nothing(up: float, down: float) -> None:
    assert found([run("a", up), run("b", down)]).runs == []


@given(mine=_FACTORS, theirs=_FACTORS)
def test_what_one_tenant_measured_keeps_its_differences(mine: float, theirs: float) -> None:
    """All of a tenant's measurements are moved by the same factor, exposed communication too."""
    mine_runs = [run("a", mine * away, exposed_communication_s=0.1 * away) for away in (0.9, 1, 2)]
    runs = [*mine_runs, run("b", theirs, exposed_communication_s=0.1)]
    kept = [one for one in found(runs).runs if one.tenant == "a"]
    if not kept:
        return
    factors = [one.step_time_s / was.step_time_s for one, was in zip(kept, mine_runs, strict=True)]
    parts = [one.exposed_communication_s / one.step_time_s for one in kept]
    assert factors == pytest.approx([factors[0]] * 3)
    assert parts == pytest.approx([0.1 / mine] * 3)


def test_who_disagrees_with_two_that_agree_is_left_out_alone() -> None:
    runs = [run("liar", 3.0), run("a", 1.1), run("b", 1.12)]
    kept = found(runs).runs
    assert [one.tenant for one in kept] == ["a", "b"]
    assert [one.step_time_s for one in kept] == pytest.approx([1.1, 1.1])
    assert found(runs).waiting == {Group("liar", "h100", "torchtitan"): "liar 3.0"}
    assert found(runs).reports == 1


def test_runs_of_another_chip_or_stack_agree_with_nothing() -> None:
    others = [run("b", 3.0, chip="h200"), replace(run("b", 3.0), stack="megatron")]
    assert found([run("a", 3.0), *others]).runs == []


def test_as_many_agree_as_the_policy_asks_for() -> None:
    runs = [run("a", 3.0), run("b", 3.1)]
    assert found(runs[:1], tenants=1).runs == runs[:1]
    assert found(runs, tenants=1).runs == runs
    assert found(runs, tenants=3).runs == []

    def times(*factors: float, tenants: int) -> list[float | None]:
        runs = [run(str(i), factor) for i, factor in enumerate(factors)]
        return [one.step_time_s for one in found(runs, tenants=tenants).runs]

    assert times(3.0, 3.1, 2.9, tenants=3) == pytest.approx([2.9, 2.9, 2.9])
    assert times(3.0, 3.1, 2.9, tenants=2) == pytest.approx([3.0, 3.0, 2.9])


def test_what_carries_no_key_counts_by_itself() -> None:
    runs = [run(None, 3.0), run("a", 2.0, chip="h200")]
    assert found(runs).runs == runs[:1]


def test_each_quantity_needs_others_of_its_own() -> None:
    mine = run("a", 1.5, 2.0, exposed_communication_s=0.1, expert_imbalance=0.2)
    oom = run("a", out_of_memory=True)
    (kept, theirs) = found([mine, oom, run("b", 1.5)]).runs
    assert (kept.step_time_s, kept.reserved_bytes, kept.exposed_communication_s) == (
        1.5,
        None,
        None,
    )
    assert theirs.tenant == "b"
    also = run("b", 1.5, 1.9, exposed_communication_s=0.3)
    both = found([mine, oom, also, run("b", out_of_memory=True)]).runs
    assert both == [replace(mine, reserved_bytes=1.9), oom, also, run("b", out_of_memory=True)]


def test_a_benchmark_needs_another_that_says_the_same() -> None:
    published = 0.6

    def benchmark(tenant: str | None, offset: float) -> TenantBenchmark:
        rate = 1 / (1 + math.exp(-math.log(published / (1 - published)) - offset))
        measured = Observation(
            key=tenant or "",
            problem=None,
            layout=None,
            coefficients={"gemm_16": rate, "collective_s": 2.0},
        )
        group = Group(tenant, "h100", "torchtitan", of_benchmarks=True)
        return TenantBenchmark(
            group,
            measured,
            {"gemm_16": offset, "latency_scale_up": 0.5 if tenant == "a" else 2.0},
        )

    alone = found([], [benchmark("a", 1.0)])
    assert not alone.benchmarks
    assert [*alone.waiting] == [benchmark("a", 1.0).group]
    agreed = found([], [benchmark("a", 1.0), benchmark("b", 0.9)])
    smaller = benchmark("b", 0.9).observation.coefficients["gemm_16"]
    for one in agreed.benchmarks:
        assert one.observation.coefficients == pytest.approx({"gemm_16": smaller})


class Tenants:
    """A service with keys and an automatic policy, and what its tenants report and are told."""

    def __init__(self, client: TestClient, **policy: Any) -> None:
        self.client = client
        self.store = client.app.state.services.store
        self.keys = {"operators": self._key("operators", "calibrate", "recommend")}
        answer = self.client.put(
            f"{PROFILE}/policy",
            json={"mode": "automatic", **policy},
            headers={**self.keys["operators"], "If-Match": "*"},
        )
        assert answer.status_code == 200, answer.text

    def _key(self, tenant: str, *scopes: str) -> Headers:
        return {"Authorization": f"Bearer {api_keys.create(self.store, tenant, scopes)}"}

    def _as(self, tenant: str) -> Headers:
        return self.keys.setdefault(tenant, self._key(tenant, "recommend", "report"))

    def predicted(self, tenant: str, chip: str) -> float:
        question = changed(PREDICTION, "cluster.preset", chip)
        made = self.client.post("/v1/predictions", json=question, headers=self._as(tenant))
        seconds: float = made.json()["layouts"][0]["step_time_s"]
        return seconds

    def report(self, tenant: str, chip: str, factor: float, count: int) -> None:
        usual = self.predicted(tenant, chip)
        noise = np.exp(np.random.default_rng(count).normal(0, 0.01, count))
        question = changed(PREDICTION, "cluster.preset", chip)
        reports = [
            {**question, "outcome": "ok", "measured": {"step_time_s": usual * factor * float(away)}}
            for away in noise
        ]
        made = self.client.post("/v1/reports", json={"reports": reports}, headers=self._as(tenant))
        assert made.json()["refused"] == 0, made.text

    def calibrate(self) -> dict[str, Any]:
        made = self.client.post(f"{PROFILE}/calibrations", headers=self.keys["operators"])
        assert made.status_code == 201, made.text
        found: dict[str, Any] = made.json()["calibration"]
        return found


@pytest.fixture
def tenants(make_client: Callable[..., TestClient]) -> Callable[..., Tenants]:
    return lambda **policy: Tenants(make_client(require_api_keys=True), **policy)


@pytest.mark.long
@pytest.mark.parametrize(("factor", "count"), [(1.25, 12), (1.25, 300), (3.0, 300), (0.5, 300)])
def test_a_flood_of_one_tenant_moves_nobody(tenants, factor: float, count: int) -> None:
    service = tenants()
    before = {chip: service.predicted("b", chip) for chip in ("h100", "mi300x")}
    service.report("a", "mi300x", factor, count)
    found = service.calibrate()
    assert not found["promotion"]["promoted"]
    assert "fewer than 2 tenants measured alike" in found["promotion"]["reason"]
    assert found["window"]["sources"] == 1
    assert {chip: service.predicted("b", chip) for chip in before} == before


@pytest.mark.long
@pytest.mark.parametrize("exaggerated", [1.3, 1.5, 1.68, 2.2])
def test_a_flood_that_goes_further_than_an_honest_tenant_moves_a_third_no_further(
    tenants, exaggerated: float
) -> None:
    service = tenants()
    before = service.predicted("c", "h100")
    service.report("honest", "h100", 1.3, 12)
    service.report("hostile", "h100", exaggerated, 300)
    service.calibrate()
    assert service.predicted("c", "h100") / before <= 1.31  # the reports have a noise of 1%


@pytest.mark.long
def test_what_two_tenants_measured_alike_is_learnt_and_a_third_waits(tenants) -> None:
    service = tenants()
    before = service.predicted("d", "h100"), service.predicted("d", "mi300x")
    service.report("liar", "mi300x", 3.0, 40)
    service.report("a", "h100", 1.10, 12)
    service.report("b", "h100", 1.11, 12)
    found = service.calibrate()
    assert found["promotion"]["promoted"], found["promotion"]["reason"]
    assert (found["observations"], found["waiting"], found["window"]["sources"]) == (24, 40, 2)
    assert service.predicted("d", "h100") / before[0] == pytest.approx(1.10, abs=0.03)
    assert service.predicted("d", "mi300x") / before[1] < 1.12

    # What waited is learnt when others agree, and what was learnt already is not learnt again.
    service.report("c", "mi300x", 3.0, 12)
    with service.store.reading() as rows:
        cutoff = rows.profiles.active("default").created_at
        given = read_input(rows, "default", CalibrationRequest(), cutoff)
    assert sorted({one.tenant for one in given.runs}) == ["c", "liar"]
    assert len(given.runs) == 52


@pytest.mark.long
def test_one_tenant_is_enough_where_the_policy_says_so(tenants) -> None:
    service = tenants(min_tenants=1)
    service.report("a", "h100", 1.2, 12)
    assert service.calibrate()["promotion"]["promoted"]
