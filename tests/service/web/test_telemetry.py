from __future__ import annotations

import asyncio
import uuid

import pytest
from anyio.to_thread import current_default_thread_limiter
from starlette.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from tests.service.asking import assert_problem
from tests.waiting import LONG_S


def test_a_request_id_is_echoed(client) -> None:
    answer = client.get("/livez", headers={"X-Request-ID": "job-7.a"})
    assert answer.headers["x-request-id"] == "job-7.a"


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, '"quoted"', "<script>"])
def test_a_malformed_request_id_is_replaced(client, given: str) -> None:
    assert uuid.UUID(client.get("/livez", headers={"X-Request-ID": given}).headers["x-request-id"])


@pytest.mark.parametrize("path", ["/livez", "/nowhere", "/docs", "/v1/reports"])
def test_answers_carry_security_headers(shared_client, path: str) -> None:
    headers = shared_client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert ("script-src" in headers["content-security-policy"]) == (path == "/docs")


def test_readiness_follows_the_database(client) -> None:
    assert client.get("/readyz").json() == {"database": "ok", "cost_model": "ok"}


def test_readiness_waits_for_no_request(client) -> None:
    async def while_all_threads_are_busy() -> int:
        threads, requests = current_default_thread_limiter(), list[object]()
        while threads.available_tokens:
            requests.append(object())
            threads.acquire_on_behalf_of_nowait(requests[-1])
        try:
            answer = await asyncio.wait_for(asyncio.to_thread(client.get, "/readyz"), LONG_S)
        finally:
            for request in requests:
                threads.release_on_behalf_of(request)
        return answer.status_code

    assert client.portal.call(while_all_threads_are_busy) == 200


def test_a_database_that_is_gone_is_not_ready(tmp_path) -> None:
    with TestClient(
        create_app(Settings(database_url="postgresql://nobody@127.0.0.1:1/none"))
    ) as client:
        assert client.get("/livez").status_code == 200
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["database"]) == (503, "does not answer")
        assert_problem(client.get("/v1/profiles"), "unavailable")
    with TestClient(
        create_app(Settings(database_url=f"sqlite:///{tmp_path / 'empty.db'}"))
    ) as client:
        assert client.get("/readyz").status_code == 503
