"""What /metrics says, and what Prometheus and Grafana are told to make of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from service import metrics
from service.api_keys import create
from service.app import create_app
from service.settings import Settings
from service.store import Store, database
from tests.paths import ROOT
from tests.service.asking import PREDICTION, QUESTION, REPORT, assert_problem, scraped

DASHBOARD = ROOT / "watch/grafana/dashboards/shardwright.json"
ALERTS = ROOT / "watch/prometheus/alerts.yml"
_SERIES = re.compile(r"(shardwright_\w+)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\bby \(([^)]*)\)")
_MATCHED = re.compile(r"(\w+)\s*(?:=|!=|=~|!~)\s*\"")
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""By their names and labels."""


def samples(client: Any) -> Samples:
    return samples_of(client.get("/metrics").raise_for_status().text)


def samples_of(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def grown(before: dict[Any, float], after: dict[Any, float], name: str, **labels: str) -> float:
    key = (name, frozenset(labels.items()))
    return after[key] - before.get(key, 0.0)


def test_requests_are_counted_by_route_and_status(shared_client) -> None:
    before = samples(shared_client)
    shared_client.get("/v1/recommendations/unknown-1")
    shared_client.get("/v1/recommendations/unknown-2")
    shared_client.head("/livez")
    shared_client.get("/nowhere")
    shared_client.request("BREW", "/livez")
    after = samples(shared_client)
    name = "shardwright_http_request_duration_seconds_count"
    route = "/v1/recommendations/{id}"
    assert grown(before, after, name, method="GET", route=route, status="404") == 2
    assert grown(before, after, name, method="HEAD", route="/livez", status="200") == 1
    assert grown(before, after, name, method="GET", route="none", status="404") == 1
    assert grown(before, after, name, method="other", route="/livez", status="405") == 1


def test_a_search_is_timed_and_its_layouts_are_counted(shared_client) -> None:
    before = samples(shared_client)
    question = {**QUESTION, "cluster": {"preset": "h100", "num_chips": 8}}
    answer = shared_client.post("/v1/recommendations", json=question).raise_for_status().json()
    after = samples(shared_client)
    evaluated = grown(before, after, "shardwright_search_layouts_evaluated_total")
    assert evaluated == answer["certificate"]["evaluated"] > 0
    assert grown(before, after, "shardwright_search_duration_seconds_count") == 1
    assert grown(before, after, "shardwright_queue_wait_seconds_count", queue="searches") == 1
    assert after["shardwright_queue_running", frozenset({("queue", "searches")})] == 0


def test_a_question_that_was_answered_before_is_a_hit(shared_client) -> None:
    name = "shardwright_cache_lookups_total"
    before = samples(shared_client)
    shared_client.post("/v1/predictions", json=PREDICTION).raise_for_status()
    asked = samples(shared_client)
    shared_client.post("/v1/predictions", json=PREDICTION).raise_for_status()
    after = samples(shared_client)
    assert grown(before, asked, name, cache="answers", result="miss") == 1
    assert grown(asked, after, name, cache="answers", result="hit") == 1


def test_reports_are_counted_with_their_residuals(shared_client) -> None:
    before = samples(shared_client)
    report = shared_client.post("/v1/reports", json=REPORT).raise_for_status().json()
    failed = {**PREDICTION, "outcome": "out_of_memory"}
    shared_client.post("/v1/reports", json=failed).raise_for_status()
    after = samples(shared_client)
    assert grown(before, after, "shardwright_reports_ingested_total", outcome="ok") == 1
    assert grown(before, after, "shardwright_reports_ingested_total", outcome="out_of_memory") == 1
    assert grown(before, after, "shardwright_report_residual_count", profile="default") == 1
    bucket = {"name": "shardwright_report_residual_bucket", "profile": "default"}
    assert grown(before, after, **bucket, le="0.05") == (report["residual"] <= 0.05)
    assert grown(before, after, **bucket, le="-0.05") == (report["residual"] <= -0.05)
    assert grown(before, after, **bucket, le="+Inf") == 1


def test_profiles_and_the_schema_are_told(shared_client) -> None:
    found = samples_of(scraped(shared_client))
    profile = frozenset({("profile", "default")})
    version = shared_client.get("/v1/profiles/default").json()["active_version"]
    assert found["shardwright_profile_active_version", profile] == version
    assert found["shardwright_profile_drift_ratio", profile] == 0
    assert found["shardwright_database_up", frozenset()] == 1
    newest = max(path.name[:4] for path in (ROOT / "migrations/versions").glob("[0-9]*.py"))
    ((labels, value),) = [
        (dict(labels), value)
        for (name, labels), value in found.items()
        if name == "shardwright_schema_info"
    ]
    assert (labels, value) == ({"revision": newest, "state": "ok"}, 1)


def test_a_database_that_is_gone_is_told() -> None:
    with TestClient(
        create_app(Settings(database_url="postgresql://nobody@127.0.0.1:1/none"))
    ) as client:
        found = samples(client)
    assert found["shardwright_database_up", frozenset()] == 0
    assert not any(name == "shardwright_schema_info" for name, _ in found)


def test_metrics_need_a_key_only_where_the_operator_says_so(make_client, database_url) -> None:
    store = Store(database.connect(database_url))
    admin = {"Authorization": f"Bearer {create(store, 'operators', ['admin'])}"}
    other = {"Authorization": f"Bearer {create(store, 'team-a', ['recommend'])}"}
    assert make_client(require_api_keys=True).get("/metrics").status_code == 200
    client = make_client(metrics_need_key=True)
    assert_problem(client.get("/metrics"), "unauthenticated")
    assert_problem(client.get("/metrics", headers=other), "forbidden")
    assert client.get("/metrics", headers=admin).status_code == 200
    assert client.get("/v1/profiles").status_code == 200


def test_openmetrics_is_spoken_where_it_is_asked_for(shared_client) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = shared_client.get("/metrics", headers=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    assert shared_client.get("/metrics").headers["content-type"].startswith("text/plain")


def _expressions() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def _labels_by_name() -> dict[str, set[str]]:
    """The labels of every series that a metric has, by the name of the series."""
    labels: dict[str, set[str]] = {}
    for metric in vars(metrics).values():
        if isinstance(metric, metrics.StoredGauge):
            labels[metric.name] = {*metric.labels}
        elif isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            for suffix in _SUFFIXES[family.type]:
                labels[family.name + suffix] = {*metric._labelnames, "le"}
    return labels


@pytest.mark.parametrize("expression", [*_expressions()])
def test_dashboard_and_alerts_ask_for_what_there_is(expression: str) -> None:
    """For every series that an expression names, and every label that it selects or groups by."""
    known = _labels_by_name()
    for name, selector in _SERIES.findall(expression):
        asked = {*_MATCHED.findall(selector)}
        for grouping in _GROUPING.findall(expression):
            asked |= {label.strip() for label in grouping.split(",")}
        assert asked <= known[name], name


def test_metrics_has_all_that_dashboard_and_alerts_name(shared_client) -> None:
    text = scraped(shared_client)
    families = [*text_string_to_metric_families(text)]
    names = {
        family.name + suffix for family in families for suffix in _SUFFIXES.get(family.type, ())
    }
    asked = {name for expression in _expressions() for name, _ in _SERIES.findall(expression)}
    assert asked <= names
    assert len(asked) > 10
