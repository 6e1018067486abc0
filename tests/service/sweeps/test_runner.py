"""Runners, and the leases that several of them share."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from service.schemas.sweep import SweepRequest
from service.store import Store
from service.store.sweeps import LeasedItem
from service.sweeps import runner
from service.sweeps.answering import ItemAnswer
from service.sweeps.sweeps import Sweeps
from service.sweeps.workers import WorkersGone
from tests.service.asking import ON_BOTH
from tests.service.sweeps.conftest import REFUSED, SWEEP, Answers, Held, Run
from tests.waiting import LONG_S, wait_for

LEASE = timedelta(seconds=10)
OK = ItemAnswer("infeasible", {"type": "/problems/infeasible", "detail": "for a test"})


def created(store: Store, **changes: Any) -> str:
    save = Sweeps(store, lambda: None).prepare(SweepRequest.model_validate({**SWEEP, **changes}))
    with store.writing() as rows:
        return str((save(rows).document or {})["id"])


def lease(store: Store, name: str, limit: int, later: timedelta = timedelta()) -> list[LeasedItem]:
    with store.writing() as rows:
        now = rows.now() + later
        return rows.sweeps.lease(name, now, now + LEASE, limit)


def finish(store: Store, name: str, item: LeasedItem, outcome: str = "refused") -> bool:
    with store.writing() as rows:
        return rows.sweeps.finish(name, item, outcome, REFUSED.result, rows.now())


def any_free(store: Store) -> bool:
    with store.reading() as rows:
        return rows.sweeps.any_free(rows.now())


def outcomes(store: Store, id_: str) -> dict[str, int]:
    counts: dict[str, int] = Sweeps(store, lambda: None).get(id_)["outcomes"]
    return counts


@ON_BOTH
def test_an_item_is_leased_to_one(store: Store) -> None:
    created(store)
    first, second = lease(store, "a", 5), lease(store, "b", 5)
    assert (len(first), len(second)) == (5, 3)
    assert not {item.position for item in first} & {item.position for item in second}
    assert lease(store, "c", 5) == []


def test_what_is_not_renewed_is_leased_again(store: Store) -> None:
    created(store)
    lost, kept = lease(store, "a", 1), lease(store, "b", 1)
    with store.writing() as rows:
        rows.sweeps.renew("b", kept, rows.now() + 3 * LEASE)
    again = lease(store, "c", 8, later=2 * LEASE)
    assert lost[0].position in {item.position for item in again}
    assert kept[0].position not in {item.position for item in again}


@ON_BOTH
def test_a_result_is_stored_once(store: Store) -> None:
    """Of the runner that holds the lease: the other one was taken for dead, and comes late."""
    id_ = created(store)
    (item,) = lease(store, "a", 1)
    (same,) = lease(store, "b", 1, later=2 * LEASE)
    assert same.position == item.position
    assert not finish(store, "a", item)
    assert finish(store, "b", same)
    assert not finish(store, "b", same)
    with store.reading() as rows:
        sweep = rows.sweeps.get(id_)
        assert (sweep.events, sweep.waiting) == (1, sweep.total - 1)


@ON_BOTH
def test_what_was_cancelled_or_removed_stores_nothing(store: Store) -> None:
    cancelled, removed = created(store), created(store)
    items = {item.sweep_id: item for item in lease(store, "a", 2)}
    with store.writing() as rows:
        rows.sweeps.cancel(cancelled, rows.now())
        rows.sweeps.remove(removed)
    assert not finish(store, "a", items[cancelled])
    assert not finish(store, "a", items[removed])
    assert outcomes(store, cancelled) == {"cancelled": 8}


def test_a_small_sweep_does_not_wait_behind_a_large_one(store: Store) -> None:
    large = created(store, constraints=[{"pp": pp} for pp in (1, 2, 4, 8)])
    lease(store, "a", 4)
    small = created(store)
    assert {item.sweep_id for item in lease(store, "b", 4)} == {small}
    assert {item.sweep_id for item in lease(store, "b", 8)} == {small, large}


def test_what_failed_or_was_cancelled_is_tried_again(store: Store) -> None:
    id_ = created(store)
    failed, refused = lease(store, "a", 2)
    finish(store, "a", failed, "failed")
    finish(store, "a", refused, "refused")
    sweeps = Sweeps(store, lambda: None)
    assert sweeps.cancel(id_)["outcomes"] == {"failed": 1, "refused": 1, "cancelled": 6}
    again = sweeps.retry(id_)
    assert (again["state"], again["outcomes"]) == ("running", {"refused": 1, "waiting": 7})
    assert len(lease(store, "b", 10)) == 7


def test_every_item_is_answered(store: Store, run: Run) -> None:
    id_ = created(store)
    asked: list[dict[str, Any]] = []

    def answer(question: dict[str, Any]) -> ItemAnswer:
        asked.append(question)
        return OK

    run(Answers(answer, slots=3))
    wait_for(lambda: outcomes(store, id_) == {"infeasible": 8})
    assert len(asked) == 8
    assert Sweeps(store, lambda: None).get(id_)["state"] == "finished"


def test_an_item_whose_worker_is_lost_is_tried_again(store: Store, run: Run) -> None:
    id_ = created(store)
    failures = iter(range(3))

    def answer(_: dict[str, Any]) -> ItemAnswer:
        if next(failures, None) is not None:
            raise ConnectionResetError
        return OK

    run(Answers(answer))
    wait_for(lambda: outcomes(store, id_) == {"infeasible": 8})


def test_an_item_that_ends_every_worker_fails_alone(store: Store, run: Run) -> None:
    id_ = created(store)

    def answer(question: dict[str, Any]) -> ItemAnswer:
        if question["model"] == "llama-3-8b" and question["stack"] == "maxtext":
            raise MemoryError
        return OK

    run(Answers(answer, slots=2))
    wait_for(lambda: outcomes(store, id_) == {"infeasible": 6, "failed": 2})


def test_workers_that_cannot_compute_pause_the_sweep_and_fail_no_item(
    store: Store, run: Run, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(runner, "_PAUSE_S", 0.1)
    monkeypatch.setattr(runner, "_WAIT_S", 0.02)
    monkeypatch.setattr(runner, "_LOOK_S", 0.02)
    id_ = created(store)
    asked: list[dict[str, Any]] = []
    are_whole = threading.Event()

    def answer(question: dict[str, Any]) -> ItemAnswer:
        asked.append(question)
        if not are_whole.is_set():
            raise WorkersGone("no module named service")
        return OK

    paused = run(Answers(answer, slots=2))
    wait_for(lambda: caplog.text.count("sweeps wait for workers") >= 4)
    assert len(asked) <= 2 * 5
    assert outcomes(store, id_) == {"waiting": 8}
    sweeps = Sweeps(store, lambda: None, lambda: paused.waits_for)
    assert sweeps.get(id_)["waits_for"] == "no module named service"
    are_whole.set()
    wait_for(lambda: outcomes(store, id_) == {"infeasible": 8})
    assert sweeps.get(id_)["waits_for"] is None


def test_a_stop_waits_neither_for_workers_that_stand_still_nor_for_their_end(
    store: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leases of what was under way are free at once all the same."""
    monkeypatch.setattr(runner, "_STOP_S", 0.2)

    class Still(Held):
        def slots(self) -> int:
            if stands_still.is_set():
                stands.set()
                stuck.wait(LONG_S)
            return 8

        def close(self) -> None:
            stuck.wait(LONG_S)

    stands_still, stands, stuck = (threading.Event() for _ in range(3))
    created(store)
    stopped = run(Still(lambda _: OK))
    wait_for(lambda: not any_free(store))
    stands_still.set()
    created(store)
    assert stands.wait(LONG_S)
    began = time.monotonic()
    stopped.stop()
    assert time.monotonic() - began < LONG_S / 2  # nobody was waited for: they wait for LONG_S
    assert len(lease(store, "other", 16)) == 16
    stuck.set()


def test_a_runner_that_stops_gives_its_items_back(store: Store, run: Run) -> None:
    created(store)
    runner = run(Held(lambda _: OK, slots=8))
    wait_for(lambda: not any_free(store))
    runner.stop()
    given_back = lease(store, "other", 8)
    assert len(given_back) == 8
    assert {item.attempts for item in given_back} == {1}


def test_results_wait_until_the_disk_has_room(store: Store, run: Run, monkeypatch, caplog) -> None:
    """Leases still find room, but results do not. Nothing is computed twice for that."""
    monkeypatch.setattr(runner, "_PAUSE_S", 0.05)
    id_ = created(store)
    has_room = threading.Event()

    def limit_size(connection: Any, *_: object) -> None:
        pages = 2**30 if has_room.is_set() else 1  # fewer than there are: the file cannot grow
        connection.execute(f"pragma max_page_count = {pages}")

    event.listen(store._engine, "checkout", limit_size)
    asked: list[dict[str, Any]] = []

    def answer(question: dict[str, Any]) -> ItemAnswer:
        asked.append(question)
        return ItemAnswer("infeasible", {**OK.result, "detail": "x" * 10**5})

    run(Answers(answer, slots=9), lease_s=0.05)
    wait_for(lambda: caplog.text.count("database has no room left") >= 4)
    assert outcomes(store, id_) == {"waiting": 8}
    has_room.set()
    wait_for(lambda: outcomes(store, id_) == {"infeasible": 8})
    assert len(asked) == 8


@pytest.mark.long
def test_a_lease_is_renewed_while_its_item_is_computed(store: Store, run: Run) -> None:
    created(store)
    lease_s = 3.0  # a busy machine may renew it late by two thirds of that
    run(Held(lambda _: OK, slots=8), lease_s=lease_s)
    wait_for(lambda: not any_free(store))
    with pytest.raises(AssertionError):
        wait_for(lambda: any_free(store), within_s=1.5 * lease_s)
