"""Writes layouts of answers as launch configurations, which name the answer that they come from.

An *unsaid* field is a field of the stack that the prediction depends on, and that no setting of the
launch format states. A job is *inexpressible* where the format has no setting for a value of it.
The *rank* of a layout is its place in the answer; ranks on nodes are processes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from models.advice.unsaid_fields import UnsaidField, unsaid_fields
from models.errors import Invalid
from models.spec import catalogue
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.switches import applies, changed_since, release_of, releases, switches_of
from service.formats import huggingface
from service.formats.launch.formats import FORMATS, LaunchFormat, format_named, format_of_stack
from service.formats.launch.job import Inexpressible, Job, LaunchConfiguration
from service.formats.model_details import NO_DETAILS
from service.nearest_names import unknown_name
from service.schemas.architecture import HuggingFaceConfig
from service.schemas.launch import LaunchAnswer, LaunchUnsaid
from service.schemas.question import Question
from service.schemas.stack import StackFields
from shardwright.run_id import VARIABLE, run_id

Kind = Literal["recommendation", "prediction"]
_HOST = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_MOST_NAMED = 16  # the first nodes tell which allocation it is


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLaunched:
    """The layout of an answer that is launched, and the nodes that it is launched on."""

    kind: Kind
    id: str
    choice: str | None = None
    """The name of the layout in a recommendation; None where it is the recommended one, or that of
    a rank."""
    rank: int | None = None
    """Rank of the layout in the answer, where a report of it must say that."""
    ranks_by_node: Mapping[str, int] = field(default_factory=dict)
    """Number of ranks on each node of an allocation, in the order of ranks."""

    @property
    def environment(self) -> dict[str, str]:
        """Returns the variables that every process gets, by which a report of the run finds the
        layout again."""
        variables = {"CHOICE": self.choice, "RANK": self.rank}
        variables_set = {
            f"SHARDWRIGHT_{name}": str(value) for name, value in variables.items() if value
        }
        return {VARIABLE: run_id(self.kind, self.id), **variables_set}

    @property
    def nodes(self) -> tuple[str, ...]:
        """Returns the names of the nodes if Slurm can be told them: all have equally many ranks and
        valid host names. Else it is empty."""
        is_even = len(set(self.ranks_by_node.values())) == 1
        has_host_names = all(map(_HOST.fullmatch, self.ranks_by_node))
        return tuple(self.ranks_by_node) if is_even and has_host_names else ()

    def notes(self) -> Iterator[str]:
        """Yields sentences that say where ranks must run."""
        if not self.ranks_by_node:
            return
        shown = [f"{name} ({ranks})" for name, ranks in self.ranks_by_node.items()]
        nodes = ", ".join(shown[:_MOST_NAMED])
        if len(shown) > _MOST_NAMED:
            others = len(shown) - _MOST_NAMED
            nodes += f", and {others} more, as `allocation` of the answer has them"
        yield (
            "Ranks count through the nodes of the allocation in this order, with so many on each:"
            f" {nodes}."
        )
        if self.nodes:
            yield (
                "Slurm keeps the order where srun has --distribution=arbitrary and SLURM_HOSTFILE"
                " names a file of the nodes, one a line; the node of a task is then SLURM_PROCID."
            )
        else:
            yield "Slurm is not told these nodes: start as many ranks on each by other means."


def ranks_by_node(hosts: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Returns the number of ranks on each node, in the order of ranks, from the `hosts` of an
    allocation."""
    ranks: dict[str, int] = {}
    for host in sorted(hosts, key=lambda host: host["first_rank"]):
        ranks[host["node"]] = ranks.get(host["node"], 0) + host["ranks"]
    return ranks


def launch_format(name: str, problem: Problem) -> LaunchFormat:
    """Returns the launch format with this name, or the one of the stack with this name. Raises
    Invalid if there is none, or if it belongs to another framework than the problem's stack."""
    format_ = format_named(name)
    if format_ is None and name in catalogue.stacks():
        stacks = ", ".join(stack for known in FORMATS.values() for stack in known.stacks)
        raise Invalid("format", name, f"has no launch format; stacks that have one: {stacks}")
    if format_ is None:
        raise unknown_name("format", name, [*FORMATS])
    stack = problem.stack.id
    if stack not in format_.stacks:
        of_stack = format_of_stack(stack)
        cure = f"ask for {of_stack.name}" if of_stack else f"stack {stack} has no launch format"
        rule = f"is for layouts of {', '.join(format_.stacks)}, and this is one of {stack}; {cure}"
        raise Invalid("format", name, rule)
    return format_


def launch_configuration(
    format_: LaunchFormat,
    problem: Problem,
    layout: Layout,
    question: Question,
    answer: AnswerLaunched,
) -> LaunchConfiguration:
    """Returns the configuration that launches a layout of an answer. Every process gets the
    answer's id in its environment. Raises Invalid or Inexpressible if the format cannot express the
    model, the layout or the stack."""
    job = _job(problem, layout, question, answer.nodes)
    configuration = _written(format_, job)
    unsaid = [_left_to_script(format_, unsaid_field) for unsaid_field in _unsaid(format_, job)]
    return replace(
        configuration,
        environment={**configuration.environment, **answer.environment},
        notes=(
            *configuration.notes,
            *unsaid,
            *_older_release_notes(format_, job, question),
            *answer.notes(),
        ),
    )


def inexpressible_value(
    problem: Problem, layout: Layout, question: Question
) -> Inexpressible | None:
    """Returns the error for a value of a legal job that the launch format of its stack has no
    setting for. Returns None where the format can say the whole job, or where there is none."""
    format_ = format_of_stack(problem.stack.id)
    if format_ is None:
        return None
    job = _job(problem, layout, question)
    try:
        _written(format_, job)
        _unsaid(format_, job)
    except Inexpressible as error:
        return error
    return None


def _job(problem: Problem, layout: Layout, question: Question, nodes: tuple[str, ...] = ()) -> Job:
    """Returns the job of a layout of an answer to a question."""
    model = question.model
    config = model.root if isinstance(model, HuggingFaceConfig) else None
    known_family = catalogue.families().get(problem.architecture.name)
    return Job.of(
        problem,
        layout,
        family=known_family if config is None else huggingface.family(config),
        # Facts that change neither time nor memory but that settings state, such as rope_theta.
        details=NO_DETAILS if config is None else huggingface.details(config),
        nodes=nodes,
    )


def _written(format_: LaunchFormat, job: Job) -> LaunchConfiguration:
    """Returns the configuration that launches a job. Raises Inexpressible if the format has no
    setting for a value of it."""
    try:
        return format_.write(job)
    except Inexpressible:  # it names the format already
        raise
    except Invalid as error:
        refusal = Inexpressible(error.field, error.value, error.rule)
        raise refusal.in_format(format_.name) from None


def _unsaid(format_: LaunchFormat, job: Job) -> list[UnsaidField]:
    """Returns the fields of the stack that the prediction depends on, and that no setting of the
    format states. The caller's own script may set them. Raises Inexpressible if the format starts a
    program instead, since nothing could set them then."""
    stated = format_.other_stack_fields(job.problem)
    # Any profile will do: a field that moves the prediction of one moves that of all.
    unsaid = unsaid_fields(job.problem, shipped_profile(), job.layout, stated)
    if unsaid and not format_.is_of_script:
        first = unsaid[0]
        launched = {field.field: field.launched for field in unsaid}
        cure = f"{_why_unsaid(format_, job, first)}; ask with {_shown(first.launched)}"
        if len(unsaid) > 1:
            cure += f", and the stack with {json.dumps(launched)} in all"
        raise Inexpressible(f"stack.{first.field}", first.value, cure).in_format(format_.name)
    return unsaid


def _why_unsaid(format_: LaunchFormat, job: Job, unsaid: UnsaidField) -> str:
    """Returns the reason, in words, why no setting states a field of the stack."""
    if unsaid.switch is None:
        return f"no setting that is written for {format_.framework} {format_.release} changes it"
    name = unsaid.switch.name
    # One setting of the framework can set one field of the stack or another, by the model.
    for switch in switches_of(job.problem.stack):
        if switch.name == name and applies(switch, job.problem, job.layout):
            return f"for this model {name} sets stack.{switch.field} in its place"
    return f"{name} does not go with this model and layout"


def _left_to_script(format_: LaunchFormat, unsaid: UnsaidField) -> str:
    """Returns a sentence on a field of the stack that the caller's script has to set."""
    return (
        f"The script, or {format_.framework} itself, has to see to stack.{unsaid.field}"
        f" {_shown(unsaid.value)}, which is predicted: these settings leave it at"
        f" {_shown(unsaid.launched)}."
    )


def _older_release_notes(format_: LaunchFormat, job: Job, question: Question) -> Iterator[str]:
    """Yields a note if the prediction is for an older release than the settings are written for. It
    names the switches whose default has changed since."""
    stack = job.problem.stack
    year = shipped_profile().software_year - stack.age_years
    asked = question.stack.version if isinstance(question.stack, StackFields) else None
    release = asked or release_of(stack.id, year)
    known = [*releases(stack.id)]  # oldest first
    if not stack.age_years or (known and release == known[-1]):
        return
    older = release or f"of {stack.age_years:.2g} years earlier"
    note = (
        f"These settings are for {format_.framework} {format_.release}. The prediction is for"
        f" {stack.id} {older}, which may lack some of them or name them differently: compare them"
        " with that release."
    )
    changed = [
        switch.name
        for switch in changed_since(stack, year)
        if applies(switch, job.problem, job.layout)
    ]
    if changed:
        note += f" The default of {', '.join(changed)} has changed since."
    yield note


def _shown(value: Any) -> str:
    """Returns a value as a request writes it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def launch_block(
    problem: Problem, layout: Layout, question: Question, answer: AnswerLaunched
) -> LaunchAnswer | LaunchUnsaid | None:
    """Returns the launch of one of an answer's layouts: the configuration in the format of its
    stack, or the reason why there is none. Returns None for stacks without a format."""
    format_ = format_of_stack(problem.stack.id)
    if format_ is None:
        return None
    try:
        return LaunchAnswer.of(launch_configuration(format_, problem, layout, question, answer))
    except Invalid as error:
        return LaunchUnsaid(format=format_.name, error=str(error))
