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
from tests.benchmarks.problems import problem
from tests.long import one_in
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


@pytest.mark.long
def test_what_one_process_has_compiled_another_loads(compiled: event.RecordingListener) -> None:
    subprocess.run([sys.executable, "-c", COMPILES_NOTHING], cwd=ROOT, check=True)


@pytest.mark.parametrize("seed", range(5))
def test_other_questions_compile_nothing(seed: int, compiled: event.RecordingListener) -> None:
    drawn = np.random.default_rng(seed)
    for asked in (random_problem(drawn) for _ in range(3)):
        if layouts := random_layouts(asked, drawn, 20):
            predict(asked, layouts, random_coefficients(asked, drawn))
    assert not [each.data["dispatcher"] for _, each in compiled.buffer]


@pytest.mark.parametrize(
    ("model", "cluster", "stack", "global_batch"),
    [
        ("mixtral-8x7b", ("h100", 8), "torchtitan", 1),  # a single chain
        ("llama-3.2-1b", ("h100", 1), "fsdp", 1),  # a single mesh
        ("llama-3.1-8b", ("tpu-v5p", 64), "maxtext", 64),  # a torus
        ("deepseek-v3", ("gb300", 144), "generic", 288),
    ],
)
def test_searches_of_other_sizes_compile_nothing(
    model: str,
    cluster: tuple[str, int],
    stack: str,
    global_batch: int,
    compiled: event.RecordingListener,
) -> None:
    question = problem(model, cluster, stack, seq_len=4096, global_batch=global_batch)
    with suppress(Infeasible):
        recommend(question, PROFILE)
    assert not [each.data["dispatcher"] for _, each in compiled.buffer]


@pytest.mark.parametrize("seed", one_in(12, range(12)))
def test_other_searches_compile_nothing(seed: int, compiled: event.RecordingListener) -> None:
    for index in range(6):
        asked, constraints = small_search_problem(np.random.default_rng([seed, index]))
        with suppress(Infeasible):
            recommend(asked, PROFILE, constraints)
    assert not [each.data["dispatcher"] for _, each in compiled.buffer]
