"""/v1/catalog"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from service.routes.dependencies import CreationDep, ServicesDep, require_scope
from service.routes.examples import EXAMPLES
from service.routes.list_tables import list_response, page_or_table
from service.schemas.catalog import (
    ArchitectureEntry,
    CatalogEntry,
    CatalogPage,
    ChipEntry,
    ClusterEntry,
    Kind,
)
from service.schemas.list_query import BriefPage, ListQuery
from service.web import responses
from service.web.json_body import JsonRoute

_CALIBRATE = [require_scope("calibrate")]

router = APIRouter(prefix="/v1/catalog", tags=["catalog"], route_class=JsonRoute)

EntryName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._@/-]{0,119}$")]


@router.get(
    "/{kind}",
    operation_id="listCatalog",
    response_model=CatalogPage | BriefPage,
    responses=page_or_table("catalog"),
)
def list_entries(
    kind: Kind, query: Annotated[ListQuery, Query()], request: Request, services: ServicesDep
) -> Response:
    """List shipped and registered entries by name."""
    return list_response(
        request, query, lambda query: services.catalog.page(kind, query), "catalog"
    )


@router.get("/{kind}/{name:path}", operation_id="getCatalogEntry", response_model=CatalogEntry)
def get_entry(kind: Kind, name: EntryName, services: ServicesDep) -> JSONResponse:
    """Show an entry by name or alias. `name@3` is the third version of a registered one."""
    return JSONResponse(services.catalog.get(kind, name))


@router.post(
    "/chips",
    operation_id="registerChip",
    status_code=201,
    response_model=CatalogEntry,
    dependencies=_CALIBRATE,
    responses=responses.CREATE,
)
def register_chip(
    body: Annotated[ChipEntry, Body(openapi_examples=EXAMPLES["chips"])],
    services: ServicesDep,
    creation: CreationDep,
) -> Response:
    """Register a chip, or a new version of one. `name@2` is its second version."""
    return creation.respond(lambda: services.catalog.register("chips", body))


@router.post(
    "/clusters",
    operation_id="registerCluster",
    status_code=201,
    response_model=CatalogEntry,
    dependencies=_CALIBRATE,
    responses=responses.CREATE,
)
def register_cluster(
    body: Annotated[ClusterEntry, Body(openapi_examples=EXAMPLES["clusters"])],
    services: ServicesDep,
    creation: CreationDep,
) -> Response:
    """Register a cluster, or a new version of one. `name@2` is its second version."""
    return creation.respond(lambda: services.catalog.register("clusters", body))


@router.post(
    "/architectures",
    operation_id="registerArchitecture",
    status_code=201,
    response_model=CatalogEntry,
    dependencies=_CALIBRATE,
    responses=responses.CREATE,
)
def register_architecture(
    body: Annotated[ArchitectureEntry, Body(openapi_examples=EXAMPLES["architectures"])],
    services: ServicesDep,
    creation: CreationDep,
) -> Response:
    """Register an architecture, or a new version of one. `name@2` is its second version."""
    return creation.respond(lambda: services.catalog.register("architectures", body))
