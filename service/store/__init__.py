"""The store, which holds all SQL. A use case reads in one transaction and writes in another, and
the write commits once, when its block ends.

A store of one *tenant* sees and makes only that tenant's rows and, with `sees_all`, sees those of
all tenants. The *gate* stops commits when the process is about to end. Published runs are called
*evidence*.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy import Engine, event, func, or_, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria

from service.errors import Unavailable
from service.store import quota, sqlite_space
from service.store.answers import Answers
from service.store.api_keys import ApiKeys
from service.store.arrivals import Arrivals
from service.store.audit import Audit
from service.store.benchmarks import BenchmarkQueries
from service.store.commit_gate import CommitGate
from service.store.database import at_head, first_incomplete_table, revision
from service.store.evidence import EvidenceQueries
from service.store.idempotency_keys import IdempotencyKeys
from service.store.memory import Memory
from service.store.profiles import ProfileQueries
from service.store.queries import Queries
from service.store.registered_entries import RegisteredEntries
from service.store.reports import ReportQueries
from service.store.retention import Retention
from service.store.sweeps import SweepQueries
from service.store.tables import KEY_ID, MAX_STORED, SEEN, TENANT, Owned, OwnedOrShared
from service.store.unavailability import reason_of
from service.store.versions import Versions, current_versions
from service.store.write_checks import WriteChecks

log = logging.getLogger(__name__)

T = TypeVar("T")


class Rows(Queries):
    """The rows that one transaction sees, by table. Values that depend only on the current versions
    of profile, catalogue and evidence may be kept in `memory`. Transactions that write have no
    memory, because they see changes that others do not."""

    def __init__(self, session: Session, memory: Memory | None = None) -> None:
        super().__init__(session)
        self.memory = memory
        self._versions: Versions | None = None
        # The count of commits before anything is read, so that a commit meanwhile makes stale what
        # is kept; None where it is not known.
        self._since = None if memory is None else memory.changes.count()
        self.answers = Answers(session)
        self.api_keys = ApiKeys(session)
        self.arrivals = Arrivals(session)
        self.audit = Audit(session)
        self.benchmarks = BenchmarkQueries(session)
        self.registered_entries = RegisteredEntries(session)
        self.evidence = EvidenceQueries(session)
        self.idempotency_keys = IdempotencyKeys(session)
        self.profiles = ProfileQueries(session)
        self.reports = ReportQueries(session)
        self.retention = Retention(session)
        self.sweeps = SweepQueries(session)
        self.write_checks = WriteChecks(session)

    @property
    def sees_all(self) -> bool:
        """Returns whether queries cover the rows of all tenants."""
        return self._session.info.get(SEEN) is None

    @property
    def versions(self) -> Versions:
        """Returns the versions of profile, catalogue and evidence that count for this tenant
        now."""
        if self.memory is None:  # a transaction that writes may have changed them itself
            return current_versions(self._session, self._tenant)
        if self._versions is None:
            self._versions = self._known_versions(self.memory)
        return self._versions

    def _known_versions(self, memory: Memory) -> Versions:
        """Returns the present versions, kept in memory until a commit changes the count `_since`.
        PostgreSQL has no such count (None), and every transaction reads the versions."""
        if self._since is None:
            return current_versions(self._session, self._tenant)
        key = "versions", self._tenant, self._since
        return memory.recall(key, lambda: current_versions(self._session, self._tenant))

    def recall(self, key: Hashable, read: Callable[[], T]) -> T:
        """Returns the result of `read`, which is kept in memory under `key` until another entry of
        the catalogue is registered. `read` may depend on nothing else that changes."""
        if self.memory is None:  # a transaction that writes, which sees what others do not
            return read()
        return self.memory.recall((self.versions.registered_entries, key), read)

    def now(self) -> datetime:
        """Returns the time by the database's clock, which all processes share. SQLite has only the
        clock of its host."""
        if self._dialect == "postgresql":
            return self._session.scalars(select(func.clock_timestamp())).one()
        return datetime.now(UTC)

    def lock(self, name: str) -> None:
        """Takes a lock by name until this transaction ends: others that ask for it wait. SQLite
        needs none, because its writers wait for each other anyway."""
        if self._dialect == "postgresql":
            self._session.execute(
                text("select pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": name}
            )


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turns an error of SQLAlchemy that means an unavailable database into Unavailable, and logs
    it. Other errors pass."""
    try:
        yield
    except SQLAlchemyError as error:
        reason = reason_of(error)
        if reason is None:
            raise
        log.warning(f"database {reason}", extra={"reason": str(getattr(error, "orig", error))})
        raise Unavailable(reason) from error


@event.listens_for(Session, "do_orm_execute")
def _narrow_to_tenant(state: ORMExecuteState) -> None:
    """Narrows every SELECT in a tenant's session to rows of that tenant and shared ones. Statements
    that service.store.prepared executes are not narrowed."""
    tenant = state.session.info.get(SEEN)  # None: the session sees the rows of all tenants
    if tenant is not None and state.is_select:
        state.statement = state.statement.options(
            with_loader_criteria(Owned, lambda kind: kind.tenant == tenant, include_aliases=True),
            with_loader_criteria(
                OwnedOrShared,
                lambda kind: or_(kind.tenant.is_(None), kind.tenant == tenant),
                include_aliases=True,
            ),
        )


@event.listens_for(Session, "before_flush")
def _set_tenant(session: Session, *_: object) -> None:
    """Makes new rows belong to the session's tenant."""
    for row in session.new:
        if isinstance(row, Owned):
            row.tenant = session.info.get(TENANT)


class Store:
    """A database, or the part of it that one `tenant` makes and sees. `max_stored` is how many
    bytes a tenant may store (service.store.quota). `key_id` is the API key for which the store is
    used, if any: audit entries name it."""

    def __init__(
        self,
        engine: Engine,
        tenant: str | None = None,
        *,
        sees_all: bool = True,
        max_stored: int | None = None,
        gate: CommitGate | None = None,
    ) -> None:
        self._engine = engine
        self._key_id: str | None = None
        self._max_stored = max_stored
        self.tenant = tenant
        self.sees_all = sees_all
        # Stores for other tenants that `of` makes share the memory and the gate.
        self.memory = Memory(engine)
        self.gate = gate or CommitGate()

    def of(self, tenant: str | None, *, sees_all: bool, key_id: str | None = None) -> Store:
        """Returns this store for another tenant or API key. With `sees_all` its queries cover the
        rows of all tenants."""
        other = copy(self)
        other.tenant = tenant
        other.sees_all = sees_all
        other._key_id = key_id
        return other

    def _session(self) -> Session:
        """Returns a session that knows its tenant, what it may see, its API key and its quota."""
        # None: the session sees the rows of all tenants.
        visible_tenant = None if self.sees_all else self.tenant
        info = {
            TENANT: self.tenant,
            SEEN: visible_tenant,
            KEY_ID: self._key_id,
            MAX_STORED: self._max_stored,
        }
        return Session(self._engine, expire_on_commit=False, info=info)

    @contextmanager
    def reading(self) -> Iterator[Rows]:
        with _translated_errors(), self._session() as session:
            yield Rows(session, self.memory)

    @contextmanager
    def writing(self, *, after_closing: bool = False) -> Iterator[Rows]:
        """Opens a transaction that commits when the block ends. Raises StorageFull if a tenant
        stored more than it may, and Stopping if the gate is closed because the process is about to
        end. With `after_closing` it commits nevertheless, to clean up."""
        with _translated_errors(), self._session() as session:
            # On SQLite the transaction then takes the lock of writers as it begins.
            session.connection(execution_options={"writes": True})
            yield Rows(session)
            quota.settle(session)  # adds what was stored to the count of each tenant
            with nullcontext() if after_closing else self.gate.passing():
                session.commit()

    def give_space_back(self) -> int:
        """Shrinks the database file by free pages. Returns the number of bytes that this frees."""
        with _translated_errors():
            return sqlite_space.give_back(self._engine)

    def can_shrink(self) -> bool:
        """Returns whether `give_space_back` has any effect."""
        with _translated_errors():
            return sqlite_space.can_shrink(self._engine)

    def compact(self) -> None:
        """Makes the database file as small as it can be. Nobody else may use the database
        meanwhile."""
        with _translated_errors():
            sqlite_space.compact(self._engine)

    def close(self) -> None:
        self.memory.changes.close()
        self._engine.dispose()

    def revision(self) -> str:
        """Returns the last migration of the database, or an empty text where there was none."""
        with _translated_errors(), self._engine.connect() as connection:
            return revision(connection)

    def state(self) -> str:
        """Returns "ok", or words on what keeps the database from being used, for probes."""
        try:
            with _translated_errors(), self._engine.connect() as connection:
                if not at_head(connection):
                    return "not at the head of its migrations"
                table = first_incomplete_table(connection)
            if table is not None:
                return f"at the head of its migrations, but without all of {table}"
            self._check_writes()
        except Unavailable as error:
            return error.reason
        return "ok"

    def _check_writes(self) -> None:
        """Stores a row and removes it again. Raises Unavailable if that fails."""
        with self.writing() as rows:
            id_ = rows.write_checks.add()
        with self.writing() as rows:
            rows.write_checks.remove(id_)


class UseCase:
    """A part of what the service offers, which reads and writes the rows of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
