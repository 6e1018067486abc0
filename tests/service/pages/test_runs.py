from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from service import api_keys
from service.pages.numbers import ratio, seconds, significant
from service.pages.run import explanation_body
from service.settings import Settings
from service.store import Store, database
from tests.service.asking import LAYOUT, QUESTION, REPORT
from tests.service.conftest import Databases, MakeClient, serving
from tests.service.learning.test_report_logs import MEGATRON, TITAN
from tests.service.pages.questions import BODY, HOSTILE
from tests.service.pages.reported_runs import RUNS_OF_A_KIND, reported_runs
from tests.service.pages.test_ask import data_of
from tests.service.pages.test_session import sign_in

_LAUNCH = """\
torchrun --nproc_per_node=8 --nnodes=8 -m torchtitan.train --module llama3 --config llama3_8b \\
  --training.seq_len 8192 --training.local_batch_size 2 --training.global_batch_size 128 \\
  --parallelism.data_parallel_shard_degree -1
"""


@pytest.fixture(scope="module")
def with_runs(databases: Databases) -> Iterator[TestClient]:
    with serving(databases) as client:
        reported_runs(client.post)
        yield client


def token_of(page: str) -> str:
    return re.findall(r'name="form_token" value="([\w-]+)"', page)[0]


def upload(client: TestClient, log: str | bytes = "", **fields: str) -> Any:
    """Sends the form as a browser does: a log of bytes as a file, one of text as typed."""
    token = token_of(client.get("/runs/logs").text)
    is_file = isinstance(log, bytes)
    files = {"log_file": ("run.log", log) if is_file else ("", b"")}
    typed = {"log": "" if is_file else log}
    return client.post("/runs/logs", data={**fields, **typed, "form_token": token}, files=files)


@pytest.mark.parametrize(
    "query",
    [{}, {"chip": "h100"}, {"stack": "torchtitan", "outcome": "ok"}, {"label": "team=research"}],
)
def test_the_page_shows_the_runs_and_the_summary_of_the_api(
    with_runs: TestClient, query: dict[str, str]
) -> None:
    data = data_of(with_runs.get("/runs", params=query).text)
    reports = with_runs.get("/v1/reports", params={**query, "limit": 200}).json()["items"]
    assert [run["id"] for run in data["runs"]] == [report["id"] for report in reports]
    for run, report in zip(data["runs"], reports, strict=True):
        predicted, measured = report["prediction"], report["measured"]
        assert run["measured_s"] == (measured and measured["step_time_s"])
        assert run["predicted_s"] == predicted["step_time_s"]
        assert (run["low_s"], run["high_s"]) == (
            predicted["step_time_low_s"],
            predicted["step_time_high_s"],
        )
        assert run["is_within"] == report["within_interval"]
    summary = with_runs.get("/v1/reports/summary", params=query).json()
    kinds = {
        (words, name): statistics
        for grouping, words in (("chip", "chip"), ("stack", "framework"))
        for name, statistics in summary["by"][grouping].items()
        if statistics["measured"]
    }
    groups = {(group["grouping"], group["name"]): group for group in data["groups"]}
    for key, statistics in kinds.items():
        assert groups[key]["runs"] == statistics["measured"]
        assert math.log(groups[key]["median"]) == pytest.approx(statistics["residual_median"])


def test_a_kind_of_run_that_became_slower_is_marked(with_runs: TestClient) -> None:
    page = with_runs.get("/runs")
    series = with_runs.get("/v1/profiles/default/drift").json()["series"]
    (slower,) = [one for one in series if one["stack"] == "megatron"]
    assert slower["changes"]
    assert slower["sentence"] in html.unescape(page.text)
    marks = [change["since"] for change in data_of(page.text)["changes"]]
    assert slower["changes"][0]["since"] in marks


def test_kinds_that_are_filtered_out_are_not_marked(with_runs: TestClient) -> None:
    changes = data_of(with_runs.get("/runs?chip=mi300x").text)["changes"]
    assert all(change["sentence"].find("megatron") < 0 for change in changes)


def test_days_are_counted_in_utc(with_runs: TestClient) -> None:
    query = {"since": "2026-09-01", "until": "2026-09-03"}
    runs = data_of(with_runs.get("/runs", params=query).text)["runs"]
    assert {run["measured_at"][:10] for run in runs} == {"2026-09-01", "2026-09-02"}


def test_the_filters_stand_in_the_form(with_runs: TestClient) -> None:
    page = with_runs.get("/runs?chip=h100&label=team%3Dresearch&since=2026-09-01").text
    for value in ("h100", "team=research", "2026-09-01"):
        assert f'value="{value}"' in page


def test_every_run_of_the_list_leads_to_its_page(with_runs: TestClient) -> None:
    page = with_runs.get("/runs?chip=mi300x").text
    links = re.findall(r'<a href="(/runs/[\w-]{36})"', page)
    assert len(links) == RUNS_OF_A_KIND
    assert with_runs.get(links[0]).status_code == 200


def test_before_any_report_the_page_says_how_to_begin(client: TestClient) -> None:
    page = client.get("/runs").text
    assert "No run has been reported yet" in page
    assert 'href="/runs/logs"' in page


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"chip": "no-such-chip"}, "no-such-chip"),
        ({"label": HOSTILE}, "label"),
        ({"since": "yesterday"}, "since"),
        ({"outcome": "fine"}, "outcome"),
        ({"since": "2026-09-02", "until": "2026-09-01"}, "must be after since"),
    ],
)
def test_a_wrong_filter_is_told_above_the_form(
    shared_client: TestClient, query: dict[str, str], sentence: str
) -> None:
    page = shared_client.get("/runs", params=query)
    assert page.status_code == 422
    assert sentence in html.unescape(page.text)
    assert "<img" not in page.text


def test_a_run_is_explained_as_the_api_explains_it(client: TestClient) -> None:
    slow = {**REPORT, "measured": {"step_time_s": 4.0}, "labels": {"job_id": HOSTILE[:40]}}
    report = client.post("/v1/reports", json=slow).json()
    page = html.unescape(client.get(f"/runs/{report['id']}").text)
    told = {**QUESTION, "layout": LAYOUT, "outcome": "ok", "measured": slow["measured"]}
    explained = client.post("/v1/explanations", json=told).json()
    assert explained["gap"]["summary"] in page
    assert explained["speed"]["summary"] in page
    assert explained["first_fix"] in page
    assert seconds(report["prediction"]["step_time_s"]) in page
    assert "<img src=x onerror" not in client.get(f"/runs/{report['id']}").text


@pytest.mark.parametrize("launched", [False, True])
def test_every_report_can_be_explained(client: TestClient, *, launched: bool) -> None:
    told: dict[str, Any] = {**REPORT, "source": "cluster a"}
    if launched:
        told = {
            "launch": {"arguments": _LAUNCH},
            "cluster": QUESTION["cluster"],
            "model": "llama-3.1-8b",
            "outcome": "ok",
            "measured": {"step_time_s": 3.0},
            "source": "cluster a",
        }
    made = client.post("/v1/reports", json=told)
    assert made.status_code == 201, made.text
    report = client.get(f"/v1/reports/{made.json()['id']}").json()
    assert client.post("/v1/explanations", json=explanation_body(report)).status_code == 200
    assert "What to do first" in client.get(f"/runs/{report['id']}").text


def test_a_run_out_of_memory_is_explained(client: TestClient) -> None:
    layout = {**LAYOUT, "micro_batch": 2, "recompute": "none"}
    failed = {**QUESTION, "layout": layout, "outcome": "out_of_memory"}
    report = client.post("/v1/reports", json=failed).json()
    page = client.get(f"/runs/{report['id']}").text
    assert "<h1>Out of memory</h1>" in page
    assert "What to do first" in page


def test_a_withdrawn_report_says_so(client: TestClient) -> None:
    id_ = client.post("/v1/reports", json=REPORT).json()["id"]
    client.delete(f"/v1/reports/{id_}")
    assert "This report was withdrawn" in client.get(f"/runs/{id_}").text


def test_a_run_that_is_not_there_is_a_page_too(shared_client: TestClient) -> None:
    page = shared_client.get("/runs/none-such")
    assert page.status_code == 404
    assert page.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("as_file", [False, True])
def test_a_log_is_read_and_stored_as_by_the_api(client: TestClient, *, as_file: bool) -> None:
    page = upload(
        client, MEGATRON.encode() if as_file else MEGATRON, cluster="h100", stack="megatron"
    )
    assert page.status_code == 200
    (report,) = client.get("/v1/reports").json()["items"]
    again = client.post(
        "/v1/reports/logs",
        json={"log": MEGATRON, "cluster": {"preset": "h100"}, "stack": "megatron"},
    ).json()
    assert again["repeated"]
    assert again["report"]["id"] == report["id"]
    shown = html.unescape(page.text)
    assert f"/runs/{report['id']}" in shown
    assert significant(again["reading"]["value"]) in shown
    assert "4 used of 6 found" in shown
    assert ratio(math.exp(report["residual"])) in shown
    run = html.unescape(client.get(f"/runs/{report['id']}").text)
    assert "4 of 6 steps were used" in run


def test_a_script_says_what_the_log_leaves_open(client: TestClient) -> None:
    page = upload(client, TITAN, cluster="h100", model="llama-3.1-8b", script=_LAUNCH)
    assert page.status_code == 200, page.text
    (report,) = client.get("/v1/reports").json()["items"]
    assert report["request"]["cluster"]["num_chips"] == 64
    assert "What its log says" in client.get(f"/runs/{report['id']}").text


def test_a_log_can_be_that_of_a_recommendation(client: TestClient) -> None:
    answer = client.post("/v1/recommendations", json=BODY).json()
    form = client.get("/runs/logs", params={"recommendation_id": answer["id"]})
    assert f'value="{answer["id"]}"' in form.text
    page = upload(client, TITAN, recommendation_id=answer["id"])
    assert page.status_code == 200
    (report,) = client.get("/v1/reports").json()["items"]
    assert report["recommendation_id"] == answer["id"]


def test_the_same_log_is_stored_once(client: TestClient) -> None:
    for _ in range(2):
        page = upload(client, MEGATRON, cluster="h100", stack="megatron")
    assert "Nothing new was stored" in page.text
    assert len(client.get("/v1/reports").json()["items"]) == 1


@pytest.mark.parametrize(
    ("log", "fields", "sentence"),
    [
        ("", {"cluster": "h100"}, "log"),
        ("no step here", {"cluster": "h100", "stack": "megatron"}, "log"),
        (TITAN, {"cluster": "h100", "model": "llama-3.1-8b"}, "is required"),
        (MEGATRON, {"cluster": HOSTILE, "stack": "megatron"}, "cluster"),
        (HOSTILE, {"cluster": "h100"}, "log"),
        (b"\xff\xfe\x00", {"cluster": "h100"}, "log"),
    ],
)
def test_a_log_that_cannot_be_used_is_told_and_not_stored(
    shared_client: TestClient, log: str | bytes, fields: dict[str, str], sentence: str
) -> None:
    page = upload(shared_client, log, **fields)
    assert page.status_code == 422
    assert 'role="alert"' in page.text
    assert sentence in html.unescape(page.text)
    assert "<img" not in page.text
    assert shared_client.get("/v1/reports").json()["items"] == []


def test_a_session_sees_the_runs_of_its_tenant_alone(
    make_client: MakeClient, database_url: str
) -> None:
    guarded = make_client(require_api_keys=True)
    store = Store(database.connect(Settings(database_url=database_url).database_url))
    keys = {
        tenant: api_keys.create(store, tenant, ["recommend", "report"])
        for tenant in ("first", "second")
    }
    bearer = {"Authorization": f"Bearer {keys['first']}"}
    id_ = guarded.post("/v1/reports", json=REPORT, headers=bearer).json()["id"]
    for tenant, status in (("first", 200), ("second", 404)):
        guarded.cookies.clear()
        sign_in(guarded, keys[tenant], "/runs")
        assert (id_ in guarded.get("/runs").text) == (tenant == "first")
        assert guarded.get(f"/runs/{id_}").status_code == status


def test_a_key_that_may_not_report_sees_no_runs(make_client: MakeClient, database_url: str) -> None:
    guarded = make_client(require_api_keys=True)
    store = Store(database.connect(Settings(database_url=database_url).database_url))
    sign_in(guarded, api_keys.create(store, "research", ["recommend"]), "/runs")
    for path in ("/runs", "/runs/logs", "/runs/none"):
        page = guarded.get(path)
        assert page.status_code == 403
        assert page.headers["content-type"].startswith("text/html")


def test_a_log_from_another_site_is_not_read(shared_client: TestClient) -> None:
    fields = {"cluster": "h100", "stack": "megatron", "log": MEGATRON}
    answer = shared_client.post("/runs/logs", data=fields, files={"log_file": ("", b"")})
    assert answer.status_code == 403
    assert shared_client.get("/v1/reports").json()["items"] == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"--x\r\n\r\n--x--"),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\nno name\r\n--x--"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n--x--"),
        ("multipart/form-data; boundary=x", b"nothing at all"),
    ],
)
def test_a_body_that_is_no_form_is_refused(
    shared_client: TestClient, kind: str, body: bytes
) -> None:
    answer = shared_client.post("/runs/logs", content=body, headers={"Content-Type": kind})
    assert answer.status_code in (400, 403)
