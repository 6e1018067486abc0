"""Calls the tools by the client of the SDK, and prints what they are and what they answer.

python mcp_client.py stdio|URL, with a list of [tool, arguments] on standard input
"""

import asyncio
import json
import os
import sys

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client


def server() -> object:
    if sys.argv[1] != "stdio":
        key = os.environ.get("MCP_KEY")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        http = httpx2.AsyncClient(headers=headers)
        return streamable_http_client(sys.argv[1], http_client=http)
    arguments = ["-m", "shardwright", "mcp"]
    return StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))


async def main() -> None:
    answers = []
    async with Client(server()) as client:
        tools = (await client.list_tools()).tools
        for name, arguments in json.loads(sys.stdin.read()):
            result = await client.call_tool(name, arguments)
            text = "".join(part.text for part in result.content)
            answers.append({"is_error": bool(result.is_error), "text": text})
    schemas = [tool.model_dump(mode="json", exclude_none=True) for tool in tools]
    print(json.dumps({"tools": schemas, "answers": answers}))


asyncio.run(main())
