"""The steps of one request that creates something. They begin with its Idempotency-Key and end with
what is stored; between them lies an earlier answer, or a turn to compute.

A *prepared* resource exists already, or is a function that writes its rows. A *turn* lets a request
compute (service.runtime.admission). A *flight* is a computation that several requests wait for
(service.runtime.single_flight).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from anyio.to_thread import run_sync

from service.runtime.admission import AdmissionControl, IsDisconnected, Turn
from service.runtime.deadline import Wait
from service.runtime.idempotency import (
    ANSWERED_BEFORE,
    CreatedResource,
    IdempotencyKey,
    IdempotentCreation,
    Prepared,
)
from service.runtime.single_flight import SingleFlight

Q = TypeVar("Q")


@dataclass(frozen=True, slots=True)
class Unanswered(Generic[Q]):
    """A question without an earlier answer, as it was resolved to look for one."""

    question: Q


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """Creates what a request asks for, once per Idempotency-Key. What blocks runs in threads."""

    store: IdempotentCreation
    admission: AdmissionControl
    """The turns to search."""
    flights: SingleFlight[CreatedResource]
    """Questions that are being answered."""
    key: IdempotencyKey | None
    tenant: str | None
    wait: Wait | None
    """The time that the caller waits; None where it does not say."""
    is_disconnected: IsDisconnected

    def create(self, prepare: Callable[[], Prepared]) -> CreatedResource:
        """Creates what `prepare` computes, in the thread of the caller."""
        return self.store.create(self.key, prepare)

    async def earlier_answer(self) -> CreatedResource | None:
        """Returns what an earlier request with the same Idempotency-Key was answered with; None
        where there was none."""
        if self.key is None:
            return None
        return await run_sync(self.store.earlier_answer, self.key)

    async def create_in_turn(
        self, prepare: Callable[[Turn], Prepared], admission: AdmissionControl | None = None
    ) -> CreatedResource:
        """Creates a resource that takes long to compute, once `admission` lets it in, by default
        that of searches. A retry gets its earlier answer without waiting."""
        if (earlier := await self.earlier_answer()) is not None:
            return earlier
        admission = admission or self.admission
        async with admission.admit(self.is_disconnected, self.tenant, self.wait) as turn:
            return await run_sync(self.create, partial(prepare, turn))

    async def answer_once(
        self,
        key: str,
        look_up: Callable[[], Prepared | Unanswered[Q]],
        compute: Callable[[Q, Turn], Prepared],
    ) -> CreatedResource:
        """Returns the answer to the question of this key, in five steps:

        1. A retry gets what its Idempotency-Key was answered with.
        2. Of requests that ask it at one time the first computes, and the others wait for it.
        3. The first looks for an answer that was given before.
        4. Where there is none, it waits for a turn and computes.
        5. The others store the answer as given before, each under its Idempotency-Key.

        `look_up` returns an earlier answer, or else the resolved question; `compute` answers that
        question.
        """
        if (earlier := await self.earlier_answer()) is not None:
            return earlier
        lead = partial(self._find_or_compute, look_up, compute)
        # Tenants do not share a flight: each may get another answer.
        answer, is_own = await self.flights.run((self.tenant, key), lead, self.is_disconnected)
        if is_own:
            return answer
        return await self._create_prepared(replace(answer, status=ANSWERED_BEFORE))

    async def _find_or_compute(
        self,
        look_up: Callable[[], Prepared | Unanswered[Q]],
        compute: Callable[[Q, Turn], Prepared],
        is_abandoned: IsDisconnected,
    ) -> CreatedResource:
        """Returns an earlier answer to the question, or computes one in a turn. `is_abandoned` says
        whether every client that waits for it is gone."""
        earlier = await run_sync(look_up)
        if not isinstance(earlier, Unanswered):
            return await self._create_prepared(earlier)
        async with self.admission.admit(is_abandoned, self.tenant, self.wait) as turn:
            return await run_sync(self.create, partial(compute, earlier.question, turn))

    async def _create_prepared(self, prepared: Prepared) -> CreatedResource:
        """Creates a resource that needs no computing any more."""
        return await run_sync(self.create, lambda: prepared)
