from __future__ import annotations

import os
import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.service.processes import serving

_COUNT = "from service.metrics import REPORTS, QUEUE_RUNNING; REPORTS.labels('ok').inc({count});"
_ANSWER = "from service.web.exposition import exposition; print(exposition([], '')[0].decode())"


def run(code: str, folder: str) -> str:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": folder}
    finished = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return finished.stdout


def test_each_process_answers_for_all(tmp_path) -> None:
    """What an ended process counted stays; what it was doing does not."""
    folder = str(tmp_path)
    run(_COUNT.format(count=2) + "QUEUE_RUNNING.labels('searches').inc()", folder)
    text = run(_COUNT.format(count=3) + "QUEUE_RUNNING.labels('reports').inc();" + _ANSWER, folder)
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert values["shardwright_reports_ingested_total", "ok"] == 5
    assert values["shardwright_queue_running", "reports"] == 1
    assert ("shardwright_queue_running", "searches") not in values


@pytest.mark.long
def test_every_worker_answers_for_all(database_url: str) -> None:
    name = "shardwright_http_request_duration_seconds_count"
    labels = {"method": "GET", "route": "/problems/{name}", "status": "200"}
    with serving(database_url, workers=2) as service:
        for _ in range(20):
            service.request("GET", "/problems/invalid").raise_for_status()
        scrapes = {service.request("GET", "/metrics").text for _ in range(8)}
    counts = {
        sample.value
        for text in scrapes
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if (sample.name, sample.labels) == (name, labels)
    }
    assert counts == {20}
