"""All SQL. A use case reads in one transaction and writes in another; the write commits once, when its block ends."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from service.database import at_head
from service.errors import Unavailable
from service.store.answers import Answers
from service.store.benchmarks import Benchmarks
from service.store.catalog import CatalogEntries
from service.store.evidence import Evidence
from service.store.keys import IdempotencyKeys
from service.store.profiles import Profiles
from service.store.reports import Reports

log = logging.getLogger(__name__)


class Rows:
    """What one transaction sees."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.answers = Answers(session)
        self.benchmarks = Benchmarks(session)
        self.catalog = CatalogEntries(session)
        self.evidence = Evidence(session)
        self.keys = IdempotencyKeys(session)
        self.profiles = Profiles(session)
        self.reports = Reports(session)

    def lock(self, name: str) -> None:
        """Others that lock the same name wait until this transaction ends; on SQLite all writers do."""
        if self._session.get_bind().dialect.name == "postgresql":
            self._session.execute(text("select pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": name})


@contextmanager
def _available() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        log.warning("database does not answer", extra={"reason": str(error.orig)})
        raise Unavailable from error


class Store:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def reading(self) -> Iterator[Rows]:
        with _available(), Session(self._engine, expire_on_commit=False) as session:
            yield Rows(session)

    @contextmanager
    def writing(self) -> Iterator[Rows]:
        with _available(), Session(self._engine, expire_on_commit=False) as session, session.begin():
            session.connection(execution_options={"writes": True})
            yield Rows(session)

    def close(self) -> None:
        self._engine.dispose()

    def state(self) -> str:
        """ "ok", or what keeps the database from being used."""
        try:
            with self._engine.connect() as connection:
                return "ok" if at_head(connection) else "not at the head of its migrations"
        except SQLAlchemyError:
            return "not reachable"
