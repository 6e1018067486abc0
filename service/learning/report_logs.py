"""Training logs as reports: what was measured is read from the log, and what ran from the request,
its launch, or the arguments that the log prints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anyio.to_thread import run_sync

from models.errors import Invalid
from service.formats.logs.contents import LogContents
from service.identifiers import log_hash
from service.learning.launched_runs import described_run
from service.learning.log_texts import LogTexts
from service.learning.logged_runs import read_logged_run
from service.learning.report_ingestion import ingest_reports
from service.learning.reports import report_location
from service.learning.withdrawals import current_document
from service.runtime.admission import IsDisconnected
from service.runtime.idempotency import CreatedResource, SaveRows
from service.runtime.text_process import TextProcess
from service.schemas.report import ReportSubmission
from service.schemas.training_log import LaunchedLog, LogReading, LogSubmission
from service.store import Rows, Store, UseCase
from service.store.arrivals import RowValues


@dataclass(frozen=True, slots=True)
class SentLog:
    """A log that was sent and read."""

    submission: LogSubmission
    """The log with the run that the request describes, itself or by a launch."""
    reservations: Sequence[Mapping[str, str]]
    """Settings of the launch that were not understood, so that nothing is learnt from the run."""
    contents: LogContents
    masked: str | None
    """The log without its secrets; None where it has none."""


class ReportLogs(UseCase):
    def __init__(self, store: Store, texts: TextProcess) -> None:
        super().__init__(store)
        self._texts = LogTexts(store, texts)

    async def read(
        self, request: LogSubmission | LaunchedLog, is_disconnected: IsDisconnected
    ) -> SentLog:
        """Returns the run in a request, what its log says, and the log without secrets, to be
        stored. Raises Invalid or Refused where its launch cannot be read, and Invalid for a log
        without a step to use."""
        submission, reservations = await run_sync(self._described_log, request)
        contents = await self._texts.contents(submission, is_disconnected)
        masked = await self._texts.masked(submission, is_disconnected)
        return SentLog(submission, reservations, contents, masked)

    def _described_log(
        self, request: LogSubmission | LaunchedLog
    ) -> tuple[LogSubmission, Sequence[Mapping[str, str]]]:
        """Returns the log with fields that describe its run, in place of a launch, and the settings
        of the launch that were not understood. Raises Invalid or Refused where the launch cannot be
        read."""
        if isinstance(request, LogSubmission):
            return request, ()
        with self._store.reading() as rows:
            described = described_run(rows, request)
        return LogSubmission.model_validate(described.members), described.reservations

    def prepare(self, log: SentLog, received: str) -> SaveRows:
        """Returns the function that stores the report of a log. `received` is the text of the
        request that brought the log."""
        submission = log.submission
        run = read_logged_run(self._store, submission, log.contents)
        row = self._ingest(run.report, _without_secrets(received, log.masked))
        if log.reservations:
            row["document"]["reservations"] = [*log.reservations]
        # By this hash the same log is found when it is sent again, and stored only once.
        row["log_hash"] = log_hash(submission.log, row["run_hash"], row["outcome"])
        described = None
        if run.reading is not None:
            described = LogReading.from_attributes(
                run.reading,
                levels=run.reading.regimes,  # spans of steps of one speed
                from_arguments=sorted(run.question),  # names of the parts that the log gave
                out_of_memory=run.report.outcome == "out_of_memory",
            ).model_dump(mode="json")
        answer = {"reading": described, "measured_at_from": run.date_source, "notes": run.notes}
        return lambda rows: _save(rows, row, answer)

    def _ingest(self, report: ReportSubmission, received: str) -> RowValues:
        """Returns the row to store, or raises its refusal. If a measurement is refused, the error
        names the log, because the measurement was read from it."""
        (outcome,) = ingest_reports(self._store, [(report, received)])
        # The request has no field for what was measured: it was read from the log.
        if isinstance(outcome, Invalid) and outcome.field.startswith("measured."):
            name = outcome.field.removeprefix("measured.")
            raise Invalid("log", outcome.value, f"says {name}, which {outcome.rule}")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def _without_secrets(received: str, masked: str | None) -> str:
    """Returns the request's text with `masked` in place of its log; unchanged if `masked` is None,
    which means that the log has no secrets."""
    if masked is None:
        return received
    return json.dumps({**json.loads(received), "log": masked}, ensure_ascii=False)


def _save(rows: Rows, report: RowValues, answer: Mapping[str, Any]) -> CreatedResource:
    """Stores the report once. A log of the same run that is sent again gets the first report, with
    a note if the request now states another date."""
    rows.lock(f"log:{report['log_hash']}")
    earlier = rows.reports.first_of_log(report["log_hash"])
    if earlier is None:
        (stored,) = rows.reports.add([report])
        created = {**answer, "repeated": False, "report": stored["document"]}
        return CreatedResource(report_location(stored["id"]), created)
    repeated = {**answer, "repeated": True, "report": current_document(earlier)}
    if answer["measured_at_from"] == "request" and report["measured_at"] != earlier.measured_at:
        note = (
            f"the report is of {earlier.measured_at:%Y-%m-%d %H:%M:%S}, as it was first sent:"
            " withdraw it to send the log with another measured_at"
        )
        repeated["notes"] = [*answer["notes"], note]
    return CreatedResource(report_location(earlier.id), repeated, replayed=True)
