"""Dependencies of endpoints: the use cases as the caller may see them, and responders."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from cachetools import LRUCache
from fastapi import APIRouter, Depends, Header, Path, Request
from fastapi.routing import APIRoute

from service.api_keys import ANYONE, Caller
from service.ask.audit import AuditTrail
from service.ask.checks import Checks
from service.ask.comparisons import Comparisons
from service.ask.evidence import Evidence
from service.ask.frontiers import Frontiers
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
from service.learning.drift_flags import DriftFlags
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
from service.routes.responders import ComputationResponder, CreationResponder
from service.runtime.admission import AdmissionControl
from service.runtime.cost_model import CostModel
from service.runtime.creation import Creation
from service.runtime.deadline import Wait
from service.runtime.event_streams import EventStreams
from service.runtime.idempotency import CreatedResource, IdempotencyKey, IdempotentCreation
from service.runtime.process_pool import ProcessPool
from service.runtime.readiness import Readiness
from service.runtime.single_flight import SingleFlight
from service.runtime.text_process import TextProcess
from service.store import Store
from service.sweeps.events import SweepFeed
from service.sweeps.runner import SweepRunner
from service.sweeps.sweeps import Sweeps
from service.web.accept import preferred_media_type
from service.web.etags import parse_if_match
from service.web.json_body import JsonRequest, JsonRoute

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_KEPT_CALLERS = 1024  # callers whose services are kept in memory, each a few small objects


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
    drift_flags: DriftFlags
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
    by_caller: LRUCache[Caller, Services] = field(
        default_factory=lambda: LRUCache(_KEPT_CALLERS), repr=False
    )

    def for_caller(self, caller: Caller) -> Services:
        """Returns the services as this caller may use them. Rows that belong to tenants are limited
        to those of the caller's own tenant."""
        if caller == ANYONE:  # without API keys there are no tenants
            return self
        if caller not in self.by_caller:
            self.by_caller[caller] = self._limited_to(caller)
        return self.by_caller[caller]

    def _limited_to(self, caller: Caller) -> Services:
        """Returns the services with a store that sees the rows of the caller's tenant."""
        store = self.store.of(caller.tenant, sees_all=caller.sees_all, key_id=caller.key_id)
        return replace(
            self,
            store=store,
            creation=self.creation.of(store),
            calibrations=self.calibrations.of(store),
            sweeps=self.sweeps.of(store),
            **use_cases(store, self.evidence, self.texts, self.process_pool, self.drift_flags),
        )


def use_cases(
    store: Store,
    evidence: Evidence,
    texts: TextProcess,
    process_pool: ProcessPool,
    drift_flags: DriftFlags,
) -> dict[str, Any]:
    """Returns the use cases that read and write the rows of a store, by their names in Services.
    Both the application and each caller get all of their use cases from here: none can be forgotten
    and left to see the rows of other tenants."""
    return {
        "benchmarks": Benchmarks(store, texts),
        "checks": Checks(store),
        "comparisons": Comparisons(store),
        "drift": Drift(store),
        "explanations": Explanations(store),
        "frontiers": Frontiers(store),
        "launches": Launches(store),
        "log_texts": LogTexts(store, texts),
        "predictions": Predictions(store),
        "profiles": Profiles(store),
        "recommendations": Recommendations(store, evidence),
        "replays": Replays(store),
        "report_batches": ReportBatches(store, process_pool),
        "report_logs": ReportLogs(store, texts),
        "report_summaries": ReportSummaries(store, drift_flags),
        "reports": Reports(store, drift_flags),
        "stored_checks": StoredChecks(store),
        "timelines": Timelines(store),
    }


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


# Dependencies are coroutines, since FastAPI runs functions in a thread each.


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services.for_caller(_caller(request))


def resource_router(name: str, scope: str, route_class: type[APIRoute] = JsonRoute) -> APIRouter:
    """Returns the router of the resources below /v1/`name`, which takes only keys that have this
    scope."""
    return APIRouter(
        prefix=f"/v1/{name}",
        tags=[name],
        route_class=route_class,
        dependencies=[require_scope(scope)],
    )


def require_scope(scope: str) -> Any:
    """Returns a dependency that raises Forbidden unless the caller's key has this scope."""

    async def require(request: Request) -> None:
        require_caller_scope(request, scope)

    return Depends(require)


def require_caller_scope(request: Request, scope: str) -> None:
    """Raises Forbidden unless the key of the request has this scope."""
    caller = _caller(request)
    if not caller.may(scope):
        raise Forbidden(scope, sorted(caller.scopes))


async def _require_cost_model(request: Request) -> None:
    """Waits until the cost model is compiled, at most as long as the caller waits. Raises
    StillCompiling."""
    services: Services = request.app.state.services
    wait = _caller_wait(request)
    await services.cost_model.wait_until_compiled(None if wait is None else wait.left_s)


def _caller_wait(request: Request) -> Wait | None:
    """Returns until when the caller waits, from `wait_s` in the body; None where the body does not
    give it, or is not valid."""
    if not isinstance(request, JsonRequest) or not isinstance(request.parsed, dict):
        return None
    wait_s = request.parsed.get("wait_s")
    if not isinstance(wait_s, int | float) or wait_s <= 0:
        return None
    return Wait(request.arrived, float(wait_s))


async def require_acceptable(request: Request) -> None:
    """Raises NotAcceptable where the Accept header takes none of the media types that the operation
    answers in."""
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
    preferred_media_type(accept, ["application/json", *offered])  # raises where none is accepted


ServicesDep = Annotated[Services, Depends(_services)]
CompiledDep = Annotated[None, Depends(_require_cost_model)]
"""Of endpoints that predict: raises StillCompiling where the cost model is not compiled in time."""
ID_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"
ResourceId = Annotated[str, Path(alias="id", pattern=ID_PATTERN)]
MAX_VERSION = 2**31 - 1  # the largest integer of a column in PostgreSQL
VersionNumber = Annotated[int, Path(ge=1, le=MAX_VERSION)]


async def _seen_tags(
    if_match: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> list[str] | None:
    """Returns the entity tags of the If-Match header; None where there is no such header. Raises
    BadHeader where it cannot be read."""
    return None if if_match is None else parse_if_match(if_match)


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
    """Returns the responder of a POST that creates something. It comes once the cost model is
    compiled, and holds the caller's Idempotency-Key."""
    tenant = _caller(request).tenant
    creation = Creation(
        store=services.creation,
        admission=services.search_admission,
        flights=services.flights,
        key=None if idempotency_key is None else _parse_key(request, tenant, idempotency_key),
        tenant=tenant,
        wait=_caller_wait(request),
        is_disconnected=request.is_disconnected,
    )
    return CreationResponder(request, creation)


def _parse_key(request: Request, tenant: str | None, header: str) -> IdempotencyKey:
    """Returns the idempotency key of the request, with the digest of what was sent. A tenant's key
    is hashed together with the tenant's name, since two tenants may choose equal keys. Raises
    BadHeader."""
    if len(request.headers.getlist("idempotency-key")) > 1:
        raise BadHeader("Idempotency-Key", "must be sent once")
    if not _KEY.fullmatch(header):
        raise BadHeader("Idempotency-Key", "must be 1 to 255 visible ASCII characters")
    key = header
    if tenant is not None:
        key = hashlib.sha256(f"{tenant}\n{header}".encode()).hexdigest()
    body = request.parsed if isinstance(request, JsonRequest) else None
    return IdempotencyKey.of(
        key, request.method, request.url.path, json.dumps(body, sort_keys=True)
    )


async def _computation(
    request: Request, services: ServicesDep, _: CompiledDep
) -> ComputationResponder:
    """Returns the responder of a request that computes and stores nothing, once the cost model is
    compiled."""
    return ComputationResponder(
        request, services.search_admission, _caller(request).tenant, _caller_wait(request)
    )


CreationDep = Annotated[CreationResponder, Depends(_creation)]
ComputationDep = Annotated[ComputationResponder, Depends(_computation)]
SeenTags = Annotated[list[str] | None, Depends(_seen_tags)]
"""The ETags of the resource that the caller says it saw before changing it."""
RawBody = Annotated[str, Depends(_raw_body)]
"""The body as it was received, before it is parsed."""
