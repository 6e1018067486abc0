"""Learned changes say by how much a predicted step time differs from that of the version that the
profile is based on, and how much of it each group of measurements caused.

A profile adds *terms* to the coefficients of the cost model, for scopes such as one chip or one
stack (models.spec.profile). A *shift* is how far a fit moved these terms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.columns import Array
from models.cost.facts import coefficient_records
from models.cost.predictions import step_costs_under_each
from models.prediction.prediction import predictions_of
from models.spec.identity import cached_by_identity
from models.spec.influences import Influence, Influences
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile

_CACHED_SCOPES = 64  # profiles with the scopes of a problem


@dataclass(frozen=True, slots=True)
class LearnedChanges:
    """The relative change of a step time against version `against_version`, and the change that
    each group of measurements causes: the step time over what it would be without the group's
    shift, less 1. No step time is a sum over groups, so their changes add up to the whole only
    where they are small."""

    against_version: int
    step_time_change: float
    groups: tuple[tuple[Influence, float], ...]


def learned_changes(problem: Problem, layout: Layout, profile: Profile) -> LearnedChanges | None:
    """Return how the measurements that a profile was fitted to changed the step time of a legal
    layout, in all and by group. Return None where the profile does not say what it learned from
    which group."""
    influences = profile.influences
    if influences is None:
        return None
    rows = predictions_of(problem, profile, layout).rows
    coefficients = _without_shifts(profile, influences, problem.scopes)
    step_time_s = step_costs_under_each(rows, coefficients).step_time_s
    # First with all that was learned, then without any of it, then without one group each.
    as_learned_s, without_s = step_time_s[0], step_time_s[1:]
    whole, *by_group = (as_learned_s / without_s - 1).tolist()
    return LearnedChanges(
        against_version=influences.against_version,
        step_time_change=whole,
        groups=tuple(zip(influences.groups, by_group, strict=True)),
    )


@cached_by_identity(_CACHED_SCOPES, objects=2)
def _without_shifts(profile: Profile, influences: Influences, scopes: tuple[str, ...]) -> Array:
    """Return records of coefficients, (2 + groups,): first as the profile has them, then with the
    whole shift from the version before taken off, then with the shift of one group each taken off.
    """
    no_shift = (0.0,) * len(influences.terms)
    taken_off = [no_shift, influences.shift, *(group.shift for group in influences.groups)]
    # An array (2 + groups,) by term, which is added to the term's mean.
    offsets = dict(zip(influences.terms, -np.array(taken_off).T, strict=True))
    coefficients = profile.coefficients(scopes, offsets)
    # Where no shifted term is in these scopes there is one record, which stands for all.
    return np.broadcast_to(coefficient_records(coefficients), len(taken_off))
