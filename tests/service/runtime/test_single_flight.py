from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from models.errors import Invalid
from service.errors import ClientGone
from service.runtime.admission import IsDisconnected
from service.runtime.single_flight import SingleFlight
from tests.waiting import LONG_S


class Client:
    def __init__(self) -> None:
        self.is_gone = False

    async def is_disconnected(self) -> bool:
        return self.is_gone


class Computation:
    """Computes for as long as it is let, and counts how often."""

    def __init__(self, *outcomes: str | Exception) -> None:
        self.outcomes = list(outcomes)
        self.times = 0
        self.may_end = asyncio.Event()

    async def __call__(self, is_abandoned: IsDisconnected) -> str:
        self.times += 1
        while not self.may_end.is_set():
            if await is_abandoned():
                raise ClientGone
            await asyncio.sleep(0.001)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


async def asked_together(
    computation: Computation, clients: list[Client], key: str = "key"
) -> list[object]:
    """What each of the clients gets that ask while the first is computed for."""
    flights = SingleFlight[str]()
    asking = [
        asyncio.ensure_future(flights.run(key, computation, client.is_disconnected))
        for client in clients
    ]
    await asyncio.sleep(0.01)
    computation.may_end.set()
    return await asyncio.gather(*asking, return_exceptions=True)


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), LONG_S))


def test_what_many_ask_for_is_computed_once() -> None:
    async def test() -> None:
        computation = Computation("answer")
        found = await asked_together(computation, [Client() for _ in range(5)])
        assert found == [("answer", True), *[("answer", False)] * 4]
        assert computation.times == 1

    in_loop(test)


def test_another_key_and_a_later_request_compute_anew() -> None:
    async def test() -> None:
        computation = Computation("one", "two", "three")
        computation.may_end.set()
        flights = SingleFlight[str]()
        client = Client().is_disconnected
        assert await flights.run("a", computation, client) == ("one", True)
        both = await asyncio.gather(
            flights.run("a", computation, client), flights.run("b", computation, client)
        )
        assert both == [("two", True), ("three", True)]

    in_loop(test)


def test_the_others_are_answered_when_the_first_client_goes_away() -> None:
    async def test() -> None:
        computation = Computation("answer")
        clients = [Client() for _ in range(3)]
        flights = SingleFlight[str]()
        asking = [
            asyncio.ensure_future(flights.run("key", computation, client.is_disconnected))
            for client in clients
        ]
        await asyncio.sleep(0.01)
        clients[0].is_gone = True
        asking[0].cancel()
        await asyncio.sleep(0.01)
        computation.may_end.set()
        assert await asyncio.gather(*asking[1:]) == [("answer", False)] * 2
        assert computation.times == 1

    in_loop(test)


def test_a_computation_ends_when_all_clients_have_gone() -> None:
    async def test() -> None:
        computation = Computation("answer")
        clients = [Client(), Client()]
        flights = SingleFlight[str]()
        asking = [
            asyncio.ensure_future(flights.run("key", computation, client.is_disconnected))
            for client in clients
        ]
        await asyncio.sleep(0.01)
        for client in clients:
            client.is_gone = True
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(one) for one in found] == [ClientGone, ClientGone]

    in_loop(test)


def test_who_comes_when_it_has_just_been_abandoned_is_answered() -> None:
    async def test() -> None:
        computation = Computation("answer")
        gone, present = Client(), Client()
        flights = SingleFlight[str]()
        first = asyncio.ensure_future(flights.run("key", computation, gone.is_disconnected))
        await asyncio.sleep(0.01)
        gone.is_gone = True
        second = asyncio.ensure_future(flights.run("key", computation, present.is_disconnected))
        computation.may_end.set()
        await asyncio.wait({first})
        assert (await second)[0] == "answer"

    in_loop(test)


def test_only_the_first_hears_of_a_failure() -> None:
    async def test() -> None:
        computation = Computation(RuntimeError("broken"), "answer")
        found = await asked_together(computation, [Client() for _ in range(3)])
        assert isinstance(found[0], RuntimeError)
        assert sorted(found[1:], key=str) == [("answer", False), ("answer", True)]
        assert computation.times == 2

    in_loop(test)


@pytest.mark.parametrize("times", [1, 3])
def test_what_is_wrong_with_the_question_is_wrong_for_all(times: int) -> None:
    async def test() -> None:
        wrong = Invalid("cluster.num_chips", 0, "must be positive")
        computation = Computation(wrong)
        found = await asked_together(computation, [Client() for _ in range(times)])
        assert found == [wrong] * times
        assert computation.times == 1

    in_loop(test)
