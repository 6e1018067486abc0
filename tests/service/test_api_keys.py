"""Keys end, are rotated and show when they were used, and the audit trail says who did what."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from starlette.testclient import TestClient

from service import api_keys
from service.errors import Conflict, NotFound, Unauthenticated
from service.store import Store, database
from service.store.tables import ApiKeyRow
from tests.service.asking import ON_BOTH, REPORT, assert_problem

PROFILE = "/v1/profiles/default"
DAY = timedelta(days=1)


@pytest.fixture
def store(database_url: str) -> Store:
    return Store(database.connect(database_url))


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Sets the clock that keys are judged by, counted from the start of the test."""
    began = datetime.now(UTC)

    def set_clock(since: timedelta) -> None:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: object = None) -> datetime:
                return began + since

        monkeypatch.setattr(api_keys, "datetime", Clock)

    set_clock(timedelta(0))
    return set_clock


def id_of(key: str) -> str:
    return key.split("_")[1]


def row_of(store: Store, key: str) -> ApiKeyRow:
    with store.reading() as rows:
        return rows.api_keys.get(id_of(key))


def tenant_of(store: Store, key: str) -> str | None:
    return api_keys.caller_of(store, [f"Bearer {key}"]).tenant


@ON_BOTH
def test_a_key_is_refused_once_it_has_expired(store: Store, at) -> None:
    key = api_keys.create(store, "a", ["recommend"], 90 * DAY)
    unending = api_keys.create(store, "a", ["recommend"])
    at(90 * DAY - timedelta(seconds=1))
    assert tenant_of(store, key) == "a"
    at(90 * DAY)
    with pytest.raises(Unauthenticated, match="expired on"):
        tenant_of(store, key)
    assert tenant_of(store, unending) == "a"


@pytest.mark.parametrize("span", ["0d", "0h", "00m"])
def test_a_key_that_would_be_refused_at_once_is_not_made(
    database_url: str, monkeypatch, capsys, span: str
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_DATABASE_URL", database_url)
    arguments = ["api_keys", "create", "--tenant", "team-a", "--expires-in", span]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        api_keys.main()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert f"must be longer than {span}" in printed.err
    assert not printed.out


def test_the_use_of_a_key_is_noted_once_an_hour(store: Store, at) -> None:
    key = api_keys.create(store, "a", ["recommend"])
    assert row_of(store, key).last_used_at is None
    noted = []
    for minutes in (0, 1, 59, 61, 62):
        at(timedelta(minutes=minutes))
        tenant_of(store, key)
        noted.append(row_of(store, key).last_used_at)
    assert noted[0] == noted[1] == noted[2]
    assert noted[3] == noted[4] == noted[0] + timedelta(minutes=61)


def test_a_key_is_known_while_the_database_takes_no_writes(store: Store, monkeypatch) -> None:
    key = api_keys.create(store, "a", ["recommend"])

    def refused(*_: object) -> None:
        raise api_keys.Unavailable

    monkeypatch.setattr(store, "writing", refused)
    assert tenant_of(store, key) == "a"


def test_a_rotated_key_is_valid_beside_the_new_one_for_a_while(store: Store, at) -> None:
    old = api_keys.create(store, "a", ["calibrate", "recommend"], 30 * DAY)
    at(10 * DAY)
    new = api_keys.rotate(store, id_of(old), 2 * DAY)
    assert {tenant_of(store, old), tenant_of(store, new)} == {"a"}
    assert row_of(store, new).scopes == ["calibrate", "recommend"]
    assert row_of(store, new).expires_at == row_of(store, new).created_at + 30 * DAY
    at(12 * DAY)
    with pytest.raises(Unauthenticated):
        tenant_of(store, old)
    assert tenant_of(store, new) == "a"


def test_rotation_makes_no_key_live_longer_and_revives_none(store: Store, at) -> None:
    old = api_keys.create(store, "a", ["recommend"], 2 * DAY)
    expires_at = row_of(store, old).expires_at
    api_keys.rotate(store, id_of(old), 5 * DAY)
    assert row_of(store, old).expires_at == expires_at
    revoked = api_keys.create(store, "a", ["recommend"])
    api_keys.revoke(store, id_of(revoked))
    at(2 * DAY)
    for refused in (old, revoked):
        with pytest.raises(Conflict):
            api_keys.rotate(store, id_of(refused), DAY)
    with pytest.raises(NotFound):
        api_keys.rotate(store, "nothing", DAY)


def test_a_key_is_cached_until_it_is_changed(store: Store) -> None:
    key = api_keys.create(store, "a", ["recommend"])
    sent = [f"Bearer {key}"]
    caller = api_keys.caller_of(store, sent)  # which notes the use, and so changes the key
    assert api_keys.cached_caller(store, sent) is None
    assert api_keys.caller_of(store, sent) == caller
    api_keys.create(store, "b", ["recommend"])
    assert api_keys.cached_caller(store, sent) == caller
    api_keys.revoke(store, id_of(key))
    assert api_keys.cached_caller(store, sent) is None
    with pytest.raises(Unauthenticated):
        api_keys.caller_of(store, sent)


def test_who_changed_what_is_shown_to_admins(make_client) -> None:
    client: TestClient = make_client(require_api_keys=True)
    store: Store = client.app.state.services.store
    keys = {
        tenant: api_keys.create(store, tenant, scopes)
        for tenant, scopes in {
            "a": ["recommend", "report"],
            "operators": ["calibrate"],
            "platform": ["admin"],
        }.items()
    }
    headers = {tenant: {"Authorization": f"Bearer {key}"} for tenant, key in keys.items()}
    operator = {**headers["operators"], "If-Match": "*"}
    report = client.post("/v1/reports", json=REPORT, headers=headers["a"]).json()["id"]
    version = client.post(f"{PROFILE}/calibrations", headers=operator).json()["version"]
    client.put(f"{PROFILE}/policy", json={"mode": "automatic"}, headers=operator)
    client.post(f"{PROFILE}/versions/{version}/activate", headers=operator)
    client.post(f"{PROFILE}/versions/1/activate", headers=operator)
    for _ in range(2):  # the second changes nothing
        client.delete(f"/v1/reports/{report}", headers=headers["a"])
    client.put(f"{PROFILE}/policy", json={"mode": "x"}, headers=operator)  # refused
    replaced = api_keys.rotate(store, id_of(keys["a"]), DAY)
    api_keys.revoke(store, id_of(replaced))

    for tenant in ("a", "operators"):
        assert_problem(client.get("/v1/audit", headers=headers[tenant]), "forbidden")
    answer = client.get("/v1/audit", headers=headers["platform"])
    found = [
        (entry["action"], entry["subject"], entry["tenant"], entry["key_id"])
        for entry in reversed(answer.json()["items"])
    ]
    by_operator = "operators", id_of(keys["operators"])
    assert found == [
        *(("key.created", id_of(key), None, None) for key in keys.values()),
        ("policy.set", "default", *by_operator),
        ("profile.activated", f"default/{version}", *by_operator),
        ("profile.activated", "default/1", *by_operator),
        ("report.withdrawn", report, "a", id_of(keys["a"])),
        ("key.rotated", id_of(keys["a"]), None, None),
        ("key.created", id_of(replaced), None, None),
        ("key.revoked", id_of(replaced), None, None),
    ]
    for key in (*keys.values(), replaced):
        assert key.split("_", 2)[2] not in answer.text
        assert row_of(store, key).secret_hash not in answer.text

    page = client.get("/v1/audit?limit=4", headers=headers["platform"])
    second = client.get(page.links["next"]["url"], headers=headers["platform"])
    assert [*page.json()["items"], *second.json()["items"]] == answer.json()["items"][:8]
