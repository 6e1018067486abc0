"""Calibrations that start by themselves."""

from __future__ import annotations

import time
from typing import Any

import pytest

from service.errors import NothingToLearn
from service.runtime.idempotency import SaveRows
from tests.service.asking import ON_BOTH, REPORT
from tests.waiting import wait_for

PROFILE = "/v1/profiles/default"


def set_policy(client, **policy: object) -> None:
    etag = client.get(PROFILE).headers["etag"]
    assert (
        client.put(f"{PROFILE}/policy", json=policy, headers={"If-Match": etag}).status_code == 200
    )


def report(client, count: int, factor: float = 1.2, **more: Any) -> None:
    predicted = client.post("/v1/reports", json={**REPORT, **more}).json()["prediction"][
        "step_time_s"
    ]
    measured = {"measured": {"step_time_s": factor * predicted}, **more}
    client.post("/v1/reports", json={"reports": [{**REPORT, **measured} for _ in range(count - 1)]})


def versions(client, wanted: int) -> list[int]:
    """All of them, once there are so many."""

    def found() -> list[int]:
        return [version["version"] for version in client.get(PROFILE).json()["versions"]]

    wait_for(lambda: len(found()) >= wanted)
    return found()


@pytest.mark.long
def test_a_policy_may_ask_for_a_calibration_after_so_many_reports(make_client) -> None:
    client = make_client(unattended_look_s=0.05)
    set_policy(client, mode="automatic", after_reports=8)
    report(client, 7)
    time.sleep(0.5)
    assert versions(client, 1) == [1]
    report(client, 1)
    assert versions(client, 2) == [1, 2]
    assert client.get(PROFILE).json()["active_version"] == 2
    time.sleep(0.5)
    assert versions(client, 2) == [1, 2]
    made = client.get(f"{PROFILE}/versions/2").json()["calibration"]
    assert made["window"]["reports"] == 8


@pytest.mark.long
def test_runs_of_long_ago_count_when_they_are_reported(make_client) -> None:
    client = make_client(unattended_look_s=0.05)
    set_policy(client, after_reports=4)
    report(client, 4, measured_at="2020-01-01T00:00:00Z")
    assert versions(client, 2) == [1, 2]


@pytest.mark.long
@ON_BOTH
def test_what_two_processes_see_is_calibrated_once(make_client) -> None:
    clients = [make_client(unattended_look_s=0.05) for _ in range(2)]
    report(clients[0], 8)
    set_policy(clients[0], after_reports=4)
    assert versions(clients[1], 2) == [1, 2]
    time.sleep(0.5)
    assert versions(clients[0], 2) == [1, 2]


def test_what_finds_nothing_to_learn_is_tried_once(make_client, monkeypatch) -> None:
    """By all processes together, until more reports come."""
    tried: list[str] = []

    def learns_nothing(id_: str, request: object) -> SaveRows:
        tried.append(id_)
        raise NothingToLearn(0, 1)

    clients = [make_client(unattended_look_s=0.05) for _ in range(2)]
    for client in clients:
        monkeypatch.setattr(client.app.state.services.calibrations, "calibrate", learns_nothing)
    set_policy(clients[0], after_reports=2)
    report(clients[0], 2)
    wait_for(lambda: tried)
    time.sleep(0.2)
    assert tried == ["default"]


@pytest.mark.parametrize("after", [0, 10**7])
def test_a_number_of_reports_is_a_sensible_one(client, after: int) -> None:
    answer = client.put(
        f"{PROFILE}/policy", json={"after_reports": after}, headers={"If-Match": "*"}
    )
    assert answer.json()["errors"][0]["pointer"] == "/after_reports"
