"""A connection to PostgreSQL that does not wait for ever."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed once the server has left it without an answer for `answer_s`
    seconds. The server keeps a `statement_timeout` of its own, but one that is frozen or cut off
    keeps nothing, and libpq has no limit for it: its host may well confirm what it receives."""

    answer_s: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Waits for an answer of the server for at most `answer_s` seconds. If none comes, closes
        the connection and raises OperationalError."""
        try:
            return super().wait(gen, interval, self.answer_s if timeout is None else timeout)
        except psycopg.OperationalError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:  # it did not answer
                self.close()
            raise
