from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from sqlalchemy import update

from service.store import Store, database
from service.store import memory as memories
from service.store.change_counter import StoredRow
from service.store.memory import Memory
from service.store.tables import RegisteredEntryRow
from tests.service.asking import ON_BOTH
from tests.service.store.test_store import NOON


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store(database.connect(database_url))
    with store.reading() as rows:  # the first connection counts as a change
        rows.registered_entries.names("chips")
    yield store
    store.close()


def entry(name: str, version: int = 1) -> RegisteredEntryRow:
    return RegisteredEntryRow(kind="chips", name=name, version=version, created_at=NOON, entry={})


def register(store: Store, name: str) -> None:
    with store.writing() as rows:
        rows.registered_entries.add(entry(name))


def test_a_commit_by_anyone_is_counted(store: Store, database_url: str) -> None:
    counts = [store.memory.changes.count()]
    with store.reading() as rows:
        assert rows.registered_entries.names("chips") == []
    counts.append(store.memory.changes.count())
    assert counts[0] == counts[1] is not None
    register(store, "mine")
    counts.append(store.memory.changes.count())
    other = Store(database.connect(database_url))
    register(other, "yours")
    other.close()
    counts.append(store.memory.changes.count())
    assert len({*counts}) == 3


def test_what_is_rolled_back_is_not_counted(store: Store) -> None:
    before = store.memory.changes.count()
    with suppress(ZeroDivisionError), store.writing() as rows:
        rows.registered_entries.add(entry("mine"))
        raise ZeroDivisionError
    assert store.memory.changes.count() == before


@pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
def test_postgresql_has_no_count_so_that_nothing_that_changes_is_kept(store: Store) -> None:
    memory = store.memory
    assert memory.changes.count() is None
    memory.keep_until_change("key", memory.changes.count(), "value")
    assert memory.unchanged("key") is None
    memory.keep_unchanging("key", "value", 1)
    assert memory.unchanged("key") == "value"


def test_what_is_kept_until_a_change_is_gone_after_a_commit(store: Store) -> None:
    memory = store.memory
    memory.keep_until_change("key", memory.changes.count(), "value")
    memory.keep_unchanging("other", "value", 1)
    assert memory.unchanged("key") == "value"
    register(store, "mine")
    assert memory.unchanged("key") is None
    assert memory.unchanged("other") == "value"


def test_what_is_kept_with_its_row_stays_until_that_is_another(store: Store) -> None:
    memory, query = store.memory, "select name, version from catalog_entries where name = ?"
    assert memory.changes.row(query, "mine") is None
    register(store, "mine")
    since, row = memory.changes.count(), memory.changes.row(query, "mine")
    assert row is not None
    assert row.content == ("mine", 1)
    memory.keep_until_change("key", since, "value", row=row)
    for name in ("yours", "theirs"):
        register(store, name)
        assert memory.unchanged("key") == "value"
    with store.writing() as rows:
        rows._session.execute(
            update(RegisteredEntryRow).where(RegisteredEntryRow.name == "mine").values(version=7)
        )
    assert memory.unchanged("key") is None


@ON_BOTH
def test_no_row_is_known_where_a_query_fails_or_the_database_is_another(store: Store) -> None:
    assert store.memory.changes.row("select nothing from nowhere") is None
    is_sqlite = store._engine.dialect.name == "sqlite"
    row = store.memory.changes.row("select 1")
    assert row == (StoredRow("select 1", (), (1,)) if is_sqlite else None)


def test_what_was_read_before_a_commit_is_never_kept(store: Store) -> None:
    memory = store.memory
    since = memory.changes.count()
    register(store, "mine")
    memory.keep_until_change("key", since, "value")
    assert memory.unchanged("key") is None


def test_nothing_is_kept_unasked_for_long(store: Store, monkeypatch) -> None:
    store.memory.keep_until_change("key", store.memory.changes.count(), "value")
    store.memory.keep_unchanging("other", "value", 1)
    later = time.monotonic() + memories._LONGEST_S + 1
    monkeypatch.setattr(memories.time, "monotonic", lambda: later)
    assert store.memory.unchanged("key") is None
    assert store.memory.unchanged("other") is None


def test_the_value_used_least_recently_goes_first(store: Store, monkeypatch) -> None:
    monkeypatch.setattr(memories, "_MAX_BYTES", 10)
    memory = Memory(store._engine)
    for name in "abc":
        memory.keep(name, name, 3)
    memory.get("a")
    memory.keep("d", "d", 3)
    assert [memory.get(name) for name in "abcd"] == ["a", None, "c", "d"]
    memory.keep("e", "e", 11)
    assert memory.get("e") is None


@ON_BOTH
def test_entries_are_read_again_once_another_is_registered(store: Store) -> None:
    def latest() -> int | None:
        with store.reading() as rows:
            found = rows.recall("mine", lambda: rows.registered_entries.named("chips", "mine"))
            return found and found.version

    assert latest() is None
    register(store, "mine")
    assert latest() == 1
    with store.writing() as rows:  # which sees what none else does yet
        rows.registered_entries.add(entry("mine", 2))
        rows.lock("flush")
        assert (
            rows.recall("mine", lambda: rows.registered_entries.named("chips", "mine")).version == 2
        )
        assert latest() == 1
    assert latest() == 2
