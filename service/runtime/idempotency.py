"""Idempotent creation: a POST is committed once, and a retry with the same Idempotency-Key gets the
stored answer.

A request *claims* its key before it computes, under a *token* that is its own. Until it is answered
it holds a *lease*, which runs out soon after its process has ended (service.runtime.leases).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from service.errors import KeyReused, NotFound, StillRunning
from service.identifiers import digest, new_id
from service.runtime.leases import Leases
from service.store import Rows, Store
from service.store.answer_text import AnswerText
from service.store.tables import IdempotencyRow

CREATED = 201
ANSWERED_BEFORE = 200
"""The status of an answer that the tenant has been given before."""
_CLAIM_TRIES = 3
"""Attempts to claim a key that other requests change meanwhile. The second attempt finds what the
other request did, unless that was undone since."""


@dataclass(frozen=True, slots=True)
class CreatedResource:
    """A resource that a request created, and its address now."""

    location: str
    document: dict[str, Any] | None
    """None where `text` is what was created."""
    replayed: bool = False
    """True where an earlier request made it: one with an equal key, or with an equal log."""
    text: AnswerText | None = None
    status: int = CREATED

    @property
    def content(self) -> dict[str, Any]:
        """Returns the created resource as a document, whether it is kept as one or as text."""
        return self.text.document if self.text is not None else self.document or {}


SaveRows = Callable[[Rows], CreatedResource]
"""The last step of a use case: writes its rows in the one transaction of the request."""
Prepared = SaveRows | CreatedResource
"""A function that writes the rows of a new resource, or the resource that an earlier request has
written."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The Idempotency-Key of a request, and what tells that request from others."""

    key: str
    fingerprint: str
    """Digest of the request. A key that comes again with another fingerprint is refused."""

    @classmethod
    def of(cls, key: str, *parts: str) -> IdempotencyKey:
        """Returns the key of a request, with the fingerprint of its `parts`, such as path and
        body."""
        return cls(key, digest(*parts))


class IdempotentCreation:
    """Creates resources, each in one transaction together with the answer to its key.

    A request claims its key before it computes, and holds a lease of it while it does. `ttl_s` is
    how long an answer is kept.
    """

    def __init__(self, store: Store, ttl_s: float, leases: Leases) -> None:
        self._store = store
        self._ttl = timedelta(seconds=ttl_s)
        self._leases = leases

    def of(self, store: Store) -> IdempotentCreation:
        """Returns a copy that writes to this store, such as that of a tenant."""
        other = copy(self)
        other._store = store
        return other

    def create(
        self, key: IdempotencyKey | None, prepare: Callable[[], Prepared]
    ) -> CreatedResource:
        """Creates the resource that `prepare` computes, unless an earlier request with this key
        already has, whose answer is then returned.

        `prepare` runs outside of any transaction, and returns the resource or a function that
        writes its rows. Raises KeyReused, or StillRunning while another request holds the key.
        """
        if key is None:
            return self._create_from(prepare)
        token = new_id()
        earlier = self._claim(key, token)
        if earlier is not None:
            return earlier
        with self._leases.held(token):
            return self._create_from(
                prepare,
                # Stores the answer to the key in the transaction that writes the resource.
                lambda rows, created: rows.idempotency_keys.finish(
                    key.key, token, created.status, created.location, created.document
                ),
            )

    @contextmanager
    def holding(self, name: str) -> Iterator[None]:
        """Holds a lock by this name, among all processes, while the block runs. Raises StillRunning
        where another holds it."""
        token = new_id()
        self._claim(IdempotencyKey.of(name), token)  # such a claim never has an answer
        with self._leases.held(token):
            yield
        self._leases.release(token)  # after a failure `held` has released it

    def earlier_answer(self, key: IdempotencyKey) -> CreatedResource | None:
        """Returns the answer that an earlier request with this key got; None where there is none.
        Does not claim the key."""
        with self._store.reading() as rows:
            row = rows.idempotency_keys.find(key.key)
            now = rows.now()
            if row is None or row.claimed_at < now - self._ttl:  # expired, and not purged yet
                return None
            return self._stored_answer(rows, row, key, now)

    def _create_from(
        self,
        prepare: Callable[[], Prepared],
        finish: Callable[[Rows, CreatedResource], None] | None = None,
    ) -> CreatedResource:
        """Returns the resource that `prepare` makes. Writes its rows in one transaction. `finish`
        stores the answer to the Idempotency-Key in the same transaction; None without a key."""
        prepared = prepare()
        # The resource exists already, and there is no key to store it under: nothing is written.
        if isinstance(prepared, CreatedResource) and finish is None:
            return prepared
        with self._store.writing() as rows:
            created = prepared if isinstance(prepared, CreatedResource) else prepared(rows)
            if finish is not None:
                finish(rows, created)
        return created

    def _claim(self, key: IdempotencyKey, token: str) -> CreatedResource | None:
        """Claims the key for this request, which holds it under `token`, and returns None. If an
        earlier request has been answered, returns that answer. Raises KeyReused, or StillRunning
        where another request holds the key."""
        self._leases.catch_up()  # this very key may be among those still to be released
        with self._store.writing() as rows:
            now = rows.now()
            rows.idempotency_keys.purge(now - self._ttl, now)
            # Another request may claim the key after it was read as free: it is then read again.
            for _ in range(_CLAIM_TRIES):
                row = rows.idempotency_keys.find(key.key)
                # The time is read after the row, so that no lease in the row was made later.
                now = rows.now()
                earlier = None if row is None else self._stored_answer(rows, row, key, now)
                if earlier is not None:
                    return earlier
                if self._claim_free_key(rows, row, key, token, now):
                    return None
        raise StillRunning

    def _claim_free_key(
        self, rows: Rows, row: IdempotencyRow | None, key: IdempotencyKey, token: str, now: datetime
    ) -> bool:
        """Claims a key that was read as free; returns False where another request was faster. `row`
        is the key's expired claim, if it has one."""
        until = now + self._leases.length
        if row is not None:
            return rows.idempotency_keys.take_over(row, token, now, until)
        claim = IdempotencyRow(
            key=key.key,
            fingerprint=key.fingerprint,
            token=token,
            claimed_at=now,
            leased_until=until,
        )
        return rows.idempotency_keys.claim(claim)

    def _stored_answer(
        self, rows: Rows, row: IdempotencyRow, key: IdempotencyKey, now: datetime
    ) -> CreatedResource | None:
        """Returns the answer stored for a key. None where the answer has been dropped, or the
        request that claimed the key is gone. Raises KeyReused where the key came with another
        request, and StillRunning while that request runs."""
        if row.fingerprint != key.fingerprint:
            raise KeyReused
        if row.location is not None:  # the request was answered
            status = row.status or CREATED
            if row.document is not None:
                return CreatedResource(row.location, row.document, replayed=True, status=status)
            try:  # the text is kept with the answer, which may be dropped
                text = rows.answers.at_location(row.location).text
            except NotFound:
                return None
            return CreatedResource(row.location, None, replayed=True, text=text, status=status)
        # A lease that ends later than any made now dates from before the clock was set back, and no
        # longer counts.
        if row.leased_until and now < row.leased_until <= now + self._leases.length:
            raise StillRunning
        return None
