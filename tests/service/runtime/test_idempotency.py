from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from service.errors import KeyReused, StillRunning, Unavailable
from service.runtime.idempotency import CreatedResource, IdempotencyKey, IdempotentCreation
from service.runtime.process_liveness import new_process_token, process_has_ended
from service.store import Store, database
from service.store.tables import IdempotencyRow
from tests.service.asking import ON_BOTH, PREDICTION, REPORT, assert_problem, changed


@ON_BOTH
def test_a_retry_gets_the_stored_answer(client) -> None:
    first, again = (
        client.post("/v1/reports", json=REPORT, headers={"Idempotency-Key": "a"}) for _ in range(2)
    )
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert len(client.get("/v1/reports").json()["items"]) == 1


def test_another_request_with_the_key_is_refused(client) -> None:
    headers = {"Idempotency-Key": "a"}
    client.post("/v1/reports", json=REPORT, headers=headers)
    other = client.post(
        "/v1/reports", json=changed(REPORT, "measured.step_time_s", 3.0), headers=headers
    )
    assert other.status_code == 422
    assert_problem(other, "key-reused")
    assert_problem(client.post("/v1/predictions", json=PREDICTION, headers=headers), "key-reused")


def test_the_order_of_members_does_not_make_another_request(client) -> None:
    headers = {"Idempotency-Key": "a"}
    client.post("/v1/predictions", json=PREDICTION, headers=headers)
    again = client.post("/v1/predictions", json=dict(reversed(PREDICTION.items())), headers=headers)
    assert again.headers["idempotency-replayed"] == "true"


def test_a_refused_request_leaves_its_key_free(client) -> None:
    headers = {"Idempotency-Key": "a"}
    bad = changed(PREDICTION, "layout.dp_shard", 3)
    assert client.post("/v1/predictions", json=bad, headers=headers).status_code == 422
    assert client.post("/v1/predictions", json=PREDICTION, headers=headers).status_code == 201


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "é"])
def test_a_key_that_cannot_be_read(client, key: str) -> None:
    answer = client.post(
        "/v1/reports", json=REPORT, headers={"Idempotency-Key": key.encode("latin-1")}
    )
    assert_problem(answer, "bad-header")


@ON_BOTH
def test_of_many_at_once_one_creates(client) -> None:
    def post(_: int) -> tuple[int, str]:
        answer = client.post("/v1/reports", json=REPORT, headers={"Idempotency-Key": "a"})
        return answer.status_code, answer.json().get("id", "")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, range(16)))
    assert {status for status, _ in answers} <= {201, 409}
    assert len({id_ for status, id_ in answers if status == 201}) == 1
    assert len(client.get("/v1/reports").json()["items"]) == 1


@pytest.fixture
def store(database_url: str):
    engine = database.connect(database_url)
    yield Store(engine)
    engine.dispose()


def creation(store: Store) -> IdempotentCreation:
    return IdempotentCreation(store, ttl_s=3600, in_flight_s=60)


KEY = IdempotencyKey.of("k", "POST", "/x", "{}")


def make(document: dict) -> object:
    return lambda: lambda rows: CreatedResource("/x/1", document)


@ON_BOTH
def test_a_request_that_still_runs_is_not_run_twice(store: Store) -> None:
    started, finish = threading.Event(), threading.Event()

    def slow():
        started.set()
        finish.wait(10)
        return lambda rows: CreatedResource("/x/1", {"by": "first"})

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(creation(store).create, KEY, slow)
        started.wait(10)
        with pytest.raises(StillRunning):
            creation(store).create(KEY, make({"by": "second"}))
        with pytest.raises(KeyReused):
            creation(store).create(IdempotencyKey.of("k", "other"), make({}))
        finish.set()
        assert first.result().document == {"by": "first"}
    assert creation(store).create(KEY, make({"by": "third"})) == CreatedResource(
        "/x/1", {"by": "first"}, replayed=True
    )


def claimed(store: Store, age: timedelta, token: str = "crashed") -> None:
    row = IdempotencyRow(
        key=KEY.key, fingerprint=KEY.fingerprint, token=token, claimed_at=datetime.now(UTC) - age
    )
    with store.writing() as rows:
        rows.idempotency_keys.claim(row)


@ON_BOTH
def test_the_key_of_a_crashed_process_is_taken_over(store: Store) -> None:
    claimed(store, timedelta(seconds=59))
    with pytest.raises(StillRunning):
        creation(store).create(KEY, make({}))
    with store.writing() as rows:
        rows.idempotency_keys.release(KEY.key, "crashed")
    claimed(store, timedelta(seconds=61))
    assert creation(store).create(KEY, make({"by": "second"})).document == {"by": "second"}


@ON_BOTH
def test_the_key_of_a_process_that_is_gone_from_this_host_is_free_at_once(store: Store) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host, here, started, request = new_process_token().rsplit("/", 3)
    claimed(store, timedelta(0), "/".join((host, str(ended.pid), started, request)))
    assert creation(store).create(KEY, make({"by": "second"})).document == {"by": "second"}


@pytest.mark.parametrize(
    ("host", "pid", "started", "gone"),
    [
        ("mine", "mine", "mine", False),
        ("mine", "mine", "before", True),
        ("mine", "of the one above", "before", False),
        ("elsewhere", "mine", "before", False),
        ("mine", "99999999999999999999", "before", False),
        ("mine", "", "", False),
    ],
)
def test_only_of_this_host_is_a_process_known_to_be_gone(
    host: str, pid: str, started: str, gone: bool
) -> None:
    mine = dict(zip(("host", "pid", "started"), new_process_token().rsplit("/", 3), strict=False))
    parts = {"host": host, "pid": pid, "started": started}
    parts = {name: mine[name] if value == "mine" else value for name, value in parts.items()}
    parts["pid"] = str(os.getppid()) if pid == "of the one above" else parts["pid"]
    assert process_has_ended("/".join((*parts.values(), "request"))) == gone


@ON_BOTH
def test_who_was_taken_for_dead_creates_nothing(store: Store) -> None:
    """Its transaction ends with the key of another, and is undone as a whole."""

    def overtaken():
        with store.writing() as rows:
            row = rows.idempotency_keys.find(KEY.key)
            rows.idempotency_keys.take_over(KEY.key, row.token, "another", datetime.now(UTC))
        return lambda rows: CreatedResource("/x/1", {})

    with pytest.raises(StillRunning):
        creation(store).create(KEY, overtaken)
    with store.reading() as rows:
        row = rows.idempotency_keys.find(KEY.key)
        assert (row.token, row.document) == ("another", None)


@ON_BOTH
def test_a_request_that_fails_with_the_database_leaves_its_key_free_once_that_is_back(
    store: Store, monkeypatch
) -> None:
    ours = creation(store)

    def lost():
        monkeypatch.setattr(store, "writing", refused)
        raise Unavailable

    def refused():
        raise Unavailable

    with pytest.raises(Unavailable):
        ours.create(KEY, lost)
    monkeypatch.undo()
    with pytest.raises(StillRunning):
        creation(store).create(KEY, make({}))  # another process
    assert ours.of(store).create(KEY, make({"by": "retry"})).document == {"by": "retry"}


@ON_BOTH
def test_a_request_that_was_answered_is_not_run_again_where_its_commit_seemed_to_fail(
    store: Store, monkeypatch
) -> None:
    writing = store.writing

    @contextmanager
    def committed_unheard():
        with writing() as rows:
            yield rows
            row = rows.idempotency_keys.find(KEY.key)
            answered = row is not None and row.status is not None
        if answered:
            raise Unavailable

    monkeypatch.setattr(store, "writing", committed_unheard)
    with pytest.raises(Unavailable):
        creation(store).create(KEY, make({"by": "first"}))
    monkeypatch.undo()
    assert creation(store).create(KEY, make({"by": "second"})).document == {"by": "first"}


@ON_BOTH
def test_keys_are_forgotten_after_their_time(store: Store) -> None:
    claimed(store, timedelta(hours=2))
    other = IdempotencyKey.of("other", "POST", "/x", "{}")
    creation(store).create(other, make({}))
    with store.reading() as rows:
        assert rows.idempotency_keys.find(KEY.key) is None
