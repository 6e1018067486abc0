"""The policy server as a process, as administrators run it."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.paths import ROOT

_START_S = 60.0


@contextmanager
def policy_process(folder: Path, policy: str, *options: str) -> Iterator[str]:
    """The address of a policy server with a policy, on a free port."""
    file = folder / "hooks.toml"
    file.write_text(policy)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "shardwright", "serve-hooks", f"--port={port}", *options],
        cwd=ROOT,
        env={**os.environ, "SHARDWRIGHT_HOOKS": str(file)},
        stderr=subprocess.DEVNULL,
    )
    scheme = "https" if options else "http"
    try:
        _await(f"{scheme}://localhost:{port}/livez", process)
        yield f"{scheme}://localhost:{port}"
    finally:
        process.terminate()
        process.wait(timeout=_START_S)


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    """Waits until the server answers. Tests look at its certificate, and this does not."""
    context = ssl._create_unverified_context()
    ends = time.monotonic() + _START_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5, context=context).close()
        except (urllib.error.URLError, OSError):
            if time.monotonic() > ends or process.poll() is not None:
                raise
            time.sleep(0.1)
        else:
            return
