"""What endpoints are given: the use cases, and the way to create something."""

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
from service.ask.comparisons import Comparisons
from service.ask.evidence import Evidence
from service.ask.frontiers import Frontiers
from service.ask.predictions import Predictions
from service.ask.recommendations import Recommendations
from service.ask.timelines import Timelines
from service.errors import BadHeader, Forbidden
from service.learning.auto_calibration import AutoCalibration
from service.learning.benchmarks import Benchmarks
from service.learning.calibrations import Calibrations
from service.learning.drift import Drift
from service.learning.replays import Replays
from service.learning.report_batches import ReportBatches
from service.learning.report_logs import ReportLogs
from service.learning.report_summaries import ReportSummaries
from service.learning.reports import Reports
from service.resolve.catalog import Catalog
from service.resolve.profiles import Profiles
from service.runtime.admission import HeavySlots, Listening
from service.runtime.idempotency import CREATED, Created, Creation, Key, Save
from service.runtime.process_pool import ProcessPool
from service.store import Store
from service.web.json_body import JsonRequest

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The use cases of one application, and what they see."""

    store: Store
    slots: HeavySlots
    """Of searches."""
    intake_slots: HeavySlots
    learning_slots: HeavySlots
    creation: Creation
    benchmarks: Benchmarks
    calibrations: Calibrations
    catalog: Catalog
    comparisons: Comparisons
    drift: Drift
    evidence: Evidence
    frontiers: Frontiers
    predictions: Predictions
    profiles: Profiles
    recommendations: Recommendations
    replays: Replays
    report_batches: ReportBatches
    report_logs: ReportLogs
    report_summaries: ReportSummaries
    reports: Reports
    timelines: Timelines
    unattended: AutoCalibration
    worker: ProcessPool

    def of(self, caller: Caller) -> Services:
        """The same for a caller: what belongs to tenants is its own."""
        if caller == ANYONE:
            return self
        store = self.store.of(caller.tenant, sees_all=caller.sees_all)
        return replace(
            self,
            store=store,
            creation=self.creation.of(store),
            benchmarks=Benchmarks(store),
            drift=Drift(store),
            predictions=Predictions(store),
            profiles=Profiles(store),
            recommendations=Recommendations(store, self.evidence),
            replays=Replays(store),
            report_batches=ReportBatches(store, self.worker),
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


def needs(scope: str) -> Any:
    """A dependency: refuses callers whose key is not for this."""

    def required(request: Request) -> None:
        caller = _caller(request)
        if not caller.may(scope):
            raise Forbidden(scope, sorted(caller.scopes))

    return Depends(required)


Use = Annotated[Services, Depends(_services)]
Id = Annotated[str, Path(alias="id", pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Version = Annotated[int, Path(ge=1, le=2**31 - 1)]


class Poster:
    """Answers a POST that creates, once per Idempotency-Key."""

    def __init__(
        self,
        request: Request,
        services: Use,
        idempotency_key: Annotated[
            str | None,
            Header(
                description="Makes a retry safe: the same key and request get the stored answer."
            ),
        ] = None,
    ) -> None:
        self._request, self._creation, self._slots = request, services.creation, services.slots
        self._key = None if idempotency_key is None else self._read(idempotency_key)

    def created(self, prepare: Callable[[], Save]) -> Response:
        return _created(self._creation.create(self._key, prepare))

    async def created_in_turn(
        self, prepare: Callable[[Listening], Save], slots: HeavySlots | None = None
    ) -> Response:
        """For what computes long, in these slots or those of searches. A retry of what is already
        answered waits for no turn."""
        if (
            self._key
            and (earlier := await run_in_threadpool(self._creation.earlier, self._key)) is not None
        ):
            return _created(earlier)
        async with (slots or self._slots).one(self._request.is_disconnected) as client:
            return await run_in_threadpool(self.created, lambda: prepare(client))

    def _read(self, key: str) -> Key:
        if not _KEY.fullmatch(key):
            raise BadHeader("Idempotency-Key", "must be 1 to 255 visible ASCII characters")
        body = self._request.parsed if isinstance(self._request, JsonRequest) else None
        tenant = _caller(self._request).tenant
        mine = key if tenant is None else hashlib.sha256(f"{tenant}\n{key}".encode()).hexdigest()
        return Key.of(
            mine, self._request.method, self._request.url.path, json.dumps(body, sort_keys=True)
        )


class Turn:
    """Answers what computes long and keeps nothing."""

    def __init__(self, request: Request, services: Use) -> None:
        self._request, self._slots = request, services.slots

    async def computed(self, compute: Callable[[Listening], dict[str, Any]]) -> Response:
        async with self._slots.one(self._request.is_disconnected) as client:
            return JSONResponse(await run_in_threadpool(compute, client))


def _created(created: Created) -> Response:
    headers = {"Location": created.location}
    if created.replayed:
        headers["Idempotency-Replayed"] = "true"
    return JSONResponse(created.document, CREATED, headers)


async def _received(request: Request) -> str:
    return (await request.body()).decode()


Post = Annotated[Poster, Depends()]
InTurn = Annotated[Turn, Depends()]
Received = Annotated[str, Depends(_received)]
"""The body as it came."""
