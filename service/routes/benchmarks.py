"""/v1/benchmarks"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from service.routes import examples
from service.routes.dependencies import Id, Post, Received, Use, needs
from service.routes.pages import page
from service.schemas.benchmark import (
    BenchmarkAnswer,
    BenchmarkPage,
    BenchmarkSubmission,
    StoredBenchmark,
)
from service.schemas.catalog import CatalogQuery
from service.web.etags import immutable
from service.web.json_body import JsonRoute

router = APIRouter(
    prefix="/v1/benchmarks",
    tags=["benchmarks"],
    route_class=JsonRoute,
    dependencies=[needs("report")],
)


@router.post("", operation_id="createBenchmark", status_code=201, response_model=BenchmarkAnswer)
async def create_benchmark(
    body: Annotated[BenchmarkSubmission, Body(openapi_examples=examples.BENCHMARKS)],
    received: Received,
    use: Use,
    post: Post,
) -> Response:
    """What collectives or matrix products achieve on a cluster: nccl-tests output as it is, or a
    table of products. The next calibration learns from it."""
    return await run_in_threadpool(post.created, lambda: use.benchmarks.take(body, received))


@router.get("", operation_id="listBenchmarks", response_model=BenchmarkPage)
def list_benchmarks(
    query: Annotated[CatalogQuery, Query()], request: Request, use: Use
) -> JSONResponse:
    """Newest first."""
    return page(request, use.benchmarks.page(query))


@router.get("/{id}", operation_id="getBenchmark", response_model=StoredBenchmark)
def get_benchmark(id_: Id, request: Request, use: Use) -> Response:
    """A benchmark, and the submission as it was received."""
    return immutable(request, use.benchmarks.get(id_))
