"""/v1/benchmarks"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response

from service.routes import examples, tables
from service.routes.dependencies import CreationDep, RawBody, ResourceId, ServicesDep, require_scope
from service.routes.tables import list_response
from service.schemas.benchmark import (
    BenchmarkAnswer,
    BenchmarkPage,
    BenchmarkSubmission,
    StoredBenchmark,
)
from service.schemas.catalog import CatalogQuery
from service.web import responses
from service.web.etags import immutable_response
from service.web.json_body import JsonRoute

router = APIRouter(
    prefix="/v1/benchmarks",
    tags=["benchmarks"],
    route_class=JsonRoute,
    dependencies=[require_scope("report")],
)


@router.post(
    "",
    operation_id="createBenchmark",
    status_code=201,
    response_model=BenchmarkAnswer,
    responses=responses.CREATE,
)
async def create_benchmark(
    body: Annotated[BenchmarkSubmission, Body(openapi_examples=examples.BENCHMARKS)],
    raw_body: RawBody,
    request: Request,
    services: ServicesDep,
    creation: CreationDep,
) -> Response:
    """What collectives or matrix products achieve on a cluster: nccl-tests output as it is, or a
    table of products. The next calibration learns from it."""
    return await creation.respond_after(
        lambda: services.benchmarks.output(body, request.is_disconnected),
        lambda output: services.benchmarks.prepare(body, raw_body, output),
    )


@router.get(
    "",
    operation_id="listBenchmarks",
    response_model=BenchmarkPage,
    responses=tables.page_or(tables.BENCHMARKS),
)
def list_benchmarks(
    query: Annotated[CatalogQuery, Query()], request: Request, services: ServicesDep
) -> Response:
    """Newest first."""
    return list_response(request, query, services.benchmarks.page, tables.BENCHMARKS)


@router.get(
    "/{id}",
    operation_id="getBenchmark",
    response_model=StoredBenchmark,
    responses=responses.CONDITIONAL_GET,
    openapi_extra=responses.IF_NONE_MATCH,
)
def get_benchmark(id_: ResourceId, request: Request, services: ServicesDep) -> Response:
    """A benchmark, and the submission as it was received."""
    return immutable_response(request, services.benchmarks.get(id_))
