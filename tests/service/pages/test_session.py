from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from service import api_keys
from service.errors import Unauthenticated
from service.sessions import caller_of_session, new_session
from service.settings import Settings
from service.store import Store, database
from tests.service.conftest import MakeClient
from tests.service.pages.questions import BODY

_TOKEN = re.compile(r'name="form_token" value="([\w-]+)"')


@pytest.fixture
def store(database_url: str) -> Store:
    return Store(database.connect(Settings(database_url=database_url).database_url))


@pytest.fixture
def guarded(make_client: MakeClient) -> TestClient:
    client = make_client(require_api_keys=True)
    client.follow_redirects = False
    return client


def sign_in(client: TestClient, key: str, following: str = "/ask"):
    form = client.get("/login")
    fields = {"key": key, "next": following, "form_token": _TOKEN.findall(form.text)[0]}
    return client.post("/login", data=fields)


def test_a_page_without_a_session_leads_to_the_sign_in_and_back(guarded: TestClient) -> None:
    answer = guarded.get("/ask?model=llama-3.1-8b&chips=64")
    assert answer.status_code == 303
    page = quote("/ask?model=llama-3.1-8b&chips=64", safe="")
    assert answer.headers["location"] == f"/login?next={page}"


def test_a_key_opens_a_session_that_scripts_and_other_sites_cannot_use(
    guarded: TestClient, store: Store
) -> None:
    key = api_keys.create(store, "research", ["recommend"])
    answer = sign_in(guarded, key, "/ask?chips=64")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ask?chips=64")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert key not in answer.headers["set-cookie"]
    assert guarded.get("/ask").status_code == 200


def test_a_session_reads_the_api_and_writes_nothing_there(
    guarded: TestClient, store: Store
) -> None:
    sign_in(guarded, api_keys.create(store, "research", ["recommend"]))
    assert guarded.get("/v1/recommendations").status_code == 200
    assert guarded.post("/v1/recommendations", json=BODY).status_code == 401
    session = guarded.cookies["shardwright_session"]
    guarded.cookies.clear()
    bearer = {"Authorization": f"Bearer {session}"}
    assert guarded.get("/v1/recommendations", headers=bearer).status_code == 401


def test_a_session_ends_with_its_key(guarded: TestClient, store: Store) -> None:
    key = api_keys.create(store, "research", ["recommend"])
    sign_in(guarded, key)
    assert guarded.get("/ask").status_code == 200
    api_keys.revoke(store, key.split("_")[1])
    assert guarded.get("/ask").status_code == 303


def test_signing_out_ends_the_session(guarded: TestClient, store: Store) -> None:
    sign_in(guarded, api_keys.create(store, "research", ["recommend"]))
    token = _TOKEN.findall(guarded.get("/ask").text)[0]
    assert guarded.post("/logout", data={"form_token": token}).status_code == 303
    assert guarded.get("/ask").status_code == 303


def test_a_wrong_key_is_told_on_the_form(guarded: TestClient) -> None:
    answer = sign_in(guarded, "sw_none_such")
    assert answer.status_code == 401
    assert "The key is not known" in answer.text
    assert "shardwright_session" not in guarded.cookies


def test_a_form_of_another_site_does_nothing(guarded: TestClient, store: Store) -> None:
    key = api_keys.create(store, "research", ["recommend"])
    token = _TOKEN.findall(guarded.get("/login").text)[0]
    for fields, headers in (
        ({"key": key}, {}),
        ({"key": key, "form_token": "x" * 43}, {}),
        ({"key": key, "form_token": token}, {"Sec-Fetch-Site": "cross-site"}),
    ):
        answer = guarded.post("/login", data=fields, headers=headers)
        assert answer.status_code == 403
        assert "shardwright_session" not in guarded.cookies


@pytest.mark.parametrize(
    "elsewhere",
    ["//evil.example", "https://evil.example", "/\\evil.example", "/a/../b", "/ask\r\nX: y"],
)
def test_signing_in_leads_nowhere_else(guarded: TestClient, store: Store, elsewhere: str) -> None:
    key = api_keys.create(store, "research", ["recommend"])
    assert sign_in(guarded, key, elsewhere).headers["location"] == "/ask"


def test_a_link_from_another_site_is_followed_with_the_session(guarded: TestClient) -> None:
    """SameSite=Strict keeps the cookie back from it, and a page of our own then asks once more."""
    answer = guarded.get("/login?next=%2Fask", headers={"Sec-Fetch-Site": "cross-site"})
    assert '<meta http-equiv="refresh" content="0;url=/ask">' in answer.text
    assert "refresh" not in guarded.get("/login?next=%2Fask").text


def test_no_key_is_asked_for_where_none_is_required(client: TestClient) -> None:
    assert client.get("/ask").status_code == 200


@pytest.mark.parametrize("part", range(3))
def test_no_part_of_a_session_can_be_changed(store: Store, part: int) -> None:
    session = new_session(store, api_keys.create(store, "research", ["recommend"]))
    assert caller_of_session(store, session).tenant == "research"
    other = new_session(store, api_keys.create(store, "others", ["recommend"]))
    later = str(int((datetime.now(UTC) + timedelta(days=9)).timestamp()))
    parts = session.split(".")
    parts[part] = [other.split(".")[0], later, "0" * 64][part]
    with pytest.raises(Unauthenticated):
        caller_of_session(store, ".".join(parts))


@pytest.mark.parametrize("session", ["", "a", "a.b.c", "..", "é.1.x", "a.99999999999999.x"])
def test_what_is_no_session_is_refused(store: Store, session: str) -> None:
    with pytest.raises(Unauthenticated):
        caller_of_session(store, session)


def test_pages_count_towards_the_limit_of_requests(make_client: MakeClient) -> None:
    client = make_client(requests_per_minute=2)
    assert [client.get("/ask").status_code for _ in range(3)] == [200, 200, 429]
