"""What FastAPI hands to endpoints: the use cases as the caller may see them, and responders for
requests that create something or compute long."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

from cachetools import LRUCache
from fastapi import Depends, Header, Path, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from service.api_keys import ANYONE, Caller
from service.ask.audit import AuditTrail
from service.ask.checks import Checks
from service.ask.comparisons import Comparisons
from service.ask.evidence import Evidence
from service.ask.frontiers import Frontiers
from service.ask.kept_answers import ANSWERED_BEFORE, LookedUp
from service.ask.launches import Launches
from service.ask.predictions import Predictions
from service.ask.recommendations import Recommendations
from service.ask.stored_checks import StoredChecks
from service.ask.timelines import Timelines
from service.errors import BadHeader, Forbidden
from service.learning.auto_calibration import AutoCalibration
from service.learning.benchmarks import Benchmarks
from service.learning.calibrations import Calibrations
from service.learning.drift import Drift
from service.learning.explanations import Explanations
from service.learning.log_texts import LogTexts
from service.learning.profile_gauges import ProfileGauges
from service.learning.replays import Replays
from service.learning.report_batches import ReportBatches
from service.learning.report_events import ReportFeed
from service.learning.report_logs import ReportLogs
from service.learning.report_summaries import ReportSummaries
from service.learning.reports import Reports
from service.resolve.catalog import Catalog
from service.resolve.profiles import Profiles
from service.runtime.admission import AdmissionControl, IsDisconnected, Turn
from service.runtime.cost_model import CostModel
from service.runtime.deadline import Wait
from service.runtime.event_streams import EventStreams
from service.runtime.idempotency import (
    CreatedResource,
    IdempotencyKey,
    IdempotentCreation,
    Prepared,
)
from service.runtime.process_pool import ProcessPool
from service.runtime.readiness import Readiness
from service.runtime.single_flight import SingleFlight
from service.runtime.text_process import TextProcess
from service.store import Store
from service.store.answer_text import AnswerText
from service.sweeps.events import SweepFeed
from service.sweeps.runner import SweepRunner
from service.sweeps.sweeps import Sweeps
from service.web.accept import preferred_media_type
from service.web.at_hand import keep_answered
from service.web.json_body import JsonRequest
from service.web.preferences import WHOLE, Form
from service.web.text_responses import immutable_text_response, text_response

T = TypeVar("T")

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_KEPT_CALLERS = 1024  # whose services are kept, each a few small objects


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The use cases of one application, and what they share."""

    store: Store
    search_admission: AdmissionControl
    report_admission: AdmissionControl
    """For batches of reports."""
    calibration_admission: AdmissionControl
    flights: SingleFlight[CreatedResource]
    """Questions that are being answered."""
    creation: IdempotentCreation
    cost_model: CostModel
    process_pool: ProcessPool
    readiness: Readiness
    audit: AuditTrail
    auto_calibration: AutoCalibration
    benchmarks: Benchmarks
    calibrations: Calibrations
    catalog: Catalog
    checks: Checks
    comparisons: Comparisons
    drift: Drift
    event_streams: EventStreams
    evidence: Evidence
    explanations: Explanations
    frontiers: Frontiers
    launches: Launches
    log_texts: LogTexts
    predictions: Predictions
    profile_gauges: ProfileGauges
    profiles: Profiles
    recommendations: Recommendations
    replays: Replays
    report_batches: ReportBatches
    report_logs: ReportLogs
    report_summaries: ReportSummaries
    report_feed: ReportFeed
    reports: Reports
    stored_checks: StoredChecks
    sweep_feed: SweepFeed
    sweep_runner: SweepRunner | None
    """None where this process computes no items of sweeps."""
    sweeps: Sweeps
    texts: TextProcess
    timelines: Timelines
    of_callers: LRUCache[Caller, Services] = field(
        default_factory=lambda: LRUCache(_KEPT_CALLERS), repr=False
    )

    def of(self, caller: Caller) -> Services:
        """The services as this caller may use them: of what belongs to tenants they see the rows
        of its own."""
        if caller == ANYONE:
            return self
        if caller not in self.of_callers:
            self.of_callers[caller] = self._made_for(caller)
        return self.of_callers[caller]

    def _made_for(self, caller: Caller) -> Services:
        store = self.store.of(caller.tenant, sees_all=caller.sees_all, key_id=caller.key_id)
        return replace(
            self,
            store=store,
            creation=self.creation.of(store),
            benchmarks=Benchmarks(store, self.texts),
            calibrations=self.calibrations.of(store),
            checks=Checks(store),
            comparisons=Comparisons(store),
            drift=Drift(store),
            explanations=Explanations(store),
            frontiers=Frontiers(store),
            launches=Launches(store),
            log_texts=LogTexts(store, self.texts),
            predictions=Predictions(store),
            profiles=Profiles(store),
            recommendations=Recommendations(store, self.evidence),
            replays=Replays(store),
            report_batches=ReportBatches(store, self.process_pool),
            report_logs=ReportLogs(store, self.texts),
            report_summaries=ReportSummaries(store),
            reports=Reports(store),
            stored_checks=StoredChecks(store),
            sweeps=self.sweeps.of(store),
            timelines=Timelines(store),
        )


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


# Dependencies are coroutines, since FastAPI runs functions in a thread each.


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services.of(_caller(request))


def require_scope(scope: str) -> Any:
    """A dependency that raises Forbidden unless the caller's key has this scope."""

    async def require(request: Request) -> None:
        require_caller_scope(request, scope)

    return Depends(require)


def require_caller_scope(request: Request, scope: str) -> None:
    """Raises Forbidden unless the key of the request has this scope."""
    caller = _caller(request)
    if not caller.may(scope):
        raise Forbidden(scope, sorted(caller.scopes))


async def _require_cost_model(request: Request) -> None:
    services: Services = request.app.state.services
    wait = _wait(request)
    await services.cost_model.require(None if wait is None else wait.left_s)


def _wait(request: Request) -> Wait | None:
    """Returns how long the caller waits; None where the body does not say it, or is not valid."""
    if not isinstance(request, JsonRequest) or not isinstance(request.parsed, dict):
        return None
    wait_s = request.parsed.get("wait_s")
    if not isinstance(wait_s, int | float) or wait_s <= 0:
        return None
    return Wait(request.arrived, float(wait_s))


async def require_acceptable(request: Request) -> None:
    """Raises NotAcceptable where the operation answers in none of the forms that the Accept header
    takes."""
    accept = request.headers.get("accept")
    if accept is None or "*/*" in accept:
        return
    declared = request.scope["route"].responses
    offered = [
        media_type
        for status, response in declared.items()
        if str(status).startswith("2")
        for media_type in response.get("content", {})
    ]
    preferred_media_type(accept, ["application/json", *offered])


ServicesDep = Annotated[Services, Depends(_services)]
CompiledDep = Annotated[None, Depends(_require_cost_model)]
"""Of endpoints that predict: raises StillCompiling where the cost model is not compiled in time."""
ID_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"
ResourceId = Annotated[str, Path(alias="id", pattern=ID_PATTERN)]
MAX_VERSION = 2**31 - 1  # the largest integer of a column in PostgreSQL
VersionNumber = Annotated[int, Path(ge=1, le=MAX_VERSION)]


class CreationResponder:
    """Answers a POST that creates something, and creates it once per Idempotency-Key."""

    def __init__(self, request: Request, services: Services, idempotency_key: str | None) -> None:
        self._request = request
        self._creation = services.creation
        self._search_admission = services.search_admission
        self._flights = services.flights
        self._key = None if idempotency_key is None else self._parse_key(idempotency_key)

    def create(self, prepare: Callable[[], Prepared]) -> CreatedResource:
        return self._creation.create(self._key, prepare)

    def respond(self, prepare: Callable[[], Prepared], form: Form = WHOLE) -> Response:
        """Answers in a form of what was created. A retry may ask for another form of the same."""
        return self._response(self.create(prepare), form)

    async def respond_once(
        self,
        question: str,
        look_up: Callable[[], LookedUp],
        compute: Callable[[LookedUp, Turn], Prepared],
        form: Form,
    ) -> Response:
        """Answers a question in a form of its answer."""
        return self._response(await self.answer_once(question, look_up, compute), form)

    async def answer_once(
        self,
        question: str,
        look_up: Callable[[], LookedUp],
        compute: Callable[[LookedUp, Turn], Prepared],
    ) -> CreatedResource:
        """The answer that a question was given before or that is being computed; or else computes
        it, once the admission of searches lets it in."""
        if (earlier := await self._earlier_answer()) is not None:
            return earlier
        tenant = _caller(self._request).tenant

        async def lead(is_abandoned: IsDisconnected) -> CreatedResource:
            looked_up = await run_in_threadpool(look_up)
            if (known := looked_up.known) is not None:
                return await run_in_threadpool(self._creation.create, self._key, lambda: known)
            async with self._search_admission.admit(
                is_abandoned, tenant, _wait(self._request)
            ) as turn:
                return await run_in_threadpool(
                    self._creation.create, self._key, lambda: compute(looked_up, turn)
                )

        created, has_led = await self._flights.run(
            (tenant, question), lead, self._request.is_disconnected
        )
        if not has_led:
            again = replace(created, status=ANSWERED_BEFORE)
            created = await run_in_threadpool(self._creation.create, self._key, lambda: again)
        return created

    async def _earlier_answer(self) -> CreatedResource | None:
        """What an earlier request with the same key was answered with."""
        if self._key is None:
            return None
        return await run_in_threadpool(self._creation.earlier_answer, self._key)

    async def respond_after(
        self, read: Callable[[], Awaitable[T]], prepare: Callable[[T], Prepared]
    ) -> Response:
        """Answers what is made of something that is read first, without a claim of the key, since
        that may take a while. A retry of what is already answered does not read."""
        if (earlier := await self._earlier_answer()) is not None:
            return self._response(earlier, WHOLE)
        text = await read()
        return await run_in_threadpool(self.respond, lambda: prepare(text))

    async def respond_when_admitted(
        self,
        prepare: Callable[[Turn], Prepared],
        admission: AdmissionControl | None = None,
        form: Form = WHOLE,
    ) -> Response:
        """Answers what computes long, once `admission` lets it in: that of searches unless given.
        A retry of what is already answered does not wait."""
        if (earlier := await self._earlier_answer()) is not None:
            return self._response(earlier, form)
        admission = admission or self._search_admission
        tenant = _caller(self._request).tenant
        async with admission.admit(
            self._request.is_disconnected, tenant, _wait(self._request)
        ) as turn:
            return await run_in_threadpool(self.respond, lambda: prepare(turn), form)

    def _response(self, created: CreatedResource, form: Form) -> Response:
        headers = {"Location": created.location}
        if created.replayed:
            headers["Idempotency-Replayed"] = "true"
        if created.text is None:
            return JSONResponse(created.document, created.status, headers)
        if created.status == ANSWERED_BEFORE:
            keep_answered(self._request, created.location, created.text)
        return text_response(self._request, created.text, form, created.status, headers)

    def _parse_key(self, header: str) -> IdempotencyKey:
        """The key of the request. The key of a tenant is hashed together with the tenant's name,
        since two tenants may choose the same one."""
        if len(self._request.headers.getlist("idempotency-key")) > 1:
            raise BadHeader("Idempotency-Key", "must be sent once")
        if not _KEY.fullmatch(header):
            raise BadHeader("Idempotency-Key", "must be 1 to 255 visible ASCII characters")
        tenant = _caller(self._request).tenant
        if tenant is None:
            key = header
        else:
            key = hashlib.sha256(f"{tenant}\n{header}".encode()).hexdigest()
        body = self._request.parsed if isinstance(self._request, JsonRequest) else None
        return IdempotencyKey.of(
            key, self._request.method, self._request.url.path, json.dumps(body, sort_keys=True)
        )


class ComputationResponder:
    """Answers what computes long and stores nothing, once the admission of searches lets it in."""

    def __init__(self, request: Request, services: Services) -> None:
        self._request = request
        self._admission = services.search_admission

    async def respond(
        self, compute: Callable[[Turn], dict[str, Any]], form: Form = WHOLE
    ) -> Response:
        document = await self.computed(compute)
        return JSONResponse(form.of(document), headers=dict(form.headers))

    async def computed(self, compute: Callable[[Turn], T]) -> T:
        """Returns what `compute` returns in a turn of its own."""
        async with self.turn() as turn:
            return await run_in_threadpool(compute, turn)

    def turn(self) -> AbstractAsyncContextManager[Turn]:
        """A turn to compute, which comes once the admission of searches gives one."""
        tenant = _caller(self._request).tenant
        return self._admission.admit(self._request.is_disconnected, tenant, _wait(self._request))

    async def respond_kept(
        self, kept: Callable[[], AnswerText | None], make: Callable[[], AnswerText], etag: str
    ) -> Response:
        """Answers with a text that never changes: as it is kept, or else made in a turn."""
        text = await run_in_threadpool(kept)
        if text is None:
            text = await self.computed(lambda _: make())
        return immutable_text_response(self._request, text, etag=etag)


async def _raw_body(request: Request) -> str:
    return (await request.body()).decode()


async def _creation(
    request: Request,
    services: ServicesDep,
    _: CompiledDep,
    idempotency_key: Annotated[
        str | None,
        Header(description="Makes a retry safe: the same key and request get the stored answer."),
    ] = None,
) -> CreationResponder:
    return CreationResponder(request, services, idempotency_key)


async def _computation(
    request: Request, services: ServicesDep, _: CompiledDep
) -> ComputationResponder:
    return ComputationResponder(request, services)


CreationDep = Annotated[CreationResponder, Depends(_creation)]
ComputationDep = Annotated[ComputationResponder, Depends(_computation)]
RawBody = Annotated[str, Depends(_raw_body)]
"""The body as it was received, before it is parsed."""
