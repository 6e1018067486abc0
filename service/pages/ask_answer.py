"""A recommendation as the Ask page shows it: rows of its tables, out of the API's document. A
*term* is a part of a prediction, such as compute time; its *ground* is the evidence for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from service.pages.mesh import Mesh, mesh_of
from service.pages.torus import is_torus
from service.pages.words import GROUNDS, MEMORY_TERMS, TIME_TERMS, Term, ground, nonzero


@dataclass(frozen=True, slots=True)
class NamedLayout:
    """A layout of the answer under the names that it has there."""

    position: int
    names: tuple[str, ...]
    candidate: Mapping[str, Any]

    @property
    def prediction(self) -> Mapping[str, Any]:
        prediction: Mapping[str, Any] = self.candidate["prediction"]
        return prediction


@dataclass(frozen=True, slots=True)
class TermRow:
    term: Term
    value: float
    share: float
    ground: str
    """The evidence that the value rests on, in words."""


def named_layouts(answer: Mapping[str, Any]) -> list[NamedLayout]:
    """Returns the recommended, the fastest, the simplest and the bold layout of an answer (bold is
    faster and less sure to fit). A layout that is several of these comes once, with all names."""
    bolder = answer["bolder"]
    positions = {
        "recommended": answer["recommended"],
        "fastest": answer["fastest"],
        "simplest": answer["simplest"],
        "bold": None if bolder is None else bolder["layout"],
    }
    names: dict[int, list[str]] = {}
    for name, position in positions.items():
        if position is not None:
            names.setdefault(position, []).append(name)
    return [
        NamedLayout(position, tuple(layout_names), answer["layouts"][position])
        for position, layout_names in names.items()
    ]


def time_rows(prediction: Mapping[str, Any]) -> list[TermRow]:
    return _term_rows(prediction, TIME_TERMS, prediction["time"], prediction["step_time_s"])


def memory_rows(prediction: Mapping[str, Any]) -> list[TermRow]:
    return _term_rows(prediction, MEMORY_TERMS, prediction["memory_gib"], prediction["needed_gib"])


def _term_rows(
    prediction: Mapping[str, Any],
    terms: tuple[Term, ...],
    values: Mapping[str, float],
    total: float,
) -> list[TermRow]:
    """Returns the rows of a table of terms, without those that are zero. `values` maps fields of
    terms to seconds or GiB, and `total` is what each row's share is a part of."""
    grounds = (prediction.get("provenance") or {}).get("terms", {})
    return [
        TermRow(
            term,
            values[term.field],
            values[term.field] / total if total else 0.0,
            GROUNDS.get(ground(grounds, term.field), ""),
        )
        for term in nonzero(terms, values)
    ]


def mesh_of_answer(answer: Mapping[str, Any]) -> Mesh:
    """Returns the mesh of the recommended layout, drawn on the innermost links of the cluster."""
    layout = answer["layouts"][answer["recommended"]]["prediction"]["layout"]
    # `placement` lists the axes of the mesh, whose degrees multiply to the number of devices.
    num_devices = prod(layout[axis] for axis in layout["placement"])
    links = answer["catalogue"]["fabric"]["links"]  # from the inside out
    has_domain = links and not is_torus(links) and links[0].get("scale") == "up"
    # The job may use fewer chips than a domain has, and a chip may have several devices.
    domain = links[0]["domain"] if has_domain else None
    return mesh_of(layout, num_devices, domain, links)


def sorted_switches(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the switches of the software stack, sorted by how much the step time would change if
    each were set the other way, largest first."""

    def time_difference(switch: Mapping[str, Any]) -> float:
        # `otherwise` has the differences that the other setting makes to the answer.
        return abs((switch["otherwise"] or {}).get("step_time_s") or 0.0)

    return sorted(answer["switches"], key=time_difference, reverse=True)
