"""Checks that are kept under an id."""

from __future__ import annotations

from typing import Any

import pytest

from service.schemas.brief import CheckBrief
from service.schemas.check import CheckAnswer, CheckPage
from tests.service.ask.test_checks import DEEPSPEED, LAUNCHED, SLOW
from tests.service.asking import ON_BOTH, QUESTION, assert_problem, changed

PLAIN: dict[str, Any] = {**QUESTION, "layout": SLOW}
STORED = {"store": True}


def stored(client: Any, body: dict[str, Any], **sent: Any) -> dict[str, Any]:
    answer = client.post("/v1/checks", json={**body, **STORED}, **sent)
    assert answer.status_code in (200, 201), answer.text
    assert answer.headers["location"] == answer.json()["location"]
    return answer.json()


def test_a_check_is_stored_only_where_that_is_asked_for(client) -> None:
    answer = client.post("/v1/checks", json=PLAIN)
    assert answer.status_code == 200
    assert "location" not in answer.headers
    assert (answer.json()["id"], answer.json()["location"]) == (None, None)
    assert client.get("/v1/checks").json()["items"] == []


@pytest.mark.parametrize("body", [PLAIN, LAUNCHED], ids=["layout", "launch"])
def test_a_stored_check_is_read_again_as_it_was_answered(client, body: dict[str, Any]) -> None:
    first = client.post("/v1/checks", json={**body, **STORED})
    assert first.status_code == 201
    made = first.json()
    CheckAnswer.model_validate(made)
    assert client.get(made["location"]).json() == made
    unstored = client.post("/v1/checks", json=body).json()
    named = ("id", "created_at", "location")
    assert {**made, **dict.fromkeys(named)} == unstored


@ON_BOTH
def test_the_same_check_has_the_same_id(client) -> None:
    first, again = stored(client, LAUNCHED), stored(client, LAUNCHED)
    assert again == first
    settings = {**DEEPSPEED, "gradient_accumulation_steps": 1}
    other = stored(client, changed(LAUNCHED, "launch.arguments", settings))
    assert other["id"] != first["id"]


def test_stored_checks_are_listed_with_their_verdicts(client) -> None:
    made = [stored(client, body) for body in (PLAIN, LAUNCHED)]
    page = client.get("/v1/checks").json()
    CheckPage.model_validate(page)
    assert [(item["id"], item["verdict"], item["summary"]) for item in page["items"]] == [
        (check["id"], check["verdict"], check["summary"]) for check in reversed(made)
    ]
    assert page["items"][1]["request"]["workload"]["seq_len"] == QUESTION["workload"]["seq_len"]


@pytest.mark.parametrize("how", ["query", "header"])
def test_a_check_in_brief_says_what_to_do_in_4_kb(client, how: str) -> None:
    sent: dict[str, Any] = (
        {"params": {"view": "brief"}}
        if how == "query"
        else {"headers": {"Prefer": "return=minimal"}}
    )
    for body in (PLAIN, LAUNCHED, {**LAUNCHED, **STORED}):
        whole = client.post("/v1/checks", json=body).json()
        answer = client.post("/v1/checks", json=body, **sent)
        assert len(answer.content) < 4096
        brief = answer.json()
        CheckBrief.model_validate(brief)
        assert (brief["id"], brief["verdict"]) == (whole["id"], whole["verdict"])
        assert brief["step_time_s"] == whole["prediction"]["step_time_s"]
        if whole["first_change"]:
            assert brief["settings"] == whole["first_change"]["settings"][:8]
        assert ("Preference-Applied" in answer.headers) == (how == "header")


def test_a_check_that_is_not_there_is_a_problem(client) -> None:
    assert_problem(client.get("/v1/checks/nothing"), "not-found")
