"""The compilation of the cost model by several processes at once, and how far it is.

The compiler leaves some 800 MiB behind in a process, so only processes that end soon compile. A
*part* is a function that only compiled functions call (models.compilation.parts). The *weight* of a
function is its share of the whole work.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from numba.core import event

from models.compilation.machine_code import taking_turns
from models.compilation.parts import PartLibrary
from models.search.warm_up import WarmUp

_MOST_PROCESSES = 2  # into which the work divides evenly; each takes some 800 MiB
_PART_WEIGHT, _LINKED_WEIGHT = 1.0, 0.6
"""The cost of a function that Python calls, and of each function in its machine code, relative to
each other: 0.13 and 0.08 s of a core. Compilation takes 140 s of a core in all, with everything
that both processes do."""
WORK = 1440.0
"""The total weight of all functions. A long test compiles everything and compares."""
_SHOWN_EVERY_S = 1.0
_SURE_FROM = 0.05  # before so much is done, how long the rest takes is not known

Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Progress:
    """The share of a compilation that is done, from 0 to 1, and the time that it took."""

    share: float
    elapsed_s: float

    @property
    def left_s(self) -> float | None:
        """Returns the seconds that the rest will take; None where too little is done to tell."""
        if self.share < _SURE_FROM:
            return None
        return self.elapsed_s * (1 - self.share) / self.share


Show = Callable[[Progress], None]


def compile_in_processes(warm_up: Step, show: Show) -> None:
    """Compiles all functions that `warm_up` calls, in worker processes that keep the machine code
    on disk. Calls `show` with the progress. A process that fails ends early, and leaves functions
    for the caller to compile."""
    # Only a WarmUp knows how to divide its work; any other function goes to one process.
    shares: Sequence[Sequence[Step]] = [[warm_up]]
    if isinstance(warm_up, WarmUp):
        shares = warm_up.shares(min(_MOST_PROCESSES, _cores()))
    spawning = multiprocessing.get_context("spawn")
    began = time.monotonic()
    weights: dict[str, float] = {}  # by function, which counts once even if several compile it
    receivers: list[Connection] = []
    for share in shares:
        receiver, sender = spawning.Pipe(duplex=False)
        receivers.append(receiver)
        spawning.Process(target=_compile_share, args=(share, sender), daemon=True).start()
        sender.close()  # the child has its own copy: once that closes, `recv` raises EOFError
    while receivers:
        ready: list[Any] = wait(receivers, timeout=_SHOWN_EVERY_S)
        for receiver in ready:
            try:
                name, weight = receiver.recv()
                weights[name] = weight
            except EOFError:
                receivers.remove(receiver)
        # WORK, all functions' weight, was measured earlier: what is compiled now may exceed it.
        share_done = min(sum(weights.values()) / WORK, 1.0)
        show(Progress(share_done, time.monotonic() - began))


def _cores() -> int:
    """Returns the number of cores that this process may use, or all of the machine where the system
    does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _compile_share(steps: Sequence[Step], sender: Connection) -> None:
    """Runs some steps of the compilation in a worker process, and sends the name and weight of each
    compiled function."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    event.register("numba:compile", _Reporter(sender))
    with taking_turns():  # a function that several processes need is compiled by one
        for step in steps:
            step()


def _end_with_parent() -> None:
    """Ends this process once its parent has ended, even if that was killed. A shell that started
    the parent waits for every process that holds its output open."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class _Reporter(event.Listener):
    """Listens to numba, and sends the parent process each function that has been compiled and its
    weight."""

    def __init__(self, sender: Connection) -> None:
        self._sender = sender

    def on_start(self, event: Any) -> None:
        pass

    def on_end(self, event: Any) -> None:
        """Sends the name of a function that was compiled, and its weight. A compilation that failed
        is left out."""
        dispatcher, types = event.data["dispatcher"], tuple(event.data["args"])
        # numba's dispatcher wraps the Python function, and has its machine code by argument types.
        result = dispatcher.overloads.get(types)
        if result is None:
            return
        function = dispatcher.py_func
        self._sender.send(
            (f"{function.__module__}.{function.__qualname__}{types}", _weight(result))
        )


def _weight(result: Any) -> float:
    """Returns the weight of a compiled function in the work of all. A function that Python calls
    also links the machine code of each part within it."""
    if isinstance(result.library, PartLibrary):
        return _PART_WEIGHT
    linked = {id(library) for library in result.library._linking_libraries}
    return _PART_WEIGHT + _LINKED_WEIGHT * len(linked)
