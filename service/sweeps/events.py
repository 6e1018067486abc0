"""The events of a sweep, many questions that are asked as one job: each result as it comes, in an
order that never changes. So a client that was cut off goes on where it was. Results are numbered
from 1 as they are stored; a *place* is the number of the last one that a client has received."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from service.errors import BadHeader
from service.runtime.event_streams import EventBatch
from service.store import Store
from service.sweeps.sweeps import item_document, progress_document

_LAST_EVENT_ID = re.compile(r"(\d{1,9})(-end)?")
_AT_ONCE = 100  # they take some 10 ms to read, and 100 KiB in memory


@dataclass(frozen=True, slots=True)
class Place:
    """The last event that a listener has received. It is written as the `id` of events."""

    event: int = 0
    """The number of the last result that was told."""
    at_end: bool = False
    """True where the end was told too."""

    @classmethod
    def read(cls, last_event_id: str | None) -> Place:
        """Returns the place that a Last-Event-ID header names; the beginning where there is none.
        Raises BadHeader."""
        if last_event_id is None:
            return cls()
        match = _LAST_EVENT_ID.fullmatch(last_event_id)  # "12", or "12-end" behind the end
        if match is None:
            raise BadHeader("Last-Event-ID", "must be the id of an event of this sweep")
        return cls(int(match[1]), match[2] is not None)

    def __str__(self) -> str:
        return f"{self.event}-end" if self.at_end else str(self.event)


@dataclass(frozen=True, slots=True)
class Event:
    kind: str
    """`item`, a result; `progress`, how far the sweep is; or `end`, after which none comes unless
    the sweep is tried again."""
    place: Place
    document: dict[str, Any]


class SweepFeed:
    """The events of sweeps, for streams. `encode` writes an event as it is sent."""

    def __init__(self, store: Store, encode: Callable[[Event], bytes]) -> None:
        self._store, self._encode = store, encode

    def marks(self, topics: Collection[str]) -> Mapping[str, Hashable]:
        """Returns the progress of each sweep in `topics`, their ids, by which a stream sees that
        there are new events."""
        with self._store.reading() as rows:
            return rows.sweeps.progress(topics)

    def after(self, topic: str, place: Place) -> EventBatch:
        """Returns the events of a sweep that follow a place, written as they are sent."""
        events = events_after(self._store, topic, place)
        last = events[-1].place if events else place
        results = sum(event.kind == "item" for event in events)
        return EventBatch(
            text=b"".join(self._encode(event) for event in events),
            place=last,
            # Fewer results than were asked for are all there are.
            is_all=results < _AT_ONCE,
            is_last=last.at_end,
        )


def has_received_all(store: Store, id_: str, place: Place) -> bool:
    """Returns whether the sweep has ended and a listener at this place has received its end. Raises
    NotFound where there is no such sweep."""
    with store.reading() as rows:
        sweep = rows.sweeps.get(id_)
        return sweep.waiting == 0 and place == Place(sweep.events, at_end=True)


def events_after(store: Store, id_: str, place: Place) -> list[Event]:
    """Returns the events that follow a place: results, then the progress of the sweep, or its end
    once all results were sent. Empty where nothing is new. Raises NotFound where there is no such
    sweep."""
    with store.reading() as rows:
        sweep = rows.sweeps.get(id_)
        results = rows.sweeps.finished_after(id_, place.event, _AT_ONCE)
        progress = progress_document(rows, sweep)
    events = [Event("item", Place(row.event or 0), item_document(sweep, row)) for row in results]
    last = events[-1].place if events else Place(place.event)
    # Fewer results than were asked for are all that are left.
    if sweep.waiting == 0 and len(results) < _AT_ONCE:
        end = Event("end", Place(sweep.events, at_end=True), progress)
        return [*events, end] if end.place != place else []  # equal: the end was told before
    return [*events, Event("progress", last, progress)] if events else []
