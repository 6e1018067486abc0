"""`python -m service` as a process, for tests of how it starts, stops and dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx

from tests.paths import ROOT

_READY_S = 120.0
"""On a machine that compiles the cost model for the first time, and runs other tests meanwhile."""

COMMAND = (sys.executable, "-m", "service", "--port", "0")


@dataclass
class Service:
    """A service that was started, and may have ended since."""

    process: subprocess.Popen[str]
    log: IO[str]

    def read_address(self) -> None:
        """Waits until the service has said where it listens."""
        line = self.process.stdout.readline() if self.process.stdout else ""
        match = re.fullmatch(r"Shardwright listens on (\S+:\d+), docs at \1/docs\n", line)
        assert match, line or self.errors()
        self.address = match[1]

    def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        return httpx.request(method, self.address + path, **{"timeout": 120, **arguments})

    def wait_until_ready(self, within_s: float = _READY_S) -> None:
        ends = time.monotonic() + within_s
        while (answer := self._readiness()) != "200":
            assert time.monotonic() < ends, answer + self.errors()
            time.sleep(0.05)

    def _readiness(self) -> str:
        try:
            answer = self.request("GET", "/readyz", timeout=10)
        except httpx.TransportError as error:
            return repr(error)
        return "200" if answer.status_code == 200 else answer.text

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """As `kill -9` does: it can do nothing more."""
        self.process.kill()
        self.process.wait()

    def children(self) -> list[int]:
        """The Python processes that it has started."""
        pid = self.process.pid
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in found if is_spawned(int(child))]

    def errors(self) -> str:
        """What it has logged."""
        self.log.seek(0)
        return self.log.read()


def is_spawned(pid: int) -> bool:
    """Whether there is such a process that Python's multiprocessing has started."""
    try:
        return "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def starting(
    database_url: str,
    *,
    command: tuple[str, ...] = COMMAND,
    folder: Path = ROOT,
    **settings: object,
) -> Iterator[Service]:
    """A service that starts, and may refuse to. `folder` has its code."""
    variables = {f"SHARDWRIGHT_{name.upper()}": str(value) for name, value in settings.items()}
    environment = {**os.environ, "SHARDWRIGHT_DATABASE_URL": database_url, **variables}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            yield Service(process, log)
        finally:
            process.kill()
            process.communicate(timeout=60)


@contextmanager
def serving(database_url: str, **arguments: Any) -> Iterator[Service]:
    """A service that is ready."""
    with starting(database_url, **arguments) as service:
        service.read_address()
        service.wait_until_ready()
        yield service
