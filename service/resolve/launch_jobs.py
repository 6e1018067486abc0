"""Writes layouts of answers as launch configurations, which name the answer that they come from."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from models.cost.combine import layers_of_chunks
from models.errors import Invalid, UnknownName
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from service.formats.launch.formats import FORMATS, LaunchFormat, format_of_stack
from service.formats.launch.job import Inexpressible, Job, LaunchConfiguration
from service.schemas.launch import LaunchAnswer, LaunchUnsaid

Kind = Literal["recommendation", "prediction"]


def launch_format(name: str, problem: Problem) -> LaunchFormat:
    """The format of a name. Raises Invalid where there is none, or where it is of a framework other
    than the stack of the problem."""
    if name not in FORMATS:
        raise UnknownName("format", name, FORMATS)
    format_ = FORMATS[name]
    stack = problem.stack.id
    if stack not in format_.stacks:
        own = format_of_stack(stack)
        cure = f"ask for {own.name}" if own else f"stack {stack} has no launch format"
        rule = f"is for layouts of {', '.join(format_.stacks)}, and this is one of {stack}; {cure}"
        raise Invalid("format", name, rule)
    return format_


def launch_configuration(
    format_: LaunchFormat, problem: Problem, layout: Layout, kind: Kind, id_: str
) -> LaunchConfiguration:
    """What launches a settled layout of an answer, whose id every process then has in its
    environment. Raises Invalid where the format has no words for something."""
    chunks = layers_of_chunks(problem, Layouts.of([layout]))[0]
    job = Job(problem=problem, layout=layout, layers_per_chunk=tuple(map(len, chunks)))
    try:
        written = format_.write(job)
    except Inexpressible:
        raise
    except Invalid as error:
        raise Inexpressible(format_.name, error.field, error.value, error.rule) from None
    variable = f"SHARDWRIGHT_{kind.upper()}_ID"
    return replace(written, environment={**written.environment, variable: id_})


def launch_block(
    problem: Problem, layout: Layout, kind: Kind, id_: str
) -> LaunchAnswer | LaunchUnsaid | None:
    """What an answer says of launching one of its layouts: the configuration in the format of its
    stack, or why there is none; None for stacks without a format."""
    format_ = format_of_stack(problem.stack.id)
    if format_ is None:
        return None
    try:
        return LaunchAnswer.of(launch_configuration(format_, problem, layout, kind, id_))
    except Invalid as error:
        return LaunchUnsaid(format=format_.name, error=str(error))
