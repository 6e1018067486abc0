"""Answers that are kept: stored once, found again by what they answer, and sent as stored.

The *text* of an answer is its JSON, stored once under a *key*: a digest of all that decides it
(service.ask.answer_keys). Each caller gets a row of its own that refers to the text. The *listed
fields* of an answer are the few that lists show.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar

from service.ask.answer_keys import AnswerKey, AnyRequest, Meaning, answer_key
from service.ask.answer_pages import answer_page, listed_fields
from service.identifiers import new_id
from service.metrics import count_lookup
from service.runtime.creation import Unanswered
from service.runtime.idempotency import ANSWERED_BEFORE, CreatedResource, Prepared, SaveRows
from service.schemas.list_query import AnswerQuery
from service.schemas.prediction import PredictionAnswer
from service.schemas.recommendation import RecommendationAnswer
from service.store import Rows, UseCase
from service.store.answer_text import AnswerText
from service.store.answers import Answer, AnswerKind

Request = TypeVar("Request", bound=AnyRequest)
Resolved = TypeVar("Resolved")


@dataclass(frozen=True, slots=True)
class KeyedQuestion(Generic[Resolved]):
    """A question with its names resolved, and the key under which its answer is to be stored."""

    key: AnswerKey
    resolved: Resolved


class KeptAnswers(UseCase, ABC, Generic[Request, Resolved]):
    """The answers of one kind, such as predictions, which are stored."""

    kind: ClassVar[AnswerKind]

    @abstractmethod
    def resolve(self, rows: Rows, request: Request) -> Resolved:
        """Resolves the names of a request."""

    @abstractmethod
    def meaning(self, resolved: Resolved) -> Meaning:
        """Returns the versions of catalogue entries that the answer depends on, and the models,
        chips and stacks whose reported runs it depends on."""

    def get(self, id_: str) -> AnswerText:
        """Returns the text of an answer. Raises NotFound."""
        with self._store.reading() as rows:
            return rows.answers.get(self.kind, id_).text

    def page(self, query: AnswerQuery) -> dict[str, Any]:
        return answer_page(self._store, self.kind, query)

    def look_up(self, request: Request) -> Prepared | Unanswered[KeyedQuestion[Resolved]]:
        """Returns the stored answer to an equal question, if nothing that it depends on has changed
        since; else the question with its key."""
        with self._store.reading() as rows:
            resolved = cache(lambda: self.resolve(rows, request))  # at most once
            key = answer_key(rows, self.kind, request, lambda: self.meaning(resolved()))
            earlier = self._earlier_answer(rows, key.digest)
            if earlier is not None:
                count_lookup("answers", is_hit=True)
                return earlier
            return Unanswered(KeyedQuestion(key, resolved()))

    def _is_current(self, request: Request, key: AnswerKey) -> bool:
        """Returns whether an answer would have this key now too. If something that it depends on
        has changed during a long search, it must not be found under the key."""
        with self._store.reading() as rows:
            now = answer_key(
                rows, self.kind, request, lambda: self.meaning(self.resolve(rows, request))
            )
        return now.digest == key.digest

    def _earlier_answer(self, rows: Rows, key: str) -> Prepared | None:
        """Returns the stored answer under this key if the tenant was given it within a day. If that
        was longer ago, or only another tenant was given it, returns the function that stores it for
        this tenant under a new id. Returns None where no answer has this key."""
        memory = self._store.memory
        memory_key = self.kind, key, self._store.tenant
        own: Answer | None = memory.unchanged(memory_key)
        # The answer in memory may be a day old by now: it is then given under a new id.
        if own is None or not own.is_given_again:
            if not rows.answers.has_text(key):
                return None
            own = rows.answers.given_lately(self.kind, key)
            if own is None:
                other = rows.answers.first_given(self.kind, key)
                return None if other is None else lambda rows: _save_reference(rows, other, key)
            memory.keep_unchanging(memory_key, own, own.text.size)
        return CreatedResource(own.location, None, text=own.text, status=ANSWERED_BEFORE)

    def _prepare(self, answer: PredictionAnswer | RecommendationAnswer, key: str) -> SaveRows:
        """Returns the function that stores an answer as it is sent, with its text under `key`. The
        text is encoded now, before the database is locked for writing."""
        stored = Answer(
            kind=self.kind,
            id=answer.id,
            created_at=answer.created_at,
            profile_id=answer.profile.id,
            profile_version=answer.profile.version,
            text=AnswerText.of(answer.model_dump_json().encode()),
        )
        return save_answer(stored, key, listed_fields(answer))


def save_answer(answer: Answer, key: str, listed: dict[str, Any]) -> SaveRows:
    """Returns the function that stores an answer, with its text under `key`. `listed` has the
    fields that lists show."""

    def save(rows: Rows) -> CreatedResource:
        # A miss is counted here and not in `look_up`, which several looks for one answer may call.
        count_lookup("answers", is_hit=False)
        rows.answers.add(answer, key, listed)
        return CreatedResource(answer.location, None, text=answer.text)

    return save


def _save_reference(rows: Rows, other: Answer, key: str) -> CreatedResource:
    """Stores an answer that another tenant was given, with a new id, for this tenant too. Only a
    short row is added, because the text is stored already."""
    own = other.renamed(new_id(), datetime.now(UTC))
    rows.answers.add_reference(own, key)
    return CreatedResource(own.location, None, text=own.text)
