"""A key that sends too many requests is told when to send the next."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from service import api_keys
from service.web import rate_limit
from tests.service.asking import assert_problem

PATH = "/v1/profiles"


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch):
    """Lets seconds pass."""
    passed = [1000.0]
    monkeypatch.setattr(rate_limit, "monotonic", lambda: passed[0])

    def wait(seconds: float) -> None:
        passed[0] += seconds

    return wait


def headers_of(client: TestClient, tenant: str) -> dict[str, str]:
    key = api_keys.create(client.app.state.services.store, tenant, ["recommend"])
    return {"Authorization": f"Bearer {key}"}


def statuses(client: TestClient, count: int, headers: dict[str, str]) -> list[int]:
    return [client.get(PATH, headers=headers).status_code for _ in range(count)]


def test_each_key_has_its_own_limit(make_client, wait) -> None:
    client = make_client(require_api_keys=True, requests_per_minute=6)
    first, second, other = (headers_of(client, tenant) for tenant in "aab")
    assert statuses(client, 8, first) == [200] * 6 + [429] * 2
    assert statuses(client, 1, second) == statuses(client, 1, other) == [200]
    refused = client.get(PATH, headers=first)
    assert "6 requests a minute" in assert_problem(refused, "too-many-requests")["detail"]
    assert refused.headers["retry-after"] == "10"
    wait(9.9)
    assert statuses(client, 1, first) == [429]
    wait(0.1)
    assert statuses(client, 2, first) == [200, 429]
    wait(3600)
    assert statuses(client, 7, first) == [200] * 6 + [429]


def test_probes_are_not_limited_and_without_keys_all_share_one_limit(make_client, wait) -> None:
    client = make_client(requests_per_minute=2)
    assert statuses(client, 3, {}) == [200, 200, 429]
    assert {client.get("/livez").status_code for _ in range(5)} == {200}
    assert client.get("/problems/too-many-requests").status_code == 200
