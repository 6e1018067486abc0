"""Many reports in one request: each is taken or refused by itself, unless all or nothing is asked
for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from models.errors import DomainError, Invalid
from service.errors import MalformedBody, Refused
from service.field_violations import FieldViolation, given, of_refusal
from service.learning.report_ingestion import taken
from service.learning.reports import location
from service.runtime.idempotency import CreatedResource, SaveRows
from service.runtime.process_pool import ProcessPool
from service.schemas.report import BatchAnswer, BatchItem, ItemError, ReportBatch, ReportSubmission
from service.store import Rows, Store
from service.store.arrivals import RowValues
from service.web.json_text import parse

_MOST_ERRORS = 5  # of one report


class ReportBatches:
    def __init__(self, store: Store, worker: ProcessPool) -> None:
        self._store, self._worker = store, worker

    def take(self, batch: ReportBatch) -> SaveRows:
        outcomes = self._worker.run(self._store, len(batch.reports), outcomes_of, batch.reports)
        refused = [outcome for outcome in outcomes if isinstance(outcome, list)]
        if refused and (batch.all_or_nothing or len(refused) == len(outcomes)):
            raise Refused([_invalid(fault) for faults in refused for fault in faults])
        return lambda rows: _save(rows, outcomes)


def outcomes_of(store: Store, texts: Sequence[str]) -> list[RowValues | list[FieldViolation]]:
    """What to store of each report, or what is wrong with it."""
    outcomes: dict[int, RowValues | list[FieldViolation]] = {}
    reports: dict[int, Any] = {}
    readable: dict[int, ReportSubmission] = {}
    for index, text in enumerate(texts):
        try:
            reports[index] = parse(text)
            readable[index] = ReportSubmission.model_validate(reports[index])
        except (ValidationError, DomainError, MalformedBody) as error:
            outcomes[index] = _faults(index, error, reports.get(index))
    found = taken(store, [(submission, texts[index]) for index, submission in readable.items()])
    for index, outcome in zip(readable, found, strict=True):
        outcomes[index] = (
            _faults(index, outcome, reports[index]) if isinstance(outcome, Exception) else outcome
        )
    return [outcomes[index] for index in range(len(texts))]


def _faults(index: int, error: Exception, report: Any) -> list[FieldViolation]:
    """With the values as the report has them."""
    found = of_refusal(error, [], ReportSubmission, most=_MOST_ERRORS)
    return [
        replace(
            fault,
            location=["reports", index, *fault.location],
            value=given(report, fault.location, fault.value),
        )
        for fault in found
    ]


def _invalid(fault: FieldViolation) -> Invalid:
    return Invalid(fault.field, fault.value, fault.rule)


def _save(rows: Rows, outcomes: Sequence[RowValues | list[FieldViolation]]) -> CreatedResource:
    stored = rows.reports.add(outcome for outcome in outcomes if isinstance(outcome, dict))
    each = iter(stored)
    items = [
        _item(i, next(each) if isinstance(outcome, dict) else outcome)
        for i, outcome in enumerate(outcomes)
    ]
    answer = BatchAnswer(accepted=len(stored), refused=len(outcomes) - len(stored), items=items)
    return CreatedResource("/v1/reports", answer.model_dump(mode="json"))


def _item(index: int, outcome: RowValues | list[FieldViolation]) -> BatchItem:
    if isinstance(outcome, list):
        return BatchItem(
            index=index, errors=[ItemError.model_validate(fault.entry()) for fault in outcome]
        )
    return BatchItem(
        index=index,
        id=outcome["id"],
        location=location(outcome["id"]),
        residual=outcome["residual"],
        within_interval=outcome["within_interval"],
        flag=outcome["document"]["flag"],
    )
