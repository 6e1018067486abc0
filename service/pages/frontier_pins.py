"""Real chips on the map of a frontier: where their scale-up links lie, and what was run there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.spec import catalogue
from models.spec.hardware import Chip
from service.pages.evidence_rows import EvidenceRow, ScaleUp, scale_up_of


def pins(runs: Sequence[EvidenceRow]) -> list[dict[str, Any]]:
    """Returns the places of scale-up links: the size and the bandwidth of a domain, the chips of
    the catalogue that share it, the newest first, and which of the published runs were made there,
    by their rows. A run on a torus has no place."""
    chips = _chips_by_place()
    made: dict[ScaleUp, list[Mapping[str, Any]]] = {}
    for row, run in enumerate(runs):
        if run.scale_up is not None:
            made.setdefault(run.scale_up, []).append(
                {"row": row, "name": run.hardware, "stages": run.run["layout"]["pp"]}
            )
    return [
        {
            "domain": place.domain,
            "gb_s": place.gb_s,
            "names": chips.get(place) or [run["name"] for run in made[place]],
            "runs": made.get(place, []),
        }
        for place in {**chips, **made}
    ]


def _chips_by_place() -> dict[ScaleUp, list[str]]:
    places: dict[ScaleUp, list[Chip]] = {}
    for chip in {chip.id: chip for chip in catalogue.chips().values()}.values():
        place = scale_up_of(chip)
        if place is not None:
            places.setdefault(place, []).append(chip)
    return {place: [chip.id for chip in _newest_first(there)] for place, there in places.items()}


def _newest_first(chips: list[Chip]) -> list[Chip]:
    return sorted(chips, key=lambda chip: (-(chip.year or 0), len(chip.id), chip.id))
