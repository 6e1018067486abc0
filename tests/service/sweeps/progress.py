"""How far a sweep of a real process is, and whether it is whole."""

from __future__ import annotations

from typing import Any

from service.store import Store
from tests.service.processes import Service
from tests.service.sweeps.conftest import SWEEP
from tests.waiting import wait_for

LARGER = {
    **SWEEP,
    "workloads": [{"seq_len": 8192, "global_batch": 128 * factor} for factor in (1, 2, 4)],
}
"""24 items."""


def finished_items(store: Store, id_: str) -> dict[int, tuple[int | None, Any]]:
    """The event and the result of each item that is finished, by its position."""
    with store.reading() as rows:
        found = rows.sweeps.items(id_, None, 1000, -1)
    return {row.position: (row.event, row.result) for row in found if row.outcome is not None}


def assert_whole(store: Store, id_: str) -> None:
    """Every item has a result, and each was stored once."""
    found = finished_items(store, id_)
    assert sorted(found) == [*range(24)]
    assert sorted(event for event, _ in found.values()) == [*range(1, 25)]
    with store.reading() as rows:
        sweep = rows.sweeps.get(id_)
        assert (sweep.events, sweep.waiting) == (24, 0)
        assert rows.sweeps.outcomes([id_])[id_].keys() <= {"ok", "infeasible", "refused"}


def begun(service: Service, store: Store, items: int) -> str:
    """A sweep of which so many items are finished."""
    made = service.request("POST", "/v1/sweeps", json=LARGER)
    id_ = str(made.raise_for_status().json()["id"])
    wait_for(lambda: len(finished_items(store, id_)) >= items)
    return id_
