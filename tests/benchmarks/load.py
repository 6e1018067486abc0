"""How much load one process of the service takes over HTTP, held against a bare FastAPI route.

    python -m tests.benchmarks.load [--seconds 3] [--database URL] [--json] [--write]

A server of its own, with API keys, metrics and logs, on a core of its own where there are two; the
client (tests/benchmarks/http_load.py) and nothing else runs on the others. Figures `_per_cpu_s` are
answers for each second of processor time that the server took: what a core of its own gives,
however busy the machine is.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks import pages
from tests.benchmarks.http_load import NAME, Connection, Load, Request, Server

QUESTION: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": {"preset": "h100", "num_chips": 64},
    "workload": {"seq_len": 8192, "global_batch": 128},
    "stack": "torchtitan",
}
LAYOUT: dict[str, Any] = {"dp_shard": 64, "zero_stage": 3, "recompute": "selective"}
MANY = 8
"""Connections beside which one is held."""
_TURNS = 5
_PACE_PER_S = 50.0
"""Predictions and reports a second whose latency is measured."""
_SEARCHES = 30
"""New recommendations of which is measured what they take besides the search."""
_SEARCH_SECONDS = "shardwright_search_duration_seconds_sum"
_CROWD = 40
"""Connections that ask for more than the service computes."""
_RECOVERED_MS = 50.0
_RECOVERY_LIMIT_S = 20.0
Figures = dict[str, Any]


class Traffic:
    """The requests of a tenant."""

    def __init__(self, key: str, answer_path: str) -> None:
        self._headers = {"Authorization": f"Bearer {key}"}
        self.same = self._post("/v1/recommendations", QUESTION)
        self.read = Request.of("GET", answer_path, headers=self._headers)
        self._numbers = itertools.count(1)

    def _post(self, path: str, body: Any) -> Request:
        return Request.of("POST", path, body, self._headers)

    def _new_question(self) -> dict[str, Any]:
        """One that nobody has asked: of larger batches than QUESTION."""
        batch, length = divmod(next(self._numbers), 64)
        workload = {"seq_len": 1024 * (1 + length), "global_batch": 64 * (3 + batch)}
        return {**QUESTION, "workload": workload}

    def predictions(self) -> Iterator[Request]:
        """Each of a question of its own."""
        while True:
            yield self._post("/v1/predictions", {**self._new_question(), "layout": LAYOUT})

    def searches(self) -> Iterator[Request]:
        """Each of a question of its own."""
        while True:
            yield self._post("/v1/recommendations", self._new_question())

    def reports(self) -> Iterator[Request]:
        """Of one run that is measured again and again, each time a little differently."""
        draw = random.Random(0)
        run = {**QUESTION, "layout": LAYOUT, "outcome": "ok"}
        while True:
            measured = {"step_time_s": draw.lognormvariate(0.5, 0.2)}
            yield self._post("/v1/reports", {**run, "measured": measured})

    def mixed(self) -> Iterator[Request]:
        """As schedulers, dashboards and launchers ask together: mostly what was asked before."""
        draw = random.Random(0)
        kinds = [
            itertools.repeat(self.same),
            itertools.repeat(self.read),
            self.predictions(),
            self.reports(),
        ]
        while True:
            yield next(draw.choices(kinds, weights=[45, 45, 5, 5])[0])


@contextmanager
def service(url: str, folder: Path) -> Iterator[tuple[Server, str]]:
    """A server with everything on, and the key of a tenant."""
    environment = {
        **os.environ,
        "SHARDWRIGHT_DATABASE_URL": url,
        "SHARDWRIGHT_REQUIRE_API_KEYS": "true",
        "SHARDWRIGHT_LOG_LEVEL": "INFO",
    }
    create_key = [sys.executable, "-m", "service.api_keys", "create", "--tenant", "load"]
    made = subprocess.run(create_key, env=environment, check=True, capture_output=True, text=True)
    command = [sys.executable, "-m", "service", "--port", "0"]
    with open(folder / "log.jsonl", "w") as log, _started(command, environment, log) as server:
        _wait_until_ready(server)
        yield server, made.stdout.split()[-1]


@contextmanager
def bare(content: bytes, folder: Path) -> Iterator[Server]:
    file = folder / "answer.json"
    file.write_bytes(content)
    command = [sys.executable, "-m", "tests.benchmarks.bare", str(file)]
    with _started(command, dict(os.environ), None) as server:
        yield server


@contextmanager
def _started(command: list[str], environment: dict[str, str], log: Any) -> Iterator[Server]:
    """A server on a core of its own; it prints its address once it listens."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
    )
    try:
        os.sched_setaffinity(process.pid, _cores()[:1])
        assert process.stdout is not None
        words = process.stdout.readline().replace(",", " ").split()
        address = next(word for word in words if word.startswith("http://"))
        yield Server(int(address.rpartition(":")[2]), process.pid)
    finally:
        process.terminate()
        process.wait()


def _cores() -> list[int]:
    return sorted(_ALL_CORES)


_ALL_CORES = os.sched_getaffinity(0)


def _wait_until_ready(server: Server) -> None:
    connection = Connection(server.port)
    while connection.send(Request.of("GET", "/readyz"))[0] != 200:
        time.sleep(0.2)
    connection.close()


def measured(url: str, folder: Path, seconds: float) -> Figures:
    with service(url, folder) as (server, key):
        first = _ask(server, Traffic(key, "/").same)
        traffic = Traffic(key, f"/v1/recommendations/{json.loads(first)['id']}")
        for known in (traffic.same, traffic.read):
            _ask(server, known)
        with bare(first, folder) as plain:
            plain_request = Request.of("POST", "/bare", QUESTION)
            repeated = _alternating(
                {
                    "bare": (plain, plain_request, 1),
                    "bare_many": (plain, plain_request, MANY),
                    "cached": (server, traffic.same, 1),
                    "cached_many": (server, traffic.same, MANY),
                    "get": (server, traffic.read, 1),
                },
                seconds,
            )
        return {
            "machine": f"{platform.machine()}, {len(_ALL_CORES)} cores, Python"
            f" {platform.python_version()}",
            "client": NAME,
            **_beside_bare(repeated),
            **{name: _figures(load) for name, load in repeated.items()},
            "predictions": _paced(server, traffic.predictions(), seconds),
            "reports": _paced(server, traffic.reports(), seconds),
            "recommendation_beyond_search_ms": _beyond_search_ms(server, traffic.searches()),
            "mixed": _figures(server.closed_loop(traffic.mixed(), MANY, seconds)),
            "overload": _overload(server, traffic, seconds),
        }


def _ask(server: Server, request: Request) -> bytes:
    connection = Connection(server.port)
    status, body = connection.send(request)
    connection.close()
    assert status in (200, 201), body
    return body


def _alternating(loads: dict[str, tuple[Server, Request, int]], seconds: float) -> dict[str, Load]:
    """Each request again and again, on so many connections. The loads take turns, so that what else
    the machine does hits all of them alike."""
    found = {name: Load() for name in loads}
    for _ in range(_TURNS):
        for name, (server, request, connections) in loads.items():
            requests = itertools.repeat(request)
            found[name] += server.closed_loop(requests, connections, seconds / _TURNS)
    return found


def _beside_bare(loads: dict[str, Load]) -> Figures:
    return {
        "bare_rps": loads["bare"].per_s,
        "cached_rps": loads["cached"].per_s,
        "cached_of_bare": loads["cached"].per_cpu_s / loads["bare"].per_cpu_s,
        "get_of_bare": loads["get"].per_cpu_s / loads["bare"].per_cpu_s,
        "many_of_one": loads["cached_many"].per_cpu_s / loads["cached"].per_cpu_s,
    }


def _paced(server: Server, requests: Iterator[Request], seconds: float) -> Figures:
    """How many there can be, and how long they take at a pace that leaves time."""
    most = server.closed_loop(requests, 1, seconds)
    paced = server.open_loop(requests, _PACE_PER_S, MANY, seconds)
    return {
        **_figures(paced),
        "rps": most.per_s,
        "per_cpu_s": most.per_cpu_s,
        "errors": most.errors + paced.errors,
    }


def _beyond_search_ms(server: Server, searches: Iterator[Request]) -> float:
    """The median of what new recommendations take besides their searches, which the server times
    itself."""
    connection = Connection(server.port)
    scrape = Request.of("GET", "/metrics")
    beyond_s = list[float]()
    searched_s = _searched_s(connection.send(scrape)[1])
    for request in itertools.islice(searches, _SEARCHES):
        began = time.perf_counter()
        status, body = connection.send(request)
        took_s = time.perf_counter() - began
        assert status == 201, body
        before_s, searched_s = searched_s, _searched_s(connection.send(scrape)[1])
        beyond_s.append(took_s - (searched_s - before_s))
    connection.close()
    return 1000 * statistics.median(beyond_s)


def _searched_s(metrics: bytes) -> float:
    """The seconds of all searches so far."""
    lines = metrics.decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(_SEARCH_SECONDS))


def _overload(server: Server, traffic: Traffic, seconds: float) -> Figures:
    """More searches at once than are let in or may wait, and how soon after them an answer that is
    known comes as fast as ever and a new search is let in."""
    load = server.closed_loop(traffic.searches(), _CROWD, seconds)
    ended = time.perf_counter()
    connection = Connection(server.port)
    while time.perf_counter() - ended < _RECOVERY_LIMIT_S:
        began = time.perf_counter()
        connection.send(traffic.same)
        took_ms = 1000 * (time.perf_counter() - began)
        status, _ = connection.send(next(traffic.searches()))
        if took_ms < _RECOVERED_MS and status == 201:
            break
    connection.close()
    return {
        "statuses": {str(status): count for status, count in sorted(load.statuses.items())},
        "recovery_s": time.perf_counter() - ended,
    }


def _figures(load: Load) -> Figures:
    return {
        "rps": load.per_s,
        "per_cpu_s": load.per_cpu_s,
        **{f"p{percent}_ms": load.percentile_ms(percent) for percent in (50, 95, 99)},
        "errors": load.errors,
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(member) for name, member in value.items()}
    return float(f"{value:.3g}") if isinstance(value, float) else value


def _table(found: Figures) -> str:
    """The figures as the documentation has them."""
    bare_per_cpu_s = found["bare"]["per_cpu_s"]
    kinds = {
        "a bare FastAPI route": found["bare"],
        f"the same on {MANY} connections": found["bare_many"],
        "the same recommendation again": found["cached"],
        f"the same again on {MANY} connections": found["cached_many"],
        "GET of a recommendation": found["get"],
        "predictions, each new": found["predictions"],
        "reports of a run": found["reports"],
        f"mixed, on {MANY} connections": found["mixed"],
    }
    rows = [
        [
            name,
            f"{figures['per_cpu_s']:,.0f}",
            f"{figures['per_cpu_s'] / bare_per_cpu_s:.0%}",
            *(_milliseconds(figures[percentile]) for percentile in ("p50_ms", "p95_ms")),
        ]
        for name, figures in kinds.items()
    ]
    return pages.table(["requests", "a core", "of bare", "p50", "p95"], rows)


def _milliseconds(value: float) -> str:
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each of eleven loads")
    parser.add_argument("--database", help="a URL; a SQLite file of its own unless given")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="into docs/speed.md")
    asked = parser.parse_args()
    os.sched_setaffinity(0, _cores()[1:] or _cores())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = asked.database or f"sqlite:///{folder / 'load.db'}"
        found = measured(url, folder, asked.seconds)
    if asked.json:
        print(json.dumps(_rounded(found)))
    else:
        print(_table(found))
    if asked.write:
        command = "python -m tests.benchmarks.load --write"
        pages.write_between_markers("speed.md", "load", _table(found), command)


if __name__ == "__main__":
    main()
