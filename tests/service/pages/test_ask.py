from __future__ import annotations

import html
import json
import re

import pytest
from starlette.testclient import TestClient

from service.pages.numbers import error, seconds
from tests.service.conftest import MakeClient
from tests.service.pages.questions import BODY, FORM, HOSTILE
from tests.service.pages.reported_runs import reported_runs


def data_of(page: str) -> dict:
    """The document that the pictures of a page are drawn from."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_browsers_get_the_first_page_and_programs_the_index(shared_client: TestClient) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    found = shared_client.get("/", headers=browser, follow_redirects=False)
    assert (found.status_code, found.headers["location"]) == (303, "/ask")
    for accept in ("application/json", "*/*", "text/plain"):
        assert shared_client.get("/", headers={"Accept": accept}).json()["name"] == "Shardwright"


def test_the_page_shows_the_answer_that_the_api_gives(shared_client: TestClient) -> None:
    page = shared_client.get("/ask", params=FORM)
    answer = shared_client.post("/v1/recommendations", json=BODY).json()
    assert data_of(page.text)["answer"] == answer
    best = answer["layouts"][0]["prediction"]
    assert seconds(best["step_time_s"]) in page.text
    for reason in answer["reasons"]:
        assert reason in html.unescape(page.text)
    launch = shared_client.get(
        f"/v1/recommendations/{answer['id']}/launch/torchtitan",
        headers={"Accept": "text/x-shellscript"},
    )
    assert launch.text in html.unescape(page.text)


def test_the_page_shows_which_reports_moved_the_answer(make_client: MakeClient) -> None:
    client = make_client()
    assert "What reports changed" not in client.get("/ask", params=FORM).text
    reported_runs(client.post)
    client.post("/v1/profiles/default/calibrations")
    client.post("/v1/profiles/default/versions/2/activate", headers={"If-Match": "*"})
    page = html.unescape(client.get("/ask", params=FORM).text)
    learned = data_of(page)["answer"]["learned"]
    table = page[page.index("What reports changed") :]
    assert learned["sentence"] in table
    for group in learned["reports"]:
        assert group["model"] in table
        assert error(abs(group["step_time_change"])) in table


def test_every_tile_has_the_interval_of_its_figure(shared_client: TestClient) -> None:
    page = shared_client.get("/ask", params=FORM).text
    tiles = re.search(r'<dl class="tiles">(.*?)</dl>', page, re.DOTALL)
    assert tiles is not None
    subs = re.findall(r'<dd class="sub">(.*?)</dd>', tiles[1])
    assert len(subs) == tiles[1].count("<dt>")
    assert all(re.search(r"[\d.,]+\D{0,3} to [\d.,]+", sub) for sub in subs), subs


def test_a_pasted_config_is_the_model(shared_client: TestClient) -> None:
    config = {
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192,
        "vocab_size": 128256, "tie_word_embeddings": True,
    }  # fmt: skip
    page = shared_client.get("/ask", params={**FORM, "model": "", "config": json.dumps(config)})
    assert page.status_code == 200
    asked = data_of(page.text)["answer"]["request"]["model"]
    assert asked["hidden_size"] == 2048


def test_degrees_that_are_fixed_are_kept(shared_client: TestClient) -> None:
    page = shared_client.get("/ask", params={**FORM, "tp": "4"})
    assert all(
        candidate["prediction"]["layout"]["tp"] == 4
        for candidate in data_of(page.text)["answer"]["layouts"]
    )


def test_a_tried_degree_is_compared_term_by_term(shared_client: TestClient) -> None:
    page = shared_client.get("/ask", params={**FORM, "with_tp": "8"})
    data = data_of(page.text)
    compared = data["comparison"]
    assert compared["first"]["prediction"]["layout"]["tp"] == 8
    best = data["answer"]["layouts"][0]["prediction"]
    assert compared["second"]["prediction"]["step_time_s"] == best["step_time_s"]
    assert sum(compared["time"].values()) == pytest.approx(
        compared["first"]["prediction"]["step_time_s"] - best["step_time_s"]
    )


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"model": "lama-3.1-8b"}, "llama-3.1-8b"),
        ({"batch": ""}, "sequences a step: is required"),
        ({"chips": "many"}, "chips = 'many'"),
        ({"config": "{"}, "the pasted config.json is no JSON"),
    ],
)
def test_a_wrong_field_is_told_above_the_form(
    shared_client: TestClient, changed: dict[str, str], sentence: str
) -> None:
    page = shared_client.get("/ask", params={**FORM, **changed})
    assert page.status_code == 422
    assert sentence in html.unescape(page.text)
    assert 'value="8192"' in page.text  # what was typed is still there


def test_where_nothing_fits_the_page_says_what_would(shared_client: TestClient) -> None:
    page = shared_client.get("/ask", params={**FORM, "model": "llama-3.1-405b", "chips": "8"})
    assert page.status_code == 422
    assert "chips there is a layout that fits" in page.text


@pytest.mark.parametrize("field", ["model", "cluster", "config", "chips", "stack", "with_tp"])
def test_a_hostile_text_is_shown_as_text(shared_client: TestClient, field: str) -> None:
    page = shared_client.get("/ask", params={**FORM, field: HOSTILE})
    assert HOSTILE not in page.text
    assert "<img" not in page.text


def test_a_hostile_name_in_an_answer_ends_no_script(shared_client: TestClient) -> None:
    entry = {"name": "small", "model": {"name": HOSTILE, "hidden_size": 1024, "num_layers": 4,
             "intermediate_size": 4096, "num_attention_heads": 8, "vocab_size": 32000}}  # fmt: skip
    config = {**entry["model"], "model_type": "llama", "num_hidden_layers": 4, "_name": HOSTILE}
    page = shared_client.get("/ask", params={**FORM, "model": "", "config": json.dumps(config)})
    assert "<img" not in page.text


def test_numbers_may_have_separators(shared_client: TestClient) -> None:
    page = shared_client.get("/ask", params={**FORM, "seq_len": "8,192"})
    assert data_of(page.text)["answer"]["request"]["workload"]["seq_len"] == 8192


def test_pages_run_no_script_of_others_and_none_inline(shared_client: TestClient) -> None:
    page = shared_client.get("/ask", params=FORM)
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert not re.search(r"\son\w+=|style=|https?://(?!\w*127)", page.text.split("<pre")[0])
    assert page.headers["cache-control"] == "no-store"


def test_static_files_are_kept_for_good_and_compressed(shared_client: TestClient) -> None:
    page = shared_client.get("/ask", params=FORM).text
    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
        file = shared_client.get(path)
        assert file.status_code == 200, path
        assert "immutable" in file.headers["cache-control"]
