"""Pages of other origins, which browsers let read only what the service allows them."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from service.settings import Misconfigured, from_environment

PAGE = "https://dashboards.example.org"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "GET",
    "Access-Control-Request-Headers": "authorization, if-none-match",
}


@pytest.fixture
def client(make_client) -> TestClient:
    return make_client(cors_origins=f"http://localhost:3000, {PAGE}", require_api_keys=True)


def test_a_preflight_is_answered_without_a_key(client) -> None:
    answer = client.options("/v1/reports", headers=PREFLIGHT)
    assert answer.status_code == 200
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE
    assert "If-None-Match" in answer.headers["Access-Control-Allow-Headers"]
    assert "PUT" in answer.headers["Access-Control-Allow-Methods"]


def test_a_page_may_read_answers_and_refusals_and_their_headers(client) -> None:
    answer = client.get("/v1/reports", headers={"Origin": PAGE})
    assert answer.status_code == 401
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE
    assert "ETag" in answer.headers["Access-Control-Expose-Headers"]
    assert "Access-Control-Allow-Credentials" not in answer.headers


def test_another_origin_may_not(client) -> None:
    other = {**PREFLIGHT, "Origin": "https://elsewhere.example.org"}
    assert client.options("/v1/reports", headers=other).status_code == 400
    answer = client.get("/v1/reports", headers={"Origin": other["Origin"]})
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_unless_origins_are_set_no_page_may(shared_client) -> None:
    answer = shared_client.get("/v1/reports", headers={"Origin": PAGE})
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    "origin", ["example.org", "https://example.org/page", "https://EXAMPLE.org"]
)
def test_what_is_no_origin_is_refused_before_the_service_starts(
    origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CORS_ORIGINS", origin)
    with pytest.raises(Misconfigured, match="is no origin"):
        from_environment()
