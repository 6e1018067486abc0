"""Both clients on a real application."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from shardwright import AsyncClient, Client, ClientSettings, Invalid, NotFound

SETTINGS = ClientSettings(url="http://testserver")
QUESTION: Any = {
    "model": "llama-3.1-8b",
    "cluster": {"preset": "h100", "num_chips": 8},
    "workload": {"seq_len": 4096, "global_batch": 16},
    "stack": "torchtitan",
}


@pytest.fixture
def ask(client: TestClient) -> Client:
    return Client(SETTINGS, transport=client._transport)


def test_a_recommendation_is_made_and_found_again(ask: Client) -> None:
    made = ask.create_recommendation(QUESTION)
    assert ask.get_recommendation(made["id"]) == made
    assert [each["id"] for each in ask.list_recommendations()] == [made["id"]]
    assert "torchtitan" in ask.get_recommendation_launch_script(made["id"], "torchtitan")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_is_made_of_a_url_and_takes_the_rest_from_the_environment(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_URL", "http://other.example")
    monkeypatch.setenv("SHARDWRIGHT_KEY", "secret")
    settings = kind("http://shardwright.example:8000").settings
    assert settings == ClientSettings(url="http://shardwright.example:8000", key="secret")
    with pytest.raises(ValueError, match="the URL is 'shardwright:8000'"):
        kind("shardwright:8000")


def test_pages_are_fetched_until_there_are_no_more(ask: Client) -> None:
    one_by_one = [*ask.list_catalog("chips", limit=5)]
    assert one_by_one == [*ask.list_catalog("chips", limit=200)]
    assert len(one_by_one) > 20


def test_a_refusal_is_an_exception_with_the_field(ask: Client) -> None:
    with pytest.raises(Invalid) as refused:
        ask.create_recommendation({**QUESTION, "model": "llama-3.1-8bb"})
    assert refused.value.errors[0].field == "model"
    assert "llama-3.1-8b" in str(refused.value)
    with pytest.raises(NotFound):
        ask.get_report("none")


def test_a_report_is_listed_as_csv(ask: Client) -> None:
    made = ask.create_recommendation(QUESTION)
    ask.create_report(
        {"recommendation_id": made["id"], "outcome": "ok", "measured": {"step_time_s": 1.0}}
    )
    header, row, *_ = ask.list_reports_csv().splitlines()
    assert "step_time_s" in header
    assert row


def test_the_asynchronous_client_answers_the_same(client: TestClient) -> None:
    async def ask() -> list[Any]:
        transport = httpx.ASGITransport(app=client.app)
        async with AsyncClient(SETTINGS, transport=transport) as asked:
            return [each async for each in asked.list_catalog("chips", limit=5)]

    found = asyncio.run(ask())
    assert found == [*Client(SETTINGS, transport=client._transport).list_catalog("chips")]
