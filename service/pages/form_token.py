"""Forms, as browsers post them, and the token that shows that one of our pages sent it (CSRF)."""

from __future__ import annotations

import hmac
import re
import secrets
from email import message_from_bytes
from email.message import Message
from urllib.parse import parse_qsl

from fastapi import Request

from service.errors import ForeignForm, MalformedBody

TOKEN_COOKIE = "shardwright_form"
_FIELD = "form_token"
_WITH_FILES = "multipart/form-data"
_TOKEN = re.compile(r"[\w-]{43}", re.ASCII)  # 32 random bytes in base64
_MOST_FIELDS = 100  # four times as many as the longest form has


def form_token(request: Request) -> str:
    """Returns the CSRF token of this browser, or a new one. It lies in a cookie that other sites
    cannot read, and in every form: only a page of this service can send both."""
    token = request.cookies.get(TOKEN_COOKIE, "")
    return token if _TOKEN.fullmatch(token) else secrets.token_urlsafe(32)


async def posted_form(request: Request) -> dict[str, str]:
    """Returns the fields of a form. Raises ForeignForm unless a page of this service sent it, and
    MalformedBody where the body is not a form."""
    body = await request.body()
    kind = Message()
    kind["Content-Type"] = request.headers.get("content-type", "")
    try:
        if kind.get_content_type() == _WITH_FILES:
            fields = _multipart_fields(body, kind.get_boundary())
        else:
            # True: fields that are left empty are kept.
            fields = dict(parse_qsl(body.decode(), True, max_num_fields=_MOST_FIELDS))
    except ValueError as error:
        raise MalformedBody(f"The form cannot be read: {error}.") from None
    kept = request.cookies.get(TOKEN_COOKIE, "")
    # The comparison takes as long for every wrong token, so that nobody can guess it piece by
    # piece.
    is_same = hmac.compare_digest(kept.encode(), fields.pop(_FIELD, "").encode())
    # Browsers say where a request comes from; older ones do not, and the token has to do.
    site = request.headers.get("sec-fetch-site", "same-origin")
    if not (is_same and _TOKEN.fullmatch(kept) and site in ("same-origin", "none")):
        raise ForeignForm
    return fields


def _multipart_fields(body: bytes, boundary: str | None) -> dict[str, str]:
    """Returns the fields of a multipart form (RFC 7578), each file as its text. Raises ValueError
    where the body is not such a form."""
    if not boundary:
        raise ValueError("it names no boundary between its fields")
    # The first boundary has no line end before it, and gets one, so that all are alike. What comes
    # before it is no field.
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode(), _MOST_FIELDS)
    fields = {}
    for part in parts[:-1]:  # two dashes follow the last boundary
        head, blank, text = part.partition(b"\r\n\r\n")
        name = message_from_bytes(head.lstrip()).get_param("name", header="content-disposition")
        if not blank or not isinstance(name, str):
            raise ValueError("one of its fields has no name")
        # A log may hold bytes that are no text: whoever reads its lines passes over these.
        fields[name] = text.decode(errors="replace")
    return fields
