"""The contract of the store: the same tests on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from service.errors import NotFound
from service.identifiers import new_id
from service.store import Store, database
from service.store.answer_text import AnswerText
from service.store.answers import Answer, AnswerFilter
from service.store.reports import ReportFilter
from service.store.tables import (
    ApiKeyRow,
    IdempotencyRow,
    ProfileVersionRow,
    RegisteredEntryRow,
    ReportRow,
)
from tests.service.asking import ON_BOTH

pytestmark = ON_BOTH

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    engine = database.connect(database_url)
    yield Store(engine)
    engine.dispose()


def report(**columns: Any) -> dict[str, Any]:
    """The columns of a report that ran well, but for those given."""
    return {
        "measured_at": NOON,
        "source": None,
        "outcome": "ok",
        "chip": "h100",
        "fabric": "dgx-h100",
        "stack": "megatron",
        "architecture": "llama-3.1-8b",
        "profile_id": "default",
        "profile_version": 1,
        "prediction_id": None,
        "recommendation_id": None,
        "choice": None,
        "step_time_s": 2.0,
        "predicted_step_time_s": 2.1,
        "residual": math.log(2.0 / 2.1),
        "within_interval": True,
        "withdrawn_at": None,
        "log_hash": None,
        "run_hash": "one run",
        "submission": "{}",
        "document": {},
        **columns,
    }


def stored(store: Store, *reports: dict[str, Any]) -> list[str]:
    """Their ids, in the order given: ids of one millisecond are in no order."""
    ids = []
    for each in reports:
        with store.writing() as rows:
            ids += [row["id"] for row in rows.reports.add([each])]
        time.sleep(0.002)
    return ids


def listed(store: Store, limit: int = 10, before: str | None = None, **wanted: Any) -> list[str]:
    with store.reading() as rows:
        return [row.id for row in rows.reports.newest(ReportFilter(**wanted), limit, before)]


def test_numbers_and_texts_come_back_as_they_went_in(store: Store) -> None:
    document = {
        "tiny": 5e-324,
        "large": 2**53,
        "third": 1 / 3,
        "text": "ü \u2028 \\u0000 🚀",
        "no": None,
    }
    (id_,) = stored(store, report(document=document, submission=' {"as":  "it came"}\n'))
    with store.reading() as rows:
        row = rows.reports.get(id_)
    assert row.document.items() >= document.items()
    assert row.submission == ' {"as":  "it came"}\n'
    assert row.step_time_s == 2.0
    assert row.residual == math.log(2.0 / 2.1)


def test_an_instant_keeps_its_moment_and_comes_back_in_utc(store: Store) -> None:
    there = NOON.astimezone(timezone(timedelta(hours=9)))
    (id_,) = stored(store, report(measured_at=there))
    with store.reading() as rows:
        measured_at = rows.reports.get(id_).measured_at
    assert measured_at == NOON
    assert measured_at.utcoffset() == timedelta(0)


def test_what_fails_halfway_leaves_nothing(store: Store) -> None:
    def fail() -> None:
        with store.writing() as rows:
            rows.reports.add([report()])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert listed(store) == []


def test_reports_are_listed_newest_first_a_page_at_a_time(store: Store) -> None:
    ids = stored(store, *[report() for _ in range(5)])
    assert ids == sorted(ids)
    assert listed(store, 2) == [ids[4], ids[3]]
    assert listed(store, 2, before=ids[3]) == [ids[2], ids[1]]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"chip": ["h100"]}, [3, 1, 0]),
        ({"chip": ["h100"], "outcome": ["ok"]}, [1, 0]),
        ({"since": NOON}, [3, 2, 1]),
        ({"until": NOON}, [0]),
        ({"measured": True}, [2, 1, 0]),
        ({"include_withdrawn": True}, [4, 3, 2, 1, 0]),
    ],
    ids=str,
)
def test_reports_are_filtered(store: Store, wanted: dict[str, Any], found: list[int]) -> None:
    ids = stored(
        store,
        report(measured_at=NOON - timedelta(microseconds=1)),
        report(),
        report(chip="mi300x"),
        report(outcome="out_of_memory", step_time_s=None, residual=None),
        report(withdrawn_at=NOON),
    )
    assert listed(store, **wanted) == [ids[i] for i in found]
    with store.reading() as rows:
        assert rows.reports.count(ReportFilter(**wanted)) == len(found)


def test_of_several_reports_of_a_run_the_one_measured_last_counts(store: Store) -> None:
    first, later, other = stored(
        store,
        report(measured_at=NOON - timedelta(days=1)),
        report(measured_at=NOON),
        report(run_hash="another run", measured_at=NOON - timedelta(days=2)),
    )
    with store.reading() as rows:
        last = rows.reports.last_of_each_run(ReportFilter(), 10)
    assert [(one.id, one.first_id) for one in last] == [(later, first), (other, other)]


def test_more_ids_may_be_looked_up_than_a_query_binds(store: Store) -> None:
    (id_,) = stored(store, report())
    with store.reading() as rows:
        assert rows.reports.existing_ids([*(f"none-{i}" for i in range(70_000)), id_]) == {id_}


def test_a_report_cannot_refer_to_what_is_not_there(store: Store) -> None:
    with pytest.raises(Exception, match="(?i)foreign key"):
        stored(store, report(prediction_id="nowhere"))


def test_a_tenant_sees_and_makes_its_own_rows_only(store: Store) -> None:
    mine, yours = (store.of(name, sees_all=False) for name in ("mine", "yours"))
    (of_mine,) = stored(mine, report())
    (of_yours,) = stored(yours, report())
    assert (listed(mine), listed(yours)) == ([of_mine], [of_yours])
    assert listed(store) == [of_yours, of_mine]
    with yours.reading() as rows, pytest.raises(NotFound):
        rows.reports.get(of_mine)
    with store.reading() as rows:
        assert rows.reports.get(of_mine).tenant == "mine"


def test_runs_out_of_memory_are_told_to_who_reported_them_and_to_who_sees_all(store: Store) -> None:
    mine, yours = (store.of(name, sees_all=False) for name in ("mine", "yours"))
    stored(mine, report(outcome="out_of_memory"))
    alike = {"chip": "h100", "stack": "megatron", "architecture": "llama-3.1-8b"}
    told = []
    for each in (mine, yours, store):
        with each.reading() as rows:
            told.append(rows.reports.any_out_of_memory(**alike))
            assert not rows.reports.any_out_of_memory(**{**alike, "chip": "b200"})
    assert told == [True, False, True]


def test_what_is_written_is_found_in_the_same_transaction(store: Store) -> None:
    tenant = store.of("mine", sees_all=False)
    with tenant.writing() as rows:
        words = report()
        assert rows.reports.first_in_same_words(words) is None
        (first,) = rows.reports.add([words])
        rows.reports.add([words])
        assert rows.reports.first_in_same_words(words) == first["id"]
    with store.of("yours", sees_all=False).writing() as rows:
        assert rows.reports.first_in_same_words(words) is None


def test_answers_are_kept_and_listed_in_brief(store: Store) -> None:
    ids = sorted(new_id() for _ in range(3))
    with store.writing() as rows:
        for id_ in ids:
            answer = Answer(
                kind="predictions",
                id=id_,
                created_at=NOON,
                profile_id="default",
                profile_version=1,
                text=AnswerText(plain=json.dumps({"id": id_}).encode()),
            )
            rows.answers.add(answer, id_, {"request": id_})
    with store.reading() as rows:
        assert rows.answers.prediction(ids[0]).document == {"id": ids[0]}
        briefs = rows.answers.briefs(
            "predictions", 2, None, AnswerFilter(names={}, since=None, until=None)
        )
        with pytest.raises(NotFound):
            rows.answers.recommendation(ids[0])
    assert [row.brief for row in briefs] == [{"request": ids[2]}, {"request": ids[1]}]


def test_a_profile_is_changed_only_by_who_saw_its_last_revision(store: Store) -> None:
    with store.writing() as rows:
        seen = rows.profiles.get("default").revision
        shipped = rows.profiles.version("default", 1)
        rows.profiles.add_version(
            ProfileVersionRow(
                profile_id="default",
                version=2,
                created_at=NOON,
                origin="calibrated",
                content_hash="hash",
                content=shipped.content,
                calibration=None,
                learnt=None,
                posterior=None,
            )
        )
        assert rows.profiles.revision("default") == seen + 1
    with store.writing() as rows:
        assert not rows.profiles.activate("default", 2, seen)
        assert rows.profiles.activate("default", 2, seen + 1)
    with store.reading() as rows:
        assert rows.profiles.active("default").version == 2
        assert rows.profiles.latest("default", "shipped").version == 1
        assert [row["version"] for row in rows.profiles.versions("default")] == [1, 2]


def test_a_catalogue_name_means_its_latest_version_or_the_one_it_pins(store: Store) -> None:
    with store.writing() as rows:
        for version in (1, 2):
            entry = {"is": version}
            rows.registered_entries.add(
                RegisteredEntryRow(
                    kind="chips", name="mine", version=version, created_at=NOON, entry=entry
                )
            )
    with store.reading() as rows:
        found = {
            name: rows.registered_entries.named("chips", name)
            for name in ("mine", "mine@1", "mine@3")
        }
        assert rows.registered_entries.named("clusters", "mine") is None
        assert [row.version for row in rows.registered_entries.latest("chips", ["mine"])] == [2]
    assert {name: row and row.entry for name, row in found.items()} == {
        "mine": {"is": 2},
        "mine@1": {"is": 1},
        "mine@3": None,
    }


def test_an_idempotency_key_is_claimed_once(store: Store) -> None:
    def claim(token: str) -> bool:
        with store.writing() as rows:
            return rows.idempotency_keys.claim(
                IdempotencyRow(key="k", fingerprint="f", token=token, claimed_at=NOON)
            )

    assert claim("first")
    assert not claim("second")
    with store.writing() as rows:
        rows.idempotency_keys.finish("k", "first", 201, "/x/1", {"id": 1})
        rows.idempotency_keys.release(["first"])
    with store.reading() as rows:
        answered = rows.idempotency_keys.find("k")
    assert answered is not None
    assert (answered.location, answered.document) == ("/x/1", {"id": 1})


def test_published_runs_are_replaced_as_a_whole(store: Store) -> None:
    with store.writing() as rows:
        rows.evidence.replace("next", [{"id": "b"}, {"id": "a"}])
    with store.reading() as rows:
        assert rows.evidence.release() == "next"
        assert rows.evidence.all() == [{"id": "a"}, {"id": "b"}]


def test_a_revoked_key_stays_revoked_at_its_first_time(store: Store) -> None:
    with store.writing() as rows:
        scopes = ["recommend", "report"]
        rows.api_keys.add(
            ApiKeyRow(id="k", tenant="t", scopes=scopes, secret_hash="x", created_at=NOON)
        )
    for at in (NOON, NOON + timedelta(days=1)):
        with store.writing() as rows:
            rows.api_keys.revoke("k", at)
    with store.reading() as rows:
        row = rows.api_keys.get("k")
    assert (row.scopes, row.revoked_at) == (scopes, NOON)


def test_withdrawn_reports_are_kept(store: Store) -> None:
    (id_,) = stored(store, report())
    with store.writing() as rows:
        rows.reports.get_for_update(id_).withdrawn_at = NOON
    assert listed(store) == []
    with store.reading() as rows:
        kept: ReportRow = rows.reports.get(id_)
    assert kept.withdrawn_at == NOON
