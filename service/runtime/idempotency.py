"""Requests that create: committed once, and once per Idempotency-Key."""

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
    """What now lies at `location`. `replayed`: an earlier request with the same key made it."""

    location: str
    document: dict[str, Any]
    replayed: bool = False


SaveRows = Callable[[Rows], CreatedResource]
"""The last step of a use case: writes its rows in the one transaction of the request."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """An Idempotency-Key and what tells its request from others."""

    key: str
    fingerprint: str

    @classmethod
    def of(cls, key: str, *parts: str) -> IdempotencyKey:
        return cls(key, digest(*parts))


class IdempotentCreation:
    def __init__(self, store: Store, ttl_s: float, in_flight_s: float) -> None:
        self._store = store
        self._ttl, self._in_flight = timedelta(seconds=ttl_s), timedelta(seconds=in_flight_s)
        self._failed = set[tuple[str, str]]()
        """Keys and tokens of requests that failed, to be released."""

    def of(self, store: Store) -> IdempotentCreation:
        """The same for what this store makes."""
        other = copy(self)
        other._store = store
        return other

    def create(
        self, key: IdempotencyKey | None, prepare: Callable[[], SaveRows]
    ) -> CreatedResource:
        """`prepare` computes outside of any transaction; what it returns is committed with the
        answer to the key."""
        if key is None:
            return self._run(prepare, lambda rows, created: None)
        token = new_process_token()
        if (earlier_answer := self._claim(key, token)) is not None:
            return earlier_answer
        with self._released_on_failure(key, token):
            return self._run(
                prepare,
                lambda rows, created: rows.idempotency_keys.finish(
                    key.key, token, CREATED, created.location, created.document
                ),
            )

    def earlier_answer(self, key: IdempotencyKey) -> CreatedResource | None:
        """The answer that an earlier request with this key got. Claims nothing."""
        now = datetime.now(UTC)
        with self._store.reading() as rows:
            row = rows.idempotency_keys.find(key.key)
            return (
                None
                if row is None or row.claimed_at < now - self._ttl
                else self._answered(row, key, now)
            )

    def _run(
        self, prepare: Callable[[], SaveRows], finish: Callable[[Rows, CreatedResource], None]
    ) -> CreatedResource:
        save = prepare()
        with self._store.writing() as rows:
            created = save(rows)
            finish(rows, created)
        return created

    def _claim(self, key: IdempotencyKey, token: str) -> CreatedResource | None:
        """The earlier answer, or None where the request is ours to run."""
        self._release()
        now = datetime.now(UTC)
        with self._store.writing() as rows:
            rows.idempotency_keys.purge(now - self._ttl, now - self._in_flight)
            row = rows.idempotency_keys.find(key.key)
            if row is None:
                claimed = {
                    "key": key.key,
                    "fingerprint": key.fingerprint,
                    "token": token,
                    "claimed_at": now,
                }
                rows.idempotency_keys.claim(IdempotencyRow(**claimed))
                return None
            if (earlier_answer := self._answered(row, key, now)) is not None:
                return earlier_answer
            rows.idempotency_keys.take_over(key.key, row.token, token, now)
            return None

    def _answered(
        self, row: IdempotencyRow, key: IdempotencyKey, now: datetime
    ) -> CreatedResource | None:
        """None where the claim is of a process that crashed."""
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
            self._failed.add((key.key, token))
            self._release()
            raise

    def _release(self) -> None:
        """Also what could not be released before, as the database was gone."""
        if failed := [*self._failed]:
            with self._store.writing() as rows:
                for key, token in failed:
                    rows.idempotency_keys.release(key, token)
            self._failed.difference_update(failed)
