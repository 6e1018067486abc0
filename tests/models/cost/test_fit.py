"""Whether memory fits, by the formula written out for one layout."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.columns import Array
from models.cost.fit import NO_SPREAD, Margin, MemorySpread, fits, memory_spreads
from models.cost.memory_terms import MEMORY

GIB = 2.0**30
SPREAD = MemorySpread(
    measured=0.1,
    unidentified=0.05,
    activation_variance=0.2,
    logit_variance=0.3,
    fragmentation_variance=0.6,
)
sizes = st.floats(0, 40)
terms = st.fixed_dictionaries(dict.fromkeys(MEMORY, sizes))


def row(terms: dict[str, float]) -> Array:
    return np.array([[terms[name] * GIB for name in MEMORY]])


def written_out(terms: dict[str, float]) -> float:
    """The spread of the logarithm of what a layout reserves."""
    allocated = sum(
        terms[name] for name in MEMORY if name not in ("context_bytes", "fragmentation_bytes")
    )
    reserved = allocated + terms["fragmentation_bytes"]
    variance = 0.0
    if allocated > 0:
        variance += SPREAD.activation_variance * (terms["activations_bytes"] / allocated) ** 2
        variance += SPREAD.logit_variance * (terms["logits_bytes"] / allocated) ** 2
    if reserved > 0:
        share = terms["fragmentation_bytes"] / reserved
        variance += SPREAD.fragmentation_variance * share**2
    return math.sqrt(SPREAD.measured**2 + max(variance - SPREAD.unidentified**2, 0.0))


@given(terms)
def test_the_spread_grows_with_the_share_of_what_no_run_informed(terms: dict[str, float]) -> None:
    at_least_a_byte = {name: size if size > 1e-6 else 0.0 for name, size in terms.items()}
    (spread,) = memory_spreads(SPREAD, row(at_least_a_byte))
    assert spread == pytest.approx(written_out(at_least_a_byte))


@given(terms, st.floats(0, 300), st.floats(0, 3), st.floats(0, 300))
def test_a_layout_fits_where_its_memory_times_the_safety_factor_does(
    terms: dict[str, float], usable: float, deviations: float, on_host: float
) -> None:
    at_least_a_byte = {name: size if size > 1e-6 else 0.0 for name, size in terms.items()}
    factor = math.exp(deviations * written_out(at_least_a_byte))
    runtime = at_least_a_byte["context_bytes"]
    needed = factor * (sum(at_least_a_byte.values()) - runtime) + runtime
    margin = Margin(
        capacity=np.inf, usable=usable * GIB, host=200 * GIB, deviations=deviations, spread=SPREAD
    )
    (found,) = fits(margin, row(at_least_a_byte), np.array([on_host * GIB]))
    if not math.isclose(needed, usable) and not math.isclose(factor * on_host, 200):
        assert found == (needed <= usable and factor * on_host <= 200)


@given(terms, st.floats(0, 300))
def test_a_prediction_fits_where_it_is_within_capacity(
    terms: dict[str, float], capacity: float
) -> None:
    margin = Margin(
        capacity=capacity * GIB, usable=np.inf, host=np.inf, deviations=0.0, spread=NO_SPREAD
    )
    (found,) = fits(margin, row(terms), np.zeros(1))
    if not math.isclose(sum(terms.values()), capacity):
        assert found == (sum(terms.values()) <= capacity)
