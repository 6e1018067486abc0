"""The layouts of a stored recommendation, whichever form it was stored in.

Answers have each layout once, in `layouts`, and name it by its position there. Older ones have the
layouts in full wherever they are named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import Invalid

_NAMES = ("recommended", "fastest", "simplest", "bolder", "surer")


@dataclass(frozen=True, slots=True)
class RecommendedLayouts:
    """Layouts of a recommendation with their predictions, as `PredictedLayout` has them. `ranked`
    has the fastest first; `named` has those with a name, such as "simplest"; `default` is the one
    that counts if a caller names none."""

    ranked: list[dict[str, Any]]
    named: dict[str, dict[str, Any]]
    default: dict[str, Any]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> RecommendedLayouts:
        """Reads the layouts of a stored recommendation, in either form."""
        return _read_positions(document) if "layouts" in document else _read_older_form(document)

    def with_name(self, choice: str) -> dict[str, Any]:
        """Returns the layout with this name. Raises Invalid if there is none."""
        if choice not in self.named:
            raise Invalid("choice", choice, "is not among those of the recommendation")
        return self.named[choice]


def _read_positions(document: Mapping[str, Any]) -> RecommendedLayouts:
    """Reads an answer that names its layouts by their positions in `layouts`."""
    predictions = [layout["prediction"] for layout in document["layouts"]]
    positions = {name: document.get(name) for name in _NAMES}
    # "bolder", a faster layout that is less sure to fit, is an object with the position in it.
    if document["bolder"] is not None:
        positions["bolder"] = document["bolder"]["layout"]
    by_name = {
        name: predictions[position] for name, position in positions.items() if position is not None
    }
    return RecommendedLayouts(
        ranked=[predictions[position] for position in document["ranked"]],
        named=by_name,
        default=by_name["recommended"],
    )


def _read_older_form(document: Mapping[str, Any]) -> RecommendedLayouts:
    """Reads an answer of an older form, which has each layout in full wherever it is named. Its
    default is the fastest layout, as it was then, whatever was recommended."""
    candidates = {name: document.get(name) for name in _NAMES}
    # Some releases stored the name of the recommended layout, "fastest" or "simplest".
    if isinstance(document.get("recommended"), str):
        candidates["recommended"] = document[document["recommended"]]
    ranked = [layout["prediction"] for layout in document["ranked"]]
    return RecommendedLayouts(
        ranked=ranked,
        named={
            name: candidate["prediction"]
            for name, candidate in candidates.items()
            if candidate is not None
        },
        default=ranked[0],
    )
