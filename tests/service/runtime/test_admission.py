"""Slots and the queue are shared by tenant."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

import pytest

from service import api_keys
from service.errors import ClientGone, QueueFull
from service.runtime import admission
from service.runtime.admission import AdmissionControl, Turn
from tests.service.asking import LARGEST, QUESTION, changed
from tests.waiting import LONG_S, wait_for

_STEP_S = 0.002


async def listening() -> bool:
    return False


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, LONG_S))


@pytest.fixture(autouse=True)
def _short_slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "make_client" in request.fixturenames:
        return
    monkeypatch.setattr(admission, "_SLICE_S", 0.01)
    monkeypatch.setattr(admission, "_CLIENT_POLL_S", 0.01)


class Load:
    """Computations that run until they are told to end, and what they did so far."""

    def __init__(self, slots: AdmissionControl) -> None:
        self.slots = slots
        self.steps = Counter[str]()
        self.end = threading.Event()
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, tenant: str, count: int) -> None:
        self.tasks += [asyncio.create_task(self.compute(tenant)) for _ in range(count)]

    async def compute(self, tenant: str) -> None:
        async with self.slots.admit(listening, tenant) as turn:
            await asyncio.to_thread(self._steps, tenant, turn)

    def _steps(self, tenant: str, turn: Turn) -> None:
        while not self.end.is_set():
            time.sleep(_STEP_S)
            turn.checkpoint()
            self.steps[tenant] += 1

    async def finish(self) -> list[None | BaseException]:
        self.end.set()
        return await asyncio.gather(*self.tasks, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(("concurrency", "floods"), [(1, 1), (2, 1), (2, 3), (3, 2)])
def test_a_tenant_that_holds_nothing_need_not_wait_for_the_ends_of_long_computations(
    concurrency: int, floods: int
) -> None:
    async def ask() -> None:
        load = Load(AdmissionControl("searches", concurrency, queue=16, wait_s=60, max_set_aside=6))
        for flood in range(floods):
            load.start(f"flood {flood}", 18)
        await until(lambda: load.steps.total() > 20)
        for _ in range(20):
            before = load.steps.total()
            async with load.slots.admit(listening, "plain"):
                pass
            # What the others did in its wait is less than a second of theirs, however busy the
            # machine is.
            assert load.steps.total() - before < concurrency / _STEP_S
        await load.finish()

    run(ask())


def test_long_computations_of_two_tenants_take_as_long_whatever_their_number() -> None:
    async def share() -> None:
        load = Load(AdmissionControl("searches", 2, queue=16, wait_s=60, max_set_aside=6))
        load.start("many", 12)
        await until(lambda: load.steps["many"] > 10)
        load.start("few", 2)
        await until(lambda: load.steps["few"] > 10)
        before = Counter(load.steps)
        await until(lambda: (load.steps - before).total() > 300)
        done = load.steps - before
        assert 0.5 < done["few"] / done["many"] < 2.0
        await load.finish()

    run(share())


def test_of_two_that_compute_for_one_tenant_none_is_set_aside_for_its_own() -> None:
    async def compute() -> None:
        slots = AdmissionControl("searches", 1, queue=16, wait_s=60, max_set_aside=6)
        load = Load(slots)
        load.start("one", 3)
        await until(lambda: load.steps["one"] > 20)
        assert [turn.has_begun for turn in slots._waiting] == [False, False]
        await load.finish()

    run(compute())


def test_a_full_queue_takes_the_last_place_of_who_has_most() -> None:
    async def queue() -> None:
        load = Load(AdmissionControl("searches", 1, queue=4, wait_s=60, max_set_aside=6))
        load.start("many", 5)
        await until(lambda: load.steps["many"] > 0)
        load.start("few", 4)
        await until(lambda: load.steps["few"] > 0)
        outcomes = [type(outcome) for outcome in await load.finish()]
        many, few = outcomes[:5], outcomes[5:]
        # one runs and four wait: of these places each tenant has its part
        assert many == [type(None)] * 3 + [QueueFull] * 2
        assert few.count(QueueFull) == 2

    run(queue())


def test_no_more_begin_than_there_is_memory_for() -> None:
    async def begin() -> None:
        slots = AdmissionControl("searches", 1, queue=16, wait_s=60, max_set_aside=1)
        load = Load(slots)
        for tenant in "abc":
            load.start(tenant, 2)
        await until(lambda: len(load.steps) == 2 and load.steps.total() > 50)
        assert set(load.steps) == {"a", "b"}
        begun = [turn for turn in [*slots._running, *slots._waiting] if turn.has_begun]
        assert len(begun) == 2
        await load.finish()
        assert not slots._running
        assert not slots._waiting
        assert not slots._last_served

    run(begin())


def test_who_leaves_while_set_aside_ends_its_computation() -> None:
    async def leave() -> None:
        slots = AdmissionControl("searches", 1, queue=16, wait_s=60, max_set_aside=6)
        left = asyncio.Event()
        entered = threading.Event()

        async def has_left() -> bool:
            return left.is_set()

        async def compute() -> None:
            async with slots.admit(has_left, "leaving") as turn:
                await asyncio.to_thread(wait_at_checkpoints, turn)

        def wait_at_checkpoints(turn: Turn) -> None:
            entered.set()
            while True:
                time.sleep(_STEP_S)
                turn.checkpoint()

        leaving = asyncio.create_task(compute())
        await until(entered.is_set)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(slots.admit(listening, "other"))
            left.set()
            with pytest.raises(ClientGone):
                await leaving
            assert len(slots._running) == 1
        async with slots.admit(listening, "leaving"):  # nothing leaked
            pass

    run(leave())


def test_a_tenant_is_let_in_beside_computations_that_come_by_no_checkpoint() -> None:
    async def ask() -> None:
        slots = AdmissionControl("searches", 2, queue=16, wait_s=60, max_set_aside=1)
        async with AsyncExitStack() as stack:
            flood = [await stack.enter_async_context(slots.admit(listening, "a")) for _ in "12"]
            async with slots.admit(listening, "b") as turn:
                assert len(slots._running) == 3
                with pytest.raises(TimeoutError):  # there is memory for no more
                    async with asyncio.timeout(0.1), slots.admit(listening, "c"):
                        pass
                time.sleep(0.02)
                await asyncio.to_thread(turn.checkpoint)  # keeps the only slot of its tenant
                back = asyncio.create_task(asyncio.to_thread(flood[0].checkpoint))
                await until(lambda: len(slots._running) == 2)
                assert turn in slots._running
            await back

    run(ask())


def test_where_none_may_be_set_aside_each_computation_has_its_slot_to_the_end() -> None:
    async def calibrate() -> None:
        load = Load(AdmissionControl("calibrations", 1, queue=16, wait_s=60))
        load.start("a", 1)
        await until(lambda: load.steps["a"] > 0)
        load.start("b", 1)
        await until(lambda: load.steps["a"] > 40)
        assert load.steps["b"] == 0
        await load.finish()
        assert load.steps["b"] == 0

    run(calibrate())


@pytest.mark.long
def test_a_plain_question_is_answered_beside_the_longest_searches_of_another_tenant(
    make_client: Callable[..., Any],
) -> None:
    client = make_client(require_api_keys=True, heavy_wait_s=300)
    store = client.app.state.services.store
    flood, plain = (
        {"Authorization": f"Bearer {api_keys.create(store, tenant, ['recommend'])}"}
        for tenant in ("flood", "plain")
    )

    def search(times: int) -> int:
        chips = LARGEST["cluster"]["num_chips"]
        body = changed(LARGEST, "workload.global_batch", chips * times)
        return client.post("/v1/recommendations", json=body, headers=flood).status_code

    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(search, times) for times in range(4, 8)]
        wait_for(lambda: len(client.app.state.services.search_admission._running) == 2)
        for times in range(1, 9):
            question = changed(QUESTION, "workload.global_batch", 128 * times)
            answer = client.post("/v1/recommendations", json=question, headers=plain)
            assert answer.status_code == 201, answer.text
        # Each of those takes as long as it may: had the questions waited for any to end, all would
        # have ended.
        assert not any(search.done() for search in searches[2:])
        assert {search.result() for search in searches} == {201}
