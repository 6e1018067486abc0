"""`python -m service`: migrate the database, then serve."""

from __future__ import annotations

import argparse
import logging
import socket
import sys
from contextlib import suppress

import uvicorn

from service.app import create_app
from service.settings import Misconfigured, Settings, describe_settings, from_environment
from service.store import Store, database
from service.tools.seeds import seed
from service.web.idle_connections import Connection
from service.web.telemetry import configure_logs

log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """A server that prints its address as soon as it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for listener in server.sockets:
                host, port = listener.getsockname()[:2]
                sys.stdout.write(_announcement(host, port))
        sys.stdout.flush()


def main() -> int:
    settings = _parse_settings()
    configure_logs(settings.log_level)
    try:
        with database.translated_errors():
            _prepare_database(settings)
    except database.DatabaseUnusable as error:
        log.error("database cannot be used", extra={"reason": str(error)})  # noqa: TRY400
        return 1
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=30,
        http=Connection,
    )
    with suppress(KeyboardInterrupt):  # uvicorn has shut down by then
        Server(config).run()
    return 0


def _parse_settings() -> Settings:
    parser = argparse.ArgumentParser(
        prog="python -m service",
        description="Serve Shardwright.",
        epilog=describe_settings(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", help="address to listen on; SHARDWRIGHT_HOST")
    parser.add_argument(
        "--port", type=int, help="port to listen on, 0 for a free one; SHARDWRIGHT_PORT"
    )
    arguments = vars(parser.parse_args())
    overrides = {name: value for name, value in arguments.items() if value is not None}
    try:
        return from_environment(**overrides)
    except Misconfigured as error:
        parser.error(str(error))


def _prepare_database(settings: Settings) -> None:
    engine = database.connect(settings.database_url)
    database.migrate(engine)
    seed(Store(engine))
    engine.dispose()


def _announcement(host: str, port: int) -> str:
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return f"Shardwright listens on {address}, docs at {address}/docs\n"


if __name__ == "__main__":
    sys.exit(main())
