"""Predictions, recommendations and checks as they were answered. Equal questions have one *key*, a
hash of the question and of what its answer depends on. The text of an answer is stored once, under
its key, and each caller that is given it has a row that refers to it. The *brief* of an answer is
what lists show of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import ColumnElement, Row, Select, String, bindparam, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from service.errors import Conflict, NotFound
from service.store.answer_text import AnswerText, Stamp
from service.store.prepared import execute, first_row
from service.store.queries import Queries, newest_first, within_span
from service.store.quota import count_stored, size_of
from service.store.tables import (
    AnswerTextRow,
    CheckRow,
    PredictionRow,
    RecommendationRow,
    Table,
)

AnswerKind = Literal["predictions", "recommendations", "checks"]
AnswerRow = PredictionRow | RecommendationRow | CheckRow

GIVEN_AGAIN_FOR = timedelta(days=1)
"""Time for which a caller who asks again is given the same answer. Later the text is given as a new
answer: old answers are dropped (service.store.retention), even if they were given again lately."""

ROWS: dict[AnswerKind, type[AnswerRow]] = {
    "predictions": PredictionRow,
    "recommendations": RecommendationRow,
    "checks": CheckRow,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A stored answer."""

    kind: AnswerKind
    id: str
    created_at: datetime
    profile_id: str
    profile_version: int
    text: AnswerText

    @property
    def location(self) -> str:
        return f"/v1/{self.kind}/{self.id}"

    @property
    def document(self) -> dict[str, Any]:
        """Returns the answer as a new value that the caller may change."""
        return self.text.document

    @property
    def is_given_again(self) -> bool:
        """Returns whether the answer is recent enough to be given again to a caller who asks
        again."""
        return self.created_at > datetime.now(UTC) - GIVEN_AGAIN_FOR

    def renamed(self, id_: str, created_at: datetime) -> Answer:
        """Returns this answer with another id and time, for a question that is asked again."""
        first = Stamp(self.id, self.created_at)
        text = self.text.restamped(first, Stamp(id_, created_at))
        return replace(self, id=id_, created_at=created_at, text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFilter:
    """A filter of a list of answers. `names` has the accepted values of "model", "chip" and
    "stack"; an empty list accepts all."""

    names: Mapping[str, Sequence[str]]
    since: datetime | None
    """The earliest time at which an answer was given, inclusive."""
    until: datetime | None
    """The latest, exclusive."""


class Answers(Queries):
    def add(self, answer: Answer, key: str, brief: dict[str, Any]) -> None:
        """Stores an answer and, unless it is stored already, its text under `key`, the hash of the
        question and of what its answer depends on. `brief` has the fields that lists show."""
        text = {
            "key": key,
            "first_id": answer.id,
            "first_created_at": answer.created_at,
            "brief": brief,
            "gzip": answer.text.compressed,
        }
        execute(self._session, _INSERT_TEXT[self._dialect], text)  # skips a key that exists
        self._add_row(answer, key, size_of(answer.text.compressed, brief))

    def add_reference(self, answer: Answer, key: str) -> None:
        """Stores an answer whose text is stored already under `key`. Raises Conflict if the text
        has been deleted meanwhile (service.store.retention)."""
        text = select(AnswerTextRow.key).where(AnswerTextRow.key == key)
        # FOR KEY SHARE: nobody deletes the text meanwhile, and others may refer to it too.
        locked_text = text.with_for_update(read=True, key_share=True)
        if self._session.scalars(locked_text).first() is None:
            raise Conflict("The answer was dropped meanwhile; ask again.")
        self._add_row(answer, key, size_of())  # the text counts for the tenant that stored it

    def _add_row(self, answer: Answer, key: str, size: int) -> None:
        """Stores the row of an answer, and counts `size` bytes for the session's tenant. `key` is
        that of the answer's text, which is stored once for all who ask the same."""
        count_stored(self._session, self._tenant, size)
        values = {
            "id": answer.id,
            "created_at": answer.created_at,
            "profile_id": answer.profile_id,
            "profile_version": answer.profile_version,
            "tenant": self._tenant,
            "text_key": key,
            "stored_bytes": size,
        }
        execute(self._session, _INSERT[answer.kind], values)

    def get(self, kind: AnswerKind, id_: str) -> Answer:
        """Returns the answer of this id; raises NotFound where there is none."""
        query = _answers_with_texts(kind).where(ROWS[kind].id == id_)
        row = self._session.execute(query).first()
        if row is None:
            raise NotFound(kind.removesuffix("s"), id_)
        return _answer(kind, row)

    def at_location(self, location: str) -> Answer:
        """Returns the answer with this location, such as "/v1/predictions/01AB". Raises
        NotFound."""
        *_, name, id_ = location.split("/")
        # Taken from ROWS, whose keys have the type AnswerKind. A location names one of them.
        (kind,) = (kind for kind in ROWS if kind == name)
        return self.get(kind, id_)

    def prediction(self, id_: str) -> Answer:
        return self.get("predictions", id_)

    def recommendation(self, id_: str) -> Answer:
        return self.get("recommendations", id_)

    def check(self, id_: str) -> Answer:
        return self.get("checks", id_)

    def has_text(self, key: str) -> bool:
        """Returns whether a text is stored under `key`: some caller has had this answer."""
        return first_row(self._session, _TEXT_OF, {"key": key}) is not None

    def given_lately(self, kind: AnswerKind, key: str) -> Answer | None:
        """Returns the first answer with the text of this key that the session's tenant was given
        within GIVEN_AGAIN_FOR, to be given again with its id; None where there is none."""
        values = {
            "key": key,
            "tenant": self._tenant,
            "since": datetime.now(UTC) - GIVEN_AGAIN_FOR,
        }
        row = first_row(self._session, _GIVEN_LATELY[kind], values)
        return None if row is None else _answer(kind, row)

    def first_given(self, kind: AnswerKind, key: str) -> Answer | None:
        """Returns the answer for which this text was first stored, whichever tenant it was given
        to, so that it need not be computed again. None where there is no such text."""
        row = self._session.get(AnswerTextRow, key)
        if row is None:
            return None
        text = AnswerText(compressed=row.gzip)
        profile = text.document["profile"]  # the row of a text does not name it
        return Answer(
            kind=kind,
            id=row.first_id,
            created_at=row.first_created_at,
            profile_id=profile["id"],
            profile_version=profile["version"],
            text=text,
        )

    def newest(
        self, kind: AnswerKind, limit: int, since: datetime | None, until: datetime | None
    ) -> Sequence[Answer]:
        """Returns the newest answers from `since` (inclusive) until `until` (exclusive), newest
        first."""
        row = ROWS[kind]
        query = within_span(_answers_with_texts(kind), row.created_at, since, until)
        query = newest_first(query, row.id, limit)
        return [_answer(kind, stored) for stored in self._session.execute(query)]

    def briefs(
        self, kind: AnswerKind, limit: int, before: str | None, filter_: AnswerFilter
    ) -> Sequence[Row[Any]]:
        """Returns the fields that lists show of answers, newest first, starting after the id
        `before`. Ids sort by time."""
        row = ROWS[kind]
        text = AnswerTextRow
        # Answers of an earlier release have their brief in their own row.
        brief = func.coalesce(text.brief, row.brief, type_=row.brief.type).label("brief")
        columns = row.id, row.created_at, row.profile_id, row.profile_version, brief
        query = select(*columns).outerjoin(text, text.key == row.text_key)
        query = within_span(query, row.created_at, filter_.since, filter_.until)
        query = newest_first(query, row.id, limit, before)
        for name, values in filter_.names.items():
            if values:
                query = query.where(_name_in(brief, name).in_(values))
        return self._session.execute(query).all()


def _name_in(brief: ColumnElement[Any], name: str) -> ColumnElement[str]:
    """Returns the SQL expression for the name of a model, chip or stack in a brief, the fields of
    an answer that lists show. In briefs of an earlier release, which have no `names`, the name is
    taken from the request."""
    # A request names its chip by the preset of its cluster.
    path = {"chip": ("cluster", "preset")}.get(name, (name,))
    named = brief["request"]
    for part in path:
        named = named[part]
    return func.coalesce(brief["names"][name].as_string(), named.as_string())


def _answers_with_texts(kind: AnswerKind) -> Select[Any]:
    """Returns the query of answers of a kind with their texts. Answers of an earlier release have
    no text but a document in their own row."""
    row = ROWS[kind]
    text = AnswerTextRow
    columns = row.id, row.created_at, row.profile_id, row.profile_version, row.document
    text_columns = text.first_id, text.first_created_at, text.gzip
    return select(*columns, *text_columns).outerjoin(text, text.key == row.text_key)


def _answer(kind: AnswerKind, row: Row[Any]) -> Answer:
    """Returns a row of `_answers_with_texts` as an answer. A stored text has the id and time of the
    answer that it was first given for; here it gets those of this row."""
    if row.gzip is None:  # an answer of an earlier release
        document = json.dumps(row.document, ensure_ascii=False, separators=(",", ":"))
        text = AnswerText(plain=document.encode())
    else:
        stored = AnswerText(compressed=row.gzip)
        first = Stamp(row.first_id, row.first_created_at)
        text = stored.restamped(first, Stamp(row.id, row.created_at))
    return Answer(
        kind=kind,
        id=row.id,
        created_at=row.created_at,
        profile_id=row.profile_id,
        profile_version=row.profile_version,
        text=text,
    )


# Made once, since making a statement takes longer than executing it.

_TABLES = Table.metadata.tables
_INSERT_TEXT = {
    "sqlite": sqlite.insert(_TABLES["answer_texts"]).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(_TABLES["answer_texts"]).on_conflict_do_nothing(),
}
_INSERT = {kind: insert(_TABLES[kind]) for kind in ROWS}
_TEXT_OF = select(AnswerTextRow.key).where(AnswerTextRow.key == bindparam("key"))
_GIVEN_LATELY = {
    kind: _answers_with_texts(kind)
    .where(
        row.text_key == bindparam("key"),
        row.tenant.is_not_distinct_from(bindparam("tenant", type_=String())),
        row.created_at > bindparam("since"),
    )
    .order_by(row.id)
    .limit(1)
    for kind, row in ROWS.items()
}
