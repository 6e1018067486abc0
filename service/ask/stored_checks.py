"""Checks of jobs that are about to be submitted, stored so that reports of their runs can refer to
them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from service.ask.answer_keys import Meaning
from service.ask.answer_pages import names_used
from service.ask.check_size import shortened
from service.ask.checks import Checks
from service.ask.kept_answers import KeptAnswers, KeyedQuestion, save_answer
from service.ask.resolved_check import ResolvedCheck
from service.identifiers import new_id
from service.runtime.deadline import no_client
from service.runtime.idempotency import SaveRows
from service.schemas.check import CheckRequest, LaunchedCheckRequest
from service.schemas.question import Question
from service.store import Rows, Store
from service.store.answer_text import AnswerText, encoded
from service.store.answers import Answer

Request = CheckRequest | LaunchedCheckRequest


class StoredChecks(KeptAnswers[Request, ResolvedCheck]):
    kind = "checks"

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._checks = Checks(store)

    def resolve(self, rows: Rows, request: Request) -> ResolvedCheck:
        return self._checks.resolve(rows, request)

    def meaning(self, resolved: ResolvedCheck) -> Meaning:
        """Returns the catalogue entries and the reported runs on which the answer to a check rests.
        The stored answer is given again until one of these changes."""
        return Meaning.of([resolved.resolved])

    def check(
        self,
        request: Request,
        question: KeyedQuestion[ResolvedCheck],
        require_client: Callable[[], None] = no_client,
    ) -> SaveRows:
        """Checks a job that `look_up` has not found answered. Returns the function that stores the
        answer."""
        checked = self._checks.check_resolved(request, question.resolved, require_client)
        answer = _stored_answer(checked)
        return save_answer(answer, question.key.digest, _listed_fields(checked))


def _stored_answer(checked: dict[str, Any]) -> Answer:
    """Returns the answer to a check as it is stored, with an id, a time and a location."""
    id_, now = new_id(), datetime.now(UTC)
    identity = {
        "id": id_,
        "created_at": now.isoformat().replace("+00:00", "Z"),
        "location": f"/v1/checks/{id_}",
    }
    document = shortened({**checked, **identity})  # again, since these fields make it longer
    profile = document["profile"]
    return Answer(
        kind="checks",
        id=id_,
        created_at=now,
        profile_id=profile["id"],
        profile_version=profile["version"],
        text=AnswerText.of(encoded(document)),
    )


def _listed_fields(checked: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a check that lists show."""
    request = {name: checked["request"][name] for name in Question.model_fields}
    names = names_used(checked["catalogue"])
    return {
        "request": request,
        "names": names,
        "verdict": checked["verdict"],
        "summary": checked["summary"],
    }
