"""Leases of the Idempotency-Keys that requests of this process hold.

A request claims its key while it computes. The claim says until when it is held, by the clock of
the database. Its process renews it again and again. Once the process has ended, its claims run out
within seconds, whatever host it ran on, and the keys are free. No process needs to know of another.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from service.errors import ServiceError
from service.store import Store

log = logging.getLogger(__name__)

RENEWALS = 4
"""Renewals of a lease in its time, so that one or two of them may fail."""


class Leases:
    """The claims that are held, each by its token. A thread renews them while there are any."""

    def __init__(self, store: Store, lease_s: float) -> None:
        self.length = timedelta(seconds=lease_s)
        self._store = store
        self._lock = threading.Lock()
        self._held = set[str]()
        self._released = set[str]()
        """Tokens of claims that are still to be released in the database."""
        self._is_renewing = False
        self._ended = threading.Event()

    @contextmanager
    def held(self, token: str) -> Iterator[None]:
        """Renews the claim of a token while the block runs, and releases it if the block fails.
        After success the key keeps its answer, or the caller releases it."""
        self._begin(token)
        try:
            yield
        except BaseException:
            self.release(token)
            raise
        finally:
            self._held.discard(token)

    def release(self, token: str) -> None:
        """Releases a claim, now or as soon as the database can be used again."""
        self._released.add(token)
        with suppress(ServiceError):
            self.catch_up()

    def catch_up(self) -> None:
        """Releases claims that could not be released earlier, because the database did not
        answer."""
        if released := [*self._released]:
            with self._store.writing() as rows:
                rows.idempotency_keys.release(released)
            self._released.difference_update(released)

    def release_all(self) -> None:
        """Releases every claim, also after the store is closed to other writes. It is safe to let
        other processes take the keys, because this one can commit nothing any more."""
        self._ended.set()
        if tokens := [*self._held, *self._released]:
            with self._store.writing(after_closing=True) as rows:
                rows.idempotency_keys.release(tokens)

    def _begin(self, token: str) -> None:
        """Adds a claim to those that are renewed, and starts the renewing thread where none
        runs."""
        with self._lock:
            self._held.add(token)
            if self._is_renewing:
                return
            self._is_renewing = True
        threading.Thread(target=self._renew_all, name="renew leases", daemon=True).start()

    def _renew_all(self) -> None:
        """Renews the held leases periodically, until none is held: this thread then ends."""
        while not self._ended.wait(self.length.total_seconds() / RENEWALS):
            # Under the lock, so that a claim that begins now is in `held`, or starts a new thread.
            with self._lock:
                held = [*self._held]
                self._is_renewing = bool(held)
            if not held:
                return
            try:
                with self._store.writing() as rows:
                    rows.idempotency_keys.renew(held, rows.now() + self.length)
            except ServiceError as error:  # one or two renewals may fail
                log.warning("leases are not renewed", extra={"reason": str(error)})
