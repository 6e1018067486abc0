"""The shipped profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.spec.profile import Neighbourhood, Profile, priors
from tests.models.cost.examples import PROFILE


def test_the_shipped_profile_knows_the_newest_software_of_each_generation() -> None:
    newest = {one.scope: one.year for one in PROFILE.newest}
    assert newest["generation:volta"] < newest["generation:ampere"] < newest["generation:hopper"]
    assert max(newest.values()) <= PROFILE.software_year


def test_a_fleet_learns_where_it_lies_among_sources_from_its_own_runs() -> None:
    """Against the posterior of a mean on a grid: prior N(0, 0.2²), five runs of N(mean, 0.1²)."""
    grid = np.linspace(-2, 2, 200_001)
    log_density = -(grid**2) / (2 * 0.2**2) - 5 * (grid - 0.3) ** 2 / (2 * 0.1**2)
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    mean = (grid * density).sum()
    on_grid = float(np.sqrt(((grid - mean) ** 2 * density).sum()))
    fleet = Neighbourhood(scope="fleet:chip", spread=0.1, unidentified=0.0, runs=5)
    assert fleet.with_between_sources(0.2).between == pytest.approx(on_grid, rel=1e-6)
    assert replace(fleet, runs=0).with_between_sources(0.2).between == pytest.approx(0.2)


def test_published_runs_never_tell_where_an_unseen_source_lies() -> None:
    many = Neighbourhood(scope="stack:megatron/dense", spread=0.1, unidentified=0.0, runs=10_000)
    seen = many.with_between_sources(0.2)
    assert seen.between == 0.2
    assert seen.total == pytest.approx(np.hypot(0.1, 0.2))
    assert seen.spread_within_source(0.0) == pytest.approx(0.1)
    assert seen.spread_for_unseen_source(0.0) == pytest.approx(seen.total)


def test_a_stored_profile_keeps_how_far_sources_lie_apart() -> None:
    made = replace(PROFILE, between_sources=0.21, memory_between_sources=0.17)
    assert Profile.from_json(made.to_json()) == made


def test_an_offset_that_no_run_has_told_is_as_wide_for_a_known_chip_as_for_a_new_one() -> None:
    scopes = ("chip:h100-sxm-80gb", "chip:never-heard-of")
    prior = priors().with_offsets(scopes)
    for coefficient in ("gemm_16", "attention", "memory"):
        known, unknown = (prior.by_key[coefficient, scope] for scope in scopes)
        assert (known.mean, known.spread) == (unknown.mean, unknown.spread)
        assert known.is_unknown
    assert not {key for key in prior.by_key if key[1] in scopes and key[0] == "send_s"}


def test_what_runs_have_told_stays_where_offsets_are_added() -> None:
    told = PROFILE.with_offsets(("stack:megatron", "generation:hopper"))
    assert told.by_key.items() >= PROFILE.by_key.items()
    assert PROFILE.with_offsets(()) is PROFILE
