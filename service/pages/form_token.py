"""Forms, as browsers post them, and the token that shows that one of our pages sent it (CSRF)."""

from __future__ import annotations

import hmac
import re
import secrets
from urllib.parse import parse_qsl

from fastapi import Request

from service.errors import ForeignForm, MalformedBody

TOKEN_COOKIE = "shardwright_form"
_FIELD = "form_token"
_TOKEN = re.compile(r"[\w-]{43}", re.ASCII)  # 32 random bytes in base64
_MOST_FIELDS = 100  # four times as many as the longest form has


def form_token(request: Request) -> str:
    """The token of this browser, or a new one. It lies in a cookie that other sites cannot read,
    and in every form: only a page of ours can send both."""
    token = request.cookies.get(TOKEN_COOKIE, "")
    return token if _TOKEN.fullmatch(token) else secrets.token_urlsafe(32)


async def posted_form(request: Request) -> dict[str, str]:
    """The fields of a form. Raises ForeignForm unless a page of this service sent it, and
    MalformedBody where the body is no form."""
    try:
        text = (await request.body()).decode()
        fields = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError as error:
        raise MalformedBody(f"The form cannot be read: {error}.") from None
    kept = request.cookies.get(TOKEN_COOKIE, "")
    is_same = hmac.compare_digest(kept.encode(), fields.pop(_FIELD, "").encode())
    # Browsers say where a request comes from; older ones do not, and the token has to do.
    site = request.headers.get("sec-fetch-site", "same-origin")
    if not (is_same and _TOKEN.fullmatch(kept) and site in ("same-origin", "none")):
        raise ForeignForm
    return fields
