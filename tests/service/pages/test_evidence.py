from __future__ import annotations

import html
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.pages.evidence_rows import source_link
from service.pages.numbers import significant
from tests.service.pages.questions import BODY, HOSTILE
from tests.service.pages.test_ask import data_of

_LIMIT = {"limit": 25}


def runs_of(page: str) -> list[dict[str, Any]]:
    return data_of(page)["runs"]


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"text": "gb300 moe"},
        {"model": "deepseek-v3", "exact": "true"},
        {"model": "deepseek-v3", "cluster": "h800", "stack": "megatron", "exact": "false"},
        {"family": "maxtext", "outcome": "out_of_memory"},
    ],
)
def test_the_page_shows_the_runs_that_the_api_gives(
    shared_client: TestClient, query: dict[str, str]
) -> None:
    page = shared_client.get("/evidence", params=query)
    expected = shared_client.get("/v1/evidence", params={**query, **_LIMIT}).json()
    assert runs_of(page.text) == expected["items"]
    shown = html.unescape(page.text)
    for run in expected["items"]:
        assert run["source"]["title"] in shown
        assert significant(run["predicted"]["step_time_s"]) in shown
        for bound in ("step_time_low_s", "step_time_high_s"):
            assert significant(run["predicted"][bound]) in shown
    assert f"{expected['found']:,} run" in shown or expected["found"] == 0


def test_the_next_page_goes_on_where_this_one_ends(shared_client: TestClient) -> None:
    first = shared_client.get("/evidence?text=gb300")
    link = html.unescape(re.findall(r'href="([^"]+)" rel="next"', first.text)[0])
    second = shared_client.get(link)
    ids = [run["id"] for page in (first, second) for run in runs_of(page.text)]
    whole = shared_client.get("/v1/evidence?text=gb300&limit=50").json()["items"]
    assert ids == [run["id"] for run in whole][: len(ids)]
    assert len(ids) > 25


def test_the_filters_of_the_url_stand_in_the_form(shared_client: TestClient) -> None:
    page = shared_client.get("/evidence?text=moe&stack=megatron&seq_len=4096&exact=false").text
    assert 'name="text" type="search" value="moe"' in page
    assert "<option selected>megatron</option>" in page
    assert '<input type="hidden" name="seq_len" value="4096">' in page
    assert '<option value="false" selected>' in page


@pytest.mark.parametrize(
    ("url", "chosen"), [("/evidence", "true"), ("/evidence?model=deepseek-v3", "false")]
)
def test_the_form_says_whether_runs_that_differ_are_left_out(
    shared_client: TestClient, url: str, chosen: str
) -> None:
    page = shared_client.get(url).text
    assert (
        f'<option value="{chosen}" selected>' in page.split('name="exact"')[1].split("</select>")[0]
    )


def test_an_answer_leads_to_the_runs_that_are_like_it(client: TestClient) -> None:
    answer = client.post("/v1/recommendations", json=BODY).json()
    query = {"recommendation_id": answer["id"]}
    expected = client.get("/v1/evidence", params={**query, **_LIMIT}).json()
    assert runs_of(client.get("/evidence", params=query).text) == expected["items"]


def test_where_no_run_is_like_that_the_page_says_so(shared_client: TestClient) -> None:
    page = shared_client.get("/evidence", params={"text": "no such run"})
    assert page.status_code == 200
    assert "No run is like that" in page.text


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"model": "no-such-model"}, "no-such-model"),
        ({"num_chips": "many"}, "num_chips"),
        ({"cursor": "x"}, "is no cursor of this list"),
        ({"cluster": HOSTILE}, "cluster"),
        ({"global_batch": "8"}, "seq_len"),
    ],
)
def test_a_wrong_filter_is_told_above_the_form(
    shared_client: TestClient, query: dict[str, str], sentence: str
) -> None:
    page = shared_client.get("/evidence", params=query)
    assert page.status_code == 422
    assert 'role="alert"' in page.text
    assert sentence in html.unescape(page.text)
    assert "<img" not in page.text


@pytest.mark.parametrize(
    ("where", "link"),
    [
        ("Table 4", "https://arxiv.org/abs/2407.21783"),
        ("arXiv 2205.05198 Table 5, as in a/b c.py @caa4b11f8", "https://arxiv.org/abs/2205.05198"),
        ("NVIDIA/NeMo docs/a.md @19fadb67b0", "https://github.com/NVIDIA/NeMo/tree/19fadb67b0/docs/a.md"),
        ("a/b docs/a.md line 3 @19fadb67b0", "https://github.com/a/b/tree/19fadb67b0"),
        ("a/b docs/a.md/.json @19fadb67b0", "https://github.com/a/b/tree/19fadb67b0"),
        ("a/b, branch x/y @19fadb67b0: c.md", "https://github.com/a/b/tree/19fadb67b0"),
        ("https://example.org/a.html (NeMo 25.07)", "https://example.org/a.html"),
    ],
)  # fmt: skip
def test_a_source_leads_to_where_it_can_be_read(where: str, link: str) -> None:
    title = "The Llama 3 Herd of Models (arXiv 2407.21783)"
    assert source_link({"title": title, "where": where}) == link


def test_a_source_that_names_no_place_has_no_link() -> None:
    assert source_link({"title": "Scaling notes", "where": "agpt-80b.md scaling page"}) is None
    assert source_link({"title": "A run", "where": "javascript:alert(1)"}) is None
