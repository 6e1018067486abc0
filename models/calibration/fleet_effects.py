"""What tells the machines of one deployment from those that were published: offsets of their own,
on top of all others.

A fleet's chips are bought, cooled and wired its own way and its stacks are configured its own way.
Reports first move the fleet's offsets (of everything, of a chip, of a stack, of the pair), and what
is known of published runs only as far as those do not explain them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from models.spec.problem import Problem
from models.spec.profile import Neighbourhood, Profile, Term, TermKey, is_of_fleet

Scoped = TypeVar("Scoped", Term, Neighbourhood)
DRIFT = 0.5  # of the spread that an offset begins with, from one calibration to the next


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((files("models") / "data/fleet.json").read_text())
    return data


def _spreads() -> dict[str, dict[str, float]]:
    spreads: dict[str, dict[str, float]] = _data()["spreads"]
    return spreads


def published_benchmarks() -> dict[str, Any]:
    """By operation, generation, extent and size: seconds that were published over those that the
    model says."""
    benchmarks: dict[str, Any] = _data()["benchmarks"]
    return benchmarks


def as_fleet(profile: Profile, problems: Iterable[Problem]) -> Profile:
    """With an offset, at nothing, for every scope of the fleet that these problems are in and that
    it lacks."""
    scopes: defaultdict[str, set[str]] = defaultdict(set)
    for problem in problems:
        for kind, scope in problem.fleet_scopes.items():
            scopes[kind].add(scope)
    added: dict[TermKey, Term] = {}
    for coefficient, spreads in _spreads().items():
        for kind, spread in spreads.items():
            for scope in sorted(scopes[kind]):
                term = Term(
                    coefficient=coefficient,
                    scope=scope,
                    mean=0.0,
                    spread=spread,
                    source="data/fleet.json",
                )
                if term.key not in profile.by_key:
                    added[term.key] = term
    return profile.with_terms(added) if added else profile


def drift(profile: Profile) -> dict[TermKey, float]:
    """Variance by which the fleet's offsets may have changed since they were last learnt: machines
    and software do."""
    return {term.key: (DRIFT * spread) ** 2 for term, spread in _of_fleet(profile)}


def _of_fleet(profile: Profile) -> Iterator[tuple[Term, float]]:
    """Its terms, with the spread that they began with."""
    for term in profile.terms:
        kind = _kind(term.scope)
        if kind is not None:
            yield term, _spreads()[term.coefficient][kind]


def _kind(scope: str) -> str | None:
    if not is_of_fleet(scope):
        return None
    kind = scope.split(":")[1]
    return kind if kind in ("all", "chip", "stack") else "pair"


def as_published(profile: Profile) -> Profile:
    """As it describes the machines of others."""
    return replace(
        profile,
        terms=_of_others(profile.terms),
        neighbourhoods=_of_others(profile.neighbourhoods),
        memory_neighbourhoods=_of_others(profile.memory_neighbourhoods),
    )


def _of_others(scoped: tuple[Scoped, ...]) -> tuple[Scoped, ...]:
    return tuple(one for one in scoped if not is_of_fleet(one.scope))
