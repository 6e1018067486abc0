"""Searches the answer to a recommendation: chooses the cluster, then searches the layouts on it.

A *candidate* is a cluster that the request names: its own, or an alternative. A *choice* is a
candidate with the time and the cost of the job on it. An *allocation* cuts the nodes that a request
lists into equal data-parallel groups of chips.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from models.advice.allocation import Allocation, allocate
from models.advice.chip_counts import problem_with_chips
from models.advice.choice import Choice
from models.advice.cluster_choice import no_cluster_fits, rank_clusters, with_recommendation
from models.advice.fewest_chips import FewestChips, fewest_chips
from models.advice.objective import Objective
from models.advice.recommendation import Recommendation, recommend
from models.advice.thresholds import Threshold, thresholds
from models.errors import Infeasible
from models.spec.constraints import Constraints
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.ask.oom_history import least_failed_gib, out_of_memory_runs
from service.ask.recommendation_reasons import fewest_chips_without_price
from service.json_pointers import relocate_errors
from service.metrics import LAYOUTS_EVALUATED, timed_search
from service.resolve.candidate_clusters import OWN_CLUSTER, CandidateClusters
from service.resolve.resolution import Resolver
from service.runtime.deadline import Deadline
from service.schemas.prediction import OutOfMemoryRun
from service.schemas.recommendation import RecommendationRequest
from service.store import UseCase

_THRESHOLDS_S = 3.0  # for all of them, unless the request gives a limit


@dataclass(frozen=True)
class Inputs:
    """A request with all names resolved, and the deadline for its search."""

    request: RecommendationRequest
    candidates: CandidateClusters
    profile: Profile
    deadline: Deadline

    @cached_property
    def constraints(self) -> Constraints:
        return self.request.constraints.build()

    @cached_property
    def objective(self) -> Objective:
        return self.request.objective.build(self.request.workload.token_budget)


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster that the layouts of the answer are for."""

    name: str
    """Name of the candidate cluster."""
    problem: Problem
    """The model, the workload, the stack, and the chips of the cluster that are used."""
    choices: list[Choice]
    """Every candidate cluster, the best first; empty where the request asks about one cluster."""
    fewest_chips_reasons: list[str]
    """Sentences on how the fewest chips were found, where the request asks for them."""
    allocation: Allocation | None


@dataclass(frozen=True, slots=True)
class Solution:
    target: Target
    failed: list[OutOfMemoryRun]
    """Reported runs of the same model, chip and stack that ran out of memory."""
    recommendation: Recommendation
    thresholds: list[Threshold] | None
    """Thresholds of the recommendation; None where the request does not include them."""


class RecommendationSearch(UseCase):
    def solve(self, inputs: Inputs) -> Solution:
        """Chooses the cluster, then searches the layouts on it.

        Raises Infeasible if no layout fits on any of the candidate clusters.
        """
        target = self._choose_target(inputs)
        failed = out_of_memory_runs(self._store, target.problem, inputs.profile)
        recommendation = _search_layouts(inputs, target, failed)
        if target.choices:
            # The search had more time for the best cluster than the comparison: its figures count.
            best = target.choices[0]
            if best.all_chips_s is not None:
                # The comparison found that fewer of this cluster's chips are faster, and only those
                # were searched.
                recommendation = recommendation.of_more_chips(best.num_chips, best.all_chips_s)
            # Figures are of the candidate's whole cluster, or of the groups of its listed nodes.
            problem = inputs.candidates.resolved[target.name].problem
            if target.allocation is not None:
                problem = target.problem
            settled_best = with_recommendation(best, problem, inputs.objective, recommendation)
            target = replace(target, choices=[settled_best, *target.choices[1:]])
        wants_thresholds = "thresholds" in inputs.request.include
        return Solution(
            target=target,
            failed=failed,
            recommendation=recommendation,
            thresholds=_search_thresholds(inputs, recommendation, failed)
            if wants_thresholds
            else None,
        )

    def _choose_target(self, inputs: Inputs) -> Target:
        """Returns the best candidate cluster, with as many of its chips as are worth using, or with
        the best part of its nodes where the candidate lists nodes."""
        allocations = _allocate_nodes(inputs)
        choices, fewest_chips_reasons = self._compare_clusters(inputs, allocations)
        name = choices[0].name if choices else OWN_CLUSTER
        problem = inputs.candidates.resolved[name].problem
        allocation = allocations.get(name)
        if allocation is not None:
            problem = replace(problem, cluster=allocation.cluster)
        # The comparison of clusters found that fewer of this cluster's chips are faster. Only a
        # cluster without a step time lacks `chips_used`, and it lacks `all_chips_s` too.
        elif choices and choices[0].all_chips_s is not None:
            problem = problem_with_chips(problem, choices[0].chips_used or choices[0].num_chips)
        return Target(name, problem, choices, fewest_chips_reasons, allocation)

    def _compare_clusters(
        self, inputs: Inputs, allocations: Mapping[str, Allocation]
    ) -> tuple[list[Choice], list[str]]:
        """Returns every candidate cluster, the best first, and sentences on how the fewest chips
        were found. `allocations` are by the name of the candidate.

        Both are empty if the request has neither alternatives nor an objective.
        """
        if not {"alternatives", "objective"} & inputs.request.model_fields_set:
            return [], []  # the request asks about one cluster, and for no hours or dollars
        candidates = inputs.candidates
        deadline = inputs.deadline.three_quarters()  # the rest is for the search on the best one
        fewest_chips_reasons = list[str]()

        def oom_gib(problem: Problem) -> float:
            """Returns the smallest predicted need, in GiB, of the runs of this problem's model,
            chip and stack that ran out of memory."""
            return least_failed_gib(out_of_memory_runs(self._store, problem, inputs.profile))

        def cluster_of_fewest_chips() -> dict[str, Problem]:
            """Searches the fewest chips that reach the objective, if the request asks for them.
            Returns them as a candidate by its name, and adds a sentence on how they were found."""
            max_chips = inputs.request.alternatives.up_to_chips
            if max_chips is None or OWN_CLUSTER not in candidates.resolved:
                return {}
            own = candidates.resolved[OWN_CLUSTER].problem
            chip = own.cluster.chip
            if inputs.objective.budget_usd is not None and chip.usd_per_chip_hour is None:
                fewest_chips_reasons.append(fewest_chips_without_price(chip))
                return {}
            fewest = fewest_chips(
                problem=own,
                profile=inputs.profile,
                constraints=inputs.constraints,
                objective=inputs.objective,
                most=max_chips,
                should_continue=deadline,
                oom_gib=oom_gib(own),
                multiple_of=inputs.request.alternatives.multiple_of,
            )
            fewest_chips_reasons.append(fewest.reason)
            return self._add_fewest_chips(candidates, fewest)

        problems = {
            name: resolved_question.problem
            for name, resolved_question in candidates.resolved.items()
        }
        for name, allocation in allocations.items():
            problems[name] = replace(problems[name], cluster=allocation.cluster)
        choices = rank_clusters(
            problems=problems,
            profile=inputs.profile,
            constraints=inputs.constraints,
            objective=inputs.objective,
            should_continue=deadline,
            oom_gib=oom_gib,
            # Searched last, after the candidates that the request names.
            find_more=cluster_of_fewest_chips,
            # All chips of listed nodes are paid for, whether the job uses them or not.
            held_chips={
                name: question.allocation.chips
                for name, question in candidates.questions.items()
                if question.allocation is not None
            },
        )
        return [*choices, *candidates.refused], fewest_chips_reasons

    def _add_fewest_chips(
        self, candidates: CandidateClusters, fewest: FewestChips
    ) -> dict[str, Problem]:
        """Adds the fewest chips to the candidates, and returns that candidate by its name. Returns
        nothing if none were found or they are a candidate already."""
        if fewest.num_chips is None:
            return {}
        own = candidates.resolved[OWN_CLUSTER].problem
        # A torus shape in the request holds for the cluster's own number of chips alone.
        cluster = replace(own.cluster.with_num_chips(fewest.num_chips), torus_shape=None)
        problem = replace(own, cluster=cluster)
        # A candidate with as many chips has been searched already.
        if any(resolved.problem == problem for resolved in candidates.resolved.values()):
            return {}
        name = "alternatives.up_to_chips"
        with self._store.reading() as rows:
            candidates.add_chip_count(Resolver(rows), name, fewest.num_chips)
        return {name: candidates.resolved[name].problem}


def _allocate_nodes(inputs: Inputs) -> dict[str, Allocation]:
    """Cuts the nodes of each candidate that lists them into data-parallel groups. Returns the
    allocations by the candidate's name. A candidate whose nodes fit no layout is moved to the
    refused ones; if it is the only one, raises Infeasible."""
    candidates = inputs.candidates
    nodes_by_candidate = {
        name: question.allocation
        for name, question in candidates.questions.items()
        if question.allocation is not None and name in candidates.resolved
    }
    allocations = dict[str, Allocation]()
    deadline = inputs.deadline.three_quarters()  # the rest is for the search of layouts
    for i, (name, nodes) in enumerate(nodes_by_candidate.items()):
        problem = candidates.resolved[name].problem
        where = "allocation" if name == OWN_CLUSTER else name
        try:
            with relocate_errors("allocation", where):
                allocations[name] = allocate(
                    problem,
                    inputs.profile,
                    inputs.constraints,
                    nodes.build(),
                    # The candidates that are left get equal parts of the time that is left.
                    deadline.share(len(nodes_by_candidate) - i),
                    inputs.request.tolerance,
                )
        except Infeasible as error:
            if len(candidates.questions) == 1:
                raise
            del candidates.resolved[name]
            candidates.refused.append(
                Choice(
                    name=name,
                    chip=problem.cluster.chip.id,
                    num_chips=nodes.chips,
                    refused=error.brief,
                )
            )
    return allocations


def _search_layouts(inputs: Inputs, target: Target, failed: list[OutOfMemoryRun]) -> Recommendation:
    """Searches the best layouts on the target. Raises Infeasible if none fits."""
    allocation = target.allocation
    constraints = inputs.constraints
    if allocation is not None:  # the allocation has settled how many chips are used
        constraints = replace(constraints, use_all_chips=True)
    try:
        with timed_search():
            recommendation = recommend(
                target.problem,
                inputs.profile,
                constraints,
                tolerance=inputs.request.tolerance,
                top=inputs.request.top,
                should_continue=inputs.deadline,
                oom_gib=least_failed_gib(failed),
                # Groups of nodes that there was no time to try have steps of at least this length.
                untried_bound_s=math.inf if allocation is None else allocation.untried_bound_s,
                known=_known_layouts(target),
            )
    except Infeasible as error:
        choices = target.choices
        if len(choices) > 1 and all(choice.refused for choice in choices):
            raise no_cluster_fits(choices, error) from None
        raise error from None
    LAYOUTS_EVALUATED.inc(recommendation.certificate.evaluated)
    return recommendation


def _known_layouts(target: Target) -> Layouts | None:
    """Returns the best layout that the comparison of clusters found, from which the search starts.
    None if there is none, or it uses another number of devices than the problem has."""
    layout = target.choices[0].layout if target.choices else None
    if layout is None or layout.num_devices != target.problem.cluster.num_devices:
        return None
    return Layouts.of([layout])


def _search_thresholds(
    inputs: Inputs, recommendation: Recommendation, failed: list[OutOfMemoryRun]
) -> list[Threshold]:
    """Returns the thresholds of a recommendation: the bandwidths, and sizes of a scale-up domain,
    at which the need of a pipeline would change. Empty where it is unknown whether the request
    itself needs one."""
    deadline = inputs.deadline
    # A time limit that the request gives holds for thresholds too; else they have one of their own.
    if "time_limit_s" not in inputs.request.model_fields_set:
        deadline = deadline.at_most(_THRESHOLDS_S)
    if recommendation.pipelining.needed == "unknown":
        return []
    return thresholds(
        recommendation.problem,
        inputs.profile,
        inputs.constraints,
        inputs.request.tolerance,
        deadline,
        least_failed_gib(failed),
    )
