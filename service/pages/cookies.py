"""Cookies of the pages: no script reads them, and no other site's request brings them."""

from __future__ import annotations

from datetime import timedelta

from fastapi import Request, Response


def keep(
    request: Request, response: Response, name: str, value: str, lifetime: timedelta | None = None
) -> None:
    """Sets a cookie on the response. The browser keeps it for `lifetime`; if that is None, until
    the browser is closed."""
    response.set_cookie(
        name,
        value,
        max_age=None if lifetime is None else int(lifetime.total_seconds()),
        httponly=True,
        samesite="strict",
        # Without TLS a browser would not send it back.
        secure=request.url.scheme == "https",
    )


def forget(response: Response, *names: str) -> None:
    for name in names:
        response.delete_cookie(name, httponly=True, samesite="strict")
