"""A service within this process, for as long as a command takes: `--local`.

It needs shardwright[server]. What is stored lies in a folder of its own and goes with it.
"""

from __future__ import annotations

import importlib.util
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from time import sleep

from shardwright.client.settings import ClientSettings

_PATIENCE_S = 300.0  # the most that a service waits: the cost model may have to be compiled first
_POLL_S = 0.02


class NoServer(Exception):
    """The server is not installed."""


@contextmanager
def local_service() -> Iterator[ClientSettings]:
    """Runs a service on a free port of this machine while the block runs, and yields its address.
    Raises NoServer where the server is not installed."""
    if importlib.util.find_spec("service") is None:
        raise NoServer("--local needs the server: pip install 'shardwright[server]'")
    import uvicorn

    from service.app import create_app
    from service.settings import Settings
    from service.store import Store, database
    from service.tools.seeds import seed
    from service.web.logs import configure_logs

    configure_logs("WARNING")
    with TemporaryDirectory(prefix="shardwright-") as folder:
        settings = Settings(database_url=f"sqlite:///{folder}/local.db", heavy_wait_s=_PATIENCE_S)
        engine = database.connect(settings.database_url)
        database.migrate(engine)
        seed(Store(engine))
        engine.dispose()
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(create_app(settings), log_config=None, access_log=False)
        server = uvicorn.Server(config)
        serving = threading.Thread(target=server.run, args=([listener],), daemon=True)
        serving.start()
        while serving.is_alive() and not server.started:
            sleep(_POLL_S)
        port = listener.getsockname()[1]
        try:
            yield ClientSettings(url=f"http://127.0.0.1:{port}", timeout_s=_PATIENCE_S)
        finally:
            server.should_exit = True
            serving.join()
