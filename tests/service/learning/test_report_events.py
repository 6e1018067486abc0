"""New reports as server-sent events, heard over a socket."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from typing import Any

import httpx
import pytest

from service.api_keys import create
from service.store import Store, database
from shardwright.client.events import EventReader
from tests.docs.examples import served
from tests.service.asking import REPORT, assert_problem
from tests.waiting import LONG_S


@pytest.fixture
def address(database_url: str) -> Iterator[str]:
    with served(database_url, require_api_keys=True) as address:
        yield address


@pytest.fixture
def store(address: str, database_url: str) -> Iterator[Store]:
    store = Store(database.connect(database_url))
    yield store
    store.close()


def as_tenant(store: Store, address: str, tenant: str, *scopes: str) -> httpx.Client:
    key = create(store, tenant, scopes or ("recommend", "report"))
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=address, headers=headers, timeout=LONG_S)


def reported(client: httpx.Client) -> str:
    id_: str = client.post("/v1/reports", json=REPORT).raise_for_status().json()["id"]
    return id_


def first_events(lines: Iterator[str], count: int) -> list[tuple[str, dict[str, Any]]]:
    """The id and the document of the first events of a stream."""
    reader = EventReader()
    found = (event for line in lines if (event := reader.feed(line)) is not None)
    return [(event.id or "", event.data) for event in islice(found, count)]


def test_each_report_is_told_as_it_comes_to_whoever_sees_it(store: Store, address: str) -> None:
    ours = as_tenant(store, address, "ours")
    theirs = as_tenant(store, address, "theirs")
    before = reported(ours)
    with ours.stream("GET", "/v1/reports/events") as stream:
        reported(theirs)
        new = reported(ours)
        ((id_, document),) = first_events(stream.iter_lines(), 1)
    assert id_ == new
    stored = ours.get(f"/v1/reports/{new}").json()
    assert {**document, "submission": stored["submission"]} == stored
    with ours.stream("GET", "/v1/reports/events", headers={"Last-Event-ID": before}) as stream:
        assert [id_ for id_, _ in first_events(stream.iter_lines(), 1)] == [new]
    bad = ours.get("/v1/reports/events", headers={"Last-Event-ID": "no id"})
    assert_problem(bad, "bad-header")


def test_a_ticket_opens_its_stream_without_a_header_and_nothing_else(
    store: Store, address: str
) -> None:
    ours = as_tenant(store, address, "ours")
    asked = {"stream": "/v1/reports/events"}
    made = ours.post("/v1/stream-tickets", json=asked).raise_for_status().json()
    first = reported(ours)
    browser = httpx.Client(base_url=address, timeout=LONG_S)
    with browser.stream("GET", f"{made['url']}&last_event_id=0") as stream:
        assert stream.status_code == 200
        assert [id_ for id_, _ in first_events(stream.iter_lines(), 1)] == [first]
    for path in ("/v1/reports", "/v1/sweeps/x/events", "/v1/other/events"):
        assert browser.get(path, params={"ticket": made["ticket"]}).status_code == 401
    forged = made["url"][:-1] + ("0" if made["url"][-1] != "0" else "1")
    problem = assert_problem(browser.get(forged), "unauthenticated")
    assert "POST /v1/stream-tickets" in problem["detail"]
    assert browser.post("/v1/stream-tickets", json=asked).status_code == 401


def test_a_ticket_has_no_more_rights_than_its_key(store: Store, address: str) -> None:
    asking = as_tenant(store, address, "ours", "recommend")
    asked = {"stream": "/v1/reports/events"}
    url = asking.post("/v1/stream-tickets", json=asked).raise_for_status().json()["url"]
    assert httpx.get(address + url).status_code == 403


def test_a_ticket_ends_after_a_minute(
    store: Store, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.stream_tickets.LIFETIME", timedelta(seconds=-1))
    ours = as_tenant(store, address, "ours")
    asked = {"stream": "/v1/reports/events"}
    url = ours.post("/v1/stream-tickets", json=asked).raise_for_status().json()["url"]
    assert httpx.get(address + url).status_code == 401


def test_without_keys_a_stream_needs_no_ticket(shared_client) -> None:
    asked = {"stream": "/v1/reports/events"}
    answer = shared_client.post("/v1/stream-tickets", json=asked).json()
    assert answer == {"url": "/v1/reports/events", "ticket": None, "expires_at": None}
    other = shared_client.post("/v1/stream-tickets", json={"stream": "/v1/reports"})
    assert_problem(other, "invalid", "/stream")
