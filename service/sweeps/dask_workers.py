"""The workers of a Dask cluster, which compute items (single questions) of sweeps, the jobs of many
questions. Each has the code of the service, and settings of its own that say how to reach the
database."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_limits

from service.settings import from_environment
from service.store import Store, database
from service.sweeps.answering import ItemAnswer, answer_item
from service.sweeps.workers import WorkersGone

if TYPE_CHECKING:
    from distributed import Client
    from distributed import Future as DaskFuture

_CONNECT_S = 5  # a scheduler that runs answers in milliseconds
_FETCH_S = 30  # for an answer of some kilobytes, also where it is computed anew for a lost worker
_UNDER_WAY = 2  # items for each thread of a worker, so that the next one waits there


class DaskWorkers:
    """Computes items on a Dask cluster. The connection to its scheduler is made when it is first
    needed, and again when it was lost."""

    def __init__(self, scheduler: str) -> None:
        self._scheduler = scheduler
        self._client: Client | None = None
        self._unanswered: set[Future[ItemAnswer]] = set()

    def slots(self) -> int:
        """Returns how many items the workers may have at once: those that they compute, and one
        for each thread that waits there. Raises WorkersGone where there is no scheduler or no
        worker."""
        client = self._connected()
        try:
            # client.nthreads() has no time limit, and a scheduler may hang.
            threads_of = client.sync(client.scheduler.ncores, callback_timeout=_CONNECT_S)
        except (OSError, TimeoutError) as error:
            raise self._gone(error) from None
        threads = sum(threads_of.values())
        if threads == 0:
            raise WorkersGone(f"the Dask scheduler at {self._scheduler} has no workers")
        return _UNDER_WAY * threads

    def submit(self, store: Store, question: dict[str, Any]) -> Future[ItemAnswer]:
        """Returns a future of the answer to a question, computed by a worker that sees the rows
        which the store sees."""
        # The executor of the client is not used: where the scheduler is lost while it fetches an
        # answer, its future is never done.
        # Not `pure`: Dask would give the answer of an earlier, equal question again.
        dask_future = self._connected().submit(
            _importing_task(), store.tenant, store.sees_all, question, pure=False
        )
        answer: Future[ItemAnswer] = Future()
        self._unanswered.add(answer)
        answer.add_done_callback(self._unanswered.discard)
        dask_future.add_done_callback(partial(_settle, answer))
        return answer

    def close(self) -> None:
        """Closes the connection, and ends every unanswered future with an error."""
        if self._client is not None:
            with suppress(OSError, TimeoutError):
                self._client.close(timeout=1)
            self._client = None
        lost = ConnectionError(f"the connection to the Dask scheduler at {self._scheduler} ended")
        for answer in [*self._unanswered]:
            with suppress(InvalidStateError):  # it may be set at this moment
                answer.set_exception(lost)

    def _connected(self) -> Client:
        """Returns the client of the scheduler, connected anew where the connection was lost. Raises
        WorkersGone where the scheduler does not answer."""
        from distributed import Client  # an extra: without it the service starts all the same

        if self._client is not None and self._client.status != "running":
            self.close()
        if self._client is None:
            try:
                self._client = Client(self._scheduler, timeout=_CONNECT_S, set_as_default=False)
            except (OSError, TimeoutError) as error:
                raise self._gone(error) from None
        return self._client

    def _gone(self, error: OSError | TimeoutError) -> WorkersGone:
        return WorkersGone(f"no Dask scheduler at {self._scheduler} answers: {error!r}")


def _settle(answer: Future[ItemAnswer], dask_future: DaskFuture) -> None:
    """Sets the worker's answer, or its error, as the result of `answer`. Since `answer_item` raises
    nothing, an error of the code means that the worker cannot import or call it for any item: it
    becomes WorkersGone. The error of a lost worker or scheduler stays, because this item may have
    caused it."""
    from distributed import KilledWorker

    with suppress(InvalidStateError):  # the client was closed meanwhile
        try:
            answer.set_result(dask_future.result(timeout=_FETCH_S))
        except (KilledWorker, OSError, TimeoutError, CancelledError) as error:
            answer.set_exception(error)
        except Exception as error:  # noqa: BLE001  whatever the worker raised
            reason = (
                "the Dask cluster cannot run the code of the service, as where it has another"
                f" release or other settings: {error!r}"
            )
            answer.set_exception(WorkersGone(reason[:500]))


def _importing_task() -> Callable[[str | None, bool, dict[str, Any]], ItemAnswer]:
    """Returns a function that Dask sends as its code, because workers cannot import it.

    A worker imports a function that is sent by name while it reads the message, and closes its
    connection where that fails. Inside this function a failed import is the error of the task,
    which tells the reason.
    """

    def task(tenant: str | None, sees_all: bool, question: dict[str, Any]) -> ItemAnswer:
        """Imports the service in the worker, and answers the question there."""
        from service.sweeps.dask_workers import _answer_on_worker

        return _answer_on_worker(tenant, sees_all, question)

    return task


def _answer_on_worker(tenant: str | None, sees_all: bool, question: dict[str, Any]) -> ItemAnswer:
    """Answers a question with one thread, since each thread of the worker computes an item."""
    with threadpool_limits(1, user_api="blas"):
        return answer_item(_store().of(tenant, sees_all=sees_all), question)


@cache
def _store() -> Store:
    """Returns the database of the worker's own settings, connected once for all of its items."""
    settings = from_environment()
    return Store(database.connect(settings.database_url, settings.database_wait_s))
