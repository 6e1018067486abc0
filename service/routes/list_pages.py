"""Pages of lists. The next page is named in the body, and linked in the header (RFC 8288)."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from models.errors import Invalid
from service.web.etags import content_response


def page_response(
    request: Request, document: dict[str, Any], fields: str | None = None
) -> Response:
    """Returns a page of a list with its digest as ETag, and the next page in the Link header.
    `fields` is a list of names with commas, such as "id,step_time_s", and limits the items to these
    fields."""
    if fields is not None:
        document = {**document, "items": _with_fields(document["items"], fields.split(","))}
    answer = content_response(request, bytes(JSONResponse(document).body), "application/json")
    if document["next"] is not None:
        next_url = request.url.include_query_params(cursor=document["next"])
        answer.headers["Link"] = f'<{next_url.path}?{next_url.query}>; rel="next"'
    return answer


def _with_fields(items: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    """Returns the items with only these fields. A field that an item of an earlier release lacks is
    null. Raises Invalid for a name that the first item does not have."""
    for name in names:
        if items and name not in items[0]:
            known = ", ".join(items[0])
            raise Invalid("fields", name, f"is no field of this list; it has {known}")
    return [{name: item.get(name) for name in names} for item in items]
