"""Many reports in one request: each is taken or refused by itself, unless all or nothing is asked for."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from models.errors import DomainError, Invalid
from service.creation import Created, Save
from service.errors import Refused
from service.faults import Fault, of_refusal
from service.intake import Intake
from service.profiles import active_profile
from service.reports import location
from service.schemas.report import BatchAnswer, BatchItem, ItemError, ReportBatch, ReportSubmission
from service.store import Rows, Store
from service.tables import ReportRow

_MOST_ERRORS = 5  # of one report


class ReportBatches:
    def __init__(self, store: Store) -> None:
        self._store = store

    def take(self, batch: ReportBatch) -> Save:
        outcomes: dict[int, ReportRow | Exception] = {}
        readable: dict[int, ReportSubmission] = {}
        for index, report in enumerate(batch.reports):
            try:
                readable[index] = ReportSubmission.model_validate(report)
            except (ValidationError, DomainError) as error:
                outcomes[index] = error
        with self._store.reading() as rows:
            taken = Intake(rows, active_profile(rows)).take(
                [(submission, _text(batch.reports[index])) for index, submission in readable.items()]
            )
        outcomes |= dict(zip(readable, taken, strict=True))
        faults = {i: _faults(i, outcome) for i, outcome in outcomes.items() if not isinstance(outcome, ReportRow)}
        if faults and (batch.all_or_nothing or len(faults) == len(outcomes)):
            raise Refused([_invalid(fault) for _, found in sorted(faults.items()) for fault in found])
        return lambda rows: _save(rows, outcomes, faults)


def _text(report: dict[str, Any]) -> str:
    return json.dumps(report, ensure_ascii=False)


def _faults(index: int, outcome: ReportRow | Exception) -> list[Fault]:
    if isinstance(outcome, ReportRow):
        return []
    return of_refusal(outcome, ["reports", index])[:_MOST_ERRORS]


def _invalid(fault: Fault) -> Invalid:
    return Invalid(fault.field, fault.value, fault.rule)


def _save(rows: Rows, outcomes: dict[int, ReportRow | Exception], faults: dict[int, list[Fault]]) -> Created:
    kept = [row for row in outcomes.values() if isinstance(row, ReportRow)]
    rows.reports.add_all(kept)
    items = [_item(index, outcomes[index], faults.get(index, [])) for index in range(len(outcomes))]
    answer = BatchAnswer(accepted=len(kept), refused=len(faults), items=items)
    return Created("/v1/reports", answer.model_dump(mode="json"))


def _item(index: int, outcome: ReportRow | Exception, faults: list[Fault]) -> BatchItem:
    if not isinstance(outcome, ReportRow):
        return BatchItem(index=index, errors=[ItemError.model_validate(fault.entry()) for fault in faults])
    return BatchItem(
        index=index,
        id=outcome.id,
        location=location(outcome),
        residual=outcome.residual,
        within_interval=outcome.within_interval,
        flag=outcome.document["flag"],
    )
