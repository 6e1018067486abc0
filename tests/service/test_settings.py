from __future__ import annotations

import pytest
from pydantic import ValidationError

from service.settings import Misconfigured, Settings, describe_settings, from_environment


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("postgresql://u:p@h/n", "postgresql+psycopg://u:p@h/n"),
        ("postgres://h/n", "postgresql+psycopg://h/n"),
        ("postgresql+psycopg://h/n", "postgresql+psycopg://h/n"),
        ("sqlite:///a.db", "sqlite:///a.db"),
    ],
)
def test_the_database_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, given: str, used: str
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_DATABASE_URL", given)
    assert Settings().database_url == used


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "mysql://h/n",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:x?mode=memory&uri=true",
    ],
)
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="database_url"):
        Settings(database_url=url)


def test_a_refused_url_does_not_show_its_password() -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(database_url="mysql://user:secret@h/n")
    assert "secret" not in str(caught.value)


def test_a_variable_that_sets_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWRIGHT_REQUIRE_API_KEY", "true")
    with pytest.raises(Misconfigured, match="did you mean SHARDWRIGHT_REQUIRE_API_KEYS"):
        from_environment()


def test_variables_of_callers_are_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service is started again in the shell from which it is asked."""
    monkeypatch.setenv("SHARDWRIGHT_URL", "http://127.0.0.1:8000")
    monkeypatch.setenv("SHARDWRIGHT_ID", "check-0199c2f4")
    assert from_environment(port=2).port == 2


@pytest.mark.parametrize("value", ["inf", "nan", "1e300", "-1"])
@pytest.mark.parametrize(
    "name", ["idempotency_ttl_s", "idempotency_lease_s", "heavy_wait_s", "body_wait_s"]
)
def test_a_setting_that_is_no_time_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"SHARDWRIGHT_{name.upper()}", value)
    with pytest.raises(Misconfigured, match=name):
        from_environment()


def test_what_is_given_goes_before_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWRIGHT_PORT", "1")
    monkeypatch.setenv("SHARDWRIGHT_HOST", "::")
    assert (from_environment(port=2).port, from_environment().host) == (2, "::")


def test_every_setting_is_described() -> None:
    """What an operator sees of --help."""
    shown = describe_settings()
    for name, field in Settings.model_fields.items():
        assert f"SHARDWRIGHT_{name.upper()} ({field.default})" in shown
        assert field.description


@pytest.mark.parametrize("listed", ["", "10.0.0.5", "10.0.0.5, 10.1.0.0/16", "::1"])
def test_proxies_are_addresses_or_networks(listed: str) -> None:
    assert Settings(trusted_proxies=listed).trusted_proxies == listed


@pytest.mark.parametrize("listed", ["*", "proxy", "10.1.0.5/16", "10.0.0.300"])
def test_what_is_no_proxy_is_refused(listed: str) -> None:
    with pytest.raises(ValidationError, match="list addresses or networks"):
        Settings(trusted_proxies=listed)
