"""Sweeps as callers see them: created, looked at, cancelled, tried again and removed. A *sweep* is
many questions that are asked as one job. An *item* is one of them, a combination of what the
request lists (models, clusters and so on). The *runner* of a process computes items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from service.identifiers import new_id
from service.runtime.idempotency import CreatedResource, SaveRows
from service.schemas.list_query import ListQuery
from service.schemas.prediction import ProfileUsed
from service.schemas.stored import read_stored
from service.schemas.sweep import (
    Combination,
    SweepAnswer,
    SweepDetails,
    SweepItem,
    SweepItemQuery,
    SweepRequest,
    SweepState,
)
from service.store import Rows, Store, UseCase
from service.store.cursors import cut_page, read_cursor
from service.store.tables import SweepItemRow, SweepRow
from service.sweeps.combinations import combination, count, pin_names

ACCEPTED = 202


class Sweeps(UseCase):
    """The use cases of sweeps. `wake` tells the runner of this process that items wait. `waits_for`
    returns the reason why the runner computes none, if there is one."""

    def __init__(
        self,
        store: Store,
        wake: Callable[[], None],
        waits_for: Callable[[], str | None] = lambda: None,
    ) -> None:
        super().__init__(store)
        self._wake = wake
        self._waits_for = waits_for

    def of(self, store: Store) -> Sweeps:
        return Sweeps(store, self._wake, self._waits_for)

    def prepare(self, request: SweepRequest) -> SaveRows:
        """Returns a function that writes the rows of a new sweep. Names are resolved before, so
        that writing takes little time. Raises Invalid or UnknownName."""
        with self._store.reading() as rows:
            document, names = pin_names(rows, request)
        sweep = SweepRow(
            id=new_id(),
            sees_all=self._store.sees_all,
            created_at=datetime.now(UTC),
            profile_id=document["profile"]["id"],
            profile_version=document["profile"]["version"],
            request=document,
            names=names,
            total=count(document),
            waiting=count(document),
            events=0,
        )
        return lambda rows: self._save(rows, sweep)

    def get(self, id_: str) -> dict[str, Any]:
        """Returns the document of a sweep, with what it waits for while it runs. Raises
        NotFound."""
        with self._store.reading() as rows:
            document = _details(rows, rows.sweeps.get(id_))
        if document["state"] == "running":
            document["waits_for"] = self._waits_for()
        return document

    def page(self, query: ListQuery) -> dict[str, Any]:
        """Returns a page of sweeps, the newest first. `next` is the cursor of the page that
        follows."""
        before = read_cursor("sweeps", query.cursor)
        with self._store.reading() as rows:
            # One more than the page has, which tells whether another page follows.
            sweeps = rows.sweeps.newest(query.limit + 1, before)
            page, following = cut_page("sweeps", sweeps, query.limit, lambda sweep: sweep.id)
            outcomes = rows.sweeps.outcomes([sweep.id for sweep in page])
        items = [_sweep_answer(sweep, outcomes[sweep.id]).model_dump(mode="json") for sweep in page]
        return {"items": items, "next": following}

    def item_page(self, id_: str, query: SweepItemQuery) -> dict[str, Any]:
        """Returns a page of a sweep's items by position. Raises NotFound."""
        place = f"sweeps/{id_}"
        after = int(read_cursor(place, query.cursor) or -1)  # positions begin at 0
        with self._store.reading() as rows:
            sweep = rows.sweeps.get(id_)
            # One more than the page has, which tells whether another page follows.
            items = rows.sweeps.items(id_, query.outcome, query.limit + 1, after)
        page, following = cut_page(place, items, query.limit, lambda item: str(item.position))
        return {"items": [item_document(sweep, row) for row in page], "next": following}

    def cancel(self, id_: str) -> dict[str, Any]:
        with self._store.writing() as rows:
            return _details(rows, rows.sweeps.cancel(id_, rows.now()))

    def retry(self, id_: str) -> dict[str, Any]:
        """Makes failed and cancelled items wait again, wakes the runner, and returns the sweep's
        document."""
        with self._store.writing() as rows:
            document = _details(rows, rows.sweeps.retry(id_))
        self._wake()
        return document

    def remove(self, id_: str) -> None:
        with self._store.writing() as rows:
            rows.sweeps.remove(id_)

    def _save(self, rows: Rows, sweep: SweepRow) -> CreatedResource:
        """Writes the rows of a sweep, wakes the runner, and returns the created resource."""
        rows.sweeps.add(sweep)
        self._wake()
        return CreatedResource(_location(sweep.id), _details(rows, sweep), status=ACCEPTED)


def item_document(sweep: SweepRow, row: SweepItemRow) -> dict[str, Any]:
    """Returns the API's document of an item. `row` holds its position and its result, and `sweep`
    the lists that are combined."""
    indices = combination(sweep.request, row.position)
    cluster = sweep.names["clusters"][indices["cluster"]]
    workload = sweep.request["workloads"][indices["workload"]]
    is_ok = row.outcome == "ok"  # otherwise the result says why there is no layout
    return read_stored(
        SweepItem,
        {
            "position": row.position,
            "combination": Combination(**indices),
            "model": sweep.names["models"][indices["model"]],
            "chip": cluster["chip"],
            "num_chips": cluster["num_chips"],
            "seq_len": workload["seq_len"],
            "global_batch": workload["global_batch"],
            "stack": cluster.get("stack") or sweep.names["stacks"][indices["stack"]],
            "outcome": row.outcome or "waiting",
            "recommended": row.result if is_ok else None,
            "problem": None if is_ok else row.result,
        },
    ).model_dump(mode="json")


def progress_document(rows: Rows, sweep: SweepRow) -> dict[str, Any]:
    """Returns the API's document of a sweep, with the number of its items by outcome."""
    outcomes = rows.sweeps.outcomes([sweep.id])[sweep.id]
    return _sweep_answer(sweep, outcomes).model_dump(mode="json")


def _details(rows: Rows, sweep: SweepRow) -> dict[str, Any]:
    """Returns the API's document of a sweep, with its request."""
    progress = progress_document(rows, sweep)
    return read_stored(SweepDetails, {**progress, "request": sweep.request}).model_dump(mode="json")


def _sweep_answer(sweep: SweepRow, outcomes: Mapping[str | None, int]) -> SweepAnswer:
    """Returns a sweep in the form of the API. `outcomes` counts its items by outcome, where None
    stands for those that wait."""
    location = _location(sweep.id)
    return SweepAnswer.model_validate(
        {
            "id": sweep.id,
            "created_at": sweep.created_at,
            "location": location,
            "state": state_of(sweep),
            "total": sweep.total,
            "outcomes": {outcome or "waiting": number for outcome, number in outcomes.items()},
            "profile": ProfileUsed(id=sweep.profile_id, version=sweep.profile_version),
            "finished_at": sweep.finished_at,
            "items": f"{location}/items",
            "events": f"{location}/events",
        }
    )


def state_of(sweep: SweepRow) -> SweepState:
    """Returns "cancelled", "running" while any item waits, or "finished"."""
    if sweep.cancelled_at is not None:
        return "cancelled"
    return "running" if sweep.waiting else "finished"


def _location(id_: str) -> str:
    return f"/v1/sweeps/{id_}"
