"""How a config.json stretches rotary positions."""

from __future__ import annotations

from service.formats.rope_scaling import RopeScaling


def test_either_spelling_of_the_kind_is_read() -> None:
    for key in ("rope_type", "type"):
        found = RopeScaling.of({key: "yarn", "factor": 40, "truncate": True})
        assert found == RopeScaling(kind="yarn", numbers={"factor": 40.0})


def test_positions_that_are_not_stretched_have_no_scaling() -> None:
    assert RopeScaling.of({"rope_type": "default", "rope_theta": 1e4}) is None
    assert RopeScaling.of({}) is None


def test_a_number_that_is_left_out_has_the_default() -> None:
    found = RopeScaling.of({"type": "yarn", "beta_fast": 32})
    assert found is not None
    assert found.has_numbers(beta_fast=32, beta_slow=1)
    assert not found.has_numbers(beta_fast=16)
