"""/v1/profiles"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse

from service.errors import PreconditionRequired
from service.routes import examples
from service.routes.dependencies import Id, InTurn, Post, Use, Version, needs
from service.routes.pages import page
from service.schemas.profile import (
    CalibrationRequest,
    Policy,
    ProfileAnswer,
    ProfilePage,
    ProfileVersionAnswer,
)
from service.schemas.summary import DriftAnswer, DriftQuery, ReplayAnswer, ReplayRequest
from service.web.etags import immutable, required_tags, tagged
from service.web.json_body import JsonRoute


def _seen(
    if_match: Annotated[
        str | None,
        Header(
            description="The ETag of the profile as you saw it.", openapi_examples=examples.ETAGS
        ),
    ] = None,
) -> list[str]:
    if if_match is None:
        raise PreconditionRequired
    return required_tags(if_match)


Seen = Annotated[list[str], Depends(_seen)]
"""What the caller saw of a profile that it changes."""

_SHARED = [needs("calibrate")]

router = APIRouter(prefix="/v1/profiles", tags=["profiles"], route_class=JsonRoute)


@router.get("", operation_id="listProfiles", response_model=ProfilePage)
def list_profiles(request: Request, use: Use) -> JSONResponse:
    """Every profile with its versions."""
    return page(request, use.profiles.page())


@router.get("/{id}", operation_id="getProfile", response_model=ProfileAnswer)
def get_profile(id_: Id, request: Request, use: Use) -> Response:
    """A profile; its ETag is what activation asks for."""
    return tagged(request, *use.profiles.get(id_))


@router.get(
    "/{id}/versions/{version}",
    operation_id="getProfileVersion",
    response_model=ProfileVersionAnswer,
)
def get_profile_version(id_: Id, version: Version, request: Request, use: Use) -> Response:
    """The coefficients of a version and, where reports made it, what they moved."""
    return immutable(request, use.profiles.version(id_, version))


@router.post(
    "/{id}/calibrations",
    operation_id="createCalibration",
    status_code=201,
    response_model=ProfileVersionAnswer,
    dependencies=_SHARED,
)
async def create_calibration(
    id_: Id,
    use: Use,
    post: Post,
    body: Annotated[CalibrationRequest | None, Body(openapi_examples=examples.CALIBRATIONS)] = None,
) -> Response:
    """Learn a new version from the reports and benchmarks that the active one has not learnt. One
    at a time: others wait for their turn, and searches wait for none."""
    request = body or CalibrationRequest()
    return await post.created_in_turn(
        lambda _: use.calibrations.calibrate(id_, request), use.learning_slots
    )


@router.post(
    "/{id}/versions/{version}/activate",
    operation_id="activateProfileVersion",
    response_model=ProfileAnswer,
    dependencies=_SHARED,
)
def activate_profile_version(
    id_: Id,
    version: Version,
    use: Use,
    seen: Seen,
) -> Response:
    """Make predictions use this version; an older one rolls back, and sets the policy's mode to
    "manual"."""
    document, etag = use.profiles.activate(id_, version, seen)
    return JSONResponse(document, headers={"ETag": etag})


@router.put(
    "/{id}/policy",
    operation_id="setProfilePolicy",
    response_model=ProfileAnswer,
    dependencies=_SHARED,
)
def set_profile_policy(
    id_: Id,
    use: Use,
    body: Annotated[Policy, Body(openapi_examples=examples.POLICIES)],
    seen: Seen,
) -> Response:
    """Say who activates what calibrations make."""
    document, etag = use.profiles.set_policy(id_, body, seen)
    return JSONResponse(document, headers={"ETag": etag})


@router.get(
    "/{id}/drift",
    operation_id="getProfileDrift",
    response_model=DriftAnswer,
    dependencies=[needs("report")],
)
async def get_profile_drift(
    id_: Id, query: Annotated[DriftQuery, Query()], use: Use, turn: InTurn
) -> Response:
    """Whether runs of a chip, fabric, stack and model family have become slower or faster, and
    since when."""
    return await turn.computed(lambda _: use.drift.of(id_, query))


@router.post(
    "/{id}/versions/{version}/replay",
    operation_id="replayProfileVersion",
    response_model=ReplayAnswer,
    dependencies=_SHARED,
)
async def replay_profile_version(
    id_: Id,
    version: Version,
    use: Use,
    turn: InTurn,
    body: Annotated[ReplayRequest | None, Body(openapi_examples=examples.REPLAYS)] = None,
) -> Response:
    """Earlier questions and reports under this version: what would change. Nothing is stored."""
    return await turn.computed(lambda _: use.replays.replay(id_, version, body or ReplayRequest()))
