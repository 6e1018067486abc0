"""/profiles: the versions of a profile, what each has learnt, and which of them is active. A
tenant's *own* profile predicts for that tenant in place of the shared one while it has an active
version."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from service.api_keys import Caller
from service.errors import Conflict, PreconditionFailed
from service.own_profile import scope_to_change
from service.pages.form_token import posted_form
from service.pages.question_form import whole_number
from service.pages.rendering import page
from service.pages.trouble import SHOWN_ERRORS, page_router, trouble_page
from service.pages.version_rows import VersionRow, kind_rows
from service.routes.dependencies import (
    ID_PATTERN,
    MAX_VERSION,
    Services,
    ServicesDep,
    require_caller_scope,
)
from service.schemas.list_query import ListQuery
from service.schemas.wire import Wire
from service.store.versions import DEFAULT_PROFILE

PATH = "/profiles"
_MOST = 30  # versions: more of them are a table that nobody scrolls through
_MOST_CHANGED = 12  # chips and frameworks: the others change by less
_MOST_MOVED = 40  # coefficients: the others moved by a few percent of a spread
_SEE_OTHER = 303

router = page_router()


class VersionChange(Wire):
    """A change of the active version, as the form sends it."""

    profile: Annotated[str, Field(pattern=ID_PATTERN)]
    version: Annotated[int, Field(ge=1, le=MAX_VERSION)] | None
    """Null: the version that all share, in place of a tenant's own."""
    etag: str
    """The ETag of the profile as the page showed it."""


@router.get(PATH)
def profiles(
    request: Request,
    services: ServicesDep,
    profile: Annotated[str | None, Query(pattern=ID_PATTERN)] = None,
    version: Annotated[int | None, Query(ge=1, le=MAX_VERSION)] = None,
) -> Response:
    """A profile and one of its versions: those in use unless the URL names others."""
    return page(request, "profiles.html", _context(request, services, profile, version))


@router.post(PATH)
async def change_version(request: Request, services: ServicesDep) -> Response:
    """Makes another version the active one. The profile has to be as the page showed it."""
    sent = await posted_form(request)
    # An empty version asks to deactivate the tenant's own profile.
    body = {**sent, "version": whole_number(sent.get("version", "")) or None}
    id_ = None
    try:
        change = VersionChange.model_validate(body)
        id_ = change.profile
        require_caller_scope(request, scope_to_change(id_))
        await run_in_threadpool(_apply_change, services, change)
    except SHOWN_ERRORS as error:
        # None: the version that is shown by default.
        context = await run_in_threadpool(_context, request, services, id_, None)
        return await trouble_page(request, error, "profiles.html", context, VersionChange)
    return RedirectResponse(f"{PATH}?{urlencode({'profile': id_})}", _SEE_OTHER)


def _apply_change(services: Services, change: VersionChange) -> None:
    """Activates the version of a profile that the form names. If it names none, deactivates the
    tenant's own profile. Raises Conflict where the profile changed since the page was opened."""
    try:
        if change.version is None:
            services.profiles.deactivate(change.profile, [change.etag])
        else:
            services.profiles.activate(change.profile, change.version, [change.etag])
    except PreconditionFailed:
        raise Conflict(
            "The profile changed since the page was opened, and nothing was done. Look at it as it"
            " is now, and send the form once more."
        ) from None


def _context(
    request: Request, services: Services, id_: str | None, version: int | None
) -> dict[str, Any]:
    """Returns the fields of the template. `id_` is the profile to show, by default the one that
    predicts for the caller. `version` is the version shown in detail, by default the newest that a
    calibration made."""
    caller: Caller = request.state.caller
    profiles_seen = services.profiles.page()["items"]
    in_use = _profile_in_use(profiles_seen, caller.tenant)
    profile, etag = services.profiles.get(id_ or in_use)
    versions = services.profiles.version_page(profile["id"], ListQuery(limit=_MOST))["items"]
    rows = [VersionRow.of(item, profile["active_version"]) for item in versions]
    shown = version or next((row.version for row in rows if row.calibration), None)
    detail = None if shown is None else services.profiles.version(profile["id"], shown)
    calibration = detail and detail["calibration"]
    scope = scope_to_change(profile["id"])
    return {
        "profile": profile,
        "etag": etag,
        "others": [item["id"] for item in profiles_seen if item["id"] != profile["id"]],
        "is_in_use": profile["id"] == in_use,
        "rows": rows,
        "older": len(profile["versions"]) - len(rows),  # versions that are not shown
        "scope": scope,
        "may_change": caller.may(scope),
        "detail": detail,
        "calibration": calibration,
        "kinds": kind_rows(calibration and calibration["unseen"]),
        "most_changed": _MOST_CHANGED,
        "most_moved": _MOST_MOVED,
        "trouble": None,
        "data": {"versions": [row.mark for row in rows if row.mark]},
    }


def _profile_in_use(profiles_seen: list[dict[str, Any]], tenant: str | None) -> str:
    """Returns the id of the profile that predicts for a tenant: the tenant's own where a version of
    it is active, and otherwise the shared default."""
    for profile in profiles_seen:
        if tenant is not None and profile["tenant"] == tenant and profile["active_version"]:
            return str(profile["id"])
    return DEFAULT_PROFILE
