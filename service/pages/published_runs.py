"""The published runs of a model, one of each chip, to stand beside a frontier."""

from __future__ import annotations

from collections.abc import Iterator

from service.pages.evidence_rows import EvidenceRow
from service.routes.dependencies import Services
from service.schemas.evidence import EvidenceQuery

_MOST_PAGES = 4  # of 50 runs: no model has more, and each takes a millisecond or two


def fastest_by_chip(services: Services, model: str) -> list[EvidenceRow]:
    """Returns the fastest published run of a model on each kind of chip, by tokens per second and
    chip. Runs with the fewest pipeline stages come first. Raises UnknownName for an unknown
    model."""
    best: dict[str, EvidenceRow] = {}
    for row in _successful_runs(services, model):
        if row.chip not in best or row.speed > best[row.chip].speed:
            best[row.chip] = row
    return sorted(best.values(), key=lambda row: (row.run["layout"]["pp"], -row.speed))


def _successful_runs(services: Services, model: str) -> Iterator[EvidenceRow]:
    """Yields the successful published runs of a model, a page at a time up to _MOST_PAGES."""
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        # 50 is the most that a page may have.
        query = EvidenceQuery(model=model, exact=True, outcome="ok", limit=50, cursor=cursor)
        answer = services.evidence.nearest(query, services.store)
        yield from map(EvidenceRow.of, answer["items"])
        if (cursor := answer["next"]) is None:
            return
