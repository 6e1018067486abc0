"""`python -m service` as an operator starts it."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from service.__main__ import main
from tests.service.asking import (
    ON_BOTH,
    ON_POSTGRESQL_FIRST,
    PREDICTION,
    REPORT,
    assert_problem,
)
from tests.service.processes import is_spawned, serving, starting
from tests.waiting import LONG_S, wait_for


@ON_POSTGRESQL_FIRST
def test_a_process_migrates_serves_and_stops(empty_database_url: str) -> None:
    with serving(empty_database_url) as service:
        assert service.request("GET", "/livez").status_code == 200
        made = service.request("POST", "/v1/predictions", json=PREDICTION)
        assert service.request("GET", made.headers["location"]).json() == made.json()
        large = service.request("POST", "/v1/predictions", content=b"x" * 50_000_000)
        assert_problem(large, "body-too-large")
        forwarded = {"X-Forwarded-For": "203.0.113.9"}
        assert service.request("GET", "/livez", headers=forwarded).status_code == 200
        service.stop()
        assert service.process.wait(LONG_S) == 0
        assert "203.0.113.9" not in service.errors(), "believed from whom nobody trusts"


@pytest.mark.long
def test_a_proxy_that_is_trusted_says_who_asks(database_url: str) -> None:
    with serving(database_url, trusted_proxies="127.0.0.0/8") as service:
        forwarded = {"X-Forwarded-For": "203.0.113.9"}
        assert service.request("GET", "/livez", headers=forwarded).status_code == 200
        service.stop()  # a line of the log follows its answer, so that it may come a moment later
        assert service.process.wait(LONG_S) == 0
        assert '"client": "203.0.113.9"' in service.errors()


@pytest.mark.long
@ON_BOTH
def test_several_may_start_on_an_empty_database(empty_database_url: str) -> None:
    with ExitStack() as stack:
        services = [stack.enter_context(starting(empty_database_url)) for _ in range(3)]
        for service in services:
            service.read_address()
            service.wait_until_ready()


@pytest.mark.long
@ON_BOTH
def test_several_processes_serve_one_port(database_url: str) -> None:
    with serving(database_url, workers=2) as service:
        first = service.children()
        made = [service.request("POST", "/v1/reports", json=REPORT).json() for _ in range(8)]
        for report in made:
            found = service.request("GET", f"/v1/reports/{report['id']}")
            assert found.status_code == 200
        os.kill(first[0], signal.SIGKILL)  # it is replaced, and the others serve meanwhile
        wait_for(lambda: len(set(service.children()) - set(first)) == 1)
        service.wait_until_ready()
        service.stop()
        assert service.process.wait(LONG_S) == 0


@pytest.mark.long
def test_nothing_serves_on_for_a_service_that_was_killed(database_url: str) -> None:
    with serving(database_url, workers=2, stop_grace_s=0) as service:
        workers = service.children()
        service.kill()
        wait_for(lambda: not any(is_spawned(worker) for worker in workers))
        with pytest.raises(httpx.TransportError):
            service.request("GET", "/livez")


@pytest.mark.long
def test_a_database_that_cannot_be_used_is_said_in_one_line() -> None:
    with starting("postgresql://nobody@127.0.0.1:1/none") as service:
        assert service.process.wait(LONG_S) == 1
        assert "database cannot be used" in service.errors()
        assert len(service.errors().strip().splitlines()) == 1


@pytest.mark.long
def test_a_database_of_a_newer_release_is_said_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "newer.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("create table alembic_version (version_num varchar(32) not null)")
        connection.execute("insert into alembic_version values ('9999')")
    with starting(f"sqlite:///{file}") as service:
        assert service.process.wait(LONG_S) == 1
        assert "newer release" in service.errors()
        assert "Traceback" not in service.errors()


def test_a_setting_that_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_DATABASE_URL", "mysql://h/n")
    monkeypatch.setattr("sys.argv", ["service", "--port", "0"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "database_url" in capsys.readouterr().err
