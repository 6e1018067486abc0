from __future__ import annotations

import json
import logging

import pytest
from structlog.contextvars import bound_contextvars

from service.api_keys import create
from service.store import Store, database
from service.web.logs import json_formatter
from tests.service.asking import QUESTION

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything that is logged, in the form in which a service writes it."""
    caplog.set_level(logging.DEBUG)
    caplog.handler.setFormatter(json_formatter())
    return caplog


def requests(log: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in log.text.splitlines()]
    return [line for line in lines if line["event"] == "request"]


def test_an_entry_is_one_line(log) -> None:
    logging.getLogger("anywhere").warning("two\nlines", extra={"field": object()})
    line = json.loads(log.text)
    assert (line["event"], line["level"], line["logger"]) == ("two\nlines", "warning", "anywhere")
    assert line["time"].endswith("Z")
    assert "object" in line["field"]


def test_a_line_has_its_message_once_and_without_colours(log) -> None:
    coloured = {"color_message": "Finished server process [\x1b[36m%d\x1b[0m]"}
    logging.getLogger("uvicorn.error").warning("Finished server process [%d]", 7, extra=coloured)
    entry = json.loads(log.text)
    assert entry["event"] == "Finished server process [7]"
    assert "color_message" not in entry


def test_what_is_bound_to_a_request_is_on_all_its_lines(log) -> None:
    with bound_contextvars(request_id="job-7"):
        logging.getLogger("some.library").info("within")
    logging.getLogger("some.library").info("after")
    within, after = (json.loads(line) for line in log.text.splitlines())
    assert within["request_id"] == "job-7"
    assert "request_id" not in after


def test_a_line_of_a_request_says_who_asked_what_and_how_it_went(client, log) -> None:
    traceparent = f"00-{TRACE}-00f067aa0ba902b7-01"
    client.get("/livez", headers={"X-Request-ID": "job-7.a", "traceparent": traceparent})
    (line,) = requests(log)
    assert (line["method"], line["path"], line["status"]) == ("GET", "/livez", 200)
    assert (line["request_id"], line["trace_id"]) == ("job-7.a", TRACE)
    assert line["client"] == "testclient"
    assert line["duration_ms"] >= 0


@pytest.mark.parametrize("traceparent", ["", "nonsense", f"00-{'0' * 32}-00f067aa0ba902b7-01"])
def test_a_malformed_traceparent_names_no_trace(client, log, traceparent: str) -> None:
    client.get("/livez", headers={"traceparent": traceparent})
    (line,) = requests(log)
    assert "trace_id" not in line


def test_a_request_leaves_nothing_to_the_next(make_client, database_url: str, log) -> None:
    key = create(Store(database.connect(database_url)), "team-a", ["recommend"])
    client = make_client(require_api_keys=True)
    client.get("/v1/predictions", headers={"Authorization": f"Bearer {key}"})
    client.get("/livez")
    first, second = requests(log)
    assert (first["tenant"], first["key_id"]) == ("team-a", key.split("_")[1])
    assert "tenant" not in second


def test_no_secret_and_no_body_is_logged(make_client, database_url: str, log, monkeypatch) -> None:
    key = create(Store(database.connect(database_url)), "team-a", ["recommend", "report"])
    client = make_client(require_api_keys=True)
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "hunter2-key"}
    bodies = [
        QUESTION | {"layout": {"dp_shard": 64}, "tolerance": "hunter2-in-a-refused-field"},
        QUESTION | {"model": {"name": "hunter2-model"}},
        QUESTION | {"layout": {"dp_shard": 64, "zero_stage": 3}},
        {"hunter2-field": 1},
    ]
    statuses = {
        client.post("/v1/predictions", json=body, headers=headers).status_code for body in bodies
    }
    assert {201, 422} <= statuses
    refused = {"Authorization": f"Bearer {key}-hunter2"}
    assert client.post("/v1/predictions", json={}, headers=refused).status_code == 401
    assert client.post("/v1/predictions", content="hunter2 is no JSON", headers=headers).is_error

    assert len(requests(log)) == len(bodies) + 2
    assert "hunter2" not in log.text
    assert key.split("_", 2)[2] not in log.text


@pytest.mark.parametrize("path", ["/{}", "/v1/predictions/{}", "/v1/catalog/{}", "/problems/{}"])
def test_a_key_in_an_address_is_neither_logged_nor_shown(shared_client, log, path: str) -> None:
    answer = shared_client.get(path.format("sw_0a1b2c_hunter2-secret") + "?q=sw_0a1b2c_in-query")
    assert answer.is_error
    assert "hunter2" not in answer.text
    (line,) = requests(log)
    assert line["path"] == path.format("sw_0a1b2c_REDACTED")
    assert "in-query" not in str(line)
