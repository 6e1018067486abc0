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
from service.runtime.process_liveness import is_gone, new_token
from service.store import Rows, Store
from service.store.tables import IdempotencyRow

CREATED = 201


@dataclass(frozen=True, slots=True)
class Created:
    """What now lies at `location`. `replayed`: an earlier request with the same key made it."""

    location: str
    document: dict[str, Any]
    replayed: bool = False


Save = Callable[[Rows], Created]
"""The last step of a use case: writes its rows in the one transaction of the request."""


@dataclass(frozen=True, slots=True)
class Key:
    """An Idempotency-Key and what tells its request from others."""

    key: str
    fingerprint: str

    @classmethod
    def of(cls, key: str, *parts: str) -> Key:
        return cls(key, digest(*parts))


class Creation:
    def __init__(self, store: Store, ttl_s: float, in_flight_s: float) -> None:
        self._store = store
        self._ttl, self._in_flight = timedelta(seconds=ttl_s), timedelta(seconds=in_flight_s)
        self._failed = set[tuple[str, str]]()
        """Keys and tokens of requests that failed, to be released."""

    def of(self, store: Store) -> Creation:
        """The same for what this store makes."""
        other = copy(self)
        other._store = store
        return other

    def create(self, key: Key | None, prepare: Callable[[], Save]) -> Created:
        """`prepare` computes outside of any transaction; what it returns is committed with the
        answer to the key."""
        if key is None:
            return self._run(prepare, lambda rows, created: None)
        token = new_token()
        if (earlier := self._claim(key, token)) is not None:
            return earlier
        with self._released_on_failure(key, token):
            return self._run(
                prepare,
                lambda rows, created: rows.keys.finish(
                    key.key, token, CREATED, created.location, created.document
                ),
            )

    def earlier(self, key: Key) -> Created | None:
        """The answer that an earlier request with this key got. Claims nothing."""
        now = datetime.now(UTC)
        with self._store.reading() as rows:
            row = rows.keys.find(key.key)
            return (
                None
                if row is None or row.claimed_at < now - self._ttl
                else self._answered(row, key, now)
            )

    def _run(self, prepare: Callable[[], Save], finish: Callable[[Rows, Created], None]) -> Created:
        save = prepare()
        with self._store.writing() as rows:
            created = save(rows)
            finish(rows, created)
        return created

    def _claim(self, key: Key, token: str) -> Created | None:
        """The earlier answer, or None where the request is ours to run."""
        self._release()
        now = datetime.now(UTC)
        with self._store.writing() as rows:
            rows.keys.purge(now - self._ttl, now - self._in_flight)
            row = rows.keys.find(key.key)
            if row is None:
                claimed = {
                    "key": key.key,
                    "fingerprint": key.fingerprint,
                    "token": token,
                    "claimed_at": now,
                }
                rows.keys.claim(IdempotencyRow(**claimed))
                return None
            if (earlier := self._answered(row, key, now)) is not None:
                return earlier
            rows.keys.take_over(key.key, row.token, token, now)
            return None

    def _answered(self, row: IdempotencyRow, key: Key, now: datetime) -> Created | None:
        """None where the claim is of a process that crashed."""
        if row.fingerprint != key.fingerprint:
            raise KeyReused
        if row.location is not None and row.document is not None:
            return Created(row.location, row.document, replayed=True)
        if row.claimed_at > now - self._in_flight and not is_gone(row.token):
            raise StillRunning
        return None

    @contextmanager
    def _released_on_failure(self, key: Key, token: str) -> Iterator[None]:
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
                    rows.keys.release(key, token)
            self._failed.difference_update(failed)
