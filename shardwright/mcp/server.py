"""The server of the tools, over standard input and output or over HTTP without sessions.

It is on the SDK `mcp` and not on `fastmcp`: that is built on the former and brings twice as many
packages, for composing and generating servers, which five tools have no use for.
"""

from __future__ import annotations

from mcp.server import MCPServer
from mcp_types import ToolAnnotations

from shardwright.mcp.tools import TOOLS, report
from shardwright.version import VERSION

_INSTRUCTIONS = (
    "Shardwright knows how to launch the training of large models. Before a job is submitted, check"
    " it; where there is none yet, ask. When a run was slow or died, explain its log; when it has"
    " ended, report it. Numbers come with 80% intervals: repeat them. Where a verdict is"
    " cannot_tell, say what its reservations ask for and check again; do not guess."
)
_MOST_BYTES = 2**24  # what the service takes of a body, most of which are logs


def tool_server() -> MCPServer:
    """Returns the server of the tools. All of them but `report` are marked as only reading."""
    server = MCPServer("shardwright", version=VERSION, instructions=_INSTRUCTIONS)
    for tool in TOOLS:
        is_reading = tool is not report
        annotations = ToolAnnotations(read_only_hint=is_reading, open_world_hint=False)
        server.add_tool(tool, annotations=annotations, structured_output=False)
    return server


def serve_stdio() -> None:
    tool_server().run("stdio")


def serve_http(host: str, port: int) -> None:
    """Serves the tools at /mcp. The server keeps no sessions, so that several processes may share
    the load."""
    import uvicorn  # which stdio has no use for

    application = tool_server().streamable_http_app(
        stateless_http=True, json_response=True, max_request_body_size=_MOST_BYTES, host=host
    )
    uvicorn.run(application, host=host, port=port, log_level="warning", access_log=False)
