"""Fleet effects are offsets that the machines of one deployment, a fleet, have on top of all
others. They tell these machines from those that were published. An *offset* is what a scope, such
as a chip, a stack or the pair of both, adds to a coefficient (models.spec.profile).

A fleet's chips are bought, cooled and wired in a way of their own, and so are its stacks
configured. Reports move the fleet's offsets first. Only what these offsets leave unexplained moves
what is known of published runs. Compute has offsets for a chip and for a chip with a stack, and
none for the whole fleet, so that reports move other chips and stacks little.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from models.package_data import read_json
from models.spec.problem import Problem
from models.spec.profile import Neighbourhood, Profile, Term, TermKey, is_of_fleet

Scoped = TypeVar("Scoped", Term, Neighbourhood)
# The share of its initial spread by which an offset may drift from one calibration to the next.
DRIFT_SHARE = 0.5


@cache
def _data() -> dict[str, Any]:
    """Return the content of data/fleet.json, which is read once: "spreads" has the spread of an
    offset before any run, by coefficient and kind of scope, and "benchmarks" published ones."""
    data: dict[str, Any] = read_json("models", "data/fleet.json")
    return data


def published_benchmarks() -> dict[str, Any]:
    """Return the ratios of published seconds of micro-benchmarks to the model's, against which a
    fleet's own benchmarks are compared. They are nested by operation, generation of chips, extent
    ("one domain" or "several domains") and size."""
    benchmarks: dict[str, Any] = _data()["benchmarks"]
    return benchmarks


def with_fleet_offsets(profile: Profile, problems: Iterable[Problem]) -> Profile:
    """Return the profile with fleet offsets for all scopes of these problems. New offsets have the
    mean zero and their initial spread."""
    scopes: defaultdict[str, set[str]] = defaultdict(set)
    for problem in problems:
        for kind, scope in problem.fleet_scopes.items():
            scopes[kind].add(scope)
    added: dict[TermKey, Term] = {}
    # The data list which coefficients may differ between fleets, and between which kinds of scopes.
    for coefficient, spreads in _data()["spreads"].items():
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


def drift_variance(profile: Profile) -> dict[TermKey, float]:
    """Return, by key, the variance that each of the fleet's offsets may have gained since it was
    last learnt, because machines and software change."""
    # A share of the spread that the offset had before any run, told by data/fleet.json.
    return {
        term.key: (DRIFT_SHARE * spread) ** 2
        for term in profile.terms
        if (spread := _initial_spread(term)) is not None
    }


def _initial_spread(term: Term) -> float | None:
    """Return the spread of a fleet's offset before any run; None for terms of published runs, and
    for offsets that fleets had in an earlier release only."""
    if not is_of_fleet(term.scope):
        return None
    # "fleet:chip:h100" -> "chip". The scope of a pair has names in place of the kind:
    # "fleet:h100/megatron" -> "pair", "fleet:h100/megatron/sparse" -> "sparse".
    kind = term.scope.split(":")[1]
    if kind not in ("all", "chip", "stack", "model", "sequence"):
        kind = "sparse" if kind.endswith("/sparse") else "pair"
    spreads: dict[str, float] = _data()["spreads"].get(term.coefficient, {})
    return spreads.get(kind)


def without_fleet(profile: Profile) -> Profile:
    """Return the profile without the fleet's offsets and spreads, as it describes published
    machines, of which the fleet's reports say nothing."""
    return replace(
        profile,
        terms=_not_of_fleet(profile.terms),
        neighbourhoods=_not_of_fleet(profile.neighbourhoods),
        memory_neighbourhoods=_not_of_fleet(profile.memory_neighbourhoods),
    )


def _not_of_fleet(scoped: tuple[Scoped, ...]) -> tuple[Scoped, ...]:
    return tuple(entry for entry in scoped if not is_of_fleet(entry.scope))
