"""Idempotent creation: a POST is committed once, and a retry with the same Idempotency-Key gets the
stored answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from service.errors import KeyReused, StillRunning
from service.identifiers import digest
from service.runtime.process_liveness import new_process_token, process_has_ended
from service.store import Rows, Store
from service.store.tables import IdempotencyRow

CREATED = 201


@dataclass(frozen=True, slots=True)
class CreatedResource:
    """What a request created, and where it lies now."""

    location: str
    document: dict[str, Any]
    replayed: bool = False
    """Whether an earlier request made it: one with the same key, or with the same log."""


SaveRows = Callable[[Rows], CreatedResource]
"""The last step of a use case: writes its rows in the one transaction of the request."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    key: str
    fingerprint: str
    """Digest of the request. A key that comes again with another fingerprint is refused."""

    @classmethod
    def of(cls, key: str, *parts: str) -> IdempotencyKey:
        """The key of a request that these parts tell from all others."""
        return cls(key, digest(*parts))


class IdempotentCreation:
    """Creates resources, each in one transaction together with the answer to its key.

    A request claims its key before it computes. `ttl_s` is how long an answer is kept, and
    `in_flight_s` after how long a claim without an answer counts as that of a crashed process.
    """

    def __init__(self, store: Store, ttl_s: float, in_flight_s: float) -> None:
        self._store = store
        self._ttl = timedelta(seconds=ttl_s)
        self._in_flight = timedelta(seconds=in_flight_s)
        self._unreleased = set[tuple[str, str]]()
        """Keys and tokens of requests that failed, whose claims are still to be released."""

    def of(self, store: Store) -> IdempotentCreation:
        """The same on the store of a tenant. Both share the claims to be released."""
        other = copy(self)
        other._store = store
        return other

    def create(
        self, key: IdempotencyKey | None, prepare: Callable[[], SaveRows]
    ) -> CreatedResource:
        """Creates what `prepare` computes, unless an earlier request with the key already has.

        `prepare` runs outside of any transaction; what it returns writes the rows. Raises KeyReused
        or StillRunning.
        """
        if key is None:
            return self._run(prepare, lambda rows, created: None)
        token = new_process_token()
        earlier = self._claim(key, token)
        if earlier is not None:
            return earlier
        with self._released_on_failure(key, token):
            return self._run(
                prepare,
                lambda rows, created: rows.idempotency_keys.finish(
                    key.key, token, CREATED, created.location, created.document
                ),
            )

    def earlier_answer(self, key: IdempotencyKey) -> CreatedResource | None:
        """The answer that an earlier request with this key got, if any. Claims nothing."""
        now = datetime.now(UTC)
        with self._store.reading() as rows:
            row = rows.idempotency_keys.find(key.key)
            if row is None or row.claimed_at < now - self._ttl:
                return None
            return self._stored_answer(row, key, now)

    def _run(
        self,
        prepare: Callable[[], SaveRows],
        finish: Callable[[Rows, CreatedResource], None],
    ) -> CreatedResource:
        save = prepare()
        with self._store.writing() as rows:
            created = save(rows)
            finish(rows, created)
        return created

    def _claim(self, key: IdempotencyKey, token: str) -> CreatedResource | None:
        """The answer of an earlier request, or None once this request holds the key."""
        self._release()
        now = datetime.now(UTC)
        with self._store.writing() as rows:
            rows.idempotency_keys.purge(now - self._ttl, now - self._in_flight)
            row = rows.idempotency_keys.find(key.key)
            if row is None:
                claim = IdempotencyRow(
                    key=key.key, fingerprint=key.fingerprint, token=token, claimed_at=now
                )
                rows.idempotency_keys.claim(claim)
                return None
            earlier = self._stored_answer(row, key, now)
            if earlier is None:
                rows.idempotency_keys.take_over(key.key, row.token, token, now)
            return earlier

    def _stored_answer(
        self, row: IdempotencyRow, key: IdempotencyKey, now: datetime
    ) -> CreatedResource | None:
        """The answer stored for a key, or None where the process that claimed it has crashed."""
        if row.fingerprint != key.fingerprint:
            raise KeyReused
        if row.location is not None and row.document is not None:
            return CreatedResource(row.location, row.document, replayed=True)
        if row.claimed_at > now - self._in_flight and not process_has_ended(row.token):
            raise StillRunning
        return None

    @contextmanager
    def _released_on_failure(self, key: IdempotencyKey, token: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._unreleased.add((key.key, token))
            self._release()
            raise

    def _release(self) -> None:
        """Releases the claims of requests that failed, those included that could not be released
        before, because the database was gone."""
        if failed := [*self._unreleased]:
            with self._store.writing() as rows:
                for key, token in failed:
                    rows.idempotency_keys.release(key, token)
            self._unreleased.difference_update(failed)
