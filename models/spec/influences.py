"""Influences say which measurements moved the terms of a profile away from those of the version
that it is based on, and by how much.

A *term* is what a scope, such as one stack, adds to a coefficient. It lies on an *unbounded scale*:
the log of a positive coefficient, or the log-odds of a fraction (models.spec.profile).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from models.spec.catalogue import from_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Influence:
    """The measurements of one model on one chip and stack, and the `shift` that they cause.

    `shift` holds, for each of the terms of `Influences`, a part of the way from the version before,
    on the unbounded scale. `parameters` tells models apart that have no name of their own.
    Benchmarks are of no model. `latest` holds the keys of the last few measurements, newest first.
    Names are None where they are not told, and in a group that stands for several small ones.
    """

    chip: str | None
    stack: str | None
    model: str | None
    parameters: int | None
    runs: int
    benchmarks: int
    latest: tuple[str, ...]
    shift: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Influences:
    """The shift of the `terms` of a profile from version `against_version`, and the influences that
    it is the sum of, up to where the fit stopped. A term is a coefficient and a scope."""

    against_version: int
    terms: tuple[tuple[str, str], ...]
    shift: tuple[float, ...]
    groups: tuple[Influence, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Influences:
        groups = [from_json(Influence, group) for group in data["groups"]]
        return from_json(cls, {**data, "groups": groups})
