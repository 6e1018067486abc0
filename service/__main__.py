"""`python -m service`: migrate the database, then serve."""

from __future__ import annotations

import argparse
import gc
import logging
import math
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from service.app import create_app
from service.loopback import is_loopback
from service.runtime.graceful_stop import LAST_S
from service.settings import Misconfigured, Settings, describe_settings, from_environment
from service.store import Store, database
from service.tools.seeds import seed
from service.web.exposition import share_between_processes
from service.web.idle_connections import Connection, default_connection_limit
from service.web.logs import configure_logs

log = logging.getLogger(__name__)


def main() -> int:
    """Migrates the database and serves until told to stop. Returns the exit status: 1 where the
    database cannot be used."""
    settings = _parse_settings()
    configure_logs(settings.log_level)
    try:
        with database.translated_errors():
            _prepare_database(settings)
    except database.DatabaseUnusable as error:
        log.error("database cannot be used", extra={"reason": str(error)})  # noqa: TRY400
        return 1
    config = uvicorn.Config(
        "service.__main__:application",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(settings.stop_grace_s + LAST_S),
        http=Connection,
        loop="service.web.event_loop:EventLoop",
        limit_concurrency=settings.max_connections or default_connection_limit(),
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
    )
    listener = config.bind_socket()
    listener.listen(config.backlog)
    sys.stdout.write(_announcement(listener))
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):  # uvicorn has shut down by then
        if settings.workers > 1:
            share_between_processes()
            Multiprocess(config, [listener]).run()
        else:
            uvicorn.Server(config).run([listener])
    return 0


def application() -> FastAPI:
    """Returns the application of a process that serves, which may be one of several."""
    settings = from_environment()
    configure_logs(settings.log_level)
    # A request changes threads some twenty times, and beside one that computes in Python it waits
    # for the interpreter each time: 5 ms unless told otherwise.
    sys.setswitchinterval(0.001)
    app = create_app(settings)
    # What is there by now stays, some hundred thousand objects. Going through them all for garbage
    # would hold up every request for a fifth of a second, now and then.
    gc.freeze()
    app.state.graceful_stop.watch_signals()
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_stop_with_parent, daemon=True).start()
    return app


def _stop_with_parent() -> None:
    """Waits for the end of the parent process, even if that was killed, and then stops this one,
    because a restarted service needs the port."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _parse_settings() -> Settings:
    """Returns the settings of the environment and the command line. Ends the process with a message
    where one is wrong."""
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
        settings = from_environment(**overrides)
        _require_protected_host(settings)
        _require_enough_descriptors(settings)
    except Misconfigured as error:
        parser.error(str(error))
    return settings


def _require_protected_host(settings: Settings) -> None:
    """Raises Misconfigured where other machines can reach the service without a key, unless a proxy
    checks the callers."""
    is_guarded = settings.require_api_keys or settings.proxy_checks_callers
    if not is_guarded and not is_loopback(settings.host):
        raise Misconfigured(
            f"host: {settings.host or 'an empty one'} can be reached from other machines, and"
            " whoever does would need no key: set SHARDWRIGHT_REQUIRE_API_KEYS=true, or"
            " SHARDWRIGHT_PROXY_CHECKS_CALLERS=true if a proxy in front decides who may ask"
        )


def _require_enough_descriptors(settings: Settings) -> None:
    """Raises Misconfigured where the connections allowed are more than half of the file descriptors
    that the process may open."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    asked = settings.max_connections or 0
    if descriptors != resource.RLIM_INFINITY and asked > descriptors // 2:
        raise Misconfigured(
            f"max_connections: {asked} are more than half of the {descriptors} descriptors that a"
            " process may open, and the database, worker processes and files need some too: raise"
            " the limit (ulimit -n), or unset SHARDWRIGHT_MAX_CONNECTIONS"
        )


def _prepare_database(settings: Settings) -> None:
    """Migrates the database, and stores the shipped profile and published runs in it."""
    engine = database.connect(settings.database_url)
    database.migrate(engine)
    seed(Store(engine))
    engine.dispose()


def _announcement(listener: socket.socket) -> str:
    """Returns the lines that say where the service listens and what to try first."""
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return (
        f"Shardwright listens on {address}, docs at {address}/docs\n"
        f"Open {address}/docs, or type in another shell:\n"
        f"  curl {address}/readyz\n"
        f"  SHARDWRIGHT_URL={address} {_command()} check job.sh --on h100 --nodes 8\n"
    )


def _command() -> str:
    """Returns the shell command that runs the client with this interpreter, such as
    ".venv/bin/python -m shardwright"."""
    python = Path(sys.executable)
    here = Path.cwd()
    shown = python.relative_to(here) if python.is_relative_to(here) else python
    return f"{shown} -m shardwright"


if __name__ == "__main__":
    sys.exit(main())
