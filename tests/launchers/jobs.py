"""Random jobs: legal layouts of random problems, with switches that stand anyhow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from models.errors import Invalid
from models.spec import catalogue
from service.formats.launch.job import Job
from tests.oracles.random_layouts import random_layouts
from tests.oracles.random_problems import catalogue_problem, pick

_KEPT = 3
"""How many legal layouts of a problem become jobs."""


def random_jobs(stacks: Sequence[str], seed: str) -> Iterator[Job]:
    """Jobs on these stacks, without end, which are the same for the same seed."""
    rng = np.random.default_rng(list(seed.encode()))
    while True:
        try:
            problem = catalogue_problem(rng, catalogue.stack(pick(rng, stacks)))
        except Invalid:  # parts that do not go together, such as a chip and a precision
            continue
        layouts = random_layouts(problem, rng, _KEPT)
        for row in range(len(layouts)):
            yield Job.of(problem, layouts[row])
