"""The title of a page says the answer of its frontier, out of the API's document.

A *frontier* is a grid of *points*, each a cluster and a model with the best layouts with and
without a pipeline. The *gap* of a point is the relative time that going without one costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from service.pages.numbers import count, percent, significant

_LARGER_IS_SIMPLER = {"domain", "scale_up", "scale_out"}
"""Along the other axes it is the smaller cluster and model that do without a pipeline."""
_SAID_IN_ORDER = ("layers", "num_chips", "domain", "scale_up", "scale_out")
_LINKS = {"scale_up": "up", "scale_out": "out"}


def title(answer: Mapping[str, Any], grid: Mapping[str, Sequence[float]], tolerance: float) -> str:
    """Returns a sentence that says where a layout without a pipeline is predicted to cost no more
    than the tolerance. `grid` has the values of each axis. So that one sentence can say it, it
    describes only the largest rectangle of such points that reaches a corner of the grid."""
    points = {tuple(point["at"][name] for name in grid): point for point in answer["points"]}
    cheap = {place for place, point in points.items() if costs_more(point, tolerance) is False}
    begin = "Without a pipeline a step is predicted to take"
    without = f"{begin} at most {percent(tolerance)} longer"
    if len(cheap) == len(points):
        return f"{without} everywhere in this picture"
    # Each point is the corner of a rectangle that reaches to where pipelines are needed least. Only
    # corners count for whose whole rectangle leaving out the pipeline is cheap.
    corners = [
        corner for corner in product(*grid.values()) if _points_beyond(corner, grid) <= cheap
    ]
    if corners:
        best = max(corners, key=lambda corner: len(_points_beyond(corner, grid)))
        limits = dict(zip(grid, best, strict=True))
        parts = [_limit_phrase(answer, limits, name) for name in _SAID_IN_ORDER if name in limits]
        needs = {points[place]["pipeline_needed"] for place in _points_beyond(best, grid)}
        doubt = "; the 80% intervals leave open whether it does" if needs == {"undecided"} else ""
        return f"{without} {', '.join(parts)}{doubt}"
    if cheap:
        return f"{without} at {len(cheap)} of {len(points)} points"
    return f"{begin} over {percent(tolerance)} longer everywhere in this picture"


def costs_more(point: Mapping[str, Any], tolerance: float) -> bool | None:
    """Returns whether leaving out the pipeline costs more than the tolerance at a point; None where
    that is unknown."""
    if point["gap"] is not None:
        return bool(point["gap"] > tolerance)
    # A search that was cut short may have missed a layout, and where neither kind of layout exists
    # there is nothing to compare.
    none_exists = point["without_s"] is None and point["with_s"] is None
    if not point["exact"] or none_exists:
        return None
    # Only one kind of layout exists: going without a pipeline is impossible, or costs nothing.
    return point["without_s"] is None


def _points_beyond(
    corner: tuple[float, ...], grid: Mapping[str, Sequence[float]]
) -> set[tuple[float, ...]]:
    """Returns the points of the grid between this corner and the one where a pipeline is needed
    least: larger domains and bandwidths, fewer chips and layers."""
    beyond = [
        [value for value in values if _is_beyond(name, value, limit)]
        for (name, values), limit in zip(grid.items(), corner, strict=True)
    ]
    return set(product(*beyond))


def _is_beyond(name: str, value: float, limit: float) -> bool:
    """Returns whether a value on the axis `name` needs a pipeline no more than the limit does."""
    return value >= limit if name in _LARGER_IS_SIMPLER else value <= limit


def _limit_phrase(answer: Mapping[str, Any], limits: Mapping[str, float], name: str) -> str:
    """Returns a phrase for the limit on one axis, such as "on up to 512 chips". `limits` holds the
    limits of all axes of the picture, and `answer` the links by which multiples become GB/s."""
    value = limits[name]
    if name == "domain":
        return f"in domains of {count(value)} chips and more"
    if name == "num_chips":
        return f"on up to {count(value)} chips"
    if name == "layers":
        return f"with up to {significant(value)} times the layers"
    # The phrase about domains, if there is one, comes before this one.
    domains = "them" if "domain" in limits else "domains"
    where = "within" if name == "scale_up" else "between"
    gb_s = link_gb_s(answer, _LINKS[name])
    speed = (
        f"{significant(value)} times the bandwidth" if gb_s is None else f"{gb_s * value:,.0f} GB/s"
    )
    return f"at {speed} and more {where} {domains}"


def link_gb_s(answer: Mapping[str, Any], scale: str) -> float | None:
    """Returns the bandwidth in GB/s per chip of the cluster's innermost switched links of a scale,
    "up" or "out"; None where it has none."""
    for link in answer["catalogue"]["fabric"]["links"]:
        if (link["kind"], link.get("scale")) == ("switch", scale):
            return float(link["gb_s"])
    return None
