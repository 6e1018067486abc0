"""Reports as events of a stream, which tells its clients of each report as it comes, in the order
of ids."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

from service.learning.withdrawals import current_document
from service.runtime.event_streams import EventBatch
from service.store import Store
from service.store.reports import ReportFilter

_AT_ONCE = 100  # a report takes some 5 KiB in memory
_OF_ALL = "all"
_OF_TENANT = "of "

Encode = Callable[[str, dict[str, Any]], bytes]
"""Writes a report as the event that is sent. The id of the report is that of the event."""


class ReportFeed:
    """New reports, for streams. A topic says whose reports a stream sees: all, or those of a
    tenant. A place in it is the id of the last report that was sent."""

    def __init__(self, store: Store, encode: Encode) -> None:
        self._store, self._encode = store, encode

    @staticmethod
    def topic(store: Store) -> str:
        """Returns the topic of the reports that a store sees."""
        return _OF_ALL if store.sees_all else f"{_OF_TENANT}{store.tenant}"

    def marks(self, topics: Collection[str]) -> Mapping[str, Hashable]:
        """Returns the id of the newest report of each topic: a stream has news where it changes."""
        marks = dict[str, Hashable]()
        for topic in topics:
            with self._store_of_topic(topic).reading() as rows:
                marks[topic] = rows.reports.last_id()
        return marks

    def after(self, topic: str, place: str) -> EventBatch:
        """Returns the next reports of a topic after the one with the id `place`, oldest first."""
        with self._store_of_topic(topic).reading() as rows:
            # Without the wait, a report with an earlier id could be committed after the stream has
            # passed it.
            rows.arrivals.wait_for_writers()
            reports = rows.reports.oldest(ReportFilter(after_id=place), _AT_ONCE)
        return EventBatch(
            text=b"".join(self._encode(row.id, current_document(row)) for row in reports),
            place=reports[-1].id if reports else place,
            is_all=len(reports) < _AT_ONCE,
        )

    def _store_of_topic(self, topic: str) -> Store:
        """Returns the store with the rows that a topic covers: all, or those of one tenant."""
        if topic == _OF_ALL:
            return self._store.of(None, sees_all=True)
        return self._store.of(topic.removeprefix(_OF_TENANT), sees_all=False)
