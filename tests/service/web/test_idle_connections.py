from __future__ import annotations

import asyncio

import pytest
import uvicorn

from service.web.idle_connections import Connection

HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n"


async def answered(scope, receive, send) -> None:
    """Once the body is there."""
    await receive()
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


async def told(pieces: list[bytes], every_s: float) -> bytes:
    """What a client reads that sends something now and then, until the connection ends."""

    class Impatient(Connection):
        head_wait_s = 0.3

    config = uvicorn.Config(
        answered, port=0, http=Impatient, lifespan="off", log_config=None, timeout_keep_alive=2
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
    reading = asyncio.create_task(reader.read())
    for piece in pieces:
        if not reading.done():
            writer.write(piece)
            await asyncio.sleep(every_s)
    answer = await asyncio.wait_for(reading, 10)
    writer.close()
    server.should_exit = True
    await serving
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
    pieces = [HEAD[:10], HEAD[10:], b"", b"", b"", b"x", HEAD, b"x"]
    assert asyncio.run(told(pieces, 0.2)).count(b"204") == 2
