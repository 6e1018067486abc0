from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn

from service.web.idle_connections import Connection
from tests.service.processes import COMMAND, serving
from tests.waiting import LONG_S

HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n"


async def answered(scope, receive, send) -> None:
    """Once the body is there."""
    await receive()
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@asynccontextmanager
async def listening(
    app: Any, limit: int | None = None, **waits_s: float
) -> AsyncIterator[tuple[str, int]]:
    """A server, and where it listens. Its connections wait for so long."""
    impatient = type("Impatient", (Connection,), waits_s)
    config = uvicorn.Config(
        app,
        port=0,
        http=impatient,
        lifespan="off",
        log_config=None,
        timeout_keep_alive=2,
        timeout_graceful_shutdown=0,
        limit_concurrency=limit,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()
    server.should_exit = True
    await serving


async def read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    text = b""
    with suppress(ConnectionResetError):  # what was sent before the end, and is never read
        while piece := await reader.read(2**16):
            text += piece
    return text


async def told(pieces: list[bytes], every_s: float, head_wait_s: float = 0.3) -> bytes:
    """What a client reads that sends something now and then, until the connection ends."""
    async with listening(answered, head_wait_s=head_wait_s) as address:
        reader, writer = await asyncio.open_connection(*address)
        reading = asyncio.create_task(read_to_the_end(reader))
        for piece in pieces:
            if not reading.done():
                writer.write(piece)
                await asyncio.sleep(every_s)
        answer = await asyncio.wait_for(reading, LONG_S)
        writer.close()
    return answer


@pytest.mark.parametrize(
    "pieces",
    [[], [b"GET"], [bytes([one]) for one in HEAD * 3]],
    ids=["silent", "stops", "byte by byte"],
)
def test_a_connection_without_a_request_ends(pieces: list[bytes]) -> None:
    assert asyncio.run(told(pieces, 0.02)) == b""


def test_a_slow_head_after_an_answer_ends_it_too() -> None:
    pieces = [HEAD + b"x", *(bytes([one]) for one in HEAD * 3)]
    assert asyncio.run(told(pieces, 0.05)).count(b"204") == 1


def test_what_comes_in_time_is_answered_however_long_the_rest_takes() -> None:
    """A head comes well in time on a busy machine too, and a body after longer than that."""
    pieces = [HEAD[:10], HEAD[10:], *[b""] * 10, b"x", WHOLE]
    assert asyncio.run(told(pieces, 0.1, head_wait_s=1)).count(b"204") == 2


async def opened(address: tuple[str, int], text: bytes = b"") -> asyncio.Task[bytes]:
    """What is read on a new connection until it ends, after this text was sent on it."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(text)
    for _ in range(20):  # the loop takes and serves the connection meanwhile, in a few rounds
        await asyncio.sleep(0.001)
    reading = asyncio.create_task(read_to_the_end(reader))
    reading.add_done_callback(lambda _: writer.close())
    return reading


WHOLE = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + b"x"


def test_beyond_the_limit_the_client_that_is_idle_for_longest_goes() -> None:
    async def connect() -> None:
        async with listening(answered, limit=4) as address:
            silent = [await opened(address) for _ in range(4)]
            assert b"204" in await asyncio.wait_for(await opened(address, WHOLE), LONG_S)
            assert [each.done() for each in silent] == [True, False, False, False]
            assert b"204" in await asyncio.wait_for(await opened(address, WHOLE), LONG_S)

    asyncio.run(connect())


def test_a_flood_of_silent_connections_closes_itself_and_not_an_upload() -> None:
    async def connect() -> None:
        async with listening(answered, limit=4) as address:
            upload = await opened(address, HEAD)
            await asyncio.sleep(0.1)
            silent = [await opened(address) for _ in range(12)]
            assert sum(each.done() for each in silent) == 9
            assert not upload.done()

    asyncio.run(connect())


def test_uploads_that_do_not_come_give_way_too() -> None:
    async def connect() -> None:
        async with listening(answered, limit=4) as address:
            uploads = [await opened(address, HEAD) for _ in range(4)]
            assert b"204" in await asyncio.wait_for(await opened(address, WHOLE), LONG_S)
            assert sum(each.done() for each in uploads) == 1

    asyncio.run(connect())


def test_where_all_wait_for_the_service_the_newest_goes() -> None:
    goes_on = asyncio.Event()

    async def computes(scope, receive, send) -> None:
        await receive()
        await goes_on.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def connect() -> None:
        async with listening(computes, limit=2) as address:
            waiting = [await opened(address, WHOLE) for _ in range(2)]
            assert await asyncio.wait_for(await opened(address, WHOLE), LONG_S) == b""
            goes_on.set()
            assert all(b"204" in answer for answer in await asyncio.gather(*waiting))

    asyncio.run(connect())


@pytest.mark.parametrize("reads", [False, True])
def test_a_client_that_reads_nothing_of_its_answer_is_dropped(*, reads: bool) -> None:
    ended = asyncio.Event()

    async def pours(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(400):
            await send({"type": "http.response.body", "body": bytes(2**16), "more_body": True})
        await send({"type": "http.response.body"})
        ended.set()

    async def connect() -> int:
        async with listening(pours, read_wait_s=2.0 if reads else 0.5) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(WHOLE)
            if not reads:
                writer.transport.pause_reading()
            else:
                assert len(await reader.read()) > 400 * 2**16
            await asyncio.wait_for(ended.wait(), LONG_S)
            writer.transport.abort()

    asyncio.run(connect())


@pytest.mark.faults
def test_silent_connections_beyond_all_descriptors_keep_nobody_out(database_url: str) -> None:
    """Nor do they fill the log."""
    descriptors, connections = 256, 400
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > connections + 100
    command = ("bash", "-c", f'ulimit -n {descriptors} && exec "$@"', "bash", *COMMAND)
    with (
        serving(database_url, command=command, log_level="WARNING") as service,
        ExitStack() as held,
    ):
        host, port = service.address.removeprefix("http://").split(":")
        waits_s = list[float]()
        for i in range(connections):
            held.enter_context(socket.create_connection((host, int(port)), timeout=10))
            if i % 20 == 0:
                began = time.monotonic()
                assert service.request("GET", "/livez").is_success
                waits_s.append(time.monotonic() - began)
        assert service.request("GET", "/readyz").is_success
        assert max(waits_s) < 2, waits_s
        assert len(service.errors().splitlines()) < 20
