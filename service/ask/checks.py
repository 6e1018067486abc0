"""Checks a job that is about to be submitted: is it legal, does it fit, what would be faster, and
what to change first?

A *launch* is a script, command line or file that starts a training. A *stop* is a setting with
which the framework refuses to start. *Held* nodes are those that the request lists.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from models.advice.layout_check import check_layout
from service.ask.check_answers import check_answer, expressible_in_format
from service.ask.check_size import shortened
from service.ask.oom_history import least_failed_gib, out_of_memory_runs
from service.ask.resolved_check import ResolvedCheck
from service.formats.launch.formats import FORMATS, format_of_stack
from service.formats.launch.job import Changes
from service.resolve.held_nodes import cluster_of_held_nodes
from service.resolve.launch_changes import LaunchChanges
from service.resolve.launched_question import LaunchedQuestion, launched_question
from service.resolve.profiles import requested_profile
from service.resolve.resolution import Resolver
from service.runtime.deadline import Deadline, no_client
from service.schemas.check import CheckRequest, LaunchedCheckRequest
from service.store import Rows, UseCase

Request = CheckRequest | LaunchedCheckRequest


class Checks(UseCase):
    def check(
        self, request: Request, require_client: Callable[[], None] = no_client
    ) -> dict[str, Any]:
        """Returns the answer to a check, which is not stored. `require_client` raises once the
        client has hung up."""
        with self._store.reading() as rows:
            job = self.resolve(rows, request)
        return self.check_resolved(request, job, require_client)

    def check_resolved(
        self, request: Request, job: ResolvedCheck, require_client: Callable[[], None]
    ) -> dict[str, Any]:
        """Returns the answer to a check whose names are resolved, shortened to the promised
        size."""
        deadline = Deadline(request.time_limit_s, require_client)
        problem = job.resolved.problem
        failed = out_of_memory_runs(self._store, problem, job.profile)
        check = check_layout(
            problem=problem,
            profile=job.profile,
            layout=job.layout,
            constraints=request.constraints.build(),
            should_continue=deadline,
            oom_gib=least_failed_gib(failed),
            # Only layouts that the job's own launch format can write are proposed.
            accepts=expressible_in_format(job),
            # Where the job is a launch, changes are said as changes of its settings.
            express=None if job.changes is None else job.changes.in_settings,
        )
        answer = check_answer(job, check, failed)
        return shortened(answer.model_dump(mode="json", by_alias=True))

    def resolve(self, rows: Rows, request: Request) -> ResolvedCheck:
        """Resolves the names of a check and reads its launch. Raises Invalid or Refused for what
        cannot be read. Faults at which the framework would stop are collected instead."""
        resolver = Resolver(rows)
        profile = requested_profile(rows, request.profile)
        request = _with_held_nodes(resolver, request)
        if isinstance(request, CheckRequest):
            resolved = resolver.resolve(request)
            # What the layout leaves open is as the stack decides it.
            completed = request.layout.with_stack_defaults(resolved.problem)
            return ResolvedCheck(
                question=request,
                # A given layout may exceed the limits that the stack sets to a search.
                resolved=resolved.for_layouts([completed.build()]),
                profile=profile,
                place="layout",
                given_layout=request.layout,
                completed_layout=completed,
                format=format_of_stack(resolved.problem.stack.id),
                read=None,
                min_fit_probability=request.constraints.build().min_fit_probability,
            )
        launched = launched_question(resolver, request.launch, request, allow_stops=True)
        return ResolvedCheck(
            question=launched.question,
            resolved=launched.resolved,
            profile=profile,
            place=launched.layout_field,
            given_layout=launched.layout,
            completed_layout=launched.layout.with_stack_defaults(launched.resolved.problem),
            format=FORMATS[launched.read.format],
            read=launched.read,
            stops=launched.stops,
            reservations=launched.reservations,
            overruled=launched.overruled,
            own_names=launched.own_names,
            changes=LaunchChanges(
                request.launch, launched, profile, partial(self._read_again, request)
            ),
            min_fit_probability=request.constraints.build().min_fit_probability,
        )

    def _read_again(self, request: LaunchedCheckRequest, changes: Changes) -> LaunchedQuestion:
        """Reads the launch of a request with some of its settings changed, to find out whether the
        framework then gets the layout that is to be advised."""
        with self._store.reading() as rows:
            return launched_question(
                Resolver(rows), request.launch, request, allow_stops=True, changes=changes
            )


def _with_held_nodes(resolver: Resolver, request: Request) -> Request:
    """Returns the request with its cluster sized to the nodes of its `allocation`, if it has
    one."""
    if request.cluster is None:
        return request
    held = cluster_of_held_nodes(resolver, request.cluster, request.allocation)
    return request.model_copy(update={"cluster": held})
