"""Jobs for the tests of launch formats to write, and the layouts that are read again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import chain, product
from typing import Any

from hypothesis import strategies as st

from models.layouts.defaults import with_stack_defaults
from models.layouts.rules import first_broken
from models.spec import catalogue
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.workload import Workload
from service.formats.launch.job import Inexpressible, Job, LaunchConfiguration, LaunchReading
from service.schemas.layout import LayoutFields

DEGREES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


def problem_of(
    stack: str,
    model: str = "llama-3-8b",
    num_chips: int = 16,
    chip: str = "h100",
    **workload: Any,
) -> Problem:
    return Problem(
        architecture=catalogue.architecture(model),
        cluster=catalogue.cluster(chip, num_chips),
        workload=Workload(**{"seq_len": 4096, "global_batch": 64, **workload}),
        stack=catalogue.stack(stack),
    )


def job_of(problem: Problem, **knobs: Any) -> Job:
    layout = with_stack_defaults(problem, Layout(**knobs), set(knobs))
    return Job.of(problem, layout)


def layout_read(reading: LaunchReading, problem: Problem) -> Layout:
    """The layout of a reading, with what it leaves open as the stack has it."""
    fields = LayoutFields.model_validate(reading.layout)
    return fields.with_stack_defaults(problem).build()


@cache
def _legal_layouts(
    problem: Problem, choices: tuple[tuple[str, tuple[Any, ...]], ...]
) -> list[Layout]:
    """Every legal layout on all devices whose other knobs are among the choices."""
    names = [name for name, _ in choices]
    layouts = [
        Layout(**dict(zip(DEGREES, degrees, strict=True)), **dict(zip(names, knobs, strict=True)))
        for degrees in _factorisations(problem.cluster.num_devices, len(DEGREES))
        for knobs in product(*(values for _, values in choices))
    ]
    given = {*DEGREES, *names}
    settled = [with_stack_defaults(problem, layout, given) for layout in layouts]
    broken = first_broken(problem, Layouts.of(settled))
    return [layout for layout, rule in zip(settled, broken, strict=True) if rule < 0]


def _factorisations(number: int, count: int) -> list[tuple[int, ...]]:
    if count == 1:
        return [(number,)]
    return [
        (factor, *rest)
        for factor in range(1, number + 1)
        if number % factor == 0
        for rest in _factorisations(number // factor, count - 1)
    ]


def written(
    problem: Problem, write: Callable[[Job], LaunchConfiguration], **choices: tuple[Any, ...]
) -> st.SearchStrategy[tuple[Job, LaunchConfiguration]]:
    """Legal layouts that a format has words for, and what it writes of them.

    A drawn layout without words stands for the next one that has some: to write all of thousands
    takes a second. None is made before a test draws, since every process imports this file.
    """
    names = tuple(choices.items())

    def next_written(drawn: int) -> tuple[Job, LaunchConfiguration]:
        legal = _legal_layouts(problem, names)
        for layout in chain(legal[drawn:], legal[:drawn]):
            job = Job.of(problem, layout)
            with suppress(Inexpressible):
                return job, write(job)
        raise AssertionError("no layout has words")

    return st.deferred(
        lambda: st.integers(0, len(_legal_layouts(problem, names)) - 1).map(next_written)
    )
