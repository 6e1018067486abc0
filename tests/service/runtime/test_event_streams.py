from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Hashable, Mapping

import pytest

from service.errors import Stopping, TooManyStreams, Unavailable
from service.runtime.event_streams import EventBatch, EventStream, EventStreams
from tests.waiting import LONG_S

QUIET = b": quiet\n\n"
AT_ONCE = 3


class Numbers:
    """A feed whose topics count up to a number. It notes what it was asked for."""

    def __init__(self, last: Mapping[str, int]) -> None:
        self.last = dict(last)
        self.ended: set[str] = set()
        self.reads = Counter[tuple[str, Hashable]]()
        self.looks = list[set[str]]()
        self.error: Exception | None = None

    def marks(self, topics: Collection[str]) -> Mapping[str, Hashable]:
        self.looks.append({*topics})
        if self.error is not None:
            raise self.error
        return {name: (self.last[name], name in self.ended) for name in topics if name in self.last}

    def after(self, topic: str, place: Hashable) -> EventBatch:
        assert isinstance(place, int)
        self.reads[topic, place] += 1
        told = [*range(place + 1, self.last[topic] + 1)][:AT_ONCE]
        is_all = len(told) < AT_ONCE
        return EventBatch(
            text="".join(f"{number} " for number in told).encode(),
            place=told[-1] if told else place,
            is_all=is_all,
            is_last=is_all and topic in self.ended,
        )


async def told(stream: EventStream, count: int) -> list[int]:
    """The next numbers that a client is told, which takes each at once."""
    numbers = list[int]()
    async for piece in stream.pieces(QUIET):
        numbers += [int(word) for word in piece.split()]
        if len(numbers) >= count:
            break
    return numbers


async def all_pieces(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


def test_streams_at_one_place_are_fed_by_one_read() -> None:
    async def listen() -> None:
        feed, streams = Numbers({"a": 0}), EventStreams(100, 100)
        listeners = [streams.open("t", feed, "a", 0) for _ in range(50)]
        hearing = [asyncio.create_task(told(each, 4)) for each in listeners]
        await asyncio.sleep(0.1)
        feed.last["a"] = 2
        await asyncio.sleep(1)
        feed.last["a"] = 4
        assert await asyncio.gather(*hearing) == [[1, 2, 3, 4]] * 50
        assert sum(feed.reads.values()) <= 4, "50 listeners, and three states of the topic"
        streams.close()

    asyncio.run(listen())


def test_all_topics_are_looked_at_together() -> None:
    async def listen() -> None:
        feed, streams = Numbers({f"{i}": 1 for i in range(30)}), EventStreams(100, 100)
        opened = [streams.open("t", feed, topic, 0) for topic in feed.last]
        assert await asyncio.gather(*(told(each, 1) for each in opened)) == [[1]] * 30
        assert feed.looks[0] == {*feed.last}
        feed.looks.clear()
        began = time.monotonic()
        while len(feed.looks) < 2:
            await asyncio.sleep(0.05)
        # One look in half a second, not one of each topic: thirty would come in as long.
        assert len(feed.looks) <= 2 + 2 * (time.monotonic() - began)
        streams.close()

    asyncio.run(listen())


def test_for_a_client_that_takes_nothing_one_batch_is_read() -> None:
    async def listen() -> None:
        feed, streams = Numbers({"a": 100}), EventStreams(100, 100)
        unread = streams.open("t", feed, "a", 0)
        assert await told(streams.open("t", feed, "a", 0), 100) == [*range(1, 101)]
        assert unread.place == AT_ONCE
        assert await told(unread, 100) == [*range(1, 101)]
        streams.close()

    asyncio.run(listen())


def test_a_stream_ends_with_its_topic_with_the_service_and_with_what_it_reads() -> None:
    async def listen() -> None:
        feed, streams = Numbers({"ends": 2, "goes": 2, "stays": 2}), EventStreams(100, 100)
        feed.ended.add("ends")
        assert await all_pieces(streams.open("t", feed, "ends", 0).pieces(QUIET)) == b"1 2 "
        gone = asyncio.create_task(all_pieces(streams.open("t", feed, "goes", 0).pieces(QUIET)))
        await asyncio.sleep(0.2)
        del feed.last["goes"]
        assert await gone == b"1 2 "
        for end in (lambda: setattr(feed, "error", Unavailable()), streams.end_all):
            feed.error = None
            stays = streams.open("t", feed, "stays", 0)
            hearing = asyncio.create_task(all_pieces(stays.pieces(QUIET)))
            await asyncio.sleep(0.2)
            end()
            assert await hearing == b"1 2 "
        with pytest.raises(Stopping):
            streams.open("t", feed, "stays", 0)
        streams.close()

    asyncio.run(asyncio.wait_for(listen(), LONG_S))


def test_a_defect_of_a_feed_ends_its_streams_and_no_others() -> None:
    async def listen() -> None:
        broken, whole, streams = Numbers({}), Numbers({"a": 1}), EventStreams(100, 100)
        broken.error = ZeroDivisionError()
        first = streams.open("t", broken, "a", 0)
        assert await all_pieces(first.pieces(QUIET)) == b""
        assert await told(streams.open("t", whole, "a", 0), 1) == [1]
        streams.close()

    asyncio.run(asyncio.wait_for(listen(), LONG_S))


def test_a_tenant_and_a_process_have_so_many_streams() -> None:
    async def listen() -> None:
        feed, streams = Numbers({"a": 0}), EventStreams(2, 3)
        first, _ = (streams.open("t", feed, "a", 0) for _ in range(2))
        with pytest.raises(TooManyStreams, match="SHARDWRIGHT_STREAMS_PER_TENANT"):
            streams.open("t", feed, "a", 0)
        streams.open("u", feed, "a", 0)
        with pytest.raises(TooManyStreams, match="SHARDWRIGHT_MAX_STREAMS"):
            streams.open("v", feed, "a", 0)
        first.close()
        streams.open("t", feed, "a", 0)
        streams.close()

    asyncio.run(listen())


def test_a_client_that_hears_nothing_is_told_that_the_stream_goes_on(monkeypatch) -> None:
    monkeypatch.setattr("service.runtime.event_streams._KEEPALIVE_S", 0.1)

    async def listen() -> None:
        streams = EventStreams(1, 1)
        async for piece in streams.open("t", Numbers({"a": 0}), "a", 0).pieces(QUIET):
            assert piece == QUIET
            break
        streams.close()

    asyncio.run(asyncio.wait_for(listen(), LONG_S))
