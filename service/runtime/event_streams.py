"""Event streams: one reader in this process for all of them, and how many may be open.

A *feed* has the events of one kind. A *topic* is what a stream tells of, such as one sweep, and a
*place* is a position among its events. The *mark* of a topic changes with every new event.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from service.errors import ServiceError, Stopping, TooManyStreams
from service.metrics import EVENT_STREAMS

log = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_S = 0.5  # between looks for new events: an event is sent so soon after it was stored
_KEEPALIVE_S = 15.0  # proxies close connections that are silent for half a minute or more
_REST = 3.0
"""The reader rests after each read, for this many times the time that the read took. Thus it reads
for at most a quarter of the time, and streams that catch up leave the interpreter to requests."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Consecutive events of one topic, as they are sent."""

    text: bytes
    """Empty where there is nothing new."""
    place: Hashable
    """The place behind the last of them."""
    is_all: bool
    """True where no more events were stored when these were read."""
    is_last: bool = False
    """True where the topic ends with these events."""


class Feed(Protocol):
    """One kind of events, such as those of sweeps, by topic. It is read in a thread."""

    def marks(self, topics: Collection[str]) -> Mapping[str, Hashable]:
        """Returns a mark for each of these topics that still exists. A topic's mark changes with
        every new event. It is read twice a second, and so must be one cheap query."""

    def after(self, topic: str, place: Any) -> EventBatch:
        """Returns the events of a topic that follow a place, at most some hundred. Raises
        ServiceError."""


class EventStream:
    """The events of one topic, for one client. It holds a single batch that its client has not
    taken: a client that does not read makes the service read nothing more for it."""

    def __init__(
        self, streams: EventStreams, tenant: str | None, feed: Feed, topic: str, place: Hashable
    ) -> None:
        self.tenant = tenant
        self.feed = feed
        self.topic = topic
        self.place = place
        self.mark: Hashable = None
        """The mark of the topic when the client had been told everything; None until then."""
        self._streams = streams
        self._batch: EventBatch | None = None
        self._has_ended = False
        self._changed = asyncio.Event()

    @property
    def takes_more(self) -> bool:
        return self._batch is None and not self._has_ended

    def take(self, batch: EventBatch, mark: Hashable) -> None:
        """Holds a batch until the client takes it. `mark` is the topic's mark from before the batch
        was read: an event that was committed meanwhile has changed the mark, and is read next."""
        self.place = batch.place
        self.mark = mark if batch.is_all else None  # None: more is stored than the batch has
        self._batch = batch if batch.text else None
        self._has_ended = self._has_ended or batch.is_last
        self._changed.set()

    def end(self) -> None:
        """Ends the stream once its client has taken the batch that is held."""
        self._has_ended = True
        self._changed.set()

    async def pieces(self, keepalive: bytes) -> AsyncIterator[bytes]:
        """Yields the bytes to send to the client until the stream ends, and `keepalive` after each
        silence."""
        while self._batch is not None or not self._has_ended:
            if self._batch is not None:
                yield self._batch.text
                self._batch = None
                # Without a mark the client is behind: more events are stored than the batch had.
                if self.mark is None:
                    self._streams.read_soon()
                continue
            try:
                async with asyncio.timeout(_KEEPALIVE_S):
                    await self._changed.wait()
                self._changed.clear()
            except TimeoutError:
                yield keepalive

    def close(self) -> None:
        self.end()
        self._streams.forget(self)


class EventStreams:
    """The streams of this process: at most `per_tenant` of one tenant, and `in_all` together.

    One thread reads for all of them. It asks each feed for the marks of all watched topics at once,
    and reads only where one has changed. Streams of a topic that are at the same place are fed by
    one read, and the same bytes. A database that does not answer thus blocks one thread, however
    many clients listen.
    """

    def __init__(self, per_tenant: int, in_all: int) -> None:
        self._per_tenant, self._in_all = per_tenant, in_all
        self._open: list[EventStream] = []
        self._thread = ThreadPoolExecutor(1, "read events")
        self._reader: asyncio.Task[None] | None = None
        self._is_wanted = asyncio.Event()
        self._is_closed = False

    def open(self, tenant: str | None, feed: Feed, topic: str, place: Hashable) -> EventStream:
        """Returns a stream of the events of a topic that follow a place. The caller has to close
        it. Raises TooManyStreams, or Stopping once the service stops."""
        if self._is_closed:
            raise Stopping
        if sum(stream.tenant == tenant for stream in self._open) >= self._per_tenant:
            raise TooManyStreams.of_tenant(self._per_tenant)
        if len(self._open) >= self._in_all:
            raise TooManyStreams.of_process(self._in_all)
        stream = EventStream(self, tenant, feed, topic, place)
        self._open.append(stream)
        EVENT_STREAMS.set(len(self._open))
        self.read_soon()  # events that are stored already are sent at once
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read_while_open())
        return stream

    def read_soon(self) -> None:
        """Makes the reader look for events now and not only at its next interval."""
        self._is_wanted.set()

    def forget(self, stream: EventStream) -> None:
        """Removes a stream that its client no longer reads."""
        if stream in self._open:
            self._open.remove(stream)
        EVENT_STREAMS.set(len(self._open))

    def end_all(self) -> None:
        """Ends every stream, and opens no more. Clients connect again and continue at their
        place."""
        self._is_closed = True
        for stream in self._open:
            stream.end()

    def close(self) -> None:
        """Ends every stream and the thread that reads events."""
        self.end_all()
        if self._reader is not None:
            self._reader.cancel()
        self._thread.shutdown(wait=False)

    async def _read_while_open(self) -> None:
        """Reads events for the open streams, when a stream asks for them and otherwise every
        _LOOK_S seconds. Ends with the last stream: `open` starts it again."""
        while self._open:
            self._is_wanted.clear()
            for feed in {stream.feed for stream in self._open}:
                await self._read(feed)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._is_wanted.wait()

    async def _read(self, feed: Feed) -> None:
        """Gives each stream of a feed that has room its next batch of events. Ends streams whose
        topic is gone. If events cannot be read, ends all streams of the feed: clients connect again
        and are told the reason."""
        streams = [stream for stream in self._open if stream.feed is feed and stream.takes_more]
        try:
            # One query for all topics tells which have news; only those are read.
            marks = await self._in_thread(feed.marks, {stream.topic for stream in streams})
            for (topic, place), group in _by_place(streams, marks).items():
                batch = await self._in_thread(feed.after, topic, place)
                for stream in group:
                    stream.take(batch, marks[topic])
        except Exception as error:
            if not isinstance(error, ServiceError):
                log.exception("events are not read")
            for stream in streams:
                stream.end()
            return
        for stream in streams:
            if stream.topic not in marks:
                stream.end()

    async def _in_thread(self, read: Callable[..., T], *arguments: object) -> T:
        """Returns the result of `read`, called in the thread that reads for all streams. Pauses
        afterwards in proportion to the time that it took, to spare a slow database."""
        began = time.monotonic()
        result = await asyncio.get_running_loop().run_in_executor(self._thread, read, *arguments)
        await asyncio.sleep(min(_REST * (time.monotonic() - began), _LOOK_S))
        return result


def _by_place(
    streams: Collection[EventStream], marks: Mapping[str, Hashable]
) -> dict[tuple[str, Hashable], list[EventStream]]:
    """Returns the streams with unread events, grouped by topic and place. `marks` holds the current
    mark of each topic, and a stream whose mark equals it has read everything."""
    groups = defaultdict[tuple[str, Hashable], list[EventStream]](list)
    for stream in streams:
        if stream.topic in marks and stream.mark != marks[stream.topic]:
            groups[stream.topic, stream.place].append(stream)
    return groups
