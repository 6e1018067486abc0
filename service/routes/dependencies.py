"""What FastAPI hands to endpoints: the use cases as the caller may see them, and responders for
requests that create something or compute long."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from service.api_keys import ANYONE, Caller
from service.ask.checks import Checks
from service.ask.comparisons import Comparisons
from service.ask.evidence import Evidence
from service.ask.frontiers import Frontiers
from service.ask.launches import Launches
from service.ask.predictions import Predictions
from service.ask.recommendations import Recommendations
from service.ask.timelines import Timelines
from service.errors import BadHeader, Forbidden
from service.learning.auto_calibration import AutoCalibration
from service.learning.benchmarks import Benchmarks
from service.learning.calibrations import Calibrations
from service.learning.drift import Drift
from service.learning.explanations import Explanations
from service.learning.replays import Replays
from service.learning.report_batches import ReportBatches
from service.learning.report_logs import ReportLogs
from service.learning.report_summaries import ReportSummaries
from service.learning.reports import Reports
from service.resolve.catalog import Catalog
from service.resolve.profiles import Profiles
from service.runtime.admission import AdmissionControl, ClientWatch
from service.runtime.cost_model import CostModel
from service.runtime.idempotency import (
    CREATED,
    CreatedResource,
    IdempotencyKey,
    IdempotentCreation,
    SaveRows,
)
from service.runtime.process_pool import ProcessPool
from service.store import Store
from service.web.json_body import JsonRequest
from service.web.preferences import WHOLE, Form

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The use cases of one application, and what they share."""

    store: Store
    search_admission: AdmissionControl
    report_admission: AdmissionControl
    """For batches of reports and long logs."""
    calibration_admission: AdmissionControl
    creation: IdempotentCreation
    cost_model: CostModel
    process_pool: ProcessPool
    auto_calibration: AutoCalibration
    benchmarks: Benchmarks
    calibrations: Calibrations
    catalog: Catalog
    checks: Checks
    comparisons: Comparisons
    drift: Drift
    evidence: Evidence
    explanations: Explanations
    frontiers: Frontiers
    launches: Launches
    predictions: Predictions
    profiles: Profiles
    recommendations: Recommendations
    replays: Replays
    report_batches: ReportBatches
    report_logs: ReportLogs
    report_summaries: ReportSummaries
    reports: Reports
    timelines: Timelines

    def of(self, caller: Caller) -> Services:
        """The services as this caller may use them: of what belongs to tenants they see the rows
        of its own."""
        if caller == ANYONE:
            return self
        store = self.store.of(caller.tenant, sees_all=caller.sees_all)
        return replace(
            self,
            store=store,
            creation=self.creation.of(store),
            benchmarks=Benchmarks(store),
            checks=Checks(store),
            comparisons=Comparisons(store),
            drift=Drift(store),
            explanations=Explanations(store),
            launches=Launches(store),
            predictions=Predictions(store),
            profiles=Profiles(store),
            recommendations=Recommendations(store, self.evidence),
            replays=Replays(store),
            report_batches=ReportBatches(store, self.process_pool),
            report_logs=ReportLogs(store),
            report_summaries=ReportSummaries(store),
            reports=Reports(store),
            timelines=Timelines(store),
        )


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services.of(_caller(request))


def require_scope(scope: str) -> Any:
    """A dependency that raises Forbidden unless the caller's key has this scope."""

    def require(request: Request) -> None:
        caller = _caller(request)
        if not caller.may(scope):
            raise Forbidden(scope, sorted(caller.scopes))

    return Depends(require)


async def _require_cost_model(request: Request) -> None:
    services: Services = request.app.state.services
    await services.cost_model.require()


ServicesDep = Annotated[Services, Depends(_services)]
CompiledDep = Annotated[None, Depends(_require_cost_model)]
"""Of endpoints that predict: raises StillCompiling where the cost model is not compiled in time."""
ResourceId = Annotated[str, Path(alias="id", pattern=r"^[A-Za-z0-9._-]{1,64}$")]
VersionNumber = Annotated[int, Path(ge=1, le=2**31 - 1)]


class CreationResponder:
    """Answers a POST that creates something, and creates it once per Idempotency-Key."""

    def __init__(
        self,
        request: Request,
        services: ServicesDep,
        _: CompiledDep,
        idempotency_key: Annotated[
            str | None,
            Header(
                description="Makes a retry safe: the same key and request get the stored answer."
            ),
        ] = None,
    ) -> None:
        self._request = request
        self._creation = services.creation
        self._search_admission = services.search_admission
        self._key = None if idempotency_key is None else self._parse_key(idempotency_key)

    def respond(self, prepare: Callable[[], SaveRows], form: Form = WHOLE) -> Response:
        """Answers in a form of what was created. A retry may ask for another form of the same."""
        return _created_response(self._creation.create(self._key, prepare), form)

    async def respond_when_admitted(
        self,
        prepare: Callable[[ClientWatch], SaveRows],
        admission: AdmissionControl | None = None,
        form: Form = WHOLE,
    ) -> Response:
        """Answers what computes long, once `admission` lets it in: that of searches unless given.
        A retry of what is already answered does not wait."""
        if self._key is not None:
            earlier = await run_in_threadpool(self._creation.earlier_answer, self._key)
            if earlier is not None:
                return _created_response(earlier, form)
        admission = admission or self._search_admission
        async with admission.admit(self._request.is_disconnected) as client:
            return await run_in_threadpool(self.respond, lambda: prepare(client), form)

    def _parse_key(self, header: str) -> IdempotencyKey:
        """The key of the request. The key of a tenant is hashed together with the tenant's name,
        since two tenants may choose the same one."""
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

    def __init__(self, request: Request, services: ServicesDep, _: CompiledDep) -> None:
        self._request = request
        self._admission = services.search_admission

    async def respond(self, compute: Callable[[ClientWatch], dict[str, Any]]) -> Response:
        async with self._admission.admit(self._request.is_disconnected) as client:
            return JSONResponse(await run_in_threadpool(compute, client))


def _created_response(created: CreatedResource, form: Form) -> Response:
    headers = {**form.headers, "Location": created.location}
    if created.replayed:
        headers["Idempotency-Replayed"] = "true"
    return JSONResponse(form.of(created.document), CREATED, headers)


async def _raw_body(request: Request) -> str:
    return (await request.body()).decode()


CreationDep = Annotated[CreationResponder, Depends()]
ComputationDep = Annotated[ComputationResponder, Depends()]
RawBody = Annotated[str, Depends(_raw_body)]
"""The body as it was received, before it is parsed."""
