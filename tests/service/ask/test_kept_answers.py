"""Answers are computed once, stored once, and sent as they are stored."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event, func, select, text
from starlette.testclient import TestClient

import service
from models.advice import recommendation
from service import api_keys
from service.ask import checks, predictions, recommendation_search, recommendations
from service.store import Store, database
from service.store.tables import AnswerTextRow, RecommendationRow
from tests.service.asking import (
    LAUNCHED,
    LAYOUT,
    ON_BOTH,
    ON_POSTGRESQL_FIRST,
    PREDICTION,
    QUESTION,
    changed,
)
from tests.waiting import LONG_S

ASKED = changed(QUESTION, "cluster.num_chips", 16)
FORMS = pytest.mark.parametrize(
    ("path", "asked"),
    [("/v1/recommendations", ASKED), ("/v1/predictions", PREDICTION)],
    ids=["recommendation", "prediction"],
)
Ask = Callable[..., Any]


@pytest.fixture
def tenants(make_client) -> tuple[TestClient, Callable[[str], dict[str, str]]]:
    client = make_client(require_api_keys=True)
    store: Store = client.app.state.services.store

    def key(tenant: str) -> dict[str, str]:
        scopes = ["recommend", "report"]
        return {"Authorization": f"Bearer {api_keys.create(store, tenant, scopes)}"}

    return client, key


def row_counts(url: str) -> dict[str, int]:
    engine = database.connect(url)
    with engine.connect() as connection:
        kinds = (RecommendationRow, AnswerTextRow)
        counts = {
            kind.__tablename__: connection.scalar(select(func.count()).select_from(kind))
            for kind in kinds
        }
    engine.dispose()
    return counts


def written_by(client: TestClient) -> list[str]:
    """The statements with which the application writes from now on, but for its own lease."""
    statements: list[str] = []

    def note(*arguments: Any) -> None:
        statement = arguments[2]
        if not statement.lower().startswith(("select", "begin")) and "leases" not in statement:
            statements.append(statement)

    event.listen(client.app.state.services.store._engine, "before_cursor_execute", note)
    return statements


@ON_POSTGRESQL_FIRST
@FORMS
def test_the_same_question_has_the_same_answer_and_writes_nothing(
    client: TestClient, database_url: str, path: str, asked: dict[str, Any]
) -> None:
    first = client.post(path, json=asked)
    assert first.status_code == 201
    counts = row_counts(database_url)
    writes = written_by(client)
    for _ in range(3):
        again = client.post(path, json=asked)
        assert again.status_code == 200
        assert again.headers["location"] == first.headers["location"]
        assert again.content == first.content
    assert client.get(first.headers["location"]).content == first.content
    assert row_counts(database_url) == counts
    assert writes == []


@pytest.mark.parametrize(
    "same",
    [
        {name: ASKED[name] for name in reversed(ASKED)},
        {**ASKED, "tolerance": 0.03, "top": 5, "time_limit_s": 20, "include": []},
        {**ASKED, "constraints": {"use_all_chips": False}, "profile": None},
        {**ASKED, "cluster": {"num_chips": 16, "preset": "h100"}},
    ],
    ids=["order", "defaults", "inner defaults", "inner order"],
)
def test_order_and_defaults_make_no_other_question(
    shared_client: TestClient, same: dict[str, Any]
) -> None:
    first = shared_client.post("/v1/recommendations", json=ASKED).json()["id"]
    answer = shared_client.post("/v1/recommendations", json=same)
    assert (answer.status_code, answer.json()["id"]) == (200, first)


@pytest.mark.parametrize(
    "other",
    [
        {**ASKED, "tolerance": 0.05},
        {**ASKED, "profile": {"version": 1}},
        {**ASKED, "objective": {}},
        changed(ASKED, "cluster.num_chips", 8),
        changed(ASKED, "workload.precision", "bf16"),
    ],
    ids=["tolerance", "profile", "objective", "chips", "what was assumed is said"],
)
def test_what_is_answered_otherwise_is_another_question(
    shared_client: TestClient, other: dict[str, Any]
) -> None:
    first = shared_client.post("/v1/recommendations", json=ASKED).json()["id"]
    assert shared_client.post("/v1/recommendations", json=other).json()["id"] != first


@ON_BOTH
def test_another_tenant_has_a_short_row_of_its_own(tenants, database_url: str) -> None:
    client, key = tenants
    mine, yours = key("mine"), key("yours")
    first = client.post("/v1/recommendations", json=ASKED, headers=mine)
    before = row_counts(database_url)
    other = client.post("/v1/recommendations", json=ASKED, headers=yours)
    assert other.status_code == 201
    assert row_counts(database_url) == {
        "recommendations": before["recommendations"] + 1,
        "answer_texts": before["answer_texts"],
    }
    assert _row_bytes(database_url, other.json()["id"]) <= 512
    _assert_same_but_for_the_id(first.json(), other.json())
    for owner, stranger, answer in ((mine, yours, first), (yours, mine, other)):
        location = answer.headers["location"]
        again = client.post("/v1/recommendations", json=ASKED, headers=owner)
        assert (again.status_code, again.content) == (200, answer.content)
        assert client.get(location, headers=owner).content == answer.content
        assert client.get(location, headers=stranger).status_code == 404


def _row_bytes(url: str, id_: str) -> int:
    """Of all columns of a recommendation's row."""
    engine = database.connect(url)
    with engine.connect() as connection:
        query = text("select * from recommendations where id = :id")
        row = connection.execute(query, {"id": id_}).one()
    engine.dispose()
    return sum(len(str(value)) for value in row)


def _assert_same_but_for_the_id(first: dict[str, Any], other: dict[str, Any]) -> None:
    assert first["id"] != other["id"]
    assert first["created_at"] < other["created_at"]
    shown = [
        {**answer, "id": None, "created_at": None, "launch": _launch_without(answer["id"], answer)}
        for answer in (first, other)
    ]
    assert shown[0] == shown[1]


def _launch_without(id_: str, answer: dict[str, Any]) -> str:
    launch = str(answer["launch"])
    assert id_ in launch
    return launch.replace(id_, "")


def _report_out_of_memory(client: TestClient) -> None:
    report = {**PREDICTION, "outcome": "out_of_memory"}
    assert client.post("/v1/reports", json=report).status_code == 201


def _activate_another_version(client: TestClient) -> None:
    store: Store = client.app.state.services.store
    with store.writing() as rows:
        first = rows.profiles.version("default", 1)
        values = {c.key: getattr(first, c.key) for c in first.__table__.columns}
        values |= {"version": 2, "content": {**first.content, "version": 2}}
        rows.profiles.add_version(type(first)(**values))
        rows.profiles.activate("default", 2, rows.profiles.revision("default"))


def _release_another_version(_: TestClient) -> None:
    service.__version__ += ".post1"


@pytest.mark.parametrize(
    "change",
    [_report_out_of_memory, _activate_another_version, _release_another_version],
)
@FORMS
def test_what_an_answer_rests_on_makes_another(
    client: TestClient, monkeypatch, change: Callable[[TestClient], None], path: str, asked
) -> None:
    monkeypatch.setattr(service, "__version__", service.__version__)  # as it was, at the end
    first = client.post(path, json=asked)
    assert client.post(path, json=asked).status_code == 200
    change(client)
    other = client.post(path, json=asked)
    assert (first.status_code, other.status_code) == (201, 201)
    assert other.json()["id"] != first.json()["id"]
    assert client.post(path, json=asked).json()["id"] == other.json()["id"]


@FORMS
def test_what_it_does_not_rest_on_makes_none(client: TestClient, path: str, asked) -> None:
    first = client.post(path, json=asked).json()["id"]
    another_model = {**changed(PREDICTION, "model", "qwen3-8b"), "outcome": "out_of_memory"}
    fitted = {**PREDICTION, "outcome": "ok", "measured": {"step_time_s": 2.0}}
    for report in (another_model, fitted):
        assert client.post("/v1/reports", json=report).status_code == 201
    assert client.post(path, json=asked).json()["id"] == first


def test_a_withdrawn_report_brings_the_earlier_answer_back(client: TestClient) -> None:
    first = client.post("/v1/recommendations", json=ASKED).json()["id"]
    _report_out_of_memory(client)
    assert client.post("/v1/recommendations", json=ASKED).json()["id"] != first
    report = client.get("/v1/reports").json()["items"][0]["id"]
    assert client.delete(f"/v1/reports/{report}").status_code == 200
    assert client.post("/v1/recommendations", json=ASKED).json()["id"] == first


def test_a_new_version_of_a_registered_entry_makes_another(client: TestClient) -> None:
    def register(num_layers: int) -> None:
        model = {
            "num_layers": num_layers,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "vocab_size": 128256,
        }
        sent = {"name": "ours", "model": model}
        assert client.post("/v1/catalog/architectures", json=sent).status_code == 201

    register(32)
    asked = changed(ASKED, "model", "ours")
    pinned = changed(ASKED, "model", "ours@1")
    first = client.post("/v1/recommendations", json=asked).json()
    shipped = client.post("/v1/recommendations", json=ASKED).json()["id"]
    of_first = client.post("/v1/recommendations", json=pinned).json()["id"]
    register(24)
    assert client.post("/v1/recommendations", json=asked).json()["id"] != first["id"]
    assert client.post("/v1/recommendations", json=ASKED).json()["id"] == shipped
    assert client.post("/v1/recommendations", json=pinned).json()["id"] == of_first


def test_what_was_found_when_time_ran_out_is_nobody_elses_answer(
    client: TestClient, monkeypatch
) -> None:
    def slowly(*args: Any, should_continue: Any, **options: Any) -> recommendation.Recommendation:
        found = recommendation.recommend(*args, should_continue=lambda: True, **options)
        time.sleep(0.06)
        should_continue()
        return found

    monkeypatch.setattr(recommendation_search, "recommend", slowly)
    asked = {**ASKED, "time_limit_s": 0.05}
    first, second = (client.post("/v1/recommendations", json=asked) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["id"] != second.json()["id"]
    assert client.get(first.headers["location"]).json() == first.json()


@FORMS
def test_every_form_of_an_answer_that_was_given_before_is_that_of_the_first(
    shared_client: TestClient, path: str, asked: dict[str, Any]
) -> None:
    client = shared_client
    location = client.post(path, json=asked).headers["location"]
    whole = client.get(location)
    brief = client.get(f"{location}?view=brief")
    assert len(brief.content) < len(whole.content)
    for _ in range(2):  # asked of the database, and at hand
        assert client.post(path, json=asked).json() == whole.json()
        assert client.post(f"{path}?view=brief", json=asked).json() == brief.json()
        preferring = {"Prefer": "return=minimal"}
        preferred = client.post(path, json=asked, headers=preferring)
        assert preferred.json() == brief.json()
        assert preferred.headers["preference-applied"] == "return=minimal"
        keyed = client.post(path, json=asked, headers={"Idempotency-Key": f"key-of-{path}"})
        assert keyed.json() == whole.json()


@FORMS
def test_a_cached_answer_has_the_headers_of_one_that_is_read(
    shared_client: TestClient, path: str, asked: dict[str, Any]
) -> None:
    """Each is asked for twice: what is read first is at hand then."""
    client = shared_client
    location = client.post(path, json=asked).headers["location"]
    etag = client.get(location, headers={"Accept-Encoding": "identity"}).headers["etag"]
    for headers in (
        {"Accept-Encoding": "identity"},
        {"Accept-Encoding": "gzip"},
        {"Accept-Encoding": "identity", "If-None-Match": etag},
        {"Accept-Encoding": "gzip", "If-None-Match": f'{etag[:-1]}-gzip"'},
    ):
        for method in ("GET", "HEAD"):
            read, at_hand = (client.request(method, location, headers=headers) for _ in range(2))
            for name in ("etag", "vary", "content-length", "content-encoding", "content-type"):
                assert read.headers.get(name) == at_hand.headers.get(name), name
            assert (read.status_code, read.content) == (at_hand.status_code, at_hand.content)
    with client.stream("POST", path, json=asked, headers={"Accept-Encoding": "gzip"}) as sent:
        raw = b"".join(sent.iter_raw())
    assert gzip.decompress(raw) == client.get(location).content


def test_a_cached_answer_is_refused_to_who_may_no_longer_have_it(tenants) -> None:
    client, key = tenants
    mine = key("mine")
    location = client.post("/v1/recommendations", json=ASKED, headers=mine).headers["location"]
    for _ in range(2):
        assert client.post("/v1/recommendations", json=ASKED, headers=mine).status_code == 200
        assert client.get(location, headers=mine).status_code == 200
    wrong = {"Content-Type": "text/plain", **mine}
    sent = client.post("/v1/recommendations", content=b"{}", headers=wrong)
    assert sent.status_code == 415
    store: Store = client.app.state.services.store
    (row,) = api_keys._list_keys(store)
    api_keys.revoke(store, row.split()[0])
    assert client.post("/v1/recommendations", json=ASKED, headers=mine).status_code == 401
    assert client.get(location, headers=mine).status_code == 401


class Searches:
    """Searches that take long enough to be asked for again meanwhile, and are counted."""

    def __init__(self, monkeypatch, failures: int = 0) -> None:
        self.count = 0
        self.failures = failures
        self.began = threading.Event()
        self.may_end = threading.Event()
        monkeypatch.setattr(recommendation_search, "recommend", self)

    def __call__(self, *args: Any, **options: Any) -> recommendation.Recommendation:
        self.count += 1
        self.began.set()
        assert self.may_end.wait(LONG_S)
        if self.count <= self.failures:
            raise RuntimeError("broken")
        return recommendation.recommend(*args, **options)


def asked_at_once(client: TestClient, searches: Searches, asked: dict[str, Any], times: int) -> Any:
    with ThreadPoolExecutor(times) as pool:
        asking = [pool.submit(client.post, "/v1/recommendations", json=asked) for _ in range(times)]
        assert searches.began.wait(LONG_S)
        time.sleep(0.2)
        searches.may_end.set()
        return [future.result() for future in asking]


def test_a_question_in_flight_is_answered_once(client: TestClient, monkeypatch) -> None:
    searches = Searches(monkeypatch)
    answers = asked_at_once(client, searches, ASKED, 6)
    assert searches.count == 1
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1


def test_others_are_answered_where_the_first_fails(make_client, monkeypatch) -> None:
    client = make_client()
    searches = Searches(monkeypatch, failures=1)
    answers = asked_at_once(client, searches, ASKED, 4)
    assert searches.count == 2
    assert sorted(answer.status_code for answer in answers) == [200, 200, 201, 500]


@ON_POSTGRESQL_FIRST
def test_answers_of_an_earlier_release_are_served_and_listed(
    client: TestClient, database_url: str
) -> None:
    """And, the other way, a downgrade writes each answer into its own row."""
    made = client.post("/v1/recommendations", json=ASKED).json()
    predicted = client.post("/v1/predictions", json={**ASKED, "layout": {**LAYOUT, "dp_shard": 16}})
    listed = client.get("/v1/recommendations").json()
    engine = database.connect(database_url)
    database.downgrade(engine, "0013")
    with engine.connect() as connection:
        stored = connection.execute(text("select document from recommendations")).scalar_one()
    assert made["id"] in str(stored)
    database.migrate(engine)
    engine.dispose()
    for answer in (made, predicted.json()):
        kind = "recommendations" if "certificate" in answer else "predictions"
        assert client.get(f"/v1/{kind}/{answer['id']}").json() == answer
    assert client.get("/v1/recommendations").json() == listed
    assert client.post("/v1/recommendations", json=ASKED).status_code == 201


@pytest.mark.parametrize(
    ("path", "asked", "module", "reads"),
    [
        ("/v1/recommendations", ASKED, recommendations, "resolve_candidates"),
        ("/v1/predictions", LAUNCHED, predictions, "launched_question"),
        ("/v1/checks", {**LAUNCHED, "store": True}, checks, "launched_question"),
    ],
)
def test_a_question_is_resolved_once_for_its_answer_and_not_at_all_for_the_next(
    client: TestClient, monkeypatch, path: str, asked: dict[str, Any], module: Any, reads: str
) -> None:
    resolved = list[object]()
    read = getattr(module, reads)

    def counted(*given: Any, **named: Any) -> Any:
        if "changes" not in named:  # a check also reads its launch with other settings
            resolved.append(given)
        return read(*given, **named)

    monkeypatch.setattr(module, reads, counted)
    for status in (201, 200):
        assert client.post(path, json=asked).status_code == status
        assert len(resolved) == 1
