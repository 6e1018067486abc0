"""Computes what several requests ask for at the same time once, for all of them. Such a shared
computation is a *flight*."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from models.errors import DomainError
from service.errors import ClientGone
from service.runtime.admission import IsDisconnected

T = TypeVar("T")

Compute = Callable[[IsDisconnected], Awaitable[T]]
"""A computation, which is given a function that says whether all of its clients are gone."""


class _Flight(Generic[T]):
    """One computation, and the clients that wait for it, each by the function that says whether it
    is gone."""

    def __init__(self, compute: Compute[T], is_disconnected: IsDisconnected) -> None:
        self.clients = [is_disconnected]
        # A task of its own goes on when the request that began it ends.
        self.task = asyncio.ensure_future(compute(self.is_abandoned))

    async def is_abandoned(self) -> bool:
        """Returns whether every client of the flight has gone away."""
        for is_disconnected in list(self.clients):
            if not await is_disconnected():
                return False
            self.clients.remove(is_disconnected)
        return True


class SingleFlight(Generic[T]):
    """Computations in flight by what they compute. All requests run on one event loop."""

    def __init__(self) -> None:
        self._flights = dict[Hashable, _Flight[T]]()

    async def run(
        self, key: Hashable, compute: Compute[T], is_disconnected: IsDisconnected
    ) -> tuple[T, bool]:
        """Returns the result of `compute`, and True if this request computed it. Of requests with
        one key, the first computes and the others wait for its result.

        A DomainError is about the question, and is raised for all who wait. Any other failure is
        raised for the first request only, and the next one computes again. Raises ClientGone if the
        client of that next request is gone.
        """
        # A failed flight is gone when its waiters wake: one of them begins the next.
        while (flight := self._flights.get(key)) is not None:
            flight.clients.append(is_disconnected)
            try:
                return await asyncio.shield(flight.task), False
            except DomainError:
                raise
            except Exception:  # noqa: BLE001  it is raised for the first client
                if await is_disconnected():
                    raise ClientGone from None
        flight = self._flights[key] = _Flight(compute, is_disconnected)
        flight.task.add_done_callback(lambda task: self._land(key, task))
        return await asyncio.shield(flight.task), True

    def _land(self, key: Hashable, task: asyncio.Future[T]) -> None:
        """Forgets a computation that has ended, so that the next request computes again. Marks its
        error as seen, since asyncio logs errors that nobody has awaited."""
        del self._flights[key]
        if not task.cancelled():
            task.exception()  # a client was told of it, or all are gone
