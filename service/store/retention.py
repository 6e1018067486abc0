"""Drops old answers and sweeps, some at a time, so that nobody waits long for a lock. The *text* of
an answer is stored once for all answers with it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, exists, select, text

from service.store.answers import ROWS, AnswerKind
from service.store.queries import Queries
from service.store.quota import count_stored
from service.store.tables import AnswerTextRow, ReportRow, SweepItemRow, SweepRow

_REFERENCES: dict[AnswerKind, Any] = {
    "predictions": ReportRow.prediction_id,
    "recommendations": ReportRow.recommendation_id,
    "checks": ReportRow.check_id,
}


class Retention(Queries):
    def drop_answers(
        self, kind: AnswerKind, before: datetime, limit: int, tenant: str | None = None
    ) -> int:
        """Deletes answers from before `before` that no report refers to, at most `limit`, of one
        tenant or of all. Deletes texts too that no answer has any more. Returns the number of
        answers."""
        row: Any = ROWS[kind]
        is_reported = exists().where(_REFERENCES[kind] == row.id)
        columns = row.id, row.text_key, row.tenant, row.stored_bytes
        old = select(*columns).where(row.created_at < before, ~is_reported)
        if tenant is not None:
            old = old.where(row.tenant == tenant)
        answers = self._session.execute(old.order_by(row.created_at).limit(limit)).all()
        self._session.execute(delete(row).where(row.id.in_([answer.id for answer in answers])))
        for answer in answers:
            count_stored(self._session, answer.tenant, -answer.stored_bytes)
        # Answers of an earlier release have no text.
        self._drop_texts([answer.text_key for answer in answers if answer.text_key is not None])
        return len(answers)

    def ended_sweeps(self, before: datetime, tenant: str | None = None) -> Sequence[str]:
        """Returns the ids of sweeps that were finished or cancelled before this moment, of one
        tenant or of all."""
        ended = select(SweepRow.id).where(SweepRow.finished_at < before)
        if tenant is not None:
            ended = ended.where(SweepRow.tenant == tenant)
        return self._session.scalars(ended).all()

    def drop_sweep(self, id_: str, before: datetime) -> bool:
        """Deletes a sweep with its items. Returns False and deletes nothing if it is gone, or has
        been started again meanwhile."""
        columns = SweepRow.tenant, SweepRow.stored_bytes
        ended = select(*columns).where(SweepRow.id == id_, SweepRow.finished_at < before)
        # The lock keeps the sweep from being started again while it is deleted.
        sweep = self._session.execute(ended.with_for_update()).first()
        if sweep is None:
            return False
        count_stored(self._session, sweep.tenant, -sweep.stored_bytes)
        self._session.execute(delete(SweepItemRow).where(SweepItemRow.sweep_id == id_))
        self._session.execute(delete(SweepRow).where(SweepRow.id == id_))
        return True

    def _drop_texts(self, keys: list[str]) -> None:
        """Deletes the texts with these keys that no answer has any more."""
        if self._dialect == "postgresql":
            # Until the end of this transaction nobody stores an answer with one of these texts.
            self._session.execute(text("lock table answer_texts in share row exclusive mode"))
        unused = [~exists().where(row.text_key == AnswerTextRow.key) for row in ROWS.values()]
        self._session.execute(delete(AnswerTextRow).where(AnswerTextRow.key.in_(keys), *unused))
