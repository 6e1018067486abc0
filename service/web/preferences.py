"""The *view* of an answer that a client wants: whole, or no more than it needs (RFC 7240)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fastapi import Request

_RETURN = re.compile(r'\s*return\s*=\s*"?(minimal|representation)"?\s*(?:;|$)', re.IGNORECASE)

Shorten = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class View:
    """The view in which an answer is shown. `shorten` makes the brief view of the document, and is
    None where the whole is shown. `headers` say by which request headers the view was chosen."""

    shorten: Shorten | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def shown(self, document: dict[str, Any]) -> dict[str, Any]:
        return document if self.shorten is None else self.shorten(document)

    @property
    def tag(self) -> str:
        """Returns the suffix by which the ETag of this view differs from that of the whole
        document."""
        return "" if self.shorten is None else "-brief"


WHOLE = View()


def requested_view(
    request: Request, view: Literal["full", "brief"] | None, shorten: Shorten
) -> View:
    """Returns the view that `view` names, or else the one that the Prefer header asks for: of
    several preferences of a kind the first (RFC 7240 §2). `shorten` makes the brief form."""
    headers = {"Vary": "Prefer"}
    preferred = _preferred_return(request)
    if view is None and preferred is not None:
        view = "brief" if preferred == "minimal" else "full"
        headers["Preference-Applied"] = f"return={preferred}"
    return View(shorten if view == "brief" else None, headers)


def _preferred_return(request: Request) -> str | None:
    """Returns the value of the Prefer header's first `return` preference, such as "minimal"; None
    without one."""
    preferences = ",".join(request.headers.getlist("prefer")).split(",")
    matches = (_RETURN.match(preference) for preference in preferences)
    return next((match[1].lower() for match in matches if match is not None), None)
