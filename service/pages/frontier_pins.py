"""Pins mark real chips on the map of a frontier, at the size and bandwidth of their scale-up
domain, with the published runs on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.spec import catalogue
from models.spec.hardware import Chip
from service.pages.evidence_rows import EvidenceRow, ScaleUp, scale_up_of


def pins(runs: Sequence[EvidenceRow]) -> list[dict[str, Any]]:
    """Returns a pin of the map for each pair of domain size and bandwidth that chips or runs have:
    the names of the chips, the newest first, and the published runs there. `row` is a run's
    position in `runs`. A run on a torus has no pin."""
    chips = _chips_by_place()  # a place is a domain size and a bandwidth
    runs_by_place: dict[ScaleUp, list[Mapping[str, Any]]] = {}
    for row, run in enumerate(runs):
        if run.scale_up is not None:
            runs_by_place.setdefault(run.scale_up, []).append(
                {"row": row, "name": run.hardware, "stages": run.run["layout"]["pp"]}
            )
    return [
        {
            "domain": place.domain,
            "gb_s": place.gb_s,
            "names": chips.get(place) or [run["name"] for run in runs_by_place[place]],
            "runs": runs_by_place.get(place, []),
        }
        for place in {**chips, **runs_by_place}
    ]


def _chips_by_place() -> dict[ScaleUp, list[str]]:
    """Returns the ids of the catalogue's chips by their scale-up domain, the newest first."""
    places: dict[ScaleUp, list[Chip]] = {}
    # The catalogue lists a chip once for each of its aliases.
    chips_by_id = {chip.id: chip for chip in catalogue.chips().values()}
    for chip in chips_by_id.values():
        place = scale_up_of(chip)
        if place is not None:
            places.setdefault(place, []).append(chip)
    return {place: [chip.id for chip in _newest_first(chips)] for place, chips in places.items()}


def _newest_first(chips: list[Chip]) -> list[Chip]:
    """Returns the chips sorted by year, the newest first and those without a year last. Of
    chips of a year the plain model comes before its variants, which have longer names."""
    return sorted(chips, key=lambda chip: (-(chip.year or 0), len(chip.id), chip.id))
