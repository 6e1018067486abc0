"""The store, which holds all SQL. A use case reads in one transaction and writes in another, and
the write commits once, when its block ends."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, event, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError, TimeoutError
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria

from service.errors import Unavailable
from service.store.answers import Answers
from service.store.api_keys import ApiKeys
from service.store.arrivals import Arrivals
from service.store.benchmarks import Benchmarks
from service.store.catalog import CatalogEntries
from service.store.database import at_head, first_incomplete_table
from service.store.evidence import Evidence
from service.store.idempotency_keys import IdempotencyKeys
from service.store.profiles import Profiles
from service.store.reports import Reports
from service.store.tables import SEEN, TENANT, Owned

log = logging.getLogger(__name__)


class Rows:
    """The rows that one transaction sees, by table."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.answers = Answers(session)
        self.api_keys = ApiKeys(session)
        self.arrivals = Arrivals(session)
        self.benchmarks = Benchmarks(session)
        self.catalog = CatalogEntries(session)
        self.evidence = Evidence(session)
        self.idempotency_keys = IdempotencyKeys(session)
        self.profiles = Profiles(session)
        self.reports = Reports(session)

    @property
    def sees_all(self) -> bool:
        """Whether queries are not narrowed to one tenant."""
        return self._session.info.get(SEEN) is None

    def lock(self, name: str) -> None:
        """Make others that lock the same name wait until this transaction ends. On SQLite all
        writers wait for each other anyway."""
        if self._session.get_bind().dialect.name == "postgresql":
            self._session.execute(
                text("select pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": name}
            )


@contextmanager
def _available() -> Iterator[None]:
    try:
        yield
    except (OperationalError, TimeoutError) as error:
        log.warning(
            "database does not answer", extra={"reason": str(getattr(error, "orig", error))}
        )
        raise Unavailable from error


@event.listens_for(Session, "do_orm_execute")
def _narrow_to_tenant(state: ORMExecuteState) -> None:
    """Narrow every query in a session of a tenant to that tenant's rows, whatever the query is."""
    tenant = state.session.info.get(SEEN)
    if tenant is not None and state.is_select:
        state.statement = state.statement.options(
            with_loader_criteria(Owned, lambda kind: kind.tenant == tenant, include_aliases=True)
        )


@event.listens_for(Session, "before_flush")
def _set_tenant(session: Session, *_: object) -> None:
    """Make new rows belong to the session's tenant."""
    for row in session.new:
        if isinstance(row, Owned):
            row.tenant = session.info.get(TENANT)


class Store:
    """A database, or the part of it that one `tenant` makes and sees."""

    def __init__(self, engine: Engine, tenant: str | None = None, *, sees_all: bool = True) -> None:
        self._engine = engine
        self.tenant = tenant
        self.sees_all = sees_all

    def of(self, tenant: str | None, *, sees_all: bool) -> Store:
        return Store(self._engine, tenant, sees_all=sees_all)

    def _session(self) -> Session:
        seen = None if self.sees_all else self.tenant
        return Session(self._engine, expire_on_commit=False, info={TENANT: self.tenant, SEEN: seen})

    @contextmanager
    def reading(self) -> Iterator[Rows]:
        with _available(), self._session() as session:
            yield Rows(session)

    @contextmanager
    def writing(self) -> Iterator[Rows]:
        with _available(), self._session() as session, session.begin():
            session.connection(execution_options={"writes": True})
            yield Rows(session)

    def close(self) -> None:
        self._engine.dispose()

    def state(self) -> str:
        """The text "ok", or what keeps the database from being used."""
        try:
            with self._engine.connect() as connection:
                if not at_head(connection):
                    return "not at the head of its migrations"
                table = first_incomplete_table(connection)
        except SQLAlchemyError:
            return "not reachable"
        return (
            "ok" if table is None else f"at the head of its migrations, but without all of {table}"
        )
