"""What pipelines idle at least, against what models.pipeline has them idle."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from models.chains import passes
from models.layout import SCHEDULES, Layouts
from models.partition import Order
from models.pipeline import StageTimes, bubble, waiting
from models.space import neutral

shares = st.floats(0.0, 1.0)


def schedules(name: str, virtual: int) -> Layouts:
    return neutral(1).having(schedule=np.array([SCHEDULES.index(name)]), virtual_stages=np.array([virtual]))


@settings(max_examples=300)
@given(
    st.sampled_from(
        [(name, v) for name in SCHEDULES for v in {"interleaved": (2, 3), "zero_bubble_v": (2,)}.get(name, (1,))]
    ),
    st.lists(st.tuples(st.floats(0.01, 10.0), shares, shares), min_size=2, max_size=12),
    st.integers(1, 40),
    shares,
)
def test_a_step_is_no_shorter_than_any_stage_bounds(
    schedule: tuple[str, int], stages: list[tuple[float, float, float]], m: int, weights: float
) -> None:
    """Each stage with its own pass, share of forward, and share of the largest weight gradients that there may be."""
    name, virtual = schedule
    if name == "dualpipe":
        stages += stages[::-1]
        m += 2 * len(stages)
    both, forward, weight = np.array(stages).T
    forward = forward * both
    weight = np.minimum(weights * weight * both, both - forward)
    pp, one = np.array([len(stages)]), np.array([m])
    code, v = np.array([SCHEDULES.index(name)]), np.array([virtual])
    times = StageTimes(
        forward[:, None],
        (both - forward)[:, None],
        weight[:, None],
        np.array([forward.sum()]),
        np.array([both.sum()]),
        np.array([weight.sum()]),
        Order.of(np.arange(len(stages))[None], pp),
        np.zeros(1, dtype=int),
    )
    step = (m * both + bubble(code, pp, v, one, times, waiting(code, pp, one, times))[:, 0]).max()
    idle, longer = (float(of[0, 0]) for of in passes(schedules(name, virtual), pp, one, weights))
    mean = both.mean()
    assert longer >= 0
    assert ((m + idle) * mean + longer * np.maximum(both - mean, 0.0)).max() <= step * (1 + 1e-9)
