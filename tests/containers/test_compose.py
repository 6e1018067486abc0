"""The image and docker-compose.yml on a real engine: whether each service starts with its
documented line, may do no more than it must, and stops as it should.

It builds the images, needs the port 8000, and removes what it has made, its volumes too.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.paths import ROOT
from tests.service.asking import PREDICTION, QUESTION, assert_problem
from tests.service.runtime.test_graceful_stop import LONG_SEARCH
from tests.service.sweeps.progress import LARGER

pytestmark = pytest.mark.containers

ADDRESS = "http://127.0.0.1:8000"
PASSWORD = "p@ss: w/%ord"
"""Which no URL holds as it is."""
READY_S = 180
GRACE_S = 40
"""The stop_grace_period."""
PROFILES = ["shardwright", "shardwright-postgresql", "shardwright-dask"]


def compose(*arguments: str) -> str:
    command = ["docker", "compose", "--project-name", "shardwright-test", *arguments]
    variables = {**os.environ, "POSTGRES_PASSWORD": PASSWORD}
    done = subprocess.run(
        command, cwd=ROOT, env=variables, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(autouse=True, scope="module")
def _images() -> Iterator[None]:
    compose("--profile", "dask", "build")
    yield
    compose("--profile", "*", "down", "--volumes")


class Started:
    """A service of the compose file that is healthy."""

    def __init__(self, name: str) -> None:
        self.name = name
        compose("up", "--detach", name)
        self.id = compose("ps", "--quiet", name)
        self.wait_until_healthy()
        key = self.run("python", "-m", "service.api_keys", "create", "--tenant", "tests")
        self.headers = {"Authorization": f"Bearer {key}"}

    def wait_until_healthy(self) -> None:
        ends = time.monotonic() + READY_S
        while self.state["Health"]["Status"] != "healthy":
            assert time.monotonic() < ends, compose("logs", self.name)
            time.sleep(1)

    @property
    def state(self) -> dict[str, Any]:
        return dict(self._inspect("State"))

    def _inspect(self, part: str) -> Any:
        command = ["docker", "inspect", "--format", f"{{{{json .{part}}}}}", self.id]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)

    def run(self, *command: str) -> str:
        """What a command prints that runs in the container."""
        return compose("exec", "--no-TTY", self.name, *command)

    def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        return httpx.request(
            method, ADDRESS + path, **{"timeout": 120, "headers": self.headers, **arguments}
        )

    def stop(self) -> float:
        """How long it took."""
        began = time.monotonic()
        compose("stop", self.name)
        return time.monotonic() - began

    def restart(self) -> None:
        compose("start", self.name)
        self.wait_until_healthy()


@pytest.fixture(params=PROFILES)
def started(request: pytest.FixtureRequest) -> Iterator[Started]:
    yield Started(request.param)
    compose("--profile", "*", "down", "--volumes")


def test_a_service_runs_confined_and_stops_in_time(started: Started) -> None:
    assert httpx.get(f"{ADDRESS}/v1/reports").status_code == 401
    assert started.request("POST", "/v1/predictions", json=PREDICTION).status_code == 201
    asked = started.request("POST", "/v1/recommendations", json=QUESTION)
    assert asked.status_code == 201

    assert started.run("id", "-u") == "10001"
    status = started.run("cat", "/proc/self/status")
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    with pytest.raises(AssertionError, match="Read-only file system"):
        started.run("touch", "/shardwright/service/x")
    logged = compose("logs", "--no-log-prefix", started.name).splitlines()
    (compiled,) = (line for line in logged if "cost model is compiled" in line)
    assert json.loads(compiled[compiled.index("{") :])["seconds"] < 20  # it was only loaded

    with ThreadPoolExecutor(3) as pool:  # more than may search at once
        answers = [
            pool.submit(
                started.request, "POST", "/v1/recommendations", json={**LONG_SEARCH, "top": top}
            )
            for top in (98, 99, 100)
        ]
        time.sleep(3)
        assert started.stop() < GRACE_S
        answered = [answer.result() for answer in answers]
    assert (started.state["ExitCode"], started.state["OOMKilled"]) == (0, False)
    started.restart()
    stored = [answer for answer in answered if answer.status_code == 201]
    for answer in answered:
        if answer not in stored:
            assert_problem(answer, "stopping")
    found = started.request("GET", "/v1/recommendations").json()["items"]
    assert len(found) == 1 + len(stored)
    assert started.request("GET", asked.headers["location"]).status_code == 200


def test_a_sweep_goes_on_after_a_stop(started: Started) -> None:
    sweep = started.request("POST", "/v1/sweeps", json=LARGER)
    time.sleep(3)
    assert started.stop() < GRACE_S
    assert started.state["ExitCode"] == 0
    assert "leaked" not in compose("logs", started.name)
    started.restart()
    ends = time.monotonic() + 2 * READY_S
    while (now := started.request("GET", sweep.headers["location"]).json())["state"] == "running":
        assert time.monotonic() < ends, now
        time.sleep(1)
    assert sum(now["outcomes"].values()) == now["total"]
    assert now["outcomes"].keys() <= {"ok", "infeasible", "refused"}


def test_a_container_that_is_killed_leaves_its_keys_free_soon() -> None:
    started = Started("shardwright")
    key = {**started.headers, "Idempotency-Key": "k"}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(
            started.request, "POST", "/v1/recommendations", json=LONG_SEARCH, headers=key
        )
        time.sleep(3)
        compose("kill", started.name)
        with suppress(httpx.TransportError):
            asked.result()
    started.restart()
    time.sleep(10)  # SHARDWRIGHT_IDEMPOTENCY_LEASE_S
    question = {**LONG_SEARCH, "time_limit_s": 60}
    again = started.request("POST", "/v1/recommendations", json=question, headers=key)
    assert again.status_code == 201, again.text
