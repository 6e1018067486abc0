from __future__ import annotations

import csv
import html
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.pages.choose_form import ChooseForm
from service.pages.examples import EXAMPLES
from service.pages.numbers import probability, significant
from tests.service.pages.questions import HOSTILE
from tests.service.pages.test_ask import data_of

CLUSTERS: dict[str, str] = EXAMPLES["choose"][0][1]
_BODY: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": {"preset": "h100", "num_chips": 256},
    "workload": {"seq_len": 8192, "global_batch": 128, "precision": "bf16"},
    "stack": "torchtitan",
    "alternatives": {
        "clusters": [
            {"preset": "b200", "num_chips": 128},
            {"preset": "gb300", "num_chips": 144},
        ]
    },
    "objective": {"minimize": "cost", "tokens": 1e12, "deadline_hours": 168},
}


def test_the_page_shows_the_places_that_the_api_gives(shared_client: TestClient) -> None:
    page = shared_client.get("/choose", params=CLUSTERS).text
    expected = shared_client.post("/v1/recommendations", json=_BODY).json()["choices"]
    assert data_of(page)["choices"] == expected
    shown = html.unescape(page)
    for choice in expected:
        for name in ("hours", "hours_low", "hours_high", "usd", "usd_low", "usd_high"):
            assert choice[name] is None or significant(choice[name]) in shown
        assert choice["layout_summary"] in shown
        assert probability(choice["meets_probability"]) in shown
        assert choice["missing"] is None or choice["missing"] in shown
    assert any(choice["missing"] for choice in expected)


def test_the_table_can_be_downloaded_with_every_place(shared_client: TestClient) -> None:
    page = shared_client.get("/choose", params=CLUSTERS).text
    (link,) = re.findall(r'href="(/v1/recommendations/[^"]+/choices\?format=csv)"', page)
    table = shared_client.get(link)
    assert table.headers["content-type"].startswith("text/csv")
    hours = [float(row["hours"]) for row in csv.DictReader(table.text.splitlines())]
    assert hours == [choice["hours"] for choice in data_of(page)["choices"]]


def test_the_fewest_chips_and_other_numbers_are_places_too(shared_client: TestClient) -> None:
    page = shared_client.get("/choose", params=EXAMPLES["choose"][1][1]).text
    chips = [choice["num_chips"] for choice in data_of(page)["choices"]]
    assert {64, 128, 256} < set(chips)
    assert f"{chips[0]} chips are the fewest" in html.unescape(page)


def test_a_price_of_the_form_gives_dollars_where_none_is_published(
    shared_client: TestClient,
) -> None:
    page = shared_client.get("/choose", params={**CLUSTERS, "prices": "gb300=8.5, b200 = 5"}).text
    prices = {choice["chip"]: choice["usd_per_chip_hour"] for choice in data_of(page)["choices"]}
    assert (prices["gb300-nvl72"], prices["b200-sxm"]) == (8.5, 5)


def test_a_place_may_have_a_framework_of_its_own(shared_client: TestClient) -> None:
    page = shared_client.get("/choose", params={**CLUSTERS, "stack_2": "megatron"}).text
    stacks = {choice["chip"]: choice["stack"] for choice in data_of(page)["choices"]}
    assert stacks["b200-sxm"] == "megatron"
    assert stacks["gb300-nvl72"] == "torchtitan"


def test_a_place_that_cannot_run_it_is_named_with_its_reason(shared_client: TestClient) -> None:
    page = shared_client.get("/choose", params={**CLUSTERS, "cluster_2": "tpu-v5p"}).text
    (refused,) = [each["refused"] for each in data_of(page)["choices"] if each["refused"]]
    assert refused in html.unescape(page)


def test_a_place_leads_to_the_question_on_ask(shared_client: TestClient) -> None:
    page = shared_client.get("/choose", params=CLUSTERS).text
    links = [html.unescape(link) for link in re.findall(r'<a href="(/ask\?[^"]+)"', page)]
    assert len(links) == len(data_of(page)["choices"])
    answer = data_of(shared_client.get(links[0]).text)["answer"]
    assert answer["layouts"][answer["fastest"]]["prediction"]["step_time_s"] == pytest.approx(
        data_of(page)["choices"][0]["step_time_s"]
    )


@pytest.mark.parametrize(
    ("limits", "title"),
    [
        ({}, "Only 144 × gb300-nvl72 with torchtitan keeps the deadline"),
        ({"deadline_hours": "10"}, "No place keeps the deadline with a probability of 90%"),
        ({"deadline_hours": "150", "deadline_probability": "0.999"},
         "No place keeps the deadline with a probability of 99.9%"),
        ({"deadline_hours": "1000", "budget_usd": "900000"},
         "Of the places that keep the deadline and the budget,"
         " 128 × b200-sxm with torchtitan costs least"),
        ({"deadline_hours": ""}, "128 × b200-sxm with torchtitan costs least"),
    ],
)  # fmt: skip
def test_the_title_says_which_place_is_best(
    shared_client: TestClient, limits: dict[str, str], title: str
) -> None:
    page = shared_client.get("/choose", params={**CLUSTERS, **limits}).text
    (shown,) = re.findall(r"<h1>(.*?)</h1>", html.unescape(page))
    assert shown == title


@pytest.mark.parametrize(
    ("typed", "tokens"),
    [("15T", 15e12), ("1.5 b", 1.5e9), ("2,000,000", 2e6), ("1e12", 1e12), ("many", "many")],
)
def test_tokens_are_read_as_people_write_them(typed: str, tokens: float | str) -> None:
    body = ChooseForm.of({**CLUSTERS, "tokens": typed}).body()
    assert body["objective"]["tokens"] == tokens


def test_the_form_has_room_for_one_more_place() -> None:
    assert list(ChooseForm.of({}).rows) == [2, 3, 4]
    assert list(ChooseForm.of({"cluster_5": "b200"}).rows) == [2, 3, 4, 5, 6]
    assert ChooseForm.of({"cluster_12": "b200"}).rows[-1] == 12


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"tokens": ""}, "tokens to train"),
        ({"tokens": HOSTILE}, "tokens to train"),
        ({"tokens": "9" * 5000}, "tokens to train"),
        ({"cluster_2": HOSTILE}, "other cluster 1"),
        ({"chips_2": "many"}, "other cluster 1"),
        ({"prices": "8.5"}, "the field “Prices”"),
        ({"deadline_probability": "90"}, "the probability with which limits are kept"),
        ({"deadline_hours": "", "up_to": "512"}, "deadline (hours)"),
        ({"chips": "9" * 5000}, "chips ="),
    ],
)
def test_what_cannot_be_used_is_told_above_the_form(
    shared_client: TestClient, wrong: dict[str, str], sentence: str
) -> None:
    page = shared_client.get("/choose", params={**CLUSTERS, **wrong})
    assert page.status_code == 422
    assert 'role="alert"' in page.text
    assert sentence in html.unescape(page.text)
    assert "<img" not in page.text
