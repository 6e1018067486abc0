from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import httpx
import pytest

from service.errors import KeyReused, StillRunning, Unavailable
from service.runtime.idempotency import CreatedResource, IdempotencyKey, IdempotentCreation
from service.runtime.leases import Leases
from service.store import Rows, Store, database
from service.store.idempotency_keys import IdempotencyKeys
from service.store.reports import ReportFilter
from service.store.tables import IdempotencyRow
from tests.service.asking import ON_BOTH, PREDICTION, REPORT, assert_problem, changed
from tests.service.processes import serving
from tests.waiting import LONG_S


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


def test_two_keys_are_refused(client) -> None:
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    problem = assert_problem(client.post("/v1/reports", json=REPORT, headers=headers), "bad-header")
    assert "Idempotency-Key" in problem["detail"]
    assert client.get("/v1/reports").json()["items"] == []


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


LEASE_S = 20.0


def creation(store: Store, lease_s: float = LEASE_S) -> IdempotentCreation:
    return IdempotentCreation(store, 3600, Leases(store, lease_s))


KEY = IdempotencyKey.of("k", "POST", "/x", "{}")


def make(document: dict) -> object:
    return lambda: lambda rows: CreatedResource("/x/1", document)


@ON_BOTH
def test_a_request_that_still_runs_is_not_run_twice(store: Store) -> None:
    started, finish = threading.Event(), threading.Event()

    def slow():
        started.set()
        finish.wait(LONG_S)
        return lambda rows: CreatedResource("/x/1", {"by": "first"})

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(creation(store).create, KEY, slow)
        started.wait(LONG_S)
        with pytest.raises(StillRunning):
            creation(store).create(KEY, make({"by": "second"}))
        with pytest.raises(KeyReused):
            creation(store).create(IdempotencyKey.of("k", "other"), make({}))
        finish.set()
        assert first.result().document == {"by": "first"}
    assert creation(store).create(KEY, make({"by": "third"})) == CreatedResource(
        "/x/1", {"by": "first"}, replayed=True
    )


def claimed(store: Store, left: timedelta, age: timedelta = timedelta(0)) -> None:
    """A claim of a process that has crashed, with so much left of its lease."""
    with store.writing() as rows:
        now = rows.now()
        row = IdempotencyRow(
            key=KEY.key,
            fingerprint=KEY.fingerprint,
            token="crashed",
            claimed_at=now - age,
            leased_until=now + left,
        )
        rows.idempotency_keys.claim(row)


@ON_BOTH
@pytest.mark.parametrize("left_s", [0.0, -1.0, LEASE_S + 60, -3600.0])
def test_the_key_of_a_crashed_process_is_taken_over_when_its_lease_is_over(
    store: Store, left_s: float
) -> None:
    """One that lasts longer than any lease is from before the clock was set back."""
    claimed(store, timedelta(seconds=left_s))
    assert creation(store).create(KEY, make({"by": "second"})).document == {"by": "second"}


@ON_BOTH
def test_the_key_of_a_process_is_held_for_the_time_of_its_lease(store: Store) -> None:
    claimed(store, timedelta(seconds=LEASE_S - 5))
    with pytest.raises(StillRunning):
        creation(store).create(KEY, make({}))


def test_a_claim_of_an_earlier_release_is_free(store: Store) -> None:
    claimed(store, timedelta(seconds=5))
    with store.writing() as rows:
        rows.idempotency_keys.find(KEY.key).leased_until = None
    assert creation(store).create(KEY, make({"by": "second"})).document == {"by": "second"}


def test_who_computes_for_longer_than_a_lease_keeps_the_key(store: Store) -> None:
    lease_s = 2.0  # renewed every half second, and a busy machine may be late by three halves
    started, finish = threading.Event(), threading.Event()

    def slow():
        started.set()
        finish.wait(LONG_S)
        return lambda rows: CreatedResource("/x/1", {"by": "first"})

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(creation(store, lease_s).create, KEY, slow)
        assert started.wait(LONG_S)
        time.sleep(1.2 * lease_s)
        with pytest.raises(StillRunning):
            creation(store, lease_s).create(KEY, make({"by": "second"}))
        finish.set()
        assert first.result().document == {"by": "first"}


@ON_BOTH
def test_who_was_taken_for_dead_creates_nothing(store: Store) -> None:
    """Its transaction ends with the key of another, and is undone as a whole."""

    def overtaken():
        with store.writing() as rows:
            row = rows.idempotency_keys.find(KEY.key)
            now = rows.now()
            assert rows.idempotency_keys.take_over(row, "another", now, now)
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


def after_first(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, then) -> None:
    """Does this once the key, or the clock, has been read for the first time."""
    read, first = getattr(owner, name), [then]

    def read_first(*arguments: object) -> object:
        found = read(*arguments)
        if first:
            first.pop()()
        return found

    monkeypatch.setattr(owner, name, read_first)


ON_POSTGRESQL = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
"""For tests of transactions that write at the same time."""


@ON_POSTGRESQL
def test_a_lease_that_began_after_the_clock_was_read_is_no_lease_of_a_clock_set_back(
    store: Store, monkeypatch
) -> None:
    """The other claims the key once the clock is read, and answers once its claim is read."""
    started, finish = threading.Event(), threading.Event()

    def slow():
        started.set()
        finish.wait(LONG_S)
        return lambda rows: CreatedResource("/x/1", {"by": "other"})

    with ThreadPoolExecutor(1) as pool:

        def claim() -> None:
            running.append(pool.submit(creation(store).create, KEY, slow))
            started.wait(LONG_S)
            after_first(monkeypatch, IdempotencyKeys, "find", answer)

        def answer() -> None:
            finish.set()
            running[0].result()

        running: list[Future[CreatedResource]] = []
        after_first(monkeypatch, Rows, "now", claim)
        with pytest.raises(StillRunning):
            creation(store).create(KEY, make({"by": "overtaken"}))
    assert creation(store).create(KEY, make({})).document == {"by": "other"}


@ON_POSTGRESQL
def test_who_finds_a_key_free_that_is_answered_meanwhile_gets_that_answer(
    store: Store, monkeypatch
) -> None:
    def answer() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(creation(store).create, KEY, make({"by": "other"})).result()

    after_first(monkeypatch, IdempotencyKeys, "find", answer)
    found = creation(store).create(KEY, make({"by": "overtaken"}))
    assert found == CreatedResource("/x/1", {"by": "other"}, replayed=True)


@ON_BOTH
@pytest.mark.parametrize("ends", ["answered", "renewed", "taken over"])
def test_a_claim_that_was_read_as_over_is_not_taken_over_where_it_has_changed_since(
    store: Store, monkeypatch, ends: str
) -> None:
    claimed(store, timedelta(0))
    with store.reading() as rows:
        before = rows.idempotency_keys.find(KEY.key)
    with store.writing() as rows:
        until = rows.now() + timedelta(seconds=LEASE_S - 1)
        if ends == "answered":
            rows.idempotency_keys.finish(KEY.key, "crashed", 201, "/x/1", {"by": "first"})
        if ends == "renewed":
            rows.idempotency_keys.renew(["crashed"], until)
        if ends == "taken over":
            assert rows.idempotency_keys.take_over(before, "another", rows.now(), until)
    reads = iter([before])
    find = IdempotencyKeys.find
    monkeypatch.setattr(
        IdempotencyKeys, "find", lambda keys, key: next(reads, None) or find(keys, key)
    )
    if ends == "answered":
        answer = creation(store).create(KEY, make({"by": "second"}))
        assert answer == CreatedResource("/x/1", {"by": "first"}, replayed=True)
    else:
        with pytest.raises(StillRunning):
            creation(store).create(KEY, make({"by": "second"}))


@pytest.mark.long
@ON_POSTGRESQL
def test_of_500_keys_sent_six_times_at_once_to_two_processes_each_is_stored_once(
    database_url: str,
) -> None:
    keys = [f"key-{number}" for number in range(500)]

    with serving(database_url) as one, serving(database_url) as other, ExitStack() as stack:
        clients = [
            stack.enter_context(httpx.Client(base_url=service.address, timeout=120))
            for service in [one, other] * 3
        ]

        def send(client: httpx.Client, key: str) -> tuple[int, str]:
            headers = {"Idempotency-Key": key}
            answer = client.post("/v1/reports", json={**REPORT, "source": key}, headers=headers)
            return answer.status_code, answer.json().get("id", "")

        with ThreadPoolExecutor(6) as pool:
            answers = [[*pool.map(send, clients, [key] * 6)] for key in keys]
    engine = database.connect(database_url)
    with Store(engine).reading() as rows:
        stored = Counter(report.source for report in rows.reports.for_summaries(ReportFilter()))
    engine.dispose()
    assert {status for same in answers for status, _ in same} <= {201, 409}
    assert all(len({id_ for status, id_ in same if status == 201}) == 1 for same in answers)
    assert stored == dict.fromkeys(keys, 1)


@ON_BOTH
def test_keys_are_forgotten_after_their_time(store: Store) -> None:
    claimed(store, timedelta(0), age=timedelta(hours=2))
    other = IdempotencyKey.of("other", "POST", "/x", "{}")
    creation(store).create(other, make({}))
    with store.reading() as rows:
        assert rows.idempotency_keys.find(KEY.key) is None
