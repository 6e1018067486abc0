"""How fast reports are taken in and learnt, and what that costs the recommendations beside it.

    python -m tests.benchmarks.reporting [--reports 10000] [--database URL] [--json] [--write]

A server of its own, on a real PostgreSQL unless a database is named. Reports of 144 questions in
batches of 2,000, each predicted and stored; then a calibration on all of them, and the same
recommendation again and again, with a tolerance that is another one each time so that none is known
already: alone, and while reports come in and calibrations run.
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
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.benchmarks import pages
from tests.databases import postgres_server

BATCH = 2000
ALONE = 40
_RECOMMENDATION = {
    "model": "llama-3.1-405b",
    "cluster": {"preset": "h100", "num_chips": 2048},
    "workload": {"seq_len": 8192, "global_batch": 2048},
    "stack": "megatron",
}


_NUMBERS = itertools.count()


def reports(count: int) -> list[dict[str, Any]]:
    draw = random.Random(0)
    found = []
    for _ in range(count):
        chips = draw.choice([8, 16, 32, 64, 128, 256])
        found.append(
            {
                "model": draw.choice(["llama-3.1-8b", "qwen3-32b", "llama-3.1-70b"]),
                "cluster": {
                    "preset": draw.choice(["h100", "h200", "b200", "a100"]),
                    "num_chips": chips,
                },
                "workload": {"seq_len": 8192, "global_batch": chips * draw.choice([2, 4])},
                "stack": "torchtitan",
                "layout": {
                    "dp_shard": chips,
                    "zero_stage": 3,
                    "recompute": draw.choice(["selective", "full"]),
                    "micro_batch": draw.choice([1, 2]),
                },
                "outcome": "ok",
                "measured": {"step_time_s": 1.0},
                "source": f"team {draw.randrange(5)}",
            }
        )
    return found


@contextmanager
def server(url: str) -> Iterator[httpx.Client]:
    command = [sys.executable, "-m", "service", "--port", "0"]
    environment = {**os.environ, "SHARDWRIGHT_DATABASE_URL": url, "SHARDWRIGHT_LOG_LEVEL": "ERROR"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[3].rstrip(",")
        with httpx.Client(base_url=address, timeout=600) as client:
            yield client
    finally:
        process.terminate()
        process.wait()


def timed(client: httpx.Client, count: int) -> list[float]:
    found = []
    for _ in range(count):
        asked = {**_RECOMMENDATION, "tolerance": 0.03 + 1e-6 * next(_NUMBERS)}
        start = time.perf_counter()
        assert client.post("/v1/recommendations", json=asked).status_code == 201
        found.append(time.perf_counter() - start)
    return found


def as_measured(client: httpx.Client, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each report with a step time near its prediction: what is far off is looked at twice."""
    draw, known = random.Random(1), dict[str, float]()
    for report in asked:
        question = {
            name: report[name] for name in ("model", "cluster", "workload", "stack", "layout")
        }
        key = json.dumps(question, sort_keys=True)
        if key not in known:
            known[key] = client.post("/v1/predictions", json=question).json()["layouts"][0][
                "step_time_s"
            ]
        report["measured"] = {"step_time_s": known[key] * draw.lognormvariate(0.05, 0.05)}
    return asked


def taken(client: httpx.Client, asked: list[dict[str, Any]]) -> float:
    start = time.perf_counter()
    for first in range(0, len(asked), BATCH):
        answer = client.post("/v1/reports", json={"reports": asked[first : first + BATCH]})
        assert answer.json()["refused"] == 0, answer.text
    return time.perf_counter() - start


def learnt(client: httpx.Client) -> float:
    start = time.perf_counter()
    answer = client.post("/v1/profiles/default/calibrations", json={"from_scratch": True})
    assert answer.status_code == 201, answer.text
    return time.perf_counter() - start


def beside(client: httpx.Client, asked: list[dict[str, Any]]) -> list[float]:
    """Recommendations while reports come in and calibrations run, one after the other."""
    over = threading.Event()

    def loop() -> None:
        with httpx.Client(base_url=client.base_url, timeout=600) as other:
            while not over.is_set():
                taken(other, asked[:BATCH])
                learnt(other)

    thread = threading.Thread(target=loop)
    thread.start()
    time.sleep(2)
    try:
        return timed(client, ALONE)
    finally:
        over.set()
        thread.join()


def p95(times: list[float]) -> float:
    return sorted(times)[int(0.95 * (len(times) - 1))]


def measured(url: str, count: int) -> dict[str, float]:
    with server(url) as client:
        timed(client, 3)
        alone = timed(client, ALONE)
        asked = as_measured(client, reports(count))
        ingest = taken(client, asked)
        calibration = learnt(client)
        together = beside(client, asked)
    return {
        "reports": count,
        "ingest_s": ingest,
        "calibration_s": calibration,
        "alone_median_s": statistics.median(alone),
        "alone_p95_s": p95(alone),
        "beside_median_s": statistics.median(together),
        "beside_p95_s": p95(together),
        "ratio_p95": p95(together) / p95(alone),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reports", type=int, default=10_000)
    parser.add_argument("--database")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    if asked.database:
        result = measured(asked.database, asked.reports)
    else:
        with postgres_server() as url:
            result = measured(url, asked.reports)
    for name, value in result.items():
        print(f"{name:18s}{value:10.3f}")
    if asked.json:
        print(json.dumps(result))
    if asked.write:
        text = pages.table(
            ["figure", "value"],
            [[k, f"{v:,.0f}" if v >= 1000 else f"{v:.3g}"] for k, v in result.items()],
        )
        command = f"python -m tests.benchmarks.reporting --reports {asked.reports} --write"
        pages.write_between_markers("speed.md", "reporting", text, command)


if __name__ == "__main__":
    main()
