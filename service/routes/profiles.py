"""/v1/profiles"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Query, Request, Response

from service.errors import PreconditionRequired
from service.own_profile import OWN, own_profile_id, scope_to_change
from service.routes.dependencies import (
    ComputationDep,
    CreationDep,
    ResourceId,
    SeenTags,
    ServicesDep,
    VersionNumber,
    require_caller_scope,
    require_scope,
)
from service.routes.examples import EXAMPLES
from service.routes.list_pages import page_response
from service.routes.list_tables import (
    list_response,
    named_table_response,
    page_or_table,
    shown_page,
    whole_or_table,
)
from service.schemas.list_query import BriefPage, ListForm, ListQuery
from service.schemas.profile import (
    CalibrationRequest,
    Policy,
    ProfileAnswer,
    ProfilePage,
    ProfileVersionAnswer,
    VersionPage,
)
from service.schemas.summary import DriftAnswer, DriftQuery, ReplayAnswer, ReplayRequest
from service.web import responses
from service.web.etags import conditional_response, tagged_response
from service.web.json_body import JsonRoute
from service.web.tables import asks_for_table

_IF_MATCH = responses.if_match(
    "The ETag of the profile as you saw it.", required=True, examples=EXAMPLES["etags"]
)


async def _required_seen_tags(tags: SeenTags) -> list[str]:
    """Returns the entity tags of the If-Match header. Raises PreconditionRequired where the header
    is missing."""
    if tags is None:
        raise PreconditionRequired
    return tags


RequiredSeenTags = Annotated[list[str], Depends(_required_seen_tags)]


async def _profile_id(id_: ResourceId, request: Request) -> str:
    """Returns the id of a profile. The name `own` stands for the profile of the caller's tenant; a
    caller without a tenant has none, and the name is then looked up as an id."""
    tenant: str | None = request.state.caller.tenant
    return own_profile_id(tenant) if id_ == OWN and tenant is not None else id_


ProfileId = Annotated[str, Depends(_profile_id)]


async def _require_scope_to_change(id_: ProfileId, request: Request) -> None:
    require_caller_scope(request, scope_to_change(id_))


_CHANGE = [Depends(_require_scope_to_change)]

router = APIRouter(prefix="/v1/profiles", tags=["profiles"], route_class=JsonRoute)


@router.get(
    "",
    operation_id="listProfiles",
    response_model=ProfilePage | BriefPage,
    responses=whole_or_table("profiles"),
    openapi_extra=responses.IF_NONE_MATCH,
)
def list_profiles(
    query: Annotated[ListForm, Query()], request: Request, services: ServicesDep
) -> Response:
    """List the profile that all share and the caller's own, each with its versions. A key of the
    scope `admin` sees the profiles of all tenants."""
    profiles = services.profiles.page()
    if asks_for_table(request, query):
        return named_table_response(request, profiles["items"], "profiles")
    return page_response(request, shown_page(profiles, query, "profiles"), query.fields)


@router.get(
    "/{id}",
    operation_id="getProfile",
    response_model=ProfileAnswer,
    responses=responses.CONDITIONAL_GET,
    openapi_extra=responses.IF_NONE_MATCH,
)
def get_profile(id_: ProfileId, request: Request, services: ServicesDep) -> Response:
    """Show a profile. Activation asks for its ETag."""
    return conditional_response(request, *services.profiles.get(id_))


@router.get(
    "/{id}/versions",
    operation_id="listProfileVersions",
    response_model=VersionPage | BriefPage,
    responses=page_or_table("versions"),
)
def list_profile_versions(
    id_: ProfileId, query: Annotated[ListQuery, Query()], request: Request, services: ServicesDep
) -> Response:
    """List the versions of a profile, newest first, each with the errors of the calibration that
    made it, in pages, in full or in brief, or all as CSV."""
    return list_response(
        request, query, lambda query: services.profiles.version_page(id_, query), "versions"
    )


@router.get(
    "/{id}/versions/{version}",
    operation_id="getProfileVersion",
    response_model=ProfileVersionAnswer,
    responses=responses.CONDITIONAL_GET,
    openapi_extra=responses.IF_NONE_MATCH,
)
def get_profile_version(
    id_: ProfileId, version: VersionNumber, request: Request, services: ServicesDep
) -> Response:
    """Show the coefficients of a version and, where reports made it, what they moved."""
    document = services.profiles.version(id_, version)
    # The ETag names the profile by its id: in the address, `own` is another for each tenant.
    return conditional_response(request, document, f'"profiles/{id_}/versions/{version}"')


@router.post(
    "/{id}/calibrations",
    operation_id="createCalibration",
    status_code=201,
    response_model=ProfileVersionAnswer,
    dependencies=_CHANGE,
    responses=responses.CREATE,
)
async def create_calibration(
    id_: ProfileId,
    services: ServicesDep,
    creation: CreationDep,
    body: Annotated[
        CalibrationRequest | None, Body(openapi_examples=EXAMPLES["calibrations"])
    ] = None,
) -> Response:
    """Learn a new version from the reports and benchmarks that the active one has not learnt. The
    profile `own` learns from the caller's last ones, for the caller alone. Calibrations run one at
    a time: others wait for their turn, and searches wait for none."""
    request = body or CalibrationRequest()
    return await creation.respond_when_admitted(
        lambda _: services.calibrations.calibrate(id_, request), services.calibration_admission
    )


@router.post(
    "/{id}/versions/{version}/activate",
    operation_id="activateProfileVersion",
    response_model=ProfileAnswer,
    dependencies=_CHANGE,
    responses=responses.problem_responses(400, 409) | responses.IF_MATCH_REQUIRED,
    openapi_extra=_IF_MATCH,
)
def activate_profile_version(
    id_: ProfileId, version: VersionNumber, services: ServicesDep, seen: RequiredSeenTags
) -> Response:
    """Make predictions use this version. An older one rolls back, and sets the policy's mode to
    "manual"."""
    return tagged_response(*services.profiles.activate(id_, version, seen))


@router.post(
    "/{id}/deactivate",
    operation_id="deactivateProfile",
    response_model=ProfileAnswer,
    dependencies=_CHANGE,
    responses=responses.problem_responses(400, 409) | responses.IF_MATCH_REQUIRED,
    openapi_extra=_IF_MATCH,
)
def deactivate_profile(id_: ProfileId, services: ServicesDep, seen: RequiredSeenTags) -> Response:
    """Make the tenant's predictions use the version that all share again, and set the mode of its
    own policy to "manual". A profile that all share cannot do without an active version."""
    return tagged_response(*services.profiles.deactivate(id_, seen))


@router.put(
    "/{id}/policy",
    operation_id="setProfilePolicy",
    response_model=ProfileAnswer,
    dependencies=_CHANGE,
    responses=responses.WITH_BODY | responses.IF_MATCH_REQUIRED,
    openapi_extra=_IF_MATCH,
)
def set_profile_policy(
    id_: ProfileId,
    services: ServicesDep,
    body: Annotated[Policy, Body(openapi_examples=EXAMPLES["policies"])],
    seen: RequiredSeenTags,
) -> Response:
    """Say who activates the versions that calibrations make. The body is the whole policy: a field
    that it leaves out gets its default. The policy of the profile `own`, which a tenant's reports
    make, may be set before there is a version."""
    return tagged_response(*services.profiles.set_policy(id_, body, seen))


@router.get(
    "/{id}/drift",
    operation_id="getProfileDrift",
    response_model=DriftAnswer,
    dependencies=[require_scope("report")],
)
async def get_profile_drift(
    id_: ProfileId,
    query: Annotated[DriftQuery, Query()],
    services: ServicesDep,
    computation: ComputationDep,
) -> Response:
    """Say whether runs of a chip, fabric, stack and model family have become slower or faster, and
    since when."""
    return await computation.respond(lambda _: services.drift.answer(id_, query))


@router.post(
    "/{id}/versions/{version}/replay",
    operation_id="replayProfileVersion",
    response_model=ReplayAnswer,
    dependencies=_CHANGE,
    responses=responses.POST,
)
async def replay_profile_version(
    id_: ProfileId,
    version: VersionNumber,
    services: ServicesDep,
    computation: ComputationDep,
    body: Annotated[ReplayRequest | None, Body(openapi_examples=EXAMPLES["replays"])] = None,
) -> Response:
    """Replay earlier questions and reports under this version, and say what would change. Nothing
    is stored."""
    return await computation.respond(
        lambda _: services.replays.replay(id_, version, body or ReplayRequest())
    )
