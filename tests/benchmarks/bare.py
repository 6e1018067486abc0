"""What answering a POST costs without the service: a FastAPI route that parses the body and returns
bytes that are there already. The benchmark of load holds the service against it.

    python -m tests.benchmarks.bare BYTES_FILE
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Body, FastAPI, Response


def bare_app(content: bytes) -> FastAPI:
    app = FastAPI()

    @app.post("/bare")
    async def bare(body: Annotated[dict[str, Any], Body()]) -> Response:
        return Response(content, media_type="application/json")

    return app


class _Server(uvicorn.Server):
    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        print(f"the bare route listens on http://{host}:{port}, in one process", flush=True)


def main() -> None:
    app = bare_app(Path(sys.argv[1]).read_bytes())
    _Server(uvicorn.Config(app, port=0, log_config=None, access_log=False)).run()


if __name__ == "__main__":
    main()
