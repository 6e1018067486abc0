"""Recommends the layouts to launch, and where: resolves the request, searches, explains."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from models.advice.allocation import Allocation, allocate
from models.advice.candidate import Candidate
from models.advice.chip_counts import problem_with_chips
from models.advice.choice import Choice
from models.advice.cluster_choice import no_cluster_fits, rank_clusters, with_recommendation
from models.advice.fewest_chips import FewestChips, fewest_chips
from models.advice.implausible_values import implausible_values
from models.advice.objective import Objective
from models.advice.reason import Reason, reasons_of
from models.advice.recommendation import Recommendation, recommend
from models.advice.thresholds import Threshold, thresholds
from models.errors import Infeasible
from models.spec.constraints import Constraints
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.ask.answer_keys import Meaning
from service.ask.answer_pages import answer_page
from service.ask.evidence import Evidence
from service.ask.kept_answers import KeptAnswers, KeyedQuestion
from service.ask.oom_history import (
    least_failed_gib,
    left_out_reasons,
    oom_warnings,
    out_of_memory_runs,
)
from service.ask.recommendation_reasons import (
    cluster_reasons,
    failure_assumptions,
    fewest_chips_without_price,
    groups_reasons,
    learned_reasons,
    points_to_check,
    spare_chips_reasons,
)
from service.json_pointers import relocate_errors
from service.metrics import LAYOUTS_EVALUATED, timed_search
from service.resolve.answer_basis import basis
from service.resolve.assumptions import leaf_switch_assumptions
from service.resolve.candidate_clusters import OWN_CLUSTER, CandidateClusters, resolve_candidates
from service.resolve.launch_jobs import AnswerLaunched, launch_block, ranks_by_node
from service.resolve.profiles import requested_profile
from service.resolve.resolution import Resolver
from service.runtime.creation import Unanswered
from service.runtime.deadline import Deadline, no_client
from service.runtime.idempotency import Prepared
from service.schemas.allocation import AllocationAnswer
from service.schemas.list_query import AnswerQuery
from service.schemas.objective import AlternativeFields, ChoiceAnswer
from service.schemas.prediction import OutOfMemoryRun, PredictedLayout
from service.schemas.reason import ReasonFacts
from service.schemas.recommendation import (
    BolderAnswer,
    CandidateAnswer,
    CertificateAnswer,
    FewerChipsAnswer,
    PipeliningAnswer,
    RecommendationAnswer,
    RecommendationRequest,
    ThresholdAnswer,
)
from service.store import Rows, Store
from service.store.answer_text import AnswerText

_Question = KeyedQuestion[CandidateClusters]
_THRESHOLDS_S = 3.0  # for all of them, unless the request gives a limit


@dataclass(frozen=True, slots=True)
class _ResolvedRequest:
    """A request in the values that the models compute with."""

    request: RecommendationRequest
    candidates: CandidateClusters
    profile: Profile
    constraints: Constraints
    objective: Objective
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class _Target:
    """The cluster that the layouts of the answer are for."""

    name: str
    """Name of the candidate cluster."""
    problem: Problem
    """The question on the chips that are used there."""
    choices: list[Choice]
    """Every candidate cluster, the best first; empty where the request asks about one cluster."""
    fewest_chips_reasons: list[str]
    """Sentences on how the fewest chips were found, where the request asks for them."""
    allocation: Allocation | None


@dataclass(frozen=True, slots=True)
class _Solution:
    target: _Target
    failed: list[OutOfMemoryRun]
    """Reported runs of the same model, chip and stack that ran out of memory."""
    found: Recommendation
    thresholds: list[Threshold] | None
    """Thresholds of the recommendation; None where the request does not include them."""


class Recommendations:
    def __init__(self, store: Store, evidence: Evidence) -> None:
        self._store = store
        self._evidence = evidence
        self._kept = KeptAnswers(store, "recommendations", _candidates, _meaning)

    def look_up(self, request: RecommendationRequest) -> Prepared | Unanswered[_Question]:
        return self._kept.look_up(request)

    def recommend(
        self,
        request: RecommendationRequest,
        question: _Question,
        require_client: Callable[[], None] = no_client,
    ) -> Prepared:
        """A new answer to a question that was looked up."""
        key = question.key
        resolved = _resolved(request, question.resolved, key.profile, require_client)
        solution = self._solve(resolved)
        answer = self._explain(resolved, solution)
        # What was found by the end of the time is no answer to who asks again, nor is one that
        # rests on what has changed since.
        is_kept = not resolved.deadline.ran_out and self._kept.is_current(request, key)
        return self._kept.prepare(answer, key.digest if is_kept else answer.id)

    def find(self, request: RecommendationRequest) -> tuple[Recommendation, Choice | None]:
        """Returns the recommendation for a request, without the words of an answer, and the place
        that it is for, where the request has an objective. Stores nothing."""
        with self._store.reading() as rows:
            candidates = _candidates(rows, request)
            profile = requested_profile(rows, request.profile)
        solution = self._solve(_resolved(request, candidates, profile, no_client))
        return solution.found, solution.target.choices[0] if solution.target.choices else None

    def get(self, id_: str) -> AnswerText:
        return self._kept.get(id_)

    def page(self, query: AnswerQuery) -> dict[str, Any]:
        return answer_page(self._store, "recommendations", query)

    def _solve(self, asked: _ResolvedRequest) -> _Solution:
        """Choose the cluster, then search the layouts on it.

        Raises Infeasible where none fits on any of the candidate clusters.
        """
        target = self._choose_target(asked)
        failed = out_of_memory_runs(self._store, target.problem, asked.profile)
        recommendation = _search_layouts(asked, target, failed)
        if target.choices:
            # The search had more time for the best cluster than the comparison: its figures count.
            best = target.choices[0]
            if best.all_chips_s is not None:
                recommendation = recommendation.of_more_chips(best.num_chips, best.all_chips_s)
            problem = asked.candidates.resolved[target.name].problem
            if target.allocation is not None:
                problem = target.problem
            settled_best = with_recommendation(best, problem, asked.objective, recommendation)
            target = replace(target, choices=[settled_best, *target.choices[1:]])
        wants_thresholds = "thresholds" in asked.request.include
        return _Solution(
            target=target,
            failed=failed,
            found=recommendation,
            thresholds=_search_thresholds(asked, recommendation, failed)
            if wants_thresholds
            else None,
        )

    def _choose_target(self, asked: _ResolvedRequest) -> _Target:
        """The best of the candidate clusters, on as many of its chips as are worth using, or the
        best part of the nodes that the request holds."""
        allocations = _allocate_nodes(asked)
        choices, fewest_chips_reasons = self._compare_clusters(asked, allocations)
        name = choices[0].name if choices else OWN_CLUSTER
        problem = asked.candidates.resolved[name].problem
        allocation = allocations.get(name)
        if allocation is not None:
            problem = replace(problem, cluster=allocation.cluster)
        elif choices and choices[0].all_chips_s is not None:
            problem = problem_with_chips(problem, choices[0].chips_used or choices[0].num_chips)
        return _Target(name, problem, choices, fewest_chips_reasons, allocation)

    def _compare_clusters(
        self, asked: _ResolvedRequest, allocations: Mapping[str, Allocation]
    ) -> tuple[list[Choice], list[str]]:
        """Every candidate cluster, the best first, and how the fewest chips were found, in words.

        Both are empty where the request asks about one cluster and names no objective.
        """
        if not {"alternatives", "objective"} & asked.request.model_fields_set:
            return [], []
        candidates = asked.candidates
        deadline = asked.deadline.three_quarters()
        fewest_chips_reasons = list[str]()

        def oom_gib(problem: Problem) -> float:
            return least_failed_gib(out_of_memory_runs(self._store, problem, asked.profile))

        def cluster_of_fewest_chips() -> dict[str, Problem]:
            max_chips = asked.request.alternatives.up_to_chips
            if max_chips is None or OWN_CLUSTER not in candidates.resolved:
                return {}
            own = candidates.resolved[OWN_CLUSTER].problem
            chip = own.cluster.chip
            if asked.objective.budget_usd is not None and chip.usd_per_chip_hour is None:
                fewest_chips_reasons.append(fewest_chips_without_price(chip))
                return {}
            fewest = fewest_chips(
                problem=own,
                profile=asked.profile,
                constraints=asked.constraints,
                objective=asked.objective,
                most=max_chips,
                should_continue=deadline,
                oom_gib=oom_gib(own),
                multiple_of=asked.request.alternatives.multiple_of,
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
            profile=asked.profile,
            constraints=asked.constraints,
            objective=asked.objective,
            should_continue=deadline,
            oom_gib=oom_gib,
            find_more=cluster_of_fewest_chips,
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
        """The fewest chips as one more candidate, by its name, unless none were found or they are a
        candidate already."""
        if fewest.num_chips is None:
            return {}
        own = candidates.resolved[OWN_CLUSTER].problem
        cluster = replace(own.cluster.with_num_chips(fewest.num_chips), torus_shape=None)
        problem = replace(own, cluster=cluster)
        if any(resolved.problem == problem for resolved in candidates.resolved.values()):
            return {}
        name = "alternatives.up_to_chips"
        with self._store.reading() as rows:
            candidates.add_chip_count(Resolver(rows), name, fewest.num_chips)
        return {name: candidates.resolved[name].problem}

    def _explain(self, asked: _ResolvedRequest, solution: _Solution) -> RecommendationAnswer:
        """The answer document: the layouts, with reasons, assumptions and evidence."""
        recommendation = solution.found
        target = solution.target
        members = _found_members(recommendation, solution.thresholds)
        advised = _advised_layouts(members)
        evidence = self._evidence.nearest_to_layout(
            recommendation.problem, recommendation.fastest.prediction.layout, asked.profile
        )
        question = asked.candidates.questions[target.name]
        answered = asked.candidates.resolved[target.name].with_answered_problem(
            recommendation.problem
        )
        launched = recommendation.recommended.prediction.layout
        grounds = basis(question, answered, asked.profile, launched)
        reasons = _reasons(asked, solution, advised)
        reasons += learned_reasons(grounds["learned"])
        members["reasons"] = [reason.sentence for reason in reasons]
        members["reason_facts"] = [ReasonFacts.of(reason) for reason in reasons]
        grounds["request"] |= _request_members(asked, target)
        grounds["assumptions"] += _assumptions(asked, target, advised)
        allocation = None if target.allocation is None else AllocationAnswer.of(target.allocation)
        answer = AnswerLaunched(
            kind="recommendation",
            id=grounds["id"],
            ranks_by_node=ranks_by_node(allocation.model_dump()["hosts"]) if allocation else {},
        )
        pinned_forms = asked.candidates.pinned_forms
        return RecommendationAnswer(
            **members,
            launch=launch_block(recommendation.problem, launched, question, answer),
            allocation=allocation,
            choices=[
                ChoiceAnswer.of(
                    choice,
                    pinned_forms[choice.name],
                    on_torus=asked.candidates.is_on_torus(choice.name),
                )
                for choice in target.choices
            ],
            evidence=evidence,
            out_of_memory=solution.failed,
            **grounds,
        )


def _candidates(rows: Rows, request: RecommendationRequest) -> CandidateClusters:
    return resolve_candidates(Resolver(rows), request)


def _meaning(candidates: CandidateClusters) -> Meaning:
    return Meaning.of(candidates.resolved.values(), candidates.pinned_forms)


def _resolved(
    request: RecommendationRequest,
    candidates: CandidateClusters,
    profile: Profile,
    require_client: Callable[[], None],
) -> _ResolvedRequest:
    return _ResolvedRequest(
        request=request,
        candidates=candidates,
        profile=profile,
        constraints=request.constraints.build(),
        objective=request.objective.build(request.workload.token_budget),
        deadline=Deadline(request.time_limit_s, require_client),
    )


def _allocate_nodes(asked: _ResolvedRequest) -> dict[str, Allocation]:
    """The groups that the nodes of each candidate make, by its name. A candidate whose nodes make
    none is refused by itself, where there are others."""
    candidates = asked.candidates
    held = {
        name: question.allocation
        for name, question in candidates.questions.items()
        if question.allocation is not None and name in candidates.resolved
    }
    allocations = dict[str, Allocation]()
    deadline = asked.deadline.three_quarters()
    for at, (name, nodes) in enumerate(held.items()):
        problem = candidates.resolved[name].problem
        where = "allocation" if name == OWN_CLUSTER else name
        try:
            with relocate_errors("allocation", where):
                allocations[name] = allocate(
                    problem,
                    asked.profile,
                    asked.constraints,
                    nodes.build(),
                    deadline.share(len(held) - at),
                    asked.request.tolerance,
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


def _search_layouts(
    asked: _ResolvedRequest, target: _Target, failed: list[OutOfMemoryRun]
) -> Recommendation:
    allocation = target.allocation
    constraints = asked.constraints
    if allocation is not None:  # which has settled how many chips are used
        constraints = replace(constraints, use_all_chips=True)
    try:
        with timed_search():
            recommendation = recommend(
                target.problem,
                asked.profile,
                constraints,
                tolerance=asked.request.tolerance,
                top=asked.request.top,
                should_continue=asked.deadline,
                oom_gib=least_failed_gib(failed),
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


def _known_layouts(target: _Target) -> Layouts | None:
    """The best layout that comparing the clusters found, for the search to start from, if it uses
    all devices of the problem."""
    layout = target.choices[0].layout if target.choices else None
    if layout is None or layout.num_devices != target.problem.cluster.num_devices:
        return None
    return Layouts.of([layout])


def _search_thresholds(
    asked: _ResolvedRequest, recommendation: Recommendation, failed: list[OutOfMemoryRun]
) -> list[Threshold]:
    """Returns the thresholds of a recommendation; none where it is not known whether a pipeline is
    needed."""
    deadline = asked.deadline
    if "time_limit_s" not in asked.request.model_fields_set:
        deadline = deadline.at_most(_THRESHOLDS_S)
    if recommendation.pipelining.needed == "unknown":
        return []
    return thresholds(
        recommendation.problem,
        asked.profile,
        asked.constraints,
        asked.request.tolerance,
        deadline,
        least_failed_gib(failed),
    )


def _reasons(
    asked: _ResolvedRequest, solution: _Solution, advised: dict[str, PredictedLayout]
) -> list[Reason]:
    """Returns the reasons in the order in which they are shown: first what to beware of, then why
    this cluster, these layouts and these chips."""
    recommendation = solution.found
    target = solution.target
    fastest = recommendation.fastest.prediction
    needed_gib = fastest.needed_gib
    micro_batches = asked.constraints.allowed.get("micro_batch", ())
    reasons = [
        *reasons_of(
            "slip", implausible_values(recommendation.problem, fastest.step_time_s, micro_batches)
        ),
        *reasons_of("out_of_memory", oom_warnings(advised, solution.failed)),
        *reasons_of("out_of_memory", left_out_reasons(needed_gib, solution.failed)),
        *cluster_reasons(target.choices, target.fewest_chips_reasons, asked.objective),
        *recommendation.reasons,
    ]
    if target.allocation is not None:
        reasons += groups_reasons(target.allocation, fastest.step_time_s)
        reasons += spare_chips_reasons(target.allocation, asked.request.cluster.num_chips)
    return reasons


def _assumptions(
    asked: _ResolvedRequest, target: _Target, advised: dict[str, PredictedLayout]
) -> list[str]:
    """Returns the assumptions of a recommendation beyond those of every answer."""
    assumptions = [*failure_assumptions(asked.request.objective), *points_to_check(advised)]
    nodes = asked.candidates.questions[target.name].allocation
    if target.allocation is not None and nodes is not None:
        assumptions += leaf_switch_assumptions(target.allocation, nodes.build())
    return assumptions


def _advised_layouts(members: dict[str, Any]) -> dict[str, PredictedLayout]:
    """The layouts to launch, each once, by what they are called in reasons."""
    named = ("simplest", "fastest", "recommended")  # of one layout, its last name is told
    positions = {members[name]: f"the {name}" for name in named}
    layouts = members["layouts"]
    return {name: layouts[position].prediction for position, name in positions.items()}


def _request_members(asked: _ResolvedRequest, target: _Target) -> dict[str, Any]:
    """Returns the members that the answer's `request` has beyond the question that was answered.

    Cluster and stack are those that the request is about, whichever candidate is the best.
    """
    request = asked.request
    pinned_forms = asked.candidates.pinned_forms
    members: dict[str, Any] = dict(pinned_forms[OWN_CLUSTER])
    for name in ("tolerance", "top", "include", "time_limit_s"):
        members[name] = getattr(request, name)
    members["constraints"] = request.constraints.model_dump(mode="json", exclude_none=True)
    if request.allocation is not None:
        members["allocation"] = request.allocation.model_dump(mode="json", exclude_none=True)
    has_alternatives = len(asked.candidates.questions) > 1
    if target.allocation is not None and not has_alternatives:
        members["cluster"] = {
            **members["cluster"],
            "num_chips": target.allocation.cluster.num_chips,
            "chips_per_domain": target.allocation.chips_per_group,
        }
    if has_alternatives:
        members["alternatives"] = _alternatives_form(request.alternatives, pinned_forms)
    if has_alternatives or "objective" in request.model_fields_set:
        members["objective"] = request.objective.model_dump(mode="json", exclude_none=True)
    return members


def _alternatives_form(
    alternatives: AlternativeFields, pinned_forms: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """The alternatives as a request writes them, each with its stack where it names one."""
    clusters = list[dict[str, Any]]()
    for i, cluster in enumerate(alternatives.clusters):
        pinned = pinned_forms[f"alternatives.clusters[{i}]"]
        stack = {} if cluster.stack is None else {"stack": pinned["stack"]}
        clusters.append({**pinned["cluster"], **stack})
    form: dict[str, Any] = {"clusters": clusters, "num_chips": alternatives.num_chips}
    for name in ("up_to_chips", "multiple_of"):
        if (value := getattr(alternatives, name)) is not None:
            form[name] = value
    if alternatives.allocations:
        form["allocations"] = [
            nodes.model_dump(mode="json", exclude_none=True) for nodes in alternatives.allocations
        ]
    return form


def _found_members(
    recommendation: Recommendation, found_thresholds: list[Threshold] | None
) -> dict[str, Any]:
    """The members of the answer that say what was found."""
    cluster = recommendation.problem.cluster
    layouts = recommendation.layouts
    positions = {layout.prediction.layout: position for position, layout in enumerate(layouts)}

    def position_of(candidate: Candidate) -> int:
        return positions[candidate.prediction.layout]

    pipelining = PipeliningAnswer.of(recommendation.pipelining, positions)
    if found_thresholds is not None:
        pipelining.thresholds = [ThresholdAnswer.of(threshold) for threshold in found_thresholds]
    return {
        "layouts": [CandidateAnswer.of(candidate, cluster) for candidate in layouts],
        "recommended": position_of(recommendation.recommended),
        "fastest": position_of(recommendation.fastest),
        "simplest": position_of(recommendation.simplest),
        "simplest_gap": recommendation.simplest_gap,
        "bolder": recommendation.bolder
        and BolderAnswer(
            layout=position_of(recommendation.bolder), gain=recommendation.bolder_gain
        ),
        "ranked": [position_of(candidate) for candidate in recommendation.ranked],
        "front": [position_of(candidate) for candidate in recommendation.front],
        "chips_used": recommendation.chips_used,
        "fewer_chips": FewerChipsAnswer.of(recommendation.fewer_chips)
        if recommendation.fewer_chips
        else None,
        "pipelining": pipelining,
        "certificate": CertificateAnswer.of(recommendation.certificate),
    }
