"""Responses with launch configurations, in the media type that the request prefers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Request, Response
from fastapi.responses import JSONResponse

from service.formats.launch.formats import FORMATS
from service.formats.launch.job import LaunchConfiguration
from service.formats.launch.rendering import RENDERINGS
from service.schemas.launch import LaunchAnswer
from service.web import responses
from service.web.accept import preferred_media_type
from service.web.etags import content_response

_JSON = "application/json"
_NAMES = f"One of {', '.join(FORMATS)}; or the name of a stack that has one, such as fsdp or nemo."
FormatName = Annotated[str, Path(alias="format", max_length=64, description=_NAMES)]
RESPONSES: responses.Responses = {
    **responses.CONDITIONAL_GET,
    **responses.problem_responses(406),
    200: responses.CONDITIONAL_GET[200]
    | {"content": {name: {"schema": {"type": "string"}} for name in RENDERINGS}},
}


def launch_response(request: Request, configuration: LaunchConfiguration) -> Response:
    """Returns the configuration as JSON or as a text, such as a shell script, by the Accept header.
    Raises NotAcceptable."""
    accept = ",".join(request.headers.getlist("accept"))
    media_type = preferred_media_type(accept, (_JSON, *RENDERINGS))
    if media_type == _JSON:
        document: dict[str, Any] = LaunchAnswer.of(configuration).model_dump(mode="json")
        return content_response(request, bytes(JSONResponse(document).body), media_type)
    text = RENDERINGS[media_type](configuration)
    return content_response(request, text.encode(), f"{media_type}; charset=utf-8")
