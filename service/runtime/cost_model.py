"""The cost model is compiled when the service starts, so that no request has to wait for it."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from models.compilation.cache_folder import machine_code
from models.compilation.machine_code import NotKept, only_kept
from service.errors import StillCompiling

log = logging.getLogger(__name__)

_POLL_S = 0.02
_SOON_S = 3.0
"""Loading takes less than a second of a core of its own."""
_LONGEST_TURN_S = 120.0
"""How long to wait while another process compiles, which takes a quarter to half of this."""


def compile_cost_model(warm_up: Callable[[], object]) -> None:
    """Compiles what `warm_up` calls, or loads what an earlier process has compiled. Of processes
    that start at the same time one compiles, and the others wait for it."""
    began = time.monotonic()
    folder = next(machine_code().usable(), None)
    with _turn(folder):
        warm_up()
    outcome = {
        "seconds": round(time.monotonic() - began, 1),
        "folders": [str(each) for each in machine_code().existing()],
    }
    if outcome["folders"]:
        log.info("cost model is compiled", extra=outcome)
    else:
        log.warning("cost model is compiled, and nothing keeps it", extra=outcome)


def load_cost_model(warm_up: Callable[[], object]) -> None:
    """The same for a process that goes on for long. Where something has to be compiled and can be
    kept, a process of its own does it: the compiler leaves some 800 MiB behind."""
    if not _is_kept(warm_up) and next(machine_code().usable(), None) is not None:
        log.info("cost model is compiled by a process of its own")
        spawning = multiprocessing.get_context("spawn")
        compiler = spawning.Process(target=_compile_for_parent, args=(warm_up,), daemon=True)
        compiler.start()
        compiler.join()
    compile_cost_model(warm_up)


def _compile_for_parent(warm_up: Callable[[], object]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    compile_cost_model(warm_up)


def _end_with_parent() -> None:
    """Even if that was killed: whoever started it waits for all that hold its output open."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _is_kept(warm_up: Callable[[], object]) -> bool:
    try:
        with only_kept():
            warm_up()
    except NotKept:
        return False
    return True


@contextmanager
def _turn(folder: Path | None) -> Iterator[None]:
    """Holds the lock on a folder. Goes on without it where the file system has no locks, or where
    it does not come in time: that only costs time."""
    if folder is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    ends = time.monotonic() + _LONGEST_TURN_S
    while time.monotonic() < ends:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_POLL_S)
        except OSError:
            return
        else:
            return


class CostModel:
    """Whether the cost model of this process is compiled, which a thread of its own sees to.
    Requests that need it wait for `wait_s` seconds."""

    def __init__(self, warm_up: Callable[[], object], wait_s: float) -> None:
        self._warm_up = warm_up
        self._wait_s = wait_s
        self._ended = threading.Event()
        self.state = "being compiled"
        """Or `ok`, or `cannot be compiled`."""

    async def start(self) -> None:
        """Returns once it is compiled, but soon, so that a service which only loads it is ready
        when it listens."""
        # A daemon, so that a service that is stopped meanwhile stops at once.
        threading.Thread(target=self._run, name="compile the cost model", daemon=True).start()
        await self._has_ended(_SOON_S)

    async def require(self) -> None:
        """Returns once it is compiled. Raises StillCompiling where that takes too long."""
        if not await self._has_ended(self._wait_s):
            raise StillCompiling

    async def _has_ended(self, within_s: float) -> bool:
        ends = time.monotonic() + within_s
        while not self._ended.is_set() and time.monotonic() < ends:
            await asyncio.sleep(_POLL_S)
        return self._ended.is_set()

    def _run(self) -> None:
        try:
            load_cost_model(self._warm_up)
            self.state = "ok"
        except Exception:  # noqa: BLE001  readiness tells it, and every request that needs it
            log.exception("cost model cannot be compiled")
            self.state = "cannot be compiled"
        finally:
            self._ended.set()
