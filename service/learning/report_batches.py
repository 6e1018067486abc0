"""Many reports in one request. Each is stored or refused by itself, unless the request asks for all
or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from models.errors import DomainError, Invalid
from service.errors import MalformedBody, Refused
from service.field_violations import FieldViolation, submitted_value, violations_of
from service.learning.report_ingestion import ingest_reports
from service.learning.reports import report_location
from service.runtime.idempotency import CreatedResource, SaveRows
from service.runtime.process_pool import ProcessPool
from service.schemas.report import BatchAnswer, BatchItem, ItemError, ReportBatch, ReportSubmission
from service.store import Rows, Store
from service.store.arrivals import RowValues
from service.web.json_text import parse

_MAX_ERRORS = 5  # shown of one report

Outcome = RowValues | list[FieldViolation]
"""The row to store for a report, or what is wrong with the report."""


class ReportBatches:
    def __init__(self, store: Store, worker: ProcessPool) -> None:
        self._store = store
        self._worker = worker

    def prepare(self, batch: ReportBatch) -> SaveRows:
        outcomes = self._worker.run(self._store, len(batch.reports), batch_outcomes, batch.reports)
        refused = [outcome for outcome in outcomes if isinstance(outcome, list)]
        if refused and (batch.all_or_nothing or len(refused) == len(outcomes)):
            violations = [violation for report in refused for violation in report]
            raise Refused([Invalid(one.field, one.value, one.rule) for one in violations])
        return lambda rows: _save(rows, outcomes)


def batch_outcomes(store: Store, texts: Sequence[str]) -> list[Outcome]:
    """The outcome of each report of a batch, given as JSON texts."""
    outcomes: dict[int, Outcome] = {}
    reports: dict[int, Any] = {}
    submissions: dict[int, ReportSubmission] = {}
    for index, text in enumerate(texts):
        try:
            reports[index] = parse(text)
            submissions[index] = ReportSubmission.model_validate(reports[index])
        except (ValidationError, DomainError, MalformedBody) as error:
            outcomes[index] = _violations(index, error, reports.get(index))
    ingested = ingest_reports(
        store, [(submission, texts[index]) for index, submission in submissions.items()]
    )
    for index, outcome in zip(submissions, ingested, strict=True):
        if isinstance(outcome, Exception):
            outcomes[index] = _violations(index, outcome, reports[index])
        else:
            outcomes[index] = outcome
    return [outcomes[index] for index in range(len(texts))]


def _violations(index: int, error: Exception, report: Any) -> list[FieldViolation]:
    """What the error says of the report at this index of the batch, with values as the report has
    them."""
    return [
        replace(
            violation,
            location=["reports", index, *violation.location],
            value=submitted_value(report, violation.location, violation.value),
        )
        for violation in violations_of(error, [], ReportSubmission, limit=_MAX_ERRORS)
    ]


def _save(rows: Rows, outcomes: Sequence[Outcome]) -> CreatedResource:
    stored = rows.reports.add(outcome for outcome in outcomes if isinstance(outcome, dict))
    remaining = iter(stored)
    items = [
        _refused_item(index, outcome)
        if isinstance(outcome, list)
        else _stored_item(index, next(remaining))
        for index, outcome in enumerate(outcomes)
    ]
    answer = BatchAnswer(accepted=len(stored), refused=len(outcomes) - len(stored), items=items)
    return CreatedResource("/v1/reports", answer.model_dump(mode="json"))


def _refused_item(index: int, violations: Sequence[FieldViolation]) -> BatchItem:
    errors = [ItemError.model_validate(violation.entry()) for violation in violations]
    return BatchItem(index=index, errors=errors)


def _stored_item(index: int, report: RowValues) -> BatchItem:
    return BatchItem(
        index=index,
        id=report["id"],
        location=report_location(report["id"]),
        residual=report["residual"],
        within_interval=report["within_interval"],
        flag=report["document"]["flag"],
    )
