"""Random jobs: legal layouts of random problems, with switches that stand anyhow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from models.errors import Invalid
from models.spec import catalogue
from models.spec.architecture import Architecture
from service.formats import huggingface
from service.formats.launch.job import Job
from tests.oracles.random_layouts import random_layouts
from tests.oracles.random_problems import catalogue_problem, pick
from tests.paths import ROOT

_KEPT = 3
"""How many legal layouts of a problem become jobs."""
_CAPACITIES = (None, None, 1.25)
_HYBRIDS = ROOT / "tests/service/formats/hybrids.json"


def random_jobs(
    stacks: Sequence[str], seed: str, models: Sequence[Architecture] = ()
) -> Iterator[Job]:
    """Jobs on these stacks, without end, which are the same for the same seed; of the models of the
    catalogue unless others are given."""
    rng = np.random.default_rng(list(seed.encode()))
    while True:
        try:
            problem = catalogue_problem(rng, catalogue.stack(pick(rng, stacks)))
            workload = replace(problem.workload, capacity_factor=pick(rng, _CAPACITIES))
            problem = replace(problem, workload=workload)
            if models:
                problem = replace(problem, architecture=pick(rng, models))
        except Invalid:  # parts that do not go together, such as a chip and a precision
            continue
        layouts = random_layouts(problem, rng, _KEPT)
        for row in range(len(layouts)):
            yield Job.of(problem, layouts[row])


@cache
def hybrids() -> tuple[Architecture, ...]:
    """Small models with recurrences, sparse attention, or layers of one block."""
    configs = [one["config"] for one in json.loads(_HYBRIDS.read_text())]
    return tuple(dict.fromkeys(map(huggingface.read, configs)))
