"""Admission control: how many searches and calibrations run at a time, how many wait, and whose
turn it is.

A request has a *turn*, which computes while it holds a *slot*. A computation is *set aside* when it
gives its slot to another tenant and waits, with its memory, to go on. It can do so only at a
*checkpoint*, a function that it calls now and then.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from itertools import count

from service.errors import ClientGone, QueueFull, TurnNeverCame
from service.metrics import QueueMetrics
from service.runtime import malloc_trim
from service.runtime.deadline import TimedCheckpoint, Wait

_CLIENT_POLL_S = 0.25  # how often to look whether the client of a request is still connected
_SLICE_S = 0.25
"""Seconds that a computation may go on while another tenant waits. A tenant that holds no slot
waits this long for one."""
MAX_SET_ASIDE = 6
"""Searches that may be set aside at a time. Each keeps its memory, which may be 200 MiB."""
_LONG_S = 1.0  # a computation that takes longer may have held hundreds of MiB

IsDisconnected = Callable[[], Awaitable[bool]]
"""Returns whether the client of a request has closed the connection, as starlette's requests do."""


class Turn:
    """The turn of a request to compute. The event loop grants it and watches the client; the
    computing thread has to call `checkpoint` now and then."""

    def __init__(
        self,
        admission: AdmissionControl,
        tenant: str | None,
        is_disconnected: IsDisconnected,
        wait: Wait | None,
    ) -> None:
        self.tenant = tenant
        self.has_begun = False
        self._admission = admission
        self._is_disconnected = is_disconnected
        self._loop = asyncio.get_running_loop()
        self._disconnected = threading.Event()
        self.granted = Future[None]()
        self._wait = wait  # how long the client waits for its answer, if it says so
        self._slice_ends = 0.0  # by the monotonic clock: until then the slot is not given back

    def grant(self) -> None:
        """Gives the turn a slot, for the first time or again."""
        self.has_begun = True
        self._slice_ends = time.monotonic() + _SLICE_S
        self.granted.set_result(None)

    def refuse(self, error: QueueFull) -> None:
        self.granted.set_exception(error)

    async def wait_until_granted(self, within_s: float) -> None:
        """Waits until the turn has come. Raises QueueFull, TurnNeverCame after `within_s` seconds,
        or ClientGone."""
        deadline = time.monotonic() + within_s
        poll_s = min(_CLIENT_POLL_S, within_s)
        granted = asyncio.wrap_future(self.granted)
        while True:
            done, _ = await asyncio.wait({granted}, timeout=poll_s)
            if done:
                return await granted
            if await self._is_disconnected():
                raise ClientGone
            if time.monotonic() >= deadline:
                raise TurnNeverCame(within_s)

    @asynccontextmanager
    async def watching_client(self) -> AsyncIterator[None]:
        """Watches the connection while the block runs, so that checkpoints learn of a client that
        has disconnected."""
        watch = asyncio.create_task(self._watch_client())
        try:
            yield
        finally:
            watch.cancel()
            self._disconnected.set()  # for a thread that computes on after its request was ended

    def bounded_checkpoint(self) -> Callable[[], None]:
        """Returns the checkpoint. If the request says how long its client waits, the checkpoint
        also has the time at which a search must end."""
        if self._wait is None:
            return self.checkpoint
        return TimedCheckpoint.within(self.checkpoint, self._wait)

    def checkpoint(self) -> None:
        """Raises ClientGone once the client has disconnected. Blocks while the slot is lent to
        requests of other tenants."""
        if self._disconnected.is_set():
            raise ClientGone
        if time.monotonic() >= self._slice_ends and self._admission.should_give_back(self):
            self.granted = Future()  # the next slot, for which the thread waits below
            self._loop.call_soon_threadsafe(self._admission.set_aside, self)
            self._wait_to_go_on()

    def _wait_to_go_on(self) -> None:
        """Blocks until the slot comes back. Raises ClientGone once the client has disconnected."""
        while True:
            try:
                return self.granted.result(_CLIENT_POLL_S)  # for so long, then looks for the client
            except TimeoutError:
                if self._disconnected.is_set():
                    raise ClientGone from None

    async def _watch_client(self) -> None:
        """Looks now and then whether the client is connected, until it is not."""
        while not await self._is_disconnected():
            await asyncio.sleep(_CLIENT_POLL_S)
        self._disconnected.set()


class AdmissionControl:
    """Lets `concurrency` requests compute at a time and `queue` more wait. Any further request is
    refused at once, and a request that has waited for `wait_s` seconds is refused then.

    Tenants share the slots and the queue. A free slot goes to the tenant that holds fewest; among
    tenants that hold equally many, to the one served longest ago; and to the first of its requests.
    While others wait, a computation gives its slot back after _SLICE_S, at its next checkpoint, and
    gets in line again. That checkpoint may be seconds away. After _SLICE_S a tenant that holds no
    slot is therefore given one beyond `concurrency`, and the tenant that holds most gives one back
    at its next checkpoint.

    At most `max_set_aside` computations have begun beyond `concurrency`; where it is 0 none is set
    aside. Where the queue is full, the tenant that has most requests loses its last place there.

    Requests wait on the event loop, so that they take no thread from other requests, and so that
    the lists need no lock. Metrics call the queue by its `name`.
    """

    def __init__(
        self, name: str, concurrency: int, queue: int, wait_s: float, max_set_aside: int = 0
    ) -> None:
        self._metrics = QueueMetrics(name)
        self._max_set_aside = max_set_aside
        self._concurrency = concurrency
        self._queue = queue
        self._wait_s = wait_s
        self._running: list[Turn] = []
        self._waiting: list[Turn] = []
        """Those that are queued or set aside, in the order in which they came to wait."""
        self._last_served: dict[str | None, int] = {}
        self._serials = count(1)  # the times of `_last_served`, as consecutive numbers

    @asynccontextmanager
    async def admit(
        self, is_disconnected: IsDisconnected, tenant: str | None = None, wait: Wait | None = None
    ) -> AsyncIterator[Turn]:
        """Holds a slot while the block runs, and yields the turn whose checkpoint the computing
        thread has to call. The request waits at most as long as the queue allows and as its client
        is willing to.

        Raises QueueFull, TurnNeverCame, or ClientGone where the client disconnects before its
        turn.
        """
        turn = Turn(self, tenant, is_disconnected, wait)
        self._enter(turn)
        try:
            longest_s = self._wait_s if wait is None else min(wait.left_s, self._wait_s)
            await self._wait_for_turn(turn, longest_s)
            began = time.monotonic()
            try:
                with self._metrics.running():
                    async with turn.watching_client():
                        yield turn
            finally:
                if time.monotonic() - began > _LONG_S:  # a long search has freed much memory
                    asyncio.get_running_loop().run_in_executor(None, malloc_trim.trim)
        finally:
            self._leave(turn)

    async def _wait_for_turn(self, turn: Turn, within_s: float) -> None:
        """Waits until the turn has come, and counts a refusal in the metrics."""
        try:
            with self._metrics.waiting():
                await turn.wait_until_granted(within_s)
        except (QueueFull, TurnNeverCame):
            self._metrics.count_refusal()
            raise

    def should_give_back(self, turn: Turn) -> bool:
        """Returns whether the computation should give up its slot, because others wait or too many
        run. Any thread may ask."""
        # The copy of the list is made at once, while the event loop may change the list itself.
        others_wait = any(waiting.tenant != turn.tenant for waiting in [*self._waiting])
        return others_wait or len(self._running) > self._concurrency

    def set_aside(self, turn: Turn) -> None:
        """Takes the slot of a computation, and puts it back in line. If more computations run than
        `concurrency`, only a tenant that holds most slots loses one."""
        if turn not in self._running:  # its request has ended meanwhile
            return
        slots_held = Counter(running.tenant for running in self._running)
        holds_most = slots_held[turn.tenant] == max(slots_held.values())
        if len(self._running) > self._concurrency and not holds_most:
            turn.grant()  # another tenant holds more slots: this turn goes on
            return
        self._running.remove(turn)
        self._wait_in_line(turn)
        self._fill_slots()

    def _wait_in_line(self, turn: Turn) -> None:
        self._waiting.append(turn)
        self._look_again_later(turn, turn.granted)  # it may get a slot beyond the regular ones

    def _look_again_later(self, turn: Turn, granted: Future[None]) -> None:
        """Plans to look once more, after _SLICE_S, whether the turn may have a slot. `granted` is
        the future of the present wait: a turn that is set aside again has another."""
        asyncio.get_running_loop().call_later(_SLICE_S, self._grant_extra_slot, turn, granted)

    def _grant_extra_slot(self, turn: Turn, granted: Future[None]) -> None:
        """Gives a slot beyond the regular ones to a waiting tenant that holds none. Where that is
        not possible yet, looks again later. Does nothing if the wait that `granted` belongs to is
        over."""
        if granted.done() or turn not in self._waiting:
            return
        holds_none = all(other.tenant != turn.tenant for other in self._running)
        if holds_none and self._may_compute(turn):
            self._grant_slot(turn)
        else:
            self._look_again_later(turn, granted)

    def _enter(self, turn: Turn) -> None:
        """Puts a turn in line, fills free slots, and refuses one turn where the queue is then too
        long."""
        self._wait_in_line(turn)
        self._fill_slots()
        # Computations that are set aside wait too, but have no place in the queue.
        queued = [waiting for waiting in self._waiting if not waiting.has_begun]
        if len(queued) > self._queue:
            refused = self._turn_to_refuse(queued)
            self._waiting.remove(refused)
            refused.refuse(QueueFull(self._concurrency, self._queue))

    def _turn_to_refuse(self, queued: list[Turn]) -> Turn:
        """Returns the turn that a full queue refuses: the newest one of the tenant with most
        requests. Among tenants with equally many requests the newest turn is refused."""
        requests = Counter(turn.tenant for turn in [*self._running, *self._waiting])
        # Of equal turns `max` takes the first, which is the newest of the reversed queue.
        return max(reversed(queued), key=lambda turn: requests[turn.tenant])

    def _leave(self, turn: Turn) -> None:
        """Removes a turn that has ended or was refused, and gives its slot to another."""
        for turns in (self._running, self._waiting):
            if turn in turns:
                turns.remove(turn)
        # Tenants without requests are forgotten, or the record would grow with every tenant.
        if all(other.tenant != turn.tenant for other in [*self._running, *self._waiting]):
            self._last_served.pop(turn.tenant, None)
        self._fill_slots()

    def _fill_slots(self) -> None:
        """Gives free slots to waiting turns in their order of precedence."""
        while len(self._running) < self._concurrency:
            ready = [turn for turn in self._waiting if self._may_compute(turn)]
            if not ready:
                return
            self._grant_slot(min(ready, key=self._precedence))

    def _grant_slot(self, turn: Turn) -> None:
        """Gives a waiting turn a slot, and notes when its tenant was last served."""
        self._waiting.remove(turn)
        self._running.append(turn)
        self._last_served[turn.tenant] = next(self._serials)
        turn.grant()

    def _may_compute(self, turn: Turn) -> bool:
        """Returns whether a waiting turn may have a slot. A turn that was set aside always may; a
        new one only where few enough computations are begun, in all and by its tenant."""
        if turn.has_begun:
            return True
        # A computation that is set aside keeps its memory, so the number of all that have begun is
        # limited. One tenant may only have begun as many as there are regular slots, so that the
        # others are left for other tenants.
        begun = [other.tenant for other in [*self._running, *self._waiting] if other.has_begun]
        if len(begun) >= self._concurrency + self._max_set_aside:
            return False
        return begun.count(turn.tenant) < self._concurrency

    def _precedence(self, turn: Turn) -> tuple[int, int, bool]:
        """Returns the key by which free slots are given, lowest first: tenants that hold few, then
        those served long ago, then turns that have begun."""
        held = sum(running.tenant == turn.tenant for running in self._running)
        return held, self._last_served.get(turn.tenant, 0), not turn.has_begun
