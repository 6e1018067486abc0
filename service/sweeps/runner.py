"""Computes sweeps. A *sweep* is many questions that are asked as one job, and an *item* is one of
them, which waits in the database until it is computed.
Every process of the service has a runner, and all may work on one sweep. A runner leases items,
renews its leases while they are computed, and stores each result in one transaction with the end
of the lease. A runner that is gone renews nothing: others lease its items some seconds later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import suppress
from datetime import timedelta

from service.errors import ServiceError, Stopping
from service.identifiers import new_id
from service.metrics import SWEEP_ITEMS
from service.runtime.leases import RENEWALS
from service.schemas.sweep import ItemProblem
from service.store import Store
from service.store.sweeps import LeasedItem
from service.sweeps.answering import ItemAnswer
from service.sweeps.combinations import item_question
from service.sweeps.workers import Workers, WorkersGone

log = logging.getLogger(__name__)

_WAIT_S = 0.5  # for a result, before looking whether to stop
_LOOK_S = 1.0  # how often to look for items, unless a sweep is created in this process
_PAUSE_S = 5.0  # before trying again what failed
_MOST_PAUSE_S = 60.0  # to which pauses double while workers cannot compute
_STOP_S = 2.0
"""Seconds that a stop waits for the round to end, and then for the workers to close. A scheduler
that does not answer may hold both, and the leases are given back all the same."""
_MAX_ATTEMPTS = 4  # restarts and lost nodes end some; an item that ends each would block the sweep
_WORKER_ENDED = (
    f"the process that computed it ended {_MAX_ATTEMPTS} times, as one that needs too much memory"
    " does"
)


class SweepRunner:
    """Computes the items of sweeps. It begins once `is_ready`, which says that the cost model is
    compiled."""

    def __init__(
        self, store: Store, workers: Workers, lease_s: float, is_ready: Callable[[], bool]
    ) -> None:
        self._store = store
        self._workers = workers
        self._is_ready = is_ready
        self._lease_length = timedelta(seconds=lease_s)
        self._lease = new_id()  # tells this runner's leases from those of others
        self._running: dict[Future[ItemAnswer], LeasedItem] = {}
        self._renewed = time.monotonic()
        self._pause_s = 0.0
        """The length of the last pause; 0 once a worker has answered an item again."""
        self._resumes_at = 0.0
        """Nothing is leased before time.monotonic() reaches it."""
        self.waits_for: str | None = None
        """Why no items are leased, or None where they are."""
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweeps", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Wakes the runner, because there is something to do."""
        self._woken.set()

    def stop(self) -> None:
        """Stops the runner and its workers, and gives back the items that are under way, so that
        others may compute them at once."""
        self._stopping.set()
        self._woken.set()
        self._thread.join(_STOP_S)
        # In a thread, since workers that hang must not keep the service from ending.
        closing = threading.Thread(target=self._workers.close, name="close workers", daemon=True)
        closing.start()
        closing.join(_STOP_S)
        if self._running:
            # Other commits may be refused by now; this one cleans up, and is not.
            with suppress(ServiceError), self._store.writing(after_closing=True) as rows:
                rows.sweeps.release(self._lease, [*self._running.values()], is_attempt=False)

    def _run(self) -> None:
        """Waits until the cost model is compiled, then computes items until the runner is
        stopped. Errors are logged, and the next turn comes after a pause."""
        while not (self._stopping.is_set() or self._is_ready()):
            self._stopping.wait(_WAIT_S)
        while not self._stopping.is_set():
            try:
                self._work_once()
            except Stopping:
                return
            except ServiceError:  # the database does not answer, which the store has logged
                self._stopping.wait(_PAUSE_S)
            except Exception:
                log.exception("sweeps are not computed")
                self._stopping.wait(_PAUSE_S)

    def _work_once(self) -> None:
        """Stores finished items, leases new ones for idle workers, and waits for what comes next.

        Results come first, also those that the database could not store before. Leases are renewed
        before new ones are made. Otherwise this runner would lease its own items a second time once
        their leases have run out.
        """
        self._woken.clear()
        for future in [future for future in self._running if future.done()]:
            self._store_result(future, self._running[future])
            del self._running[future]
        if self._running and time.monotonic() - self._renewed >= self._renewal_period_s:
            self._renew()
        if time.monotonic() >= self._resumes_at:
            try:
                self._lease_items()
            except WorkersGone as error:
                self._pause(error)
        if self._running:
            wait(self._running, timeout=_WAIT_S, return_when=FIRST_COMPLETED)
        else:
            self._woken.wait(_LOOK_S)

    @property
    def _renewal_period_s(self) -> float:
        """Returns the seconds between renewals of leases."""
        return self._lease_length.total_seconds() / RENEWALS

    def _lease_items(self) -> None:
        """Leases as many waiting items as workers have free slots, and hands them over."""
        with self._store.reading() as rows:
            if not rows.sweeps.any_free(rows.now()):
                return
        # Asked only once an item is free, because a Dask scheduler has to answer it.
        free_slots = self._workers.slots() - len(self._running)
        if free_slots <= 0:
            return
        with self._store.writing() as rows:
            now = rows.now()
            leased = rows.sweeps.lease(self._lease, now, now + self._lease_length, free_slots)
        self.waits_for = None  # the workers can be reached
        for item in leased:
            try:
                self._hand_out(item)
            except WorkersGone as error:
                self._give_back([item], is_attempt=False)
                self._pause(error)

    def _pause(self, error: WorkersGone) -> None:
        """Leases nothing for a while, which doubles each time until an item is answered. Workers
        that refuse every item at once would otherwise use up its attempts within seconds."""
        if time.monotonic() < self._resumes_at:
            return
        # The first pause, after 0, is _PAUSE_S.
        self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S) or _PAUSE_S
        self._resumes_at = time.monotonic() + self._pause_s
        self.waits_for = str(error)
        reason = {"reason": self.waits_for, "tried_again_in_s": self._pause_s}
        log.warning("sweeps wait for workers", extra=reason)

    def _hand_out(self, item: LeasedItem) -> None:
        """Hands an item to a worker. An item whose worker ended too often has failed."""
        if item.attempts > _MAX_ATTEMPTS:  # the lease of this attempt is counted already
            problem = ItemProblem(type="/problems/internal", detail=_WORKER_ENDED)
            self._finish(item, ItemAnswer("failed", problem.model_dump(mode="json")))
            return
        with self._store.reading() as rows:
            sweep = rows.sweeps.find(item.sweep_id)
        if sweep is not None:  # None: it has been removed
            # Names in the sweep are looked up among what its owner sees.
            store = self._store.of(sweep.tenant, sees_all=sweep.sees_all)
            future = self._workers.submit(store, item_question(sweep.request, item.position))
            self._running[future] = item

    def _store_result(self, future: Future[ItemAnswer], item: LeasedItem) -> None:
        """Stores the answer of an item. Gives the item back, to be computed again, where its worker
        was lost or the database did not answer it."""
        try:
            answer = future.result()
        except WorkersGone as error:
            self._give_back([item], is_attempt=False)
            self._pause(error)
            return
        except (Exception, CancelledError) as error:  # noqa: BLE001  whatever a lost worker raises
            # The item itself may have ended its worker, so that the attempt counts.
            log.warning("the worker of an item is lost", extra={"reason": repr(error)[:500]})
            self._give_back([item], is_attempt=True)
            return
        self._pause_s = 0.0
        if answer.outcome == "waiting":
            log.warning("an item of a sweep waits", extra={"reason": answer.result["detail"]})
            self._give_back([item], is_attempt=False)
            self._stopping.wait(_LOOK_S)
        else:
            self._finish(item, answer)

    def _give_back(self, items: list[LeasedItem], *, is_attempt: bool) -> None:
        """Ends the leases of items, so that they wait again. Unless `is_attempt`, the attempt does
        not count toward _MAX_ATTEMPTS."""
        with self._store.writing() as rows:
            rows.sweeps.release(self._lease, items, is_attempt=is_attempt)

    def _finish(self, item: LeasedItem, answer: ItemAnswer) -> None:
        """Stores the answer of an item, and counts it unless another runner has finished the item
        already."""
        with self._store.writing() as rows:
            is_stored = rows.sweeps.finish(
                self._lease, item, answer.outcome, answer.result, rows.now()
            )
        if is_stored:
            SWEEP_ITEMS.labels(answer.outcome).inc()

    def _renew(self) -> None:
        """Extends the leases of all items under way."""
        with self._store.writing() as rows:
            until = rows.now() + self._lease_length
            rows.sweeps.renew(self._lease, [*self._running.values()], until)
        self._renewed = time.monotonic()
