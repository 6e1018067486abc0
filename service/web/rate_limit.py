"""The limit on the requests that a key may send a minute."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import TooManyRequests
from service.web.authentication import GUARDED
from service.web.problems import service_error_response


@dataclass(slots=True)
class _Bucket:
    """Requests that a key may send at once, as of a time. It fills again evenly."""

    left: float
    as_of: float


class RateLimit:
    """Middleware that refuses requests of a key beyond `per_minute`, of which all may come at once
    (a token bucket). Requests without a key have one bucket together. Each process counts for
    itself: a limit across processes is the business of a proxy.
    """

    def __init__(self, app: ASGIApp, per_minute: int | None, pages: tuple[str, ...] = ()) -> None:
        """Limits each key to `per_minute` requests; None sets no limit. Paths that begin with one
        of `pages` are limited as those of the API are."""
        self.app = app
        self._limited = (GUARDED, *pages)
        self._per_minute = per_minute
        self._buckets: dict[str | None, _Bucket] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or refuses it with the seconds to wait."""
        error = self._refusal(scope)
        if error is None:
            await self.app(scope, receive, send)
        else:
            await service_error_response(scope, error)(scope, receive, send)

    def _refusal(self, scope: Scope) -> TooManyRequests | None:
        """Returns the error for a request beyond its key's limit; None where the request may
        pass."""
        is_limited = scope["type"] == "http" and scope["path"].startswith(self._limited)
        if self._per_minute is None or not is_limited:
            return None
        wait_s = self._take_request(scope["state"]["caller"].key_id, self._per_minute, monotonic())
        return TooManyRequests(self._per_minute, wait_s) if wait_s > 0 else None

    def _take_request(self, key_id: str | None, per_minute: int, now: float) -> float:
        """Takes a request from the key's bucket and returns 0. Where the bucket is empty, returns
        the seconds until it holds one."""
        bucket = self._buckets.setdefault(key_id, _Bucket(per_minute, now))
        per_s = per_minute / 60
        refilled = (now - bucket.as_of) * per_s
        bucket.left = min(bucket.left + refilled, per_minute)
        bucket.as_of = now
        if bucket.left < 1:
            return (1 - bucket.left) / per_s
        bucket.left -= 1
        return 0.0
