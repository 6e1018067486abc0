"""What one tenant sends that is large keeps no other tenant waiting, and no probe.

The limits are those of a machine that has its two cores to itself. So that a busy one does not
fail them, they grow with what the same questions take just before, when nobody else asks.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.databases import SqliteFiles
from tests.service.asking import PREDICTION, QUESTION, REPORT, changed
from tests.service.processes import Service, serving

pytestmark = pytest.mark.faults

_P95_S = 0.5
_MOST_S = 2.0
_LIVE_S = 0.5
_READY_S = 3.0
_QUIET_S = 0.05
"""The 95th percentile of the plain questions on a machine that does nothing else. Where it is
higher, all limits are as many times higher."""
_BASELINE_FOR_S = 5.0
_ATTACK_FOR_S = 15.0
_PAUSE_S = 0.05
_LOG_BYTES = 15_000_000
_BATCH = 10_000


@dataclass
class Latencies:
    """What a question took again and again."""

    seconds: list[float] = field(default_factory=list)

    @property
    def p95(self) -> float:
        return quantiles(self.seconds, n=20, method="inclusive")[-1]

    @property
    def most(self) -> float:
        return max(self.seconds)


@dataclass
class Tenants:
    """A service with a tenant that attacks it and one that asks plain questions."""

    service: Service
    hostile: str
    honest: str
    folder: Path
    lengths: Iterator[int] = field(default_factory=lambda: itertools.count(1024))

    def measured(self, for_s: float) -> dict[str, Latencies]:
        """What the honest tenant and the probes wait, while others do whatever they do."""
        found = {name: Latencies() for name in ("question", "livez", "readyz")}
        ends = time.monotonic() + for_s
        asks = {"question": self._question, "livez": _get("/livez"), "readyz": _get("/readyz")}
        threads = [
            threading.Thread(target=self._repeat, args=(asks[name], latencies, ends))
            for name, latencies in found.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def _repeat(self, ask: Callable[[], tuple[str, str, bytes | None]], latencies: Latencies,
                ends: float) -> None:  # fmt: skip
        place = urlsplit(self.service.address)
        headers = {"Authorization": f"Bearer {self.honest}", "Content-Type": "application/json"}
        while time.monotonic() < ends:
            method, path, body = ask()
            connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=120)
            began = time.monotonic()
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            latencies.seconds.append(time.monotonic() - began)
            connection.close()
            assert answer.status in (200, 201), text[:500]
            time.sleep(_PAUSE_S)

    def _question(self) -> tuple[str, str, bytes]:
        """A prediction that nobody has asked for, so that it is computed and stored."""
        asked = changed(PREDICTION, "workload.seq_len", next(self.lengths))
        return "POST", "/v1/predictions", json.dumps(asked).encode()

    def post(self, path: str, body: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.hostile}"}
        made = self.service.request("POST", path, json=body, headers=headers)
        assert made.is_success, made.text[:500]
        return made.json()

    @contextmanager
    def attacked(self, *, times: int, path: str, body: Any = None) -> Iterator[None]:
        """So many clients send a request again and again while the block runs."""
        command = f"curl -s -o /dev/null -H 'Authorization: Bearer {self.hostile}'"
        if body is not None:
            file = self.folder / "body.json"
            file.write_text(json.dumps(body))
            command += f" -H 'Content-Type: application/json' --data-binary @{file}"
        loop = f'while :; do {command} "{self.service.address}{path}" || sleep 0.2; done'
        clients = [
            subprocess.Popen(["sh", "-c", loop], start_new_session=True) for _ in range(times)
        ]
        try:
            time.sleep(1)
            yield
        finally:
            for client in clients:
                os.killpg(client.pid, signal.SIGKILL)
                client.wait()

    def require_unmoved(self, *, times: int, path: str, body: Any = None) -> None:
        self.measured(1.0)  # what is only done once
        quiet = self.measured(_BASELINE_FOR_S)
        with self.attacked(times=times, path=path, body=body):
            found = self.measured(_ATTACK_FOR_S)
        slower = max(1.0, quiet["question"].p95 / _QUIET_S)
        for when, latencies in (("quiet", quiet), ("attacked", found)):
            figures = {
                name: f"p95 {each.p95:.3f} most {each.most:.3f}" for name, each in latencies.items()
            }
            print(when, figures, f"limits times {slower:.1f}")
        assert found["question"].p95 <= _P95_S * slower
        assert found["question"].most <= _MOST_S * slower
        assert found["livez"].most <= _LIVE_S * slower
        assert found["readyz"].most <= _READY_S * slower


def _get(path: str) -> Callable[[], tuple[str, str, None]]:
    return lambda: ("GET", path, None)


def create_key(url: str, tenant: str) -> str:
    command = [sys.executable, "-m", "service.api_keys", "create", "--tenant", tenant]
    environment = {**os.environ, "SHARDWRIGHT_DATABASE_URL": url}
    made = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return made.stdout.split()[-1]


@pytest.fixture(scope="module")
def tenants(
    sqlite_files: SqliteFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tenants]:
    url = sqlite_files.prepared()
    keys = {tenant: create_key(url, tenant) for tenant in ("hostile", "honest")}
    with serving(url, require_api_keys=True) as service:
        yield Tenants(service=service, folder=tmp_path_factory.mktemp("bodies"), **keys)


@pytest.mark.parametrize("times", [1, 8])
def test_logs_of_one_endless_line_keep_nobody_waiting(tenants: Tenants, times: int) -> None:
    run = {name: PREDICTION[name] for name in (*QUESTION, "layout")}
    body = {**run, "log": "7" * _LOG_BYTES}
    tenants.require_unmoved(times=times, path="/v1/reports/logs", body=body)


@pytest.mark.parametrize(
    "query", ["", "?micro_batches=1$(date +%N | cut -c1-5)"], ids=["the same", "another each time"]
)
def test_large_timelines_keep_nobody_waiting(tenants: Tenants, query: str) -> None:
    asked = changed(changed(PREDICTION, "layout", {"pp": 8, "dp_shard": 8}), "stack", "megatron")
    asked = changed(asked, "workload.global_batch", 8192)
    id_ = tenants.post("/v1/predictions", asked)["id"]
    tenants.require_unmoved(times=16, path=f"/v1/predictions/{id_}/timeline{query}")


def test_large_batches_keep_nobody_waiting(tenants: Tenants) -> None:
    reports = [changed(REPORT, "measured.step_time_s", 2 + i / _BATCH) for i in range(_BATCH)]
    tenants.require_unmoved(times=4, path="/v1/reports", body={"reports": reports})
