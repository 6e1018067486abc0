"""The steps of a request on its way to an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from threading import Event

from service.runtime.admission import AdmissionControl, IsDisconnected, Turn
from service.runtime.creation import Creation, Unanswered
from service.runtime.idempotency import (
    ANSWERED_BEFORE,
    CREATED,
    CreatedResource,
    IdempotencyKey,
    IdempotentCreation,
    Prepared,
)
from service.runtime.single_flight import Compute, SingleFlight

ANSWER = CreatedResource("/v1/things/1", {"id": "1"})
EARLIER = CreatedResource("/v1/things/0", {"id": "0"}, replayed=True)


class Stored(IdempotentCreation):
    """What would be stored, by the key of its request."""

    def __init__(self, *earlier: str) -> None:
        self.answered = set(earlier)
        self.created: list[CreatedResource] = []

    def create(
        self, key: IdempotencyKey | None, prepare: Callable[[], Prepared]
    ) -> CreatedResource:
        created = prepare()
        assert isinstance(created, CreatedResource)
        self.created.append(created)
        return created

    def earlier_answer(self, key: IdempotencyKey) -> CreatedResource | None:
        return EARLIER if key.key in self.answered else None


async def listening() -> bool:
    return False


class FlightOf(SingleFlight[CreatedResource]):
    """A flight that so many requests board. The first finds nothing before the last is in it."""

    def __init__(self, requests: int) -> None:
        super().__init__()
        self._missing = requests
        self._complete = Event()

    async def run(
        self, key: Hashable, compute: Compute[CreatedResource], is_disconnected: IsDisconnected
    ) -> tuple[CreatedResource, bool]:
        self._missing -= 1
        if not self._missing:
            self._complete.set()
        return await super().run(key, compute, is_disconnected)

    def wait(self) -> None:
        assert self._complete.wait(60)


class Asked:
    """A question to which the store knows an answer, or does not; and what was done for it."""

    def __init__(self, known: CreatedResource | None = None) -> None:
        self.known = known
        self.done: list[str] = []

    def look_up(self) -> Prepared | Unanswered[str]:
        self.done.append("looked up")
        return self.known or Unanswered("resolved")

    def compute(self, question: str, turn: Turn) -> Prepared:
        self.done.append(f"computed what was {question}")
        return ANSWER


def answers(
    asked: Asked, store: Stored, *, keys: tuple[str | None, ...] = (None,), slots: int = 1
) -> list[CreatedResource]:
    """The answers to requests that ask the same at the same time."""
    flights = FlightOf(len(keys))
    admission = AdmissionControl("searches", slots, 0, 0.0)

    def look_up() -> Prepared | Unanswered[str]:
        flights.wait()
        return asked.look_up()

    async def ask() -> list[CreatedResource]:
        creations = [
            Creation(
                store=store,
                admission=admission,
                flights=flights,
                key=None if key is None else IdempotencyKey(key, ""),
                tenant=None,
                wait=None,
                is_disconnected=listening,
            )
            for key in keys
        ]
        asking = [each.answer_once("q", look_up, asked.compute) for each in creations]
        return await asyncio.gather(*asking)

    return asyncio.run(ask())


def test_a_new_question_is_looked_up_and_computed_from_what_was_resolved() -> None:
    asked, store = Asked(), Stored()
    assert answers(asked, store) == [ANSWER]
    assert asked.done == ["looked up", "computed what was resolved"]
    assert store.created == [ANSWER]


def test_a_known_answer_waits_for_no_turn() -> None:
    asked = Asked(known=ANSWER)
    assert answers(asked, Stored(), slots=0) == [ANSWER]
    assert asked.done == ["looked up"]


def test_a_retry_gets_what_its_key_was_answered_with() -> None:
    asked = Asked()
    assert answers(asked, Stored("a"), keys=("a",)) == [EARLIER]
    assert asked.done == []


def test_of_those_who_ask_at_the_same_time_one_computes_and_each_stores_the_answer() -> None:
    asked, store = Asked(), Stored()
    both = answers(asked, store, keys=("a", "b"))
    assert asked.done == ["looked up", "computed what was resolved"]
    # Either may board first: their keys are looked up in threads.
    leader, follower = sorted(both, key=lambda answer: answer.status == ANSWERED_BEFORE)
    assert [leader.status, follower.status] == [CREATED, ANSWERED_BEFORE]
    assert leader.location == follower.location
    assert store.created == [leader, follower]
