"""/login and /logout: a session of the browser, made from an API key."""

from __future__ import annotations

import re

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from service.errors import Unauthenticated
from service.pages import cookies
from service.pages.form_token import TOKEN_COOKIE, posted_form
from service.pages.rendering import page
from service.pages.trouble import page_router
from service.routes.index import FIRST_PAGE
from service.sessions import LIFETIME, new_session
from service.web.authentication import SESSION_COOKIE, SIGN_IN

router = page_router()

_OWN_PAGE = re.compile(r"/[\w-]+(?:\?[\x21-\x7e]*)?", re.ASCII)
"""A path of this service. Two slashes would name another host."""
_SEE_OTHER = 303


@router.get(SIGN_IN)
def login_form(request: Request) -> Response:
    """The form for a key. Browsers send no session cookie (SameSite=Strict) when they follow a link
    from another site, so a user who has a session may arrive here. The form then goes on to the
    page `again` by itself, and as that link is ours, the browser sends the cookie."""
    following = _own_page(request.query_params.get("next"))
    is_from_elsewhere = request.headers.get("sec-fetch-site") == "cross-site"
    again = following if is_from_elsewhere else None
    return page(request, "login.html", {"next": following, "again": again, "refusal": None})


@router.post(SIGN_IN)
async def login(request: Request) -> Response:
    """Opens a session for a key, and goes on to the page that asked for it."""
    fields = await posted_form(request)
    following = _own_page(fields.get("next"))
    try:
        store = request.app.state.services.store
        session = await run_in_threadpool(new_session, store, fields.get("key", "").strip())
    except Unauthenticated as error:
        context = {"next": following, "again": None, "refusal": str(error)}
        return page(request, "login.html", context, status=401)
    response = RedirectResponse(following, _SEE_OTHER)
    cookies.keep(request, response, SESSION_COOKIE, session, LIFETIME)
    return response


@router.post("/logout")
async def logout(request: Request) -> Response:
    """Ends the session of this browser."""
    await posted_form(request)
    response = RedirectResponse(SIGN_IN, _SEE_OTHER)
    cookies.forget(response, SESSION_COOKIE, TOKEN_COOKIE)
    return response


def _own_page(path: str | None) -> str:
    """Returns the path if it is that of a page of this service, and else that of the first page. A
    link could otherwise lead from the sign-in form to another site."""
    return path if path and _OWN_PAGE.fullmatch(path) else FIRST_PAGE
