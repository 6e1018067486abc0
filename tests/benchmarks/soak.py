"""Whether a service grows under mixed load that goes on for long.

    python -m tests.benchmarks.soak [--minutes 30] [--database URL]

The load is that of schedulers, dashboards and launchers (tests/benchmarks/load.py), with new
searches, large batches of reports, sweeps and refused requests among it, at a pace that leaves the
server time. Each line of the table is a moment after a part of the load. The last two follow a
pause, and the largest search.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.http_load import Connection, Load, Request, Server
from tests.benchmarks.load import LAYOUT, QUESTION, Traffic, service
from tests.service.asking import LARGEST

_PARTS = 10
_PER_S = 10.0
_CONNECTIONS = 4
_PAUSE_S = 20.0
_BATCH = 230
"""Reports: so many are computed in another process."""


@dataclass(frozen=True)
class Usage:
    """What a server and the processes that it has started take."""

    resident_mib: float
    """Of the server alone."""
    workers_mib: float
    processes: int
    threads: int
    descriptors: int
    """Open files and connections, those to the database among them."""

    @classmethod
    def of(cls, pid: int) -> Usage:
        pids = [pid, *_descendants(pid)]
        resident = [_status(each, "VmRSS") / 1024 for each in pids]
        return cls(
            resident_mib=resident[0],
            workers_mib=sum(resident[1:]),
            processes=len(pids),
            threads=sum(_status(each, "Threads") for each in pids),
            descriptors=sum(len([*Path(f"/proc/{each}/fd").iterdir()]) for each in pids),
        )


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_descendants(int(child))]
    return found


def _status(pid: int, name: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split(f"{name}:")[1].split()[0])


def soak_load(traffic: Traffic, key: str) -> Iterator[Request]:
    """Requests in the proportions of a busy day."""
    headers = {"Authorization": f"Bearer {key}"}
    run = {**QUESTION, "layout": LAYOUT, "outcome": "ok"}
    batch = {"reports": [{**run, "measured": {"step_time_s": 2.0}}] * _BATCH}
    sweep = {
        "models": [QUESTION["model"]],
        "clusters": [{"preset": "h100", "num_chips": chips} for chips in (16, 32)],
        "workloads": [QUESTION["workload"]],
        "stacks": [QUESTION["stack"]],
    }
    kinds = [
        (800, traffic.mixed()),
        (100, traffic.searches()),
        (50, itertools.repeat(Request.of("GET", "/v1/reports?limit=100", headers=headers))),
        (20, itertools.repeat(Request.of("GET", "/metrics"))),
        (20, itertools.repeat(Request.of("POST", "/v1/predictions", {}, headers))),
        (5, itertools.repeat(Request.of("POST", "/v1/reports", batch, headers))),
        (5, itertools.repeat(Request.of("POST", "/v1/sweeps", sweep, headers))),
    ]
    draw = random.Random(0)
    weights = [weight for weight, _ in kinds]
    while True:
        yield next(draw.choices([requests for _, requests in kinds], weights)[0])


def soaked(url: str, folder: Path, minutes: float) -> Iterator[tuple[str, Load, Usage]]:
    """What each part of the load found, and what the server took after it."""
    with service(url, folder) as (server, key):
        first = _send(server, Traffic(key, "/").same)
        location = f"/v1/recommendations/{first['id']}"
        requests = soak_load(Traffic(key, location), key)
        seconds = 60 * minutes / _PARTS
        for part in range(1, _PARTS + 1):
            load = server.open_loop(requests, _PER_S, _CONNECTIONS, seconds)
            yield f"{part * seconds / 60:.1f} min", load, Usage.of(server.pid)
        time.sleep(_PAUSE_S)
        yield "a pause", Load(), Usage.of(server.pid)
        headers = {"Authorization": f"Bearer {key}"}
        _send(server, Request.of("POST", "/v1/recommendations", LARGEST, headers))
        time.sleep(_PAUSE_S)
        yield "the largest search", Load(), Usage.of(server.pid)


def _send(server: Server, request: Request) -> dict[str, Any]:
    connection = Connection(server.port)
    status, body = connection.send(request)
    connection.close()
    assert status in (200, 201), body
    answer: dict[str, Any] = json.loads(body)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--database", help="a URL; a SQLite file of its own unless given")
    asked = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = asked.database or f"sqlite:///{folder / 'soak.db'}"
        for moment, load, usage in soaked(url, folder, asked.minutes):
            figures = {name: round(value) for name, value in asdict(usage).items()}
            print(f"after {moment}: {figures} {dict(load.statuses)}", flush=True)


if __name__ == "__main__":
    main()
