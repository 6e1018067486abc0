"""Services that hooks ask: real ones, in processes of their own, that can be frozen or stopped."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.paths import ROOT

_LISTENS = re.compile(r"listens on (http://\S+),")
_START_S = 120.0  # on two busy cores, from compiled code


class ServiceProcess:
    """A service that runs."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        self.url = url

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Takes connections and answers none, as a process that SIGSTOP has stopped."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


@contextmanager
def running(folder: Path) -> Iterator[ServiceProcess]:
    """A service that is ready, on a database in the folder."""
    with _started(folder, ROOT) as service:
        _await_ready(service.url)
        yield service


@contextmanager
def compiling(folder: Path) -> Iterator[ServiceProcess]:
    """A service that was never started before: its cost model is not compiled yet."""
    copy = folder / "fresh"
    for package in ("models", "service", "shardwright", "migrations"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, copy / package, ignore=ignored)
    shutil.copy(ROOT / "alembic.ini", copy)
    with _started(folder, copy, HOME=str(folder), XDG_CACHE_HOME=str(folder)) as service:
        yield service


@contextmanager
def _started(folder: Path, tree: Path, **environment: str) -> Iterator[ServiceProcess]:
    given = {
        "PYTHONPATH": str(tree),
        "SHARDWRIGHT_DATABASE_URL": f"sqlite:///{folder}/service-{time.monotonic_ns()}.db",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "service", "--port", "0"],
        cwd=tree,
        env={**os.environ, **given, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield ServiceProcess(process, _address(process))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _address(process: subprocess.Popen[str]) -> str:
    """The address that a service prints."""
    output = process.stdout
    if output is None:
        raise RuntimeError("the output of the service is not piped")
    ends = time.monotonic() + _START_S
    while select.select([output], [], [], max(0.0, ends - time.monotonic()))[0]:
        line = output.readline()
        found = _LISTENS.search(line)
        if found:
            return found[1]
        if not line:
            break
    raise RuntimeError("the service did not start")


def _await_ready(url: str) -> None:
    ends = time.monotonic() + _START_S
    while True:
        try:
            urllib.request.urlopen(f"{url}/readyz", timeout=5)
        except (urllib.error.URLError, OSError):
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)
        else:
            return
