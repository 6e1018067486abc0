from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, _EffectiveRouteContext
from sqlalchemy import Engine

with warnings.catch_warnings():  # starlette would rather have httpx2 than httpx
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

from models.search.warm_up import warm_up
from service.app import create_app
from service.learning import published_sample
from service.runtime import cost_model
from service.runtime.cost_model import compile_cost_model
from service.runtime.process_pool import ProcessPool
from service.settings import Settings
from service.store import Store, database
from service.web import openapi


class Databases(Protocol):
    def prepared(self) -> str: ...

    def drop(self, url: str) -> None: ...


MakeClient = Callable[..., TestClient]
RUNS_OF_A_KIND = published_sample._RUNS_OF_A_KIND


@pytest.fixture(scope="session", autouse=True)
def _compiled_cost_model() -> Iterator[None]:
    """So that each application is ready when it starts, without a pause of 20 ms before it looks:
    there are eight hundred."""
    compile_cost_model(warm_up)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost_model, "_POLL_S", 0.001)
        yield


@pytest.fixture(scope="session", autouse=True)
def _routes_that_are_prepared_once() -> Iterator[None]:
    """FastAPI prepares every route anew for each application, which takes a tenth of a second. All
    applications include the same routers in the same way, so that they may share what it makes."""
    prepare = _EffectiveRouteContext.from_api_route
    prepared: dict[int, _EffectiveRouteContext] = {}  # by identity: routes have no hash

    def prepare_once(*, original_route: APIRoute, **included: Any) -> _EffectiveRouteContext:
        if id(original_route) not in prepared:
            prepared[id(original_route)] = prepare(original_route=original_route, **included)
        return prepared[id(original_route)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_EffectiveRouteContext, "from_api_route", prepare_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _openapi_document_that_is_made_once() -> Iterator[None]:
    """All applications have the same routes, so that they may share what describes them. To make it
    takes two seconds."""
    install = openapi.install
    made: list[dict[str, Any]] = []

    def install_shared(app: FastAPI) -> None:
        install(app)
        make = app.openapi

        def shared() -> dict[str, Any]:
            if not made:
                made.append(make())
            return made[0]

        app.openapi = shared

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openapi, "install", install_shared)
        yield


@pytest.fixture(scope="session", autouse=True)
def _statements_that_are_compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every engine compiles each statement anew, which takes longer than to execute it. What is
    compiled is kept by dialect and statement, and all engines of SQLite may share both."""
    open_engine = database._sqlite_engine
    first = open_engine(f"sqlite:///{tmp_path_factory.mktemp('first')}/empty.db", database.WAIT_S)
    first.connect().close()  # which tells the dialect what SQLite can do

    def open_sharing_engine(url: str, wait_s: float) -> Engine:
        engine = open_engine(url, wait_s)
        engine.dialect = engine.pool._dialect = first.dialect
        engine._compiled_cache = first._compiled_cache
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_sqlite_engine", open_sharing_engine)
        yield
    first.dispose()


@pytest.fixture
def large_tasks_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tasks, such as items of sweeps, run in the thread that waits for them: a process takes
    seconds to start, and lets all others go first."""

    def run(
        _: ProcessPool, store: Store, task: Callable[..., Any], *args: Any, **named: Any
    ) -> Any:
        return task(store, *args, **named)

    monkeypatch.setattr(ProcessPool, "run_in_process", run)


@pytest.fixture(scope="session", autouse=True)
def _one_published_run_of_a_kind() -> Iterator[None]:
    """Every calibration predicts the sample of published runs twice. Few tests are of those: they
    ask for `whole_published_sample`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published_sample, "_RUNS_OF_A_KIND", 1)
        yield


@pytest.fixture
def whole_published_sample(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As many published runs of a kind as a service takes."""
    monkeypatch.setattr(published_sample, "_RUNS_OF_A_KIND", RUNS_OF_A_KIND)
    published_sample._read_sample.cache.clear()
    yield
    published_sample._read_sample.cache.clear()


@contextmanager
def serving(databases: Databases) -> Iterator[TestClient]:
    """An application on a database of its own."""
    url = databases.prepared()
    with TestClient(create_app(Settings(database_url=url))) as client:
        yield client
    databases.drop(url)


@pytest.fixture
def make_client(database_url: str) -> Iterator[MakeClient]:
    """Applications on one database, with other settings each if need be."""
    made: list[TestClient] = []

    def make(**settings: object) -> TestClient:
        client = TestClient(create_app(Settings(database_url=database_url, **settings)))
        made.append(client.__enter__())
        return client

    yield make
    for client in made:
        client.__exit__(None, None, None)


@pytest.fixture
def client(make_client: MakeClient) -> TestClient:
    return make_client()


@pytest.fixture(scope="module")
def shared_client(databases: Databases) -> Iterator[TestClient]:
    """One application for all tests of a module: for those that leave nothing behind."""
    with serving(databases) as client:
        yield client
