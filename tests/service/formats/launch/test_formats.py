"""What holds for the readers of all launch formats."""

from __future__ import annotations

import resource
from contextlib import suppress
from dataclasses import replace
from itertools import product
from time import process_time

import numpy as np
import pytest

from models.advice.recommendation import recommend
from models.errors import Infeasible, Invalid
from models.spec import catalogue
from models.spec.profile import shipped_profile
from models.spec.stack import Stack
from service.formats.launch.formats import FORMATS, LaunchFormat
from service.formats.launch.job import Inexpressible, Job
from service.formats.launch.megatron.mixers import shared_indexers
from service.formats.launch.recognition import other_format
from tests.launchers.jobs import hybrids
from tests.long import one_in
from tests.oracles.random_problems import catalogue_problem, pick

SECONDS = 4.0
"""Of the processor, for what a request may hold and one tenant's turn can bear."""
MOST_MIB = 512
"""By how much the process may grow: a container of 2 GiB bears a reader beside all else."""
ENDLESS = {
    "assignments": "A=1\n" * 16_000,
    "assignments in front": "A=1 " * 16_000 + "python a.py",
    "overrides": " ".join(f"key{at}=1" for at in range(5000)),
    "flags": " ".join(f"--flag{at} 1" for at in range(5000)),
    "lines": "\n" * 60_000,
    "commands": "a|" * 30_000,
    "brackets": "[" * 60_000,
    "expansions": "$(" * 30_000,
    "dollars": "$" * 60_000,
    "sections": "[a]\n" + "a." * 30_000 + "b=1",
    "lists": "[a]\nx=" + "[" * 60_000,
    "steps": "cfg." + "a." * 32_000 + "b = 1",
    "quoted steps": "[a]\n" + '"a".' * 16_000 + "b = 1",
    "steps of an option": "--a" + ".a" * 32_000 + " 1",
    "names": f"{'a' * 30_000}: {{{', '.join(f'b{at}: 1' for at in range(3500))}}}",
    "TOML names": f"[{'a' * 30_000}]\n" + "\n".join(f"b{at} = 1" for at in range(3000)),
    "branches": "if a; then\n" * 5000,
}


@pytest.mark.parametrize(("format_", "text"), one_in(5, product(FORMATS, ENDLESS)))
def test_no_text_takes_a_reader_long_or_much_memory(format_: str, text: str) -> None:
    peak = _peak_mib()
    before = process_time()
    with suppress(Invalid):
        FORMATS[format_].read(ENDLESS[text], None)
    other_format(format_, ENDLESS[text])
    assert process_time() - before < SECONDS
    assert _peak_mib() - peak < MOST_MIB


def _peak_mib() -> float:
    """The most that this process has taken so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


_QUESTIONS = 2
_MANY_QUESTIONS = 40
_LONG = {"seq_len": 131072, "global_batch": 32}
"""A batch of few long sequences, which asks for context parallelism."""


def _unwritable(stack: Stack, format_: LaunchFormat, count: int) -> list[str]:
    """What the format says of recommended layouts that it has no words for, of random questions."""
    rng = np.random.default_rng(list(stack.id.encode()))
    found = list[str]()
    while count:
        with suppress(Invalid, Infeasible):
            problem = replace(catalogue_problem(rng, stack), stack=stack)
            # No format but Megatron's has words for a loss that waits for all forward passes, nor
            # does MaxText lay a mesh over slices that its axes do not divide.
            workload = replace(problem.workload, load_balancing="bias")
            if rng.random() < 0.4:
                workload = replace(workload, **_LONG)
            if rng.random() < 0.4:
                problem = replace(problem, architecture=pick(rng, hybrids()))
            # Megatron begins a chunk with a layer that has an indexer of its own, which the search
            # does not know: `launch.error` of the answer says it.
            if any(shared_indexers(problem.architecture)):
                continue
            if problem.cluster.is_torus or stack.id == "maxtext":
                problem = replace(problem, cluster=catalogue.cluster("h100", 64))
            problem = replace(problem, workload=workload)
            answer = recommend(problem, shipped_profile())
            count -= 1
            for one in (answer.recommended, answer.fastest):
                job = Job.of(problem, one.prediction.layout)
                try:
                    format_.write(job)
                except Inexpressible as error:
                    if error.field.startswith("layout"):
                        found.append(f"{job.layout.summary()}: {error}")
    return found


_EVERY_STACK = pytest.mark.parametrize(
    ("stack", "format_"),
    [(stack, format_) for format_ in FORMATS.values() for stack in format_.stacks],
    ids=[stack for format_ in FORMATS.values() for stack in format_.stacks],
)


@_EVERY_STACK
def test_what_is_recommended_can_be_launched(stack: str, format_: LaunchFormat) -> None:
    assert not _unwritable(catalogue.stack(stack), format_, _QUESTIONS)


@pytest.mark.long
@_EVERY_STACK
def test_what_is_recommended_to_many_can_be_launched(stack: str, format_: LaunchFormat) -> None:
    assert not _unwritable(catalogue.stack(stack), format_, _MANY_QUESTIONS)
