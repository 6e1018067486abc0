"""Builds the application from its parts. Nothing is built at import, and two applications in one
process share nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import Depends, FastAPI
from starlette.middleware import Middleware
from threadpoolctl import threadpool_limits

from models.search.warm_up import warm_up
from service import __version__
from service.ask.answer_keys import sources_key
from service.ask.audit import AuditTrail
from service.ask.evidence import Evidence
from service.formats.launch.recognition import known_settings
from service.learning.auto_calibration import AutoCalibration
from service.learning.calibrations import Calibrations
from service.learning.drift import Drift
from service.learning.drift_flags import DriftFlags
from service.learning.profile_gauges import ProfileGauges
from service.learning.report_batches import MAX_BATCHES_SET_ASIDE
from service.learning.report_events import ReportFeed
from service.pages import ask, check, choose, frontier, log_upload, run, runs, session
from service.pages import evidence as evidence_page
from service.pages import profiles as profiles_page
from service.pages.rendering import NAV, STATIC_PATH, static_files
from service.resolve.catalog import Catalog
from service.routes import (
    audit,
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
    metrics,
    predictions,
    profiles,
    recommendations,
    reports,
    stream_tickets,
    sweeps,
)
from service.routes.dependencies import Services, require_acceptable, use_cases
from service.runtime.admission import MAX_SET_ASIDE, AdmissionControl
from service.runtime.cost_model import CostModel
from service.runtime.event_streams import EventStreams
from service.runtime.graceful_stop import GracefulStop
from service.runtime.idempotency import IdempotentCreation
from service.runtime.leases import Leases
from service.runtime.process_pool import ProcessPool
from service.runtime.readiness import STATEMENT_S, Readiness
from service.runtime.single_flight import SingleFlight
from service.runtime.text_process import TextProcess
from service.settings import Settings
from service.store import Store, database
from service.sweeps.dask_workers import DaskWorkers
from service.sweeps.events import SweepFeed
from service.sweeps.runner import SweepRunner
from service.sweeps.sweeps import Sweeps
from service.sweeps.workers import LocalWorkers, Workers
from service.tools.retention import UnattendedRetention
from service.web import openapi, problems, responses
from service.web.authentication import GUARDED, Authentication
from service.web.compression import CompressionMiddleware
from service.web.cors import cors
from service.web.head_method import HeadAsGet
from service.web.interruption import Interruptible, RunningRequests
from service.web.limits import BodyLimit
from service.web.rate_limit import RateLimit
from service.web.security_headers import SecurityHeaders
from service.web.telemetry import Telemetry

_PAGES = (
    ask,
    check,
    frontier,
    choose,
    runs,
    log_upload,
    run,
    profiles_page,
    evidence_page,
    session,
)
"""Paths that are fixed come before those that hold an id."""
_PAGE_PATHS = tuple(path for path, _ in NAV)
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
    audit,
    sweeps,
    stream_tickets,
)


def create_app(settings: Settings) -> FastAPI:
    """Builds the application: its middleware, outermost first, its use cases and its routes."""
    store = Store(
        database.connect(settings.database_url, settings.database_wait_s),
        max_stored=settings.max_stored_bytes_per_tenant,
    )
    running = RunningRequests()  # ended all at once when the service stops
    app = FastAPI(
        title="Shardwright",
        description=openapi.DESCRIPTION,
        version=__version__,
        docs_url=None,  # its page loads from a CDN; routes.docs has our own
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
        # FastAPI's own OpenTelemetry sends spans where the environment's OTEL_* variables say. It
        # sends no metrics, which routes.metrics shows to Prometheus, and no logs, which
        # service.web.logs writes to standard error.
        telemetry={"auto_configure": True, "metrics": False, "logs": False},
        middleware=[
            Middleware(Telemetry),
            Middleware(SecurityHeaders),
            *cors(settings),
            Middleware(Interruptible, running=running),
            Middleware(
                Authentication,
                store=store,
                guarded=_paths_with_key(settings),
                pages=_PAGE_PATHS if settings.require_api_keys else (),
            ),
            Middleware(RateLimit, per_minute=settings.requests_per_minute, pages=_PAGE_PATHS),
            Middleware(HeadAsGet),
            Middleware(CompressionMiddleware),
            Middleware(BodyLimit, max_bytes=settings.max_body_bytes, wait_s=settings.body_wait_s),
        ],
    )
    leases = Leases(store, settings.idempotency_lease_s)
    app.state.memory = store.memory
    app.state.services = _services(store, settings, leases)
    app.state.texts = app.state.services.texts
    app.state.graceful_stop = GracefulStop(
        settings.stop_grace_s,
        store.gate,
        leases,
        running.interrupt,
        app.state.services.event_streams.end_all,
    )
    app.state.retention = UnattendedRetention(store, settings.retention_days)
    for module in _V1:
        app.include_router(
            module.router, responses=responses.IN_V1, dependencies=[Depends(require_acceptable)]
        )
    app.include_router(health.router)
    app.include_router(metrics.router)
    app.include_router(index.router)
    for page in _PAGES:
        app.include_router(page.router)
    app.mount(STATIC_PATH, static_files())
    docs.install(app)
    problems.install(app)
    openapi.install(app)
    return app


def _paths_with_key(settings: Settings) -> tuple[str, ...]:
    """Returns the path prefixes below which a request needs an API key."""
    guarded: tuple[str, ...] = ()
    if settings.require_api_keys:
        guarded += (GUARDED,)
    if settings.metrics_need_key:
        guarded += (metrics.PATH,)
    return guarded


def _services(store: Store, settings: Settings, leases: Leases) -> Services:
    """Returns the use cases of the application, connected with each other and with the queues for
    computing."""
    evidence_of_store = Evidence(store)
    cost_model = CostModel(warm_up, settings.heavy_wait_s)
    drift_flags = DriftFlags(cost_model)
    process_pool = ProcessPool(settings.database_url, database_wait_s=settings.database_wait_s)
    creation = IdempotentCreation(store, settings.idempotency_ttl_s, leases)
    calibrations = Calibrations(store, process_pool)
    texts = TextProcess(AdmissionControl("texts", 1, settings.heavy_queue, settings.heavy_wait_s))
    calibration_admission = AdmissionControl(
        "calibrations", 1, settings.heavy_queue, settings.heavy_wait_s
    )
    sweep_runner = _sweep_runner(store, settings, cost_model)
    return Services(
        store=store,
        search_admission=AdmissionControl(
            "searches",
            settings.heavy_concurrency,
            settings.heavy_queue,
            settings.heavy_wait_s,
            MAX_SET_ASIDE,
        ),
        report_admission=AdmissionControl(
            "reports", 1, settings.heavy_queue, settings.heavy_wait_s, MAX_BATCHES_SET_ASIDE
        ),
        calibration_admission=calibration_admission,
        flights=SingleFlight(),
        creation=creation,
        cost_model=cost_model,
        audit=AuditTrail(store),
        calibrations=calibrations,
        catalog=Catalog(store),
        drift_flags=drift_flags,
        event_streams=EventStreams(settings.streams_per_tenant, settings.max_streams),
        evidence=evidence_of_store,
        profile_gauges=ProfileGauges(store, Drift(store), cost_model),
        report_feed=ReportFeed(store, reports.encode_event),
        sweep_feed=SweepFeed(store, sweeps.encode_event),
        sweep_runner=sweep_runner,
        sweeps=_sweeps(store, sweep_runner),
        texts=texts,
        auto_calibration=AutoCalibration(
            store, calibrations, creation, calibration_admission, settings.unattended_look_s
        ),
        process_pool=process_pool,
        readiness=Readiness(Store(database.connect(settings.database_url, STATEMENT_S))),
        **use_cases(store, evidence_of_store, texts, process_pool, drift_flags),
    )


def _sweep_runner(store: Store, settings: Settings, cost_model: CostModel) -> SweepRunner | None:
    """Returns the runner of sweeps, with workers in Dask or in local processes; None where this
    process computes no sweeps."""
    if settings.dask_scheduler:
        workers: Workers = DaskWorkers(settings.dask_scheduler)
    elif settings.sweep_processes:
        workers = LocalWorkers(
            settings.database_url, settings.sweep_processes, settings.database_wait_s
        )
    else:
        return None
    return SweepRunner(store, workers, settings.sweep_lease_s, lambda: cost_model.state == "ok")


def _sweeps(store: Store, runner: SweepRunner | None) -> Sweeps:
    """Returns the use case of sweeps. Without a runner, other processes find new sweeps by
    themselves, and nothing has to be woken."""
    if runner is None:
        return Sweeps(store, wake=lambda: None)
    return Sweeps(store, runner.wake, lambda: runner.waits_for)


def _read_ahead(services: Services) -> None:
    """Fills the caches that the first questions would otherwise wait for: settings of frameworks,
    the digest of the sources, and the published runs."""
    known_settings()
    sources_key()
    services.evidence.load()


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Compiles the cost model and starts the background work, serves, and then stops everything in
    order."""
    services: Services = app.state.services
    await services.cost_model.start()
    # Requests run side by side, so that threads of one would take the cores of another.
    with threadpool_limits(1, user_api="blas"):
        unattended = [
            asyncio.create_task(services.auto_calibration.run()),
            asyncio.create_task(app.state.retention.run()),
            asyncio.create_task(asyncio.to_thread(_read_ahead, services)),
        ]
        if services.sweep_runner is not None:
            services.sweep_runner.start()
        yield
        services.event_streams.close()
        for task in unattended:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if services.sweep_runner is not None:
            await asyncio.to_thread(services.sweep_runner.stop)
    await app.state.graceful_stop.end()
    services.process_pool.close()
    services.texts.close()
    services.readiness.close()
    services.profile_gauges.close()
    services.store.close()
