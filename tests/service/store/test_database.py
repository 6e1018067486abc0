from __future__ import annotations

import socket
import threading
import time

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text, update
from sqlalchemy.exc import IntegrityError

from service.errors import Unavailable
from service.identifiers import log_hash, run_hash
from service.resolve.profiles import seed
from service.store import Store, database
from service.store.reports import ReportFilter
from service.store.tables import ReportRow, Table
from tests.long import one_in
from tests.service.asking import ON_BOTH, ON_POSTGRESQL_FIRST, PREDICTION, QUESTION, changed


@ON_BOTH
def test_migrations_go_up_down_and_up_again(empty_database_url: str) -> None:
    engine = database.connect(empty_database_url)
    database.migrate(engine)
    database.downgrade(engine, "base")
    assert inspect(engine).get_table_names() == ["alembic_version"]
    database.migrate(engine)
    assert {*Table.metadata.tables} <= {*inspect(engine).get_table_names()}
    engine.dispose()


def test_migrations_keep_the_rows_that_refer_to_others(client, database_url: str) -> None:
    """Every one of them, down and up: SQLite drops and copies tables to which rows refer."""
    made = client.post("/v1/predictions", json=PREDICTION).json()
    client.post("/v1/recommendations", json=changed(QUESTION, "cluster.num_chips", 16))
    report = {"prediction_id": made["id"], "outcome": "ok", "measured": {"step_time_s": 2.0}}
    sent = client.post("/v1/reports", json=report).json()
    engine = database.connect(database_url)
    revisions = [f"{number:04}" for number in range(1, int(Store(engine).revision()))]
    for revision in reversed(revisions):
        database.downgrade(engine, revision)
    for revision in revisions:
        database.migrate(engine, revision)
    database.migrate(engine)
    assert client.get(f"/v1/reports/{sent['id']}").json()["prediction_id"] == made["id"]
    with engine.connect() as connection, pytest.raises(IntegrityError):
        connection.execute(text("update reports set prediction_id = 'none'"))  # they count again
    engine.dispose()


@ON_BOTH
def test_the_migrated_schema_is_that_of_the_tables(empty_database_url: str) -> None:
    engine = database.connect(empty_database_url)
    database.migrate(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Table.metadata) == []
    engine.dispose()


@ON_BOTH
def test_a_database_without_tables_is_not_at_head(empty_database_url: str, caplog) -> None:
    engine = database.connect(empty_database_url)
    caplog.set_level("INFO", "alembic")
    assert Store(engine).state() == "not at the head of its migrations"
    assert caplog.records == []  # probes ask every few seconds
    database.migrate(engine)
    assert "Running upgrade" in caplog.text
    caplog.clear()
    assert Store(engine).state() == "ok"
    assert caplog.records == []
    engine.dispose()


@ON_BOTH
@pytest.mark.parametrize(
    ("lost", "table"),
    [
        ("alter table reports drop column choice", "reports"),
        ("drop table benchmarks", "benchmarks"),
    ],
)
def test_a_database_that_lacks_what_its_revision_promises_is_not_ready(
    client, database_url: str, lost: str, table: str
) -> None:
    assert client.get("/readyz").status_code == 200
    engine = database.connect(database_url)
    with engine.connect() as connection, database.writing(connection):
        connection.execute(text(lost))
    engine.dispose()
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["database"] == f"at the head of its migrations, but without all of {table}"


@ON_BOTH
def test_many_may_start_at_once(empty_database_url: str) -> None:
    failures: list[BaseException] = []

    def start() -> None:
        engine = database.connect(empty_database_url)
        try:
            database.migrate(engine)
            seed(Store(engine))
        except BaseException as error:  # noqa: BLE001  shown by the test
            failures.append(error)
        finally:
            engine.dispose()

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    engine = database.connect(empty_database_url)
    with Store(engine).reading() as rows:
        assert [row.version for row in rows.profiles.versions("default")] == [1]
    engine.dispose()


_FULL = 2  # https://www.sqlite.org/pragma.html#pragma_synchronous


@pytest.mark.parametrize(
    ("pragma", "value"), [("foreign_keys", 1), ("journal_mode", "wal"), ("synchronous", _FULL)]
)
def test_sqlite_keeps_references_lets_readers_read_and_outlives_a_power_cut(
    tmp_path, pragma: str, value: object
) -> None:
    engine = database.connect(f"sqlite:///{tmp_path / 'x.db'}")
    with engine.connect() as connection:
        assert connection.execute(text(f"pragma {pragma}")).scalar() == value
    engine.dispose()


@ON_POSTGRESQL_FIRST
def test_the_choice_of_earlier_reports_is_found_where_they_were_submitted(
    client, database_url: str
) -> None:
    made = client.post(
        "/v1/recommendations", json=changed(QUESTION, "cluster.num_chips", 16)
    ).json()
    ran = {"recommendation_id": made["id"], "outcome": "crashed"}
    for report in ({**ran, "choice": "fastest"}, ran):
        assert client.post("/v1/reports", json=report).status_code == 201
    engine = database.connect(database_url)
    with engine.begin() as connection:  # as they were
        connection.execute(update(ReportRow).values(choice=None, document={}))
    database.downgrade(engine, "0007")
    database.migrate(engine)
    with Store(engine).reading() as rows:
        found = rows.reports.newest(ReportFilter(), 2)
        assert [(row.choice, row.document) for row in found] == [
            (None, {}),
            ("fastest", {"choice": "fastest"}),
        ]
    engine.dispose()


@pytest.mark.parametrize("said", one_in(2, ["", "?connect_timeout=2"]))
def test_a_silent_postgresql_is_not_waited_for_forever(monkeypatch, said: str) -> None:
    monkeypatch.setitem(database._LIBPQ_TIMEOUTS, "connect_timeout", 600 if said else 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = Store(
            database.connect(f"postgresql+psycopg://u@127.0.0.1:{silent.getsockname()[1]}/d{said}")
        )
        began = time.monotonic()
        with pytest.raises(Unavailable), store.reading() as rows:
            rows.profiles.all()
        assert time.monotonic() - began < 30


@pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
@pytest.mark.parametrize("keeps_time", [True, False])
def test_a_statement_that_takes_too_long_is_given_up(
    database_url: str, monkeypatch, keeps_time: bool
) -> None:
    """Also where the server does not see to it, as one that is frozen."""
    # A server that keeps the time has much of it, as a busy one says late that it is over.
    monkeypatch.setattr(database, "_SILENCE_S", 20.0 if keeps_time else 0.2)
    options = "" if keeps_time else "&options=-c%20statement_timeout%3D0"
    store = Store(database.connect(database_url + options, wait_s=1.0))
    began = time.monotonic()
    expected = "takes too long" if keeps_time else "does not answer"
    with pytest.raises(Unavailable, match=expected), store.reading() as rows:
        rows._session.execute(text("select pg_sleep(60)"))
    assert time.monotonic() - began < 30
    with store.reading() as rows:  # on another connection, if need be
        assert rows.profiles.all()
    store.close()


@ON_POSTGRESQL_FIRST
def test_earlier_logs_are_known_when_they_come_again(client, database_url: str) -> None:
    log = "".join(f"completed step: {step}, seconds: 2.0, loss: 9.1\n" for step in range(6))
    sent = {**changed(PREDICTION, "stack", "maxtext"), "log": log}
    assert not client.post("/v1/reports/logs", json=sent).json()["repeated"]
    engine = database.connect(database_url)
    database.downgrade(engine, "0009")
    database.migrate(engine)
    with Store(engine).reading() as rows:
        (row,) = rows.reports.newest(ReportFilter(), 2)
        assert row.run_hash == run_hash(row.document["request"])
        assert row.log_hash == log_hash(log, row.run_hash, row.outcome)
    engine.dispose()
    assert client.post("/v1/reports/logs", json=sent).json()["repeated"]


@ON_POSTGRESQL_FIRST
def test_earlier_answers_are_listed_in_brief(client, database_url: str) -> None:
    client.post("/v1/recommendations", json=changed(QUESTION, "cluster.num_chips", 16))
    client.post("/v1/predictions", json=PREDICTION)
    lists = [client.get(f"/v1/{kind}").json() for kind in ("recommendations", "predictions")]
    engine = database.connect(database_url)
    database.downgrade(engine, "0010")
    database.migrate(engine)
    engine.dispose()
    assert [
        client.get(f"/v1/{kind}").json() for kind in ("recommendations", "predictions")
    ] == lists
    assert lists[0]["items"][0]["result"]["chips_used"] == 16


def test_a_process_goes_on_after_another_has_migrated_to_a_newer_release(
    client, database_url: str
) -> None:
    engine = database.connect(database_url)
    with engine.connect() as connection, database.writing(connection):
        connection.exec_driver_sql("update alembic_version set version_num = '9999'")
    engine.dispose()
    not_ready = client.get("/readyz")
    assert not_ready.status_code == 503
    assert "not at the head of its migrations" in not_ready.text
    assert client.post("/v1/predictions", json=PREDICTION).status_code == 201
