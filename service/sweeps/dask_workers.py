"""The workers of a Dask cluster. Each has the code of the service and settings of its own, of which
it reads the one of the database."""

from __future__ import annotations

from concurrent.futures import Future
from functools import cache
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_limits

from service.settings import from_environment
from service.store import Store, database
from service.sweeps.answering import ItemAnswer, answer_item
from service.sweeps.workers import WorkersGone

if TYPE_CHECKING:
    from distributed import Client

_CONNECT_S = 5
_UNDER_WAY = 2  # for each thread of a worker, so that it finds the next item when it is done


class DaskWorkers:
    """The connection to a scheduler is made when it is first needed, and again when it was lost."""

    def __init__(self, scheduler: str) -> None:
        self._scheduler = scheduler
        self._client: Client | None = None

    def slots(self) -> int:
        client = self._connected()
        threads = sum(client.nthreads().values())
        if threads == 0:
            raise WorkersGone(f"the Dask scheduler at {self._scheduler} has no workers")
        return _UNDER_WAY * threads

    def submit(self, store: Store, question: dict[str, Any]) -> Future[ItemAnswer]:
        executor = self._connected().get_executor(pure=False)
        return executor.submit(_answer_on_worker, store.tenant, store.sees_all, question)

    def close(self) -> None:
        if self._client is not None:
            self._client.close(timeout=1)
            self._client = None

    def _connected(self) -> Client:
        """The client of the scheduler. Raises WorkersGone where it does not answer."""
        from distributed import Client  # of an extra, so that others start without it

        if self._client is not None and self._client.status != "running":
            self.close()
        if self._client is None:
            try:
                self._client = Client(self._scheduler, timeout=_CONNECT_S, set_as_default=False)
            except (OSError, TimeoutError) as error:
                raise WorkersGone(f"no Dask scheduler at {self._scheduler}: {error}") from None
        return self._client


def _answer_on_worker(tenant: str | None, sees_all: bool, question: dict[str, Any]) -> ItemAnswer:
    with threadpool_limits(1, user_api="blas"):
        return answer_item(_store().of(tenant, sees_all=sees_all), question)


@cache
def _store() -> Store:
    """The database of the worker's own settings, connected once for all of its items."""
    settings = from_environment()
    return Store(database.connect(settings.database_url, settings.database_wait_s))
