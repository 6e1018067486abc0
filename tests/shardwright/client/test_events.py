"""Server-sent events, put together from lines."""

from __future__ import annotations

from shardwright.client.events import Event, EventReader


def test_lines_become_events_with_the_last_id() -> None:
    reader = EventReader()
    lines = [
        ": keep-alive",
        "",
        "event: item",
        "id: 7",
        'data: {"n":',
        "data: 1}",
        "",
        "data: x",
        "",
    ]
    found = [event for event in map(reader.feed, lines) if event]
    assert found == [Event("item", {"n": 1}, "7"), Event("message", "x", "7")]
    assert reader.last_id == "7"
