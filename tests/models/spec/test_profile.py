"""The shipped profile."""

from __future__ import annotations

from tests.models.cost.examples import PROFILE


def test_the_shipped_profile_knows_the_newest_software_of_each_generation() -> None:
    newest = {one.scope: one.year for one in PROFILE.newest}
    assert newest["generation:volta"] < newest["generation:ampere"] < newest["generation:hopper"]
    assert max(newest.values()) <= PROFILE.software_year
