"""Answers that are kept: stored once, found again by what they answer, and sent as stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from service.ask.answer_keys import AnswerKey
from service.ask.answer_pages import answer_brief
from service.identifiers import new_id
from service.metrics import count_lookup
from service.runtime.idempotency import CreatedResource, Prepared, SaveRows
from service.schemas.prediction import PredictionAnswer
from service.schemas.recommendation import RecommendationAnswer
from service.store import Rows, Store
from service.store.answer_text import AnswerText
from service.store.answers import Answer, AnswerKind

ANSWERED_BEFORE = 200
"""The status of an answer that the tenant has been given before."""


@dataclass(frozen=True, slots=True)
class LookedUp:
    """The result of looking for an earlier answer."""

    key: AnswerKey
    known: Prepared | None
    """The answer, where there is one."""


class KeptAnswers:
    """The answers of a kind in a store."""

    def __init__(self, store: Store, kind: AnswerKind) -> None:
        self._store = store
        self._kind = kind

    def get(self, id_: str) -> AnswerText:
        """The text of an answer; raises NotFound where there is none."""
        with self._store.reading() as rows:
            return rows.answers.get(self._kind, id_).text

    def look_up(self, rows: Rows, key: AnswerKey) -> LookedUp:
        """The answer under a key: as it is where the tenant has been given it before, else as an
        answer of its own with the same text."""
        known = self._known(rows, key.digest)
        if known is not None:
            count_lookup("answers", is_hit=True)
        return LookedUp(key, known)

    def _known(self, rows: Rows, key: str) -> Prepared | None:
        memory = self._store.memory
        place = self._kind, key, self._store.tenant
        mine: Answer | None = memory.at_hand(place)
        if mine is None or not mine.is_given_again:
            if not rows.answers.has_text(key):
                return None
            mine = rows.answers.mine(self._kind, key)
            others = rows.answers.of_anyone(self._kind, key) if mine is None else None
            if others is not None:
                return lambda rows: _save_reference(rows, others, key)
            if mine is None:
                return None
            memory.put_at_hand_unchanging(place, mine, mine.text.size)
        return CreatedResource(mine.location, None, text=mine.text, status=ANSWERED_BEFORE)

    def prepare(self, answer: PredictionAnswer | RecommendationAnswer, key: str) -> SaveRows:
        """Returns the function that stores an answer as it is sent, and its text under `key`. The
        text is made here, so that no other writer waits for that."""
        stored = Answer(
            kind=self._kind,
            id=answer.id,
            created_at=answer.created_at,
            profile_id=answer.profile.id,
            profile_version=answer.profile.version,
            text=AnswerText.of(answer.model_dump_json().encode()),
        )
        return save_answer(stored, key, answer_brief(answer))


def save_answer(answer: Answer, key: str, brief: dict[str, Any]) -> SaveRows:
    """Returns the function that stores an answer, and its text under `key`. `brief` is the part
    that lists show of it."""
    return lambda rows: _save(rows, answer, key, brief)


def _save(rows: Rows, answer: Answer, key: str, brief: dict[str, Any]) -> CreatedResource:
    count_lookup("answers", is_hit=False)  # once, however often it was looked up before
    rows.answers.add(answer, key, brief)
    return CreatedResource(answer.location, None, text=answer.text)


def _save_reference(rows: Rows, others: Answer, key: str) -> CreatedResource:
    """Stores an answer that another tenant was given as one of the tenant's own, which takes only a
    short row."""
    own = others.renamed(new_id(), datetime.now(UTC))
    rows.answers.add_reference(own, key)
    return CreatedResource(own.location, None, text=own.text)
