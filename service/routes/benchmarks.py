"""/v1/benchmarks"""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Query, Request, Response

from service.routes.dependencies import (
    CreationDep,
    RawBody,
    ResourceId,
    SeenTags,
    ServicesDep,
    resource_router,
)
from service.routes.examples import EXAMPLES
from service.routes.list_tables import list_response, page_or_table
from service.schemas.benchmark import (
    BenchmarkAnswer,
    BenchmarkPage,
    BenchmarkQuery,
    BenchmarkSubmission,
    StoredBenchmark,
)
from service.schemas.list_query import BriefPage
from service.web import responses
from service.web.etags import conditional_response, tagged_response

_IF_MATCH = responses.if_match(
    "The ETag of the benchmark as you saw it, if it matters.", required=False
)

router = resource_router("benchmarks", "report")


@router.post(
    "",
    operation_id="createBenchmark",
    status_code=201,
    response_model=BenchmarkAnswer,
    responses=responses.CREATE,
)
async def create_benchmark(
    body: Annotated[BenchmarkSubmission, Body(openapi_examples=EXAMPLES["benchmarks"])],
    raw_body: RawBody,
    request: Request,
    services: ServicesDep,
    creation: CreationDep,
) -> Response:
    """Store what collectives or matrix products achieve on a cluster: nccl-tests output as it is,
    or a table of products. The next calibration learns from it."""
    return await creation.respond_after(
        # Long output waits for its turn, and is not read if the client has gone by then.
        lambda: services.benchmarks.read_output(body, request.is_disconnected),
        lambda output: services.benchmarks.prepare(body, raw_body, output),
    )


@router.get(
    "",
    operation_id="listBenchmarks",
    response_model=BenchmarkPage | BriefPage,
    responses=page_or_table("benchmarks"),
)
def list_benchmarks(
    query: Annotated[BenchmarkQuery, Query()], request: Request, services: ServicesDep
) -> Response:
    """List the stored benchmarks, newest first."""
    return list_response(request, query, services.benchmarks.page, "benchmarks")


@router.get(
    "/{id}",
    operation_id="getBenchmark",
    response_model=StoredBenchmark,
    responses=responses.CONDITIONAL_GET,
    openapi_extra=responses.IF_NONE_MATCH,
)
def get_benchmark(id_: ResourceId, request: Request, services: ServicesDep) -> Response:
    """Show a benchmark, and the submission as it was received."""
    return conditional_response(request, *services.benchmarks.get(id_))


@router.delete(
    "/{id}",
    operation_id="withdrawBenchmark",
    response_model=BenchmarkAnswer,
    responses=responses.IF_MATCH,
    openapi_extra=_IF_MATCH,
)
def withdraw_benchmark(id_: ResourceId, services: ServicesDep, seen: SeenTags) -> Response:
    """Withdraw a benchmark that should not count: it is kept as it was received, and from now on no
    calibration looks at it. Profile versions that learnt from it stay as they are; a calibration
    `from_scratch` makes one that did not."""
    # Without an If-Match header it is withdrawn whatever its ETag is.
    return tagged_response(*services.benchmarks.withdraw(id_, seen or ["*"]))
