"""Compresses answers with gzip for clients that accept it (RFC 9110 §8.4)."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.web.etags import GZIP_SUFFIX

_MINIMUM_BYTES = 1024  # smaller answers fit a packet as they are
_LEVEL = 6  # zlib's own default: level 9 takes twice as long for 1% less
_NOT_MODIFIED = 304
_EVENTS = "text/event-stream"


class CompressionMiddleware:
    """Middleware around Starlette's. It leaves event streams and small answers as they are.

    The compressed and the plain answer are two representations, which must differ in their strong
    ETag (RFC 9110 §8.8.3.3): the compressed one's has a suffix.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = GZipMiddleware(
            app,
            minimum_size=_MINIMUM_BYTES,
            compresslevel=_LEVEL,
            exclude_content_types=(_EVENTS,),  # a tuple, because every request iterates over it
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compresses the response where the client accepts gzip, and gives it an ETag of its own,
        because the bytes differ from the plain ones."""

        async def send_with_etag(message: Message) -> None:
            """Sends a message on. A compressed response gets an ETag with a suffix, and a 304
            varies by encoding as the response itself would."""
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if message["status"] == _NOT_MODIFIED:
                    headers.add_vary_header("Accept-Encoding")
                if headers.get("content-encoding") == "gzip" and "etag" in headers:
                    # The suffix goes before the closing quotation mark.
                    headers["ETag"] = f'{headers["etag"][:-1]}{GZIP_SUFFIX}"'
            await send(message)

        # Starlette would take any mention of gzip in the header for consent.
        if scope["type"] == "http" and not accepts_gzip(Headers(scope=scope)):
            scope = {**scope, "headers": _without_accept_encoding(scope)}
        await self._app(scope, receive, send_with_etag)


def accepts_gzip(headers: Headers) -> bool:
    """Returns whether the client accepts gzip, by the weight of "gzip" or else that of "*" (RFC
    9110 §12.5.3). Starlette looks for the name only, and would take `gzip;q=0` for consent."""
    weights: dict[str, str] = {}
    for coding in ",".join(headers.getlist("accept-encoding")).lower().split(","):
        name, _, parameters = coding.partition(";")
        weights[name.strip()] = parameters.replace(" ", "")
    weight = weights.get("gzip", weights.get("*"))
    # A weight of zero, written q=0, q=0.0 and so on, refuses the coding.
    return weight is not None and weight.rstrip("0.") != "q="


def _without_accept_encoding(scope: Scope) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
