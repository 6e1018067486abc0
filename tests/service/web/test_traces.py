"""Traces of a process that was told of a collector."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.service.asking import QUESTION
from tests.service.processes import serving

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """A collector of OpenTelemetry: its address, and the spans that came."""
    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    spans.extend(scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()


@pytest.mark.long
def test_a_request_is_a_trace_with_its_wait_and_its_search(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as (endpoint, spans):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        with serving(database_url) as service:
            traceparent = f"00-{TRACE}-00f067aa0ba902b7-01"
            question = {**QUESTION, "cluster": {"preset": "h100", "num_chips": 8}}
            headers = {"traceparent": traceparent}
            answer = service.request("POST", "/v1/recommendations", json=question, headers=headers)
            answer.raise_for_status()
            misplaced = {"key": "sw_0a1b2c_hunter2-secret", "sw_0a1b2c_hunter2-name": "x"}
            service.request("GET", "/v1/sw_0a1b2c_hunter2-path", params=misplaced)
            service.stop()
            service.process.wait(timeout=60)
            log = service.errors()
    of_request = {span.name: span for span in spans if span.trace_id.hex() == TRACE}
    assert {"POST /v1/recommendations", "wait", "search"} <= {*of_request}
    lines = [json.loads(line) for line in log.splitlines()]
    (line,) = [line for line in lines if line.get("path") == "/v1/recommendations"]
    assert line["trace_id"] == TRACE
    assert line["span_id"] == of_request["POST /v1/recommendations"].span_id.hex()
    assert "llama" not in str(spans)
    assert "hunter2" not in str(spans)
    assert "sw_0a1b2c_REDACTED" in str(spans)
    assert "hunter2" not in log
