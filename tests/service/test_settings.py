from __future__ import annotations

import pytest
from pydantic import ValidationError

from service.settings import Settings


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("postgresql://u:p@h/n", "postgresql+psycopg://u:p@h/n"),
        ("postgres://h/n", "postgresql+psycopg://h/n"),
        ("postgresql+psycopg://h/n", "postgresql+psycopg://h/n"),
        ("sqlite:///a.db", "sqlite:///a.db"),
    ],
)
def test_the_database_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, given: str, used: str) -> None:
    monkeypatch.setenv("SHARDWRIGHT_DATABASE_URL", given)
    assert Settings().database_url == used


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://h/n", "sqlite://", "sqlite:///:memory:"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="database_url"):
        Settings(database_url=url)


def test_a_refused_url_does_not_show_its_password() -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(database_url="mysql://user:secret@h/n")
    assert "secret" not in str(caught.value)
