from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from numba.core import event

from models.advice.recommendation import recommend
from models.cost.predictions import predict
from models.errors import Infeasible
from models.search.warm_up import warm_up
from tests.oracles.random_questions import (
    PROFILE,
    random_coefficients,
    random_layouts,
    random_problem,
    small_search_problem,
)
from tests.paths import ROOT

COMPILES_NOTHING = """
from numba.core import event
from models.search.warm_up import warm_up

with event.install_recorder("numba:compile") as compiled:
    warm_up()
assert not compiled.buffer, [each.data["dispatcher"] for _, each in compiled.buffer]
"""


@pytest.fixture
def compiled() -> Iterator[event.RecordingListener]:
    """What is compiled once the cost model is warm."""
    warm_up()
    with event.install_recorder("numba:compile") as recorder:
        yield recorder


def test_what_one_process_has_compiled_another_loads(compiled: event.RecordingListener) -> None:
    subprocess.run([sys.executable, "-c", COMPILES_NOTHING], cwd=ROOT, check=True)


@pytest.mark.parametrize("seed", range(5))
def test_other_questions_compile_nothing(seed: int, compiled: event.RecordingListener) -> None:
    drawn = np.random.default_rng(seed)
    for problem in (random_problem(drawn) for _ in range(3)):
        if layouts := random_layouts(problem, drawn, 20):
            predict(problem, layouts, random_coefficients(problem, drawn))
    assert not [each.data["dispatcher"] for _, each in compiled.buffer]


@pytest.mark.parametrize("seed", range(5))
def test_other_searches_compile_nothing(seed: int, compiled: event.RecordingListener) -> None:
    for index in range(6):
        problem, constraints = small_search_problem(np.random.default_rng([seed, index]))
        with suppress(Infeasible):
            recommend(problem, PROFILE, constraints)
    assert not [each.data["dispatcher"] for _, each in compiled.buffer]
