"""The policy server as a process, with TLS whose certificate may be renewed while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import uvicorn

from shardwright.hooks.policy import HookPolicy
from shardwright.hooks.server import policy_server

_LOOKS_S = 60.0  # cert-manager renews a certificate days before it ends


def serve(
    policy: HookPolicy, *, host: str, port: int, certificate: Path | None, key: Path | None
) -> None:
    """Serves the hooks until the process is told to stop."""
    config = uvicorn.Config(
        policy_server(policy),
        host=host,
        port=port,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        log_level="warning",
        access_log=False,
    )
    asyncio.run(_serve(uvicorn.Server(config), certificate, key))


async def _serve(server: uvicorn.Server, certificate: Path | None, key: Path | None) -> None:
    """Runs the server, and loads a renewed certificate meanwhile."""
    server.config.load()
    renewing = asyncio.create_task(_take_renewed(server, certificate, key))
    try:
        await server.serve()
    finally:
        renewing.cancel()


async def _take_renewed(server: uvicorn.Server, certificate: Path | None, key: Path | None) -> None:
    """Loads the certificate again whenever its file changes. Connections made after that use it."""
    context = server.config.ssl
    if context is None or certificate is None:
        return
    loaded = certificate.stat().st_mtime
    while True:
        await asyncio.sleep(_LOOKS_S)
        changed = certificate.stat().st_mtime
        if changed != loaded:
            context.load_cert_chain(certificate, key)
            loaded = changed
