"""Draws the layouts of earlier answers as timelines. A *timeline* says what each pipeline stage
does during one step, and when."""

from __future__ import annotations

from typing import Any

import service
from models.prediction.timeline import Timeline, chrome_trace, timeline
from service.identifiers import digest
from service.resolve.answered_layout import (
    StoredLayout,
    layout_of_prediction,
    layout_of_recommendation,
    legal_run,
)
from service.resolve.profiles import requested_profile
from service.resolve.resolution import Resolver
from service.schemas.question import ProfileWanted
from service.schemas.timeline import RecommendationTimelineQuery, TimelineAnswer, TimelineQuery
from service.store import Rows, UseCase
from service.store.answer_text import AnswerText, encoded
from service.store.answers import AnswerKind


class Timelines(UseCase):
    """Timelines of layouts, as they are sent. Neither an answer nor its timeline in this release
    ever changes, so each is drawn once and kept in memory."""

    def etag(self, kind: AnswerKind, id_: str, query: TimelineQuery) -> str:
        return f'"{digest(*_key(kind, id_, query))[:32]}"'

    def kept(self, kind: AnswerKind, id_: str, query: TimelineQuery) -> AnswerText | None:
        """Returns the timeline if it is still kept in memory; None otherwise. Raises NotFound if
        there is no such answer."""
        with self._store.reading() as rows:
            rows.answers.get(kind, id_)  # raises NotFound: memory may outlive the answer
        text: AnswerText | None = self._store.memory.get(_key(kind, id_, query))
        return text

    def drawn(self, kind: AnswerKind, id_: str, query: TimelineQuery) -> AnswerText:
        """Returns the timeline from memory, or else draws and keeps it. Raises NotFound if there is
        no such answer."""
        text = self.kept(kind, id_, query)
        if text is None:
            text = AnswerText.of(encoded(self._draw(id_, query)))
            self._store.memory.keep(_key(kind, id_, query), text, text.size)
        return text

    def _draw(self, id_: str, query: TimelineQuery) -> dict[str, Any]:
        """Draws the timeline with the profile that the answer was made with, as a Chrome trace or
        in the service's own form."""
        with self._store.reading() as rows:
            answered = _selected_layout(rows, id_, query)
            profile = requested_profile(rows, ProfileWanted(**answered.profile.model_dump()))
            problem, layout = legal_run(Resolver(rows), answered.question, answered.layout)
        drawn: Timeline = timeline(problem, profile, layout, query.micro_batches)
        if query.format == "chrome":
            return chrome_trace(drawn)
        return TimelineAnswer.document(drawn, answered.profile)


def _key(kind: AnswerKind, id_: str, query: TimelineQuery) -> tuple[str, ...]:
    return service.__version__, "timeline", kind, id_, query.model_dump_json()


def _selected_layout(rows: Rows, id_: str, query: TimelineQuery) -> StoredLayout:
    """Returns the layout of a stored recommendation or prediction that the query selects."""
    if isinstance(query, RecommendationTimelineQuery):
        return layout_of_recommendation(rows, id_, query.rank, query.choice)
    return layout_of_prediction(rows, id_, query.rank)
