"""A connection to PostgreSQL that does not wait for ever."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed once the server has left it without an answer for `answer_s`
    seconds. A server ends statements itself after `statement_timeout`, but a frozen one does not.
    The timeouts of libpq do not help then, since the server's host still confirms packets."""

    answer_s: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Waits for an answer of the server for at most `answer_s` seconds. If none comes, closes
        the connection and raises OperationalError."""
        try:
            return super().wait(gen, interval, self.answer_s if timeout is None else timeout)
        except psycopg.OperationalError:
            # ACTIVE: a statement was sent and is not answered.
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.close()
            raise
