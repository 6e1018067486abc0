"""Puts the parts together. Nothing is built at import; two applications in one process share
nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from fastapi import FastAPI
from starlette.middleware import Middleware
from threadpoolctl import threadpool_limits

from service import __version__
from service.ask.comparisons import Comparisons
from service.ask.evidence import Evidence
from service.ask.frontiers import Frontiers
from service.ask.predictions import Predictions
from service.ask.recommendations import Recommendations
from service.ask.timelines import Timelines
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
from service.routes import (
    benchmarks,
    catalog,
    comparisons,
    docs,
    evidence,
    frontiers,
    health,
    index,
    predictions,
    profiles,
    recommendations,
    reports,
)
from service.routes.dependencies import Services
from service.runtime.admission import HeavySlots
from service.runtime.idempotency import Creation
from service.runtime.process_pool import ProcessPool
from service.settings import Settings
from service.store import Store, database
from service.web import openapi, problems
from service.web.authentication import Authentication
from service.web.head_method import HeadAsGet
from service.web.json_body import LARGE_AT_ONCE
from service.web.limits import BodyLimit
from service.web.security_headers import SecurityHeaders
from service.web.telemetry import Telemetry

_ROUTES = (
    recommendations,
    predictions,
    comparisons,
    frontiers,
    reports,
    benchmarks,
    profiles,
    evidence,
    catalog,
    health,
    index,
)


def create_app(settings: Settings) -> FastAPI:
    store = Store(database.connect(settings.database_url))
    app = FastAPI(
        title="Shardwright",
        description=openapi.DESCRIPTION,
        version=__version__,
        docs_url=None,  # its page loads from a CDN; routes.docs has our own
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan(),
        middleware=[
            Middleware(Telemetry),
            Middleware(SecurityHeaders),
            Middleware(Authentication, store=store, required=settings.require_api_keys),
            Middleware(HeadAsGet),
            Middleware(BodyLimit, max_bytes=settings.max_body_bytes, wait_s=settings.body_wait_s),
        ],
    )
    app.state.services = _services(store, settings)
    app.state.large_bodies = asyncio.Semaphore(LARGE_AT_ONCE)
    for module in _ROUTES:
        app.include_router(module.router)
    docs.install(app)
    problems.install(app)
    openapi.install(app)
    return app


def _services(store: Store, settings: Settings) -> Services:
    known, worker = Evidence(store), ProcessPool(settings.database_url)
    creation = Creation(store, settings.idempotency_ttl_s, settings.idempotency_in_flight_s)
    calibrations = Calibrations(store, worker)
    learning_slots = HeavySlots(1, settings.heavy_queue, settings.heavy_wait_s)
    return Services(
        store=store,
        slots=HeavySlots(settings.heavy_concurrency, settings.heavy_queue, settings.heavy_wait_s),
        intake_slots=HeavySlots(1, settings.heavy_queue, settings.heavy_wait_s),
        learning_slots=learning_slots,
        creation=creation,
        benchmarks=Benchmarks(store),
        calibrations=calibrations,
        catalog=Catalog(store),
        comparisons=Comparisons(store),
        drift=Drift(store),
        evidence=known,
        frontiers=Frontiers(store),
        predictions=Predictions(store),
        profiles=Profiles(store),
        recommendations=Recommendations(store, known),
        replays=Replays(store),
        report_batches=ReportBatches(store, worker),
        report_logs=ReportLogs(store),
        report_summaries=ReportSummaries(store),
        reports=Reports(store),
        timelines=Timelines(store),
        unattended=AutoCalibration(
            store, calibrations, creation, learning_slots, settings.unattended_look_s
        ),
        worker=worker,
    )


def _lifespan() -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        services: Services = app.state.services
        with threadpool_limits(1, user_api="blas"):  # requests are what runs side by side
            unattended = asyncio.create_task(services.unattended.run())
            yield
            unattended.cancel()
            with suppress(asyncio.CancelledError):
                await unattended
        services.worker.close()
        services.store.close()

    return lifespan
