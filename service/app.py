"""Builds the application from its parts. Nothing is built at import, and two applications in one
process share nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from starlette.middleware import Middleware
from threadpoolctl import threadpool_limits

from models.search.warm_up import warm_up
from service import __version__
from service.ask.checks import Checks
from service.ask.comparisons import Comparisons
from service.ask.evidence import Evidence
from service.ask.frontiers import Frontiers
from service.ask.launches import Launches
from service.ask.predictions import Predictions
from service.ask.recommendations import Recommendations
from service.ask.timelines import Timelines
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
from service.routes import (
    benchmarks,
    catalog,
    checks,
    comparisons,
    docs,
    evidence,
    explanations,
    frontiers,
    health,
    index,
    predictions,
    profiles,
    recommendations,
    reports,
)
from service.routes.dependencies import Services
from service.runtime.admission import AdmissionControl
from service.runtime.cost_model import CostModel
from service.runtime.idempotency import IdempotentCreation
from service.runtime.process_pool import ProcessPool
from service.settings import Settings
from service.store import Store, database
from service.web import openapi, problems, responses
from service.web.authentication import Authentication
from service.web.compression import Compression
from service.web.head_method import HeadAsGet
from service.web.json_body import LARGE_AT_ONCE
from service.web.limits import BodyLimit
from service.web.security_headers import SecurityHeaders
from service.web.telemetry import Telemetry

_V1 = (
    recommendations,
    predictions,
    comparisons,
    checks,
    explanations,
    frontiers,
    reports,
    benchmarks,
    profiles,
    evidence,
    catalog,
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
        lifespan=_lifespan,
        middleware=[
            Middleware(Telemetry),
            Middleware(SecurityHeaders),
            Middleware(Authentication, store=store, required=settings.require_api_keys),
            Middleware(HeadAsGet),
            Middleware(Compression),
            Middleware(BodyLimit, max_bytes=settings.max_body_bytes, wait_s=settings.body_wait_s),
        ],
    )
    app.state.services = _services(store, settings)
    app.state.large_bodies = asyncio.Semaphore(LARGE_AT_ONCE)
    for module in _V1:
        app.include_router(module.router, responses=responses.IN_V1)
    app.include_router(health.router)
    app.include_router(index.router)
    docs.install(app)
    problems.install(app)
    openapi.install(app)
    return app


def _services(store: Store, settings: Settings) -> Services:
    evidence_use_case = Evidence(store)
    process_pool = ProcessPool(settings.database_url)
    creation = IdempotentCreation(
        store, settings.idempotency_ttl_s, settings.idempotency_in_flight_s
    )
    calibrations = Calibrations(store, process_pool)
    calibration_admission = AdmissionControl(1, settings.heavy_queue, settings.heavy_wait_s)
    return Services(
        store=store,
        search_admission=AdmissionControl(
            settings.heavy_concurrency, settings.heavy_queue, settings.heavy_wait_s
        ),
        report_admission=AdmissionControl(1, settings.heavy_queue, settings.heavy_wait_s),
        calibration_admission=calibration_admission,
        creation=creation,
        cost_model=CostModel(warm_up, settings.heavy_wait_s),
        benchmarks=Benchmarks(store),
        calibrations=calibrations,
        catalog=Catalog(store),
        checks=Checks(store),
        comparisons=Comparisons(store),
        drift=Drift(store),
        evidence=evidence_use_case,
        explanations=Explanations(store),
        frontiers=Frontiers(store),
        launches=Launches(store),
        predictions=Predictions(store),
        profiles=Profiles(store),
        recommendations=Recommendations(store, evidence_use_case),
        replays=Replays(store),
        report_batches=ReportBatches(store, process_pool),
        report_logs=ReportLogs(store),
        report_summaries=ReportSummaries(store),
        reports=Reports(store),
        timelines=Timelines(store),
        auto_calibration=AutoCalibration(
            store, calibrations, creation, calibration_admission, settings.unattended_look_s
        ),
        process_pool=process_pool,
    )


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    await services.cost_model.start()
    # Requests run side by side, so that threads of one would take the cores of another.
    with threadpool_limits(1, user_api="blas"):
        auto_calibration = asyncio.create_task(services.auto_calibration.run())
        yield
        auto_calibration.cancel()
        with suppress(asyncio.CancelledError):
            await auto_calibration
    services.process_pool.close()
    services.store.close()
