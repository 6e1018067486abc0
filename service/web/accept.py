"""Content negotiation by the Accept header (RFC 9110 §12.5.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from service.errors import NotAcceptable

_QUALITY = re.compile(r"q=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)", re.ASCII | re.IGNORECASE)


def preferred_media_type(accept: str | None, offered: Sequence[str]) -> str:
    """Returns the offered media type that an Accept header prefers; the first offered one among
    equals, and where there is no header. Raises NotAcceptable where the header accepts none."""
    if accept is None or not accept.strip():
        return offered[0]
    ranges = [_parse_range(part) for part in accept.split(",") if part.strip()]
    qualities = {media_type: _weight_of(media_type, ranges) for media_type in offered}
    best = max(offered, key=lambda media_type: qualities[media_type])
    if qualities[best] == 0:
        raise NotAcceptable(accept, offered)
    return best


def _parse_range(part: str) -> tuple[str, float]:
    """Returns a media range in lower case without parameters, and its weight. "Text/*;q=0.5" gives
    ("text/*", 0.5). A weight that cannot be read is 0."""
    name, *parameters = (piece.strip() for piece in part.split(";"))
    weights = [piece for piece in parameters if piece.lower().startswith("q=")]
    if not weights:
        return name.lower(), 1.0
    match = _QUALITY.fullmatch(weights[0])
    return name.lower(), float(match.group(1)) if match else 0.0


def _weight_of(media_type: str, ranges: Sequence[tuple[str, float]]) -> float:
    """Returns the weight of the most specific range that matches a media type; 0 where none
    matches. `ranges` are pairs of a range and its weight."""
    kind = media_type.partition("/")[0]
    for name in (media_type, f"{kind}/*", "*/*"):
        weights = [weight for range_, weight in ranges if range_ == name]
        if weights:
            return max(weights)
    return 0.0
