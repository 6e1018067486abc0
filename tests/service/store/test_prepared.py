"""What every request looks for is found by an index, however many rows a tenant has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event

from service.store import Store, database
from tests.service.store.test_store import report

ALIKE = {"chip": "h100", "stack": "megatron", "architecture": "llama-3.1-8b"}


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = database.connect(database_url)
    yield engine
    engine.dispose()


def plans(engine: Engine, look: Any) -> list[str]:
    """How SQLite finds what `look` asks the rows of a tenant for."""
    asked: list[tuple[str, Any]] = []

    def note(*arguments: Any) -> None:
        if arguments[2].startswith("SELECT"):
            asked.append((arguments[2], arguments[3]))

    event.listen(engine, "before_cursor_execute", note)
    with Store(engine).of("mine", sees_all=False).reading() as rows:
        look(rows)
    event.remove(engine, "before_cursor_execute", note)
    with engine.connect() as connection:
        return [
            step.detail
            for statement, values in asked
            for step in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
        ]


@pytest.mark.parametrize(
    ("look", "index"),
    [
        (lambda rows: rows.answers.given_lately("predictions", "key"), "ix_predictions_text"),
        (
            lambda rows: rows.answers.given_lately("recommendations", "key"),
            "ix_recommendations_text",
        ),
        (lambda rows: rows.reports.first_in_same_words(report()), "ix_reports_words_hash"),
        (lambda rows: rows.reports.any_out_of_memory(**ALIKE), "ix_reports_alike"),
    ],
    ids=["prediction", "recommendation", "words", "out of memory"],
)
def test_a_prepared_query_uses_an_index(engine: Engine, look: Any, index: str) -> None:
    first, *others = plans(engine, look)
    assert f"USING INDEX {index} " in first or f"USING COVERING INDEX {index} " in first
    assert not any(step.startswith("SCAN") for step in others)
