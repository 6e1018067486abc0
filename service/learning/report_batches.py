"""Many reports in one request. Each is stored or refused by itself, unless the request asks for all
or nothing.

A *part* is a few hundred reports that are predicted together. An *outcome* is the row to store for
one report, or what is wrong with it. A *checkpoint* lets other tenants' batches come first.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from models.errors import DomainError, Invalid
from service.errors import MalformedBody, Refused
from service.field_violations import FieldViolation, submitted_value, violations_of
from service.learning.report_ingestion import ingest_reports
from service.learning.reports import report_location
from service.runtime.deadline import no_client
from service.runtime.idempotency import CreatedResource, SaveRows
from service.runtime.process_pool import MAX_INLINE_REPORTS, ProcessPool
from service.schemas.report import (
    BatchAnswer,
    BatchItem,
    ItemError,
    LaunchedReport,
    ReportBatch,
    ReportForm,
    ReportSubmission,
)
from service.store import Rows, Store, UseCase
from service.store.arrivals import RowValues
from service.store.encoded_document import EncodedDocument
from service.web.json_text import parse

_MAX_ERRORS = 5  # shown of one report
_PART = 250
"""Reports that are predicted between two checkpoints, in about a tenth of a second. More would
hold Python's lock for longer when they come back from the worker; fewer would read the same
question from the database more often."""

MAX_BATCHES_SET_ASIDE = 3
"""Batches that may wait half done, while other tenants' come first. Each keeps the outcomes that it
has, which may be 50 MiB."""

Outcome = tuple[RowValues, str | None] | list[FieldViolation]
"""The row to store for a report and its flag, or what is wrong with the report."""


class ReportBatches(UseCase):
    def __init__(self, store: Store, pool: ProcessPool) -> None:
        super().__init__(store)
        self._pool = pool

    def prepare(self, batch: ReportBatch, checkpoint: Callable[[], None] = no_client) -> SaveRows:
        """Returns the function that stores a batch. Raises Refused if all reports are refused, or
        any of a batch that wants all or nothing. Calls `checkpoint` before each part; an exception
        that it raises ends the batch."""
        outcomes = self._outcomes(batch.reports, checkpoint)
        refused = [outcome for outcome in outcomes if isinstance(outcome, list)]
        if refused and (batch.all_or_nothing or len(refused) == len(outcomes)):
            errors = [
                Invalid(violation.field, violation.value, violation.rule)
                for violations in refused
                for violation in violations
            ]
            raise Refused(errors)
        return lambda rows: _save(rows, outcomes)

    def _outcomes(self, texts: Sequence[str], checkpoint: Callable[[], None]) -> list[Outcome]:
        """Returns the outcome of each report. A large batch is predicted part by part in the
        worker."""
        if len(texts) <= MAX_INLINE_REPORTS:
            return batch_outcomes(self._store, texts)
        parts: list[bytes] = []
        for start in range(0, len(texts), _PART):
            checkpoint()
            part = texts[start : start + _PART]
            parts.append(self._pool.run_in_process(self._store, pickled_outcomes, part, start))
        # Parts stay pickled while the batch waits for the next, which takes less memory. Unpickling
        # holds Python's lock, so it is done one part at a time.
        return [outcome for part in parts for outcome in pickle.loads(part)]  # noqa: S301


def pickled_outcomes(store: Store, texts: Sequence[str], first_index: int) -> bytes:
    return pickle.dumps(batch_outcomes(store, texts, first_index))


def batch_outcomes(store: Store, texts: Sequence[str], first_index: int = 0) -> list[Outcome]:
    """Returns the outcome of each report of a part of a batch, given as JSON texts. A report that
    cannot be read is refused alone. Errors name a report by its position in the batch;
    `first_index` is that of the part's first report."""
    outcomes: dict[int, Outcome] = {}
    reports: dict[int, Any] = {}
    submissions: dict[int, ReportForm] = {}
    for index, text in enumerate(texts):
        try:
            reports[index] = parse(text)
            submissions[index] = _schema_of(reports[index]).model_validate(reports[index])
        except (ValidationError, DomainError, MalformedBody) as error:
            outcomes[index] = _violations(first_index + index, error, reports.get(index))
    ingested = ingest_reports(
        store, [(submission, texts[index]) for index, submission in submissions.items()]
    )
    for index, outcome in zip(submissions, ingested, strict=True):
        if isinstance(outcome, Exception):
            outcomes[index] = _violations(first_index + index, outcome, reports[index])
        else:
            document = outcome["document"]
            # Encoded here, in the worker, and not while the rows are stored.
            row = {**outcome, "document": EncodedDocument.of(document)}
            outcomes[index] = row, document["flag"]
    return [outcomes[index] for index in range(len(texts))]


def _schema_of(report: Any) -> type[ReportSubmission] | type[LaunchedReport]:
    """Returns the schema of a report: the one with a launch if it has a launch."""
    has_launch = isinstance(report, Mapping) and report.get("launch") is not None
    return LaunchedReport if has_launch else ReportSubmission


def _violations(index: int, error: Exception, report: Any) -> list[FieldViolation]:
    """Returns the fields of the report that an error is about, located in the batch, with the
    values that were submitted. `index` is the report's position in the batch."""
    return [
        replace(
            violation,
            location=["reports", index, *violation.location],
            value=submitted_value(report, violation.location, violation.value),
        )
        # []: these are located within the report, and its place in the batch is put in front.
        for violation in violations_of(error, [], _schema_of(report), limit=_MAX_ERRORS)
    ]


def _save(rows: Rows, outcomes: Sequence[Outcome]) -> CreatedResource:
    """Stores the reports that were not refused, and returns the outcome of all in the order of the
    batch."""
    # The outcome of a report that was not refused is a tuple of its row and its flag.
    stored = rows.reports.add(outcome[0] for outcome in outcomes if isinstance(outcome, tuple))
    # These come in the order of the batch, without the refused ones.
    stored_in_order = iter(stored)
    items = [
        _refused_item(index, outcome)
        if isinstance(outcome, list)
        else _stored_item(index, next(stored_in_order), flag=outcome[1])
        for index, outcome in enumerate(outcomes)
    ]
    answer = BatchAnswer(accepted=len(stored), refused=len(outcomes) - len(stored), items=items)
    return CreatedResource("/v1/reports", answer.model_dump(mode="json"))


def _refused_item(index: int, violations: Sequence[FieldViolation]) -> BatchItem:
    """Returns the outcome of the refused report at this index of the batch."""
    errors = [ItemError.model_validate(violation.entry()) for violation in violations]
    return BatchItem(index=index, errors=errors)


def _stored_item(index: int, report: RowValues, flag: str | None) -> BatchItem:
    """Returns the outcome of the stored report at this index of the batch."""
    return BatchItem(
        index=index,
        id=report["id"],
        location=report_location(report["id"]),
        residual=report["residual"],
        within_interval=report["within_interval"],
        flag=flag,
    )
