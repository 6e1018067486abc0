"""The cost model is compiled when the service starts, so that no request has to wait for it.

A `warm_up` is a function that calls each compiled function once. Machine code is *kept* on disk,
from where later processes load it.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from models.compilation.cache_folder import machine_code_folders
from models.compilation.machine_code import NotKept, only_kept
from service.errors import StillCompiling
from service.runtime.compilation import Progress, Show, compile_in_processes

log = logging.getLogger(__name__)

_POLL_S = 0.02
_SOON_S = 3.0
"""Loading takes less than a second of a core of its own."""
_LOGGED_EVERY_S = 10.0  # so that it takes some ten lines
_LONGEST_TURN_S = 120.0
"""Seconds to wait while another process compiles, which takes a quarter to half as long."""


def _ignore(_: Progress) -> None:
    pass


def compile_cost_model(warm_up: Callable[[], object], show: Show = _ignore) -> None:
    """Compiles all functions that `warm_up` calls, or loads what an earlier process has compiled.
    Among processes that start at the same time one compiles, and the others wait. Where machine
    code can be kept, worker processes compile it."""
    began = time.monotonic()
    folder = next(machine_code_folders().usable(), None)  # None where nothing can be kept
    with _locked(folder):
        if folder is not None and not _is_kept(warm_up):
            compile_in_processes(warm_up, show)
        warm_up()  # loads what is kept, and compiles here what is not
    outcome = {
        "seconds": round(time.monotonic() - began, 1),
        "folders": [str(kept_in) for kept_in in machine_code_folders().existing()],
    }
    if outcome["folders"]:
        log.info("cost model is compiled", extra=outcome)
    else:
        log.warning("cost model is compiled, and nothing keeps it", extra=outcome)


def _is_kept(warm_up: Callable[[], object]) -> bool:
    """Returns whether all functions that `warm_up` calls have been compiled and kept earlier."""
    try:
        with only_kept():  # a function that is not kept raises NotKept, and is not compiled
            warm_up()
    except NotKept:
        return False
    return True


@contextmanager
def _locked(folder: Path | None) -> Iterator[None]:
    """Holds the lock on a folder while the block runs. Runs the block without it where the file
    system has no locks, or where it does not come in time: two processes then do the same work."""
    if folder is None:  # no process keeps anything that others could wait for
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _wait_for_lock(descriptor)
        yield
    finally:
        os.close(descriptor)  # which releases the lock


def _wait_for_lock(descriptor: int) -> None:
    """Waits for the lock of an open file. Gives up where the file system has no locks, or after
    _LONGEST_TURN_S: the lock only saves work from being done twice."""
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
    """The compilation of the cost model in this process, in a thread of its own. Requests that need
    the cost model wait for `wait_s` seconds."""

    def __init__(self, warm_up: Callable[[], object], wait_s: float) -> None:
        self._warm_up = warm_up
        self._wait_s = wait_s
        self._ended = threading.Event()
        self.state = "being compiled"
        """This, then `ok` or `cannot be compiled`."""
        self._progress: Progress | None = None
        self._logged_s = 0.0
        """Seconds into the compilation at which its progress was logged last."""

    async def start(self) -> None:
        """Starts the compilation, and waits a moment for it to end. A service that only loads the
        machine code is then ready when it listens."""
        # A daemon, so that a service that is stopped meanwhile stops at once.
        threading.Thread(target=self._compile, name="compile the cost model", daemon=True).start()
        await self._wait_until_ended(_SOON_S)

    async def wait_until_compiled(self, wait_s: float | None = None) -> None:
        """Waits until the cost model is compiled. Raises StillCompiling after the service's own
        limit, or after `wait_s` where that is shorter."""
        longest_s = self._wait_s if wait_s is None else min(wait_s, self._wait_s)
        if not await self._wait_until_ended(longest_s):
            progress = self._progress
            raise StillCompiling(None if progress is None else progress.left_s)

    async def _wait_until_ended(self, within_s: float) -> bool:
        """Waits until the compilation has ended, at most `within_s` seconds. Returns whether it
        has."""
        ends = time.monotonic() + within_s
        # The event is set by a thread, so the event loop can only look now and then.
        while not self._ended.is_set() and time.monotonic() < ends:
            await asyncio.sleep(_POLL_S)
        return self._ended.is_set()

    def _note_progress(self, progress: Progress) -> None:
        """Keeps the progress of the compilation, and logs it now and then."""
        is_first = self._progress is None
        self._progress = progress
        if is_first or progress.elapsed_s > self._logged_s + _LOGGED_EVERY_S:
            self._logged_s = progress.elapsed_s
            left_s = progress.left_s
            told = {"percent": round(100 * progress.share), "left_s": left_s and round(left_s)}
            log.info("cost model is being compiled", extra=told)

    def _compile(self) -> None:
        """Compiles the cost model, and sets `state` to the outcome."""
        try:
            compile_cost_model(self._warm_up, self._note_progress)
            self.state = "ok"
        except Exception:  # noqa: BLE001  readiness tells it, and every request that needs it
            log.exception("cost model cannot be compiled")
            self.state = "cannot be compiled"
        finally:
            self._ended.set()
