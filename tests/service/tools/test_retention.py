"""Old answers that no report refers to are dropped, and nothing else."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, make_url, select, update
from starlette.testclient import TestClient

from service import api_keys
from service.errors import NotFound
from service.store import Store, database
from service.store.tables import PredictionRow, RecommendationRow, SweepItemRow, SweepRow
from service.tools import retention
from service.tools.retention import Dropped, drop_old_answers
from tests.paths import ROOT
from tests.service.asking import ON_BOTH, PREDICTION, QUESTION, REPORT, assert_problem, changed
from tests.service.sweeps.conftest import SWEEP
from tests.waiting import wait_for

AGE = timedelta(days=90)


def asked(client: TestClient, path: str, chips: int, days_ago: int, **headers: str) -> str:
    """The location of an answer that was given so many days ago."""
    body = PREDICTION if path == "predictions" else QUESTION
    question = changed(body, "workload.global_batch", chips)
    answer = client.post(f"/v1/{path}", json=question, headers=headers)
    assert answer.status_code == 201, answer.text
    location: str = answer.headers["location"]
    make_older(client, location, days_ago)
    return location


def make_older(client: TestClient, location: str, days: int) -> None:
    row: Any = PredictionRow if "predictions" in location else RecommendationRow
    store: Store = client.app.state.services.store
    with store.writing() as rows:
        at = datetime.now(UTC) - timedelta(days=days)
        id_ = location.rpartition("/")[2]
        rows._session.execute(update(row).where(row.id == id_).values(created_at=at))


def missing(client: TestClient, location: str) -> bool:
    """Whether an answer is gone from the database, whatever is in memory."""
    store: Store = client.app.state.services.store
    with store.reading() as rows:
        try:
            rows.answers.at_location(location)
        except NotFound:
            return True
    return False


def test_old_answers_are_dropped_unless_a_report_refers_to_them(client: TestClient) -> None:
    old = [asked(client, "predictions", 64, 91), asked(client, "predictions", 128, 91)]
    young = asked(client, "predictions", 256, 89)
    linked = asked(client, "predictions", 512, 400)
    report = {
        "prediction_id": linked.rpartition("/")[2],
        "outcome": "ok",
        "measured": {"step_time_s": 20.0},
    }
    answer = client.post("/v1/reports", json=report)
    assert answer.status_code == 201, answer.text
    reported = answer.headers["location"]
    store: Store = client.app.state.services.store
    dropped = drop_old_answers(store, AGE)
    assert (dropped.recommendations, dropped.predictions) == (0, 2)
    assert [missing(client, location) for location in (*old, young, linked)] == [
        True,
        True,
        False,
        False,
    ]
    assert client.get(reported).status_code == 200
    newest = client.get("/v1/audit").json()["items"][0]
    assert (newest["action"], newest["details"]["predictions"]) == ("answers.dropped", 2)
    assert drop_old_answers(store, AGE).predictions == 0


@ON_BOTH
def test_a_text_is_kept_as_long_as_any_answer_has_it(make_client) -> None:
    client = make_client()
    first = asked(client, "predictions", 64, 91)
    store: Store = client.app.state.services.store
    again = client.post("/v1/predictions", json=changed(PREDICTION, "workload.global_batch", 64))
    assert again.headers["location"] != first  # which is too old to be given again
    drop_old_answers(store, AGE)
    assert missing(client, first)
    kept = client.get(again.headers["location"])
    assert kept.json()["layouts"] == again.json()["layouts"]
    make_older(client, again.headers["location"], 91)
    drop_old_answers(store, AGE)
    with store.reading() as rows:
        assert (
            rows._session.connection().exec_driver_sql("select count(*) from answer_texts").scalar()
            == 0
        )


def ended_sweep(client: TestClient, days_ago: int | None) -> str:
    """The id of a sweep, created long ago, that was cancelled so many days ago, if at all."""
    sweep = client.post("/v1/sweeps", json=SWEEP).raise_for_status().json()
    now = datetime.now(UTC)
    times: dict[str, datetime] = {"created_at": now - timedelta(days=400)}
    if days_ago is not None:
        client.post(f"{sweep['location']}/cancel").raise_for_status()
        times["finished_at"] = now - timedelta(days=days_ago)
    store: Store = client.app.state.services.store
    with store.writing() as rows:
        rows._session.execute(update(SweepRow).where(SweepRow.id == sweep["id"]).values(**times))
    return str(sweep["id"])


@ON_BOTH
def test_sweeps_that_ended_long_ago_are_dropped_with_their_items(make_client) -> None:
    client = make_client(sweep_processes=0)
    old, young, running, again = (ended_sweep(client, days) for days in (91, 89, None, 91))
    store: Store = client.app.state.services.store
    before = datetime.now(UTC) - AGE
    with store.reading() as rows:
        assert {*rows.retention.ended_sweeps(before)} == {old, again}
    client.post(f"/v1/sweeps/{again}/retry").raise_for_status()
    with store.reading() as rows:
        assert rows.retention.ended_sweeps(before, "somebody else") == []
    with store.writing() as rows:  # as where it is tried again while others are dropped
        assert not rows.retention.drop_sweep(again, before)
    assert drop_old_answers(store, AGE).sweeps == 1
    assert_problem(client.get(f"/v1/sweeps/{old}"), "not-found")
    left = [sweep["id"] for sweep in client.get("/v1/sweeps").json()["items"]]
    assert left == [again, running, young]
    with store.reading() as rows:
        items = select(SweepItemRow.sweep_id, func.count()).group_by(SweepItemRow.sweep_id)
        assert dict(rows._session.execute(items).all()) == dict.fromkeys(left, 8)
    newest = client.get("/v1/audit").json()["items"][0]
    assert (newest["action"], newest["details"]["sweeps"]) == ("answers.dropped", 1)


def test_a_retry_of_what_was_dropped_is_a_new_request(client: TestClient) -> None:
    headers = {"Idempotency-Key": "k"}
    first = asked(client, "predictions", 64, 91, **headers)
    store: Store = client.app.state.services.store
    with store.writing() as rows:
        key = rows.idempotency_keys.find("k")
        key.claimed_at = datetime.now(UTC) - timedelta(days=91)
    drop_old_answers(store, AGE)
    question = changed(PREDICTION, "workload.global_batch", 64)
    again = client.post("/v1/predictions", json=question, headers=headers)
    assert again.status_code == 201
    assert again.headers["location"] != first


def test_answers_that_are_given_again_are_not_dropped(client: TestClient) -> None:
    with pytest.raises(ValueError, match="at least 1d"):
        drop_old_answers(client.app.state.services.store, timedelta(hours=23))


@pytest.mark.long
def test_batches_leave_room_for_writers(client: TestClient, monkeypatch) -> None:
    locations = [asked(client, "predictions", 64 * (i + 1), 91) for i in range(5)]
    monkeypatch.setattr(retention, "_BATCH", 2)
    monkeypatch.setattr(retention, "_PAUSE_S", 0.0)
    store: Store = client.app.state.services.store
    began = []
    writing = store.writing

    def counted(*given: Any) -> Any:
        began.append(given)
        return writing(*given)

    monkeypatch.setattr(store, "writing", counted)
    assert drop_old_answers(store, AGE).predictions == 5
    assert all(missing(client, location) for location in locations)
    assert len(began) >= 1 + 3 + 1  # keys, three batches of predictions, one of recommendations


def test_the_service_drops_by_itself_where_an_age_is_set(make_client) -> None:
    location = asked(make_client(), "predictions", 64, 91)
    client = make_client(retention_days=90)
    wait_for(lambda: missing(client, location))


def test_a_file_of_sqlite_becomes_smaller(database_url: str) -> None:
    store = Store(database.connect(database_url))
    file = make_url(database_url).database or ""
    with store.writing() as rows:
        for i in range(20):
            row = PredictionRow(
                id=f"old-{i}",
                created_at=datetime.now(UTC) - 2 * AGE,
                profile_id="default",
                profile_version=1,
                document={"filler": os.urandom(10_000).hex()},
            )
            rows._session.add(row)
    store.give_space_back()  # of the write-ahead log
    before = os.path.getsize(file)
    dropped = drop_old_answers(store, AGE)
    assert dropped == Dropped(0, 20, 0, 0, dropped.freed_bytes)
    assert dropped.freed_bytes > 350_000
    assert os.path.getsize(file) == before - dropped.freed_bytes


@pytest.mark.long
def test_the_command_says_what_it_dropped_and_compacts_files_of_earlier_releases(
    make_client, database_url: str
) -> None:
    client = make_client()
    locations = [asked(client, path, 64, 91) for path in ("predictions", "recommendations")]
    file = make_url(database_url).database or ""
    with closing(sqlite3.connect(file)) as earlier:
        earlier.execute("pragma auto_vacuum = none")
        earlier.execute("vacuum")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "service.tools.retention", *arguments],
            env={**os.environ, "SHARDWRIGHT_DATABASE_URL": database_url},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    said = run("--older-than", "90d").stdout
    assert re.match(
        r"dropped 1 recommendations, 1 predictions, 0 checks and 0 sweeps, and gave 0\.0 MiB back",
        said,
    )
    assert "keeps its size until it is compacted" in said
    assert all(missing(client, location) for location in locations)
    assert "the file is compact" in run("--older-than", "90d", "--compact").stdout
    assert "keeps its size" not in run("--older-than", "90d").stdout
    api_keys.create(client.app.state.services.store, "team-a", ["recommend"])
    assert "dropped 0" in run("--older-than", "0m", "--tenant", "team-a").stdout
    unknown = run("--older-than", "0m", "--tenant", "team-b")
    assert (unknown.returncode, "did you mean 'team-a'?" in unknown.stderr) == (2, True)
    for wrong in ("90", "5y", "2h", "-1d"):
        refused = run(f"--older-than={wrong}")
        assert refused.returncode == 2
        assert "must be" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_report_may_not_refer_to_what_is_dropped(client: TestClient) -> None:
    location = asked(client, "predictions", 64, 91)
    drop_old_answers(client.app.state.services.store, AGE)
    link = {"prediction_id": location.rpartition("/")[2]}
    answer = client.post(
        "/v1/reports", json={**link, "outcome": "ok", "measured": REPORT["measured"]}
    )
    assert_problem(answer, "not-found")
