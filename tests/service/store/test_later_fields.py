"""What a later release has added to stored documents is ignored, and refused in requests."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import JSON, Column, Engine, select, update
from starlette.testclient import TestClient

from service.store import database
from service.store.tables import AnswerTextRow, Table
from tests.service.asking import PREDICTION, REPORT, assert_problem, changed
from tests.service.store.stored_kinds import Written, finished, refused

LATER = "added_by_a_later_release"
"""A name that no field has."""
ADDED = {"of": [1, {"any": "form"}]}
MAPS = frozenset(
    {
        "peak_tflops",  # by format
        "offsets",  # by coefficient
        "mfu",  # by convention
        "labels",  # by the caller's own names
    }
)
"""Members that are maps with names of their own, and not fields."""


def with_later_fields(value: Any, name: str = "") -> Any:
    """The document with another member at every level, first among them."""
    if isinstance(value, list):
        return [with_later_fields(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    members = {key: with_later_fields(item, key) for key, item in value.items()}
    return members if name in MAPS else {LATER: copy.deepcopy(ADDED), **members}


def document_columns() -> list[Column[Any]]:
    """Every column that holds documents; scopes are a list of names."""
    return [
        column
        for table in Table.metadata.sorted_tables
        for column in table.columns
        if isinstance(column.type, JSON) and column.name != "scopes"
    ]


def add_later_fields(engine: Engine) -> dict[str, int]:
    """Adds fields to every stored document; returns how many each column has."""
    changed_rows: dict[str, int] = {}
    with engine.begin() as connection:
        for column in document_columns():
            keys = [*column.table.primary_key.columns]
            found = connection.execute(select(column, *keys).where(column.is_not(None))).all()
            changed_rows[str(column)] = len(found)
            for document, *values in found:
                same = [key == value for key, value in zip(keys, values, strict=True)]
                later = {column.name: with_later_fields(document)}
                connection.execute(update(column.table).where(*same).values(later))
        texts = Table.metadata.tables[AnswerTextRow.__tablename__]
        for key, compressed in connection.execute(select(texts.c.key, texts.c.gzip)).all():
            document = with_later_fields(json.loads(gzip.decompress(compressed)))
            text = json.dumps(document, separators=(",", ":")).encode()
            later = {"gzip": gzip.compress(text)}
            connection.execute(update(texts).where(texts.c.key == key).values(later))
    return changed_rows


@pytest.fixture
def served(
    large_tasks_in_threads, make_client, database_url: str
) -> Iterator[tuple[TestClient, Written, Engine]]:
    client = make_client()
    written = Written(client)
    finished(client, written)
    engine = database.connect(database_url)
    yield client, written, engine
    engine.dispose()


def test_documents_of_every_kind_with_later_fields_at_every_level_are_read(
    served, make_client
) -> None:
    client, written, engine = served
    assert not refused(client, written)
    check = client.post("/v1/checks", json={**PREDICTION, "store": True}).json()["location"]
    changed_rows = add_later_fields(engine)
    assert not [column for column, rows in changed_rows.items() if not rows]
    other = make_client()  # which has nothing at hand
    assert not refused(other, written)
    for path in ("/v1/checks", check, f"{check}?view=brief"):
        assert other.get(path).status_code == 200


@pytest.mark.parametrize("path", ["", "workload", "layout", "cluster"])
def test_requests_with_fields_that_nobody_knows_are_refused(client, path: str) -> None:
    place = f"{path}.{LATER}" if path else LATER
    for kind, body in (("predictions", PREDICTION), ("reports", REPORT)):
        answer = client.post(f"/v1/{kind}", json=changed(body, place, 1))
        assert_problem(answer, "invalid")
