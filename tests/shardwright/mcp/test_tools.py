"""The tools of agents, called by a real client of the Model Context Protocol."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests.paths import ROOT
from tests.shardwright.hooks.environments import ask, needs, python_of
from tests.shardwright.hooks.jobs import BETTER_FLAG, MEGATRON
from tests.shardwright.hooks.services import ServiceProcess, running

pytestmark = [pytest.mark.hooks, needs("mcp")]
_START_S = 60.0
_STEP = (
    " [2026-11-01 10:00:{step:02}] iteration {step:8}/     100 | consumed samples: {samples:12} |"
    " elapsed time per iteration (ms): 300000.0 | learning rate: 1.5E-04 |"
    " global batch size:   512 | lm loss: 2.5E+00 | number of nan iterations:   0 |\n"
)
LOG = "".join(_STEP.format(step=step, samples=512 * step) for step in range(1, 31))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running(tmp_path_factory.mktemp("service")) as process:
        yield process


def _called(server: str, calls: list[Any], **environment: str) -> Any:
    return ask("mcp", server, given=json.dumps(calls), **environment)


@contextmanager
def _over_http(url: str) -> Iterator[str]:
    """The address of tools that ask a service at a URL, in an environment with a key of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = {"PYTHONPATH": str(ROOT), "SHARDWRIGHT_URL": url, "SHARDWRIGHT_KEY": "the server's"}
    process = subprocess.Popen(
        [python_of("mcp"), "-m", "shardwright", "mcp", "--http", f"--port={port}"],
        env={**os.environ, **given},
        cwd=ROOT,
    )
    try:
        ends = time.monotonic() + _START_S
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < ends
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait()


def test_an_agent_asks_checks_explains_reports_and_finds_evidence(service: ServiceProcess) -> None:
    question = {
        "model": "llama-3.1-8b",
        "cluster": "h100",
        "num_chips": 64,
        "seq_len": 8192,
        "global_batch": 128,
        "stack": "torchtitan",
    }
    script = {"script": MEGATRON, "log": LOG}
    calls = [
        ["ask", question],
        ["check", {"script": MEGATRON}],
        ["explain", script],
        ["report", {**script, "source": "agent"}],
        ["evidence", {"model": "llama-3.1-70b", "limit": 2}],
    ]
    called = _called("stdio", calls, SHARDWRIGHT_URL=service.url)
    assert [tool["name"] for tool in called["tools"]] == [name for name, _ in calls]
    assert len(json.dumps(called["tools"])) < 20_000
    assert [answer["text"] for answer in called["answers"] if answer["is_error"]] == []
    texts = [answer["text"] for answer in called["answers"]]
    assert BETTER_FLAG in json.loads(texts[1])["first_change"]["words"]
    assert json.loads(texts[3])["measured"]["step_time_s"] == pytest.approx(300)
    assert max(map(len, texts)) < 20_000


def test_what_is_wrong_with_a_question_is_said_to_the_agent(service: ServiceProcess) -> None:
    calls = [["check", {"script": MEGATRON, "cluster": "h1000"}], ["check", {}]]
    with _over_http(service.url) as url:
        answers = _called(url, calls)["answers"]
    assert all(answer["is_error"] for answer in answers)
    assert "h1000" in answers[0]["text"]
    assert "script" in answers[1]["text"]


def test_over_http_the_key_of_the_caller_is_used_and_no_other() -> None:
    with _keyed() as (url, keys), _over_http(url) as tools:
        _called(tools, [["evidence", {}]], MCP_KEY="the caller's")
        _called(tools, [["evidence", {}]])
    assert keys == ["Bearer the caller's", None]


@contextmanager
def _keyed() -> Iterator[tuple[str, list[str | None]]]:
    """Something in the place of a service, which writes down the keys that it is asked with."""
    keys: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers.get("Authorization"))
            body = b'{"items": []}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", keys
    server.shutdown()
