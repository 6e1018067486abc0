"""`python -m service` as an operator starts it."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.paths import ROOT
from tests.service.asking import ON_BOTH, PREDICTION, assert_problem

_READY_S = 120.0
"""On a machine that compiles the cost model for the first time, and runs other tests meanwhile."""


@contextmanager
def started(database_url: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "SHARDWRIGHT_DATABASE_URL": database_url}
    command = [sys.executable, "-m", "service", *arguments]
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=20)


def address_of(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline() if process.stdout else ""
    match = re.fullmatch(
        r"Shardwright listens on (http://127\.0\.0\.1:\d+), docs at \1/docs\n", line
    )
    assert match, line or process.communicate(timeout=20)[1]
    return match[1]


def wait_until_ready(address: str) -> None:
    assert httpx.get(f"{address}/livez").status_code == 200
    ends = time.monotonic() + _READY_S
    while (answer := httpx.get(f"{address}/readyz")).status_code != 200:
        assert time.monotonic() < ends, answer.text
        time.sleep(0.5)  # each request is a line of the log, and nobody reads those meanwhile


@ON_BOTH
def test_it_migrates_serves_and_stops(empty_database_url: str) -> None:
    with started(empty_database_url, "--port", "0") as process:
        address = address_of(process)
        wait_until_ready(address)
        made = httpx.post(f"{address}/v1/predictions", json=PREDICTION)
        assert httpx.get(address + made.headers["location"]).json() == made.json()
        assert_problem(
            httpx.post(f"{address}/v1/predictions", content=b"x" * 50_000_000), "body-too-large"
        )
    assert process.returncode == -signal.SIGTERM


@pytest.mark.long
@ON_BOTH
def test_several_may_start_on_an_empty_database(empty_database_url: str) -> None:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(started(empty_database_url, "--port", "0")) for _ in range(3)
        ]
        for process in processes:
            wait_until_ready(address_of(process))


@pytest.mark.long
def test_a_database_that_cannot_be_used_is_said_in_one_line() -> None:
    with started("postgresql://nobody@127.0.0.1:1/none", "--port", "0") as process:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "database cannot be used" in errors
        assert len(errors.strip().splitlines()) == 1


@pytest.mark.long
def test_a_database_of_a_newer_release_is_said_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "newer.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("create table alembic_version (version_num varchar(32) not null)")
        connection.execute("insert into alembic_version values ('9999')")
    with started(f"sqlite:///{file}", "--port", "0") as process:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "newer release" in errors
        assert "Traceback" not in errors


def test_a_setting_that_is_wrong_is_named() -> None:
    with started("mysql://h/n") as process:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 2
        assert "database_url" in errors
