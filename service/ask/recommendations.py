"""Recommends the layouts to launch, and where: resolves the request, searches, explains.

A *candidate* is a cluster that the request names, and a *choice* is a candidate with the time and
the cost of the job on it. The *target* is the best of them, for which layouts are searched. A
*pinned form* is a part of the request in which each catalogue name has its version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from models.advice.candidate import Candidate
from models.advice.choice import Choice
from models.advice.implausible_values import implausible_values
from models.advice.reason import Reason, reasons_of
from models.advice.recommendation import Recommendation
from models.advice.thresholds import Threshold
from service.ask.answer_keys import Meaning
from service.ask.evidence import Evidence
from service.ask.kept_answers import KeptAnswers, KeyedQuestion
from service.ask.oom_history import left_out_reasons, oom_warnings
from service.ask.recommendation_reasons import (
    cluster_reasons,
    failure_assumptions,
    groups_reasons,
    learned_reasons,
    spare_chips_reasons,
)
from service.ask.recommendation_search import Inputs, RecommendationSearch, Solution, Target
from service.resolve.answer_basis import basis
from service.resolve.assumptions import empty_chunk_assumptions, leaf_switch_assumptions
from service.resolve.candidate_clusters import OWN_CLUSTER, CandidateClusters, resolve_candidates
from service.resolve.launch_jobs import AnswerLaunched, launch_block, ranks_by_node
from service.resolve.profiles import requested_profile
from service.resolve.resolution import Resolver
from service.runtime.deadline import Deadline, no_client
from service.runtime.idempotency import Prepared
from service.schemas.allocation import AllocationAnswer
from service.schemas.objective import AlternativeFields, ChoiceAnswer
from service.schemas.prediction import PredictedLayout
from service.schemas.reason import ReasonFacts
from service.schemas.recommendation import (
    BolderAnswer,
    CandidateAnswer,
    CertificateAnswer,
    FewerChipsAnswer,
    PipeliningAnswer,
    RecommendationAnswer,
    RecommendationRequest,
)
from service.store import Rows, Store


class Recommendations(KeptAnswers[RecommendationRequest, CandidateClusters]):
    kind = "recommendations"

    def __init__(self, store: Store, evidence: Evidence) -> None:
        super().__init__(store)
        self._evidence = evidence
        self._search = RecommendationSearch(store)

    def resolve(self, rows: Rows, request: RecommendationRequest) -> CandidateClusters:
        return resolve_candidates(Resolver(rows), request)

    def meaning(self, resolved: CandidateClusters) -> Meaning:
        return Meaning.of(resolved.resolved.values(), resolved.pinned_forms)

    def recommend(
        self,
        request: RecommendationRequest,
        question: KeyedQuestion[CandidateClusters],
        require_client: Callable[[], None] = no_client,
    ) -> Prepared:
        """Searches an answer to a question that `look_up` has not found answered. Returns the
        function that stores it."""
        key = question.key
        deadline = Deadline(request.time_limit_s, require_client)
        inputs = Inputs(request, question.resolved, key.profile, deadline)
        solution = self._search.solve(inputs)
        answer = self._recommendation_answer(inputs, solution)
        # An answer is given again only if its search was not cut short by the time limit, and if
        # nothing that it depends on has changed during the search. Under its own id as the key no
        # other question finds it.
        is_kept = not deadline.ran_out and self._is_current(request, key)
        return self._prepare(answer, key.digest if is_kept else answer.id)

    def find(self, request: RecommendationRequest) -> tuple[Recommendation, Choice | None]:
        """Returns the recommendation for a request, without the words of an answer, and the best
        cluster; None for the cluster where none were compared. Stores nothing."""
        with self._store.reading() as rows:
            candidates = self.resolve(rows, request)
            profile = requested_profile(rows, request.profile)
        deadline = Deadline(request.time_limit_s, no_client)
        solution = self._search.solve(Inputs(request, candidates, profile, deadline))
        choices = solution.target.choices
        return solution.recommendation, choices[0] if choices else None

    def _recommendation_answer(self, inputs: Inputs, solution: Solution) -> RecommendationAnswer:
        """Returns the answer: the layouts, with reasons, assumptions and published runs."""
        recommendation = solution.recommendation
        target = solution.target
        fields = _layout_answer_fields(recommendation, solution.thresholds)
        advised = _advised_layouts(fields)
        evidence = self._evidence.nearest_to_layout(
            recommendation.problem, recommendation.fastest.prediction.layout, inputs.profile
        )
        question = inputs.candidates.questions[target.name]
        # The layouts may use fewer of the chips than the cluster has.
        answered = inputs.candidates.resolved[target.name].with_answered_problem(
            recommendation.problem
        )
        launched = recommendation.recommended.prediction.layout  # the layout of `launch`
        # What every answer has: its id, the request, the profile, what was learned, assumptions.
        grounds = basis(question, answered, inputs.profile, launched)
        reasons = _reasons(inputs, solution, advised)
        reasons += learned_reasons(grounds["learned"])
        fields["reasons"] = [reason.sentence for reason in reasons]
        fields["reason_facts"] = [*map(ReasonFacts.from_attributes, reasons)]
        grounds["request"] |= _request_fields(inputs, target)
        grounds["assumptions"] += _assumptions(inputs, target, advised)
        allocation = target.allocation and AllocationAnswer.from_attributes(target.allocation)
        answer = AnswerLaunched(
            kind="recommendation",
            id=grounds["id"],
            ranks_by_node=ranks_by_node(allocation.model_dump()["hosts"]) if allocation else {},
        )
        pinned_forms = inputs.candidates.pinned_forms
        return RecommendationAnswer(
            **fields,
            launch=launch_block(recommendation.problem, launched, question, answer),
            allocation=allocation,
            choices=[
                ChoiceAnswer.of(
                    choice,
                    pinned_forms[choice.name],
                    on_torus=inputs.candidates.is_on_torus(choice.name),
                )
                for choice in target.choices
            ],
            evidence=evidence,
            out_of_memory=solution.failed,
            **grounds,
        )


def _reasons(
    inputs: Inputs, solution: Solution, advised: dict[str, PredictedLayout]
) -> list[Reason]:
    """Returns the reasons in the order in which they are shown: warnings first, then why this
    cluster, these layouts and these chips. `advised` has the layouts by the names that reasons give
    them."""
    recommendation = solution.recommendation
    target = solution.target
    fastest = recommendation.fastest.prediction
    needed_gib = fastest.needed_gib
    micro_batches = inputs.constraints.allowed.get("micro_batch", ())
    reasons = [
        # A slip is a value that was probably typed wrong, such as a batch in tokens.
        *reasons_of(
            "slip", implausible_values(recommendation.problem, fastest.step_time_s, micro_batches)
        ),
        *reasons_of("out_of_memory", oom_warnings(advised, solution.failed)),
        *reasons_of("out_of_memory", left_out_reasons(needed_gib, solution.failed)),
        *cluster_reasons(target.choices, target.fewest_chips_reasons, inputs.objective),
        *recommendation.reasons,
    ]
    if target.allocation is not None:
        reasons += groups_reasons(target.allocation, fastest.step_time_s)
        reasons += spare_chips_reasons(target.allocation, inputs.request.cluster.num_chips)
    return reasons


def _assumptions(inputs: Inputs, target: Target, advised: dict[str, PredictedLayout]) -> list[str]:
    """Returns the assumptions that only a recommendation makes. `advised` has the layouts by the
    names that reasons give them."""
    assumptions = failure_assumptions(inputs.request.objective)
    for name, prediction in advised.items():
        assumptions += empty_chunk_assumptions(name, prediction)
    # The question lists the free nodes; the allocation of the answer has the chips to take there.
    free_nodes = inputs.candidates.questions[target.name].allocation
    if target.allocation is not None and free_nodes is not None:
        assumptions += leaf_switch_assumptions(target.allocation, free_nodes.build())
    return assumptions


def _advised_layouts(fields: dict[str, Any]) -> dict[str, PredictedLayout]:
    """Returns the layouts to launch by names such as "the fastest". A layout with several names is
    there once, under the most important one: recommended, then fastest."""
    names = ("simplest", "fastest", "recommended")  # a layout keeps the last of its names
    positions = {fields[name]: f"the {name}" for name in names}
    layouts = fields["layouts"]
    return {name: layouts[position].prediction for position, name in positions.items()}


def _request_fields(inputs: Inputs, target: Target) -> dict[str, Any]:
    """Returns fields of the answer's `request`, which gives this answer again when it is sent.
    Cluster and stack are those of the request itself, even if another candidate is the best."""
    request = inputs.request
    pinned_forms = inputs.candidates.pinned_forms
    # The question, each of its names pinned to the present version of its entry.
    fields: dict[str, Any] = dict(pinned_forms[OWN_CLUSTER])
    for name in ("tolerance", "top", "include", "time_limit_s"):
        fields[name] = getattr(request, name)
    fields["constraints"] = request.constraints.model_dump(mode="json", exclude_none=True)
    if request.allocation is not None:
        fields["allocation"] = request.allocation.model_dump(mode="json", exclude_none=True)
    has_alternatives = len(inputs.candidates.questions) > 1
    # The chips of the listed nodes that are used become the cluster's size. With alternatives these
    # nodes may be those of another cluster, and the size stays.
    if target.allocation is not None and not has_alternatives:
        fields["cluster"] = {
            **fields["cluster"],
            "num_chips": target.allocation.cluster.num_chips,
            "chips_per_domain": target.allocation.chips_per_group,
        }
    if has_alternatives:
        fields["alternatives"] = _alternatives_form(request.alternatives, pinned_forms)
    if has_alternatives or "objective" in request.model_fields_set:
        fields["objective"] = request.objective.model_dump(mode="json", exclude_none=True)
    return fields


def _alternatives_form(
    alternatives: AlternativeFields, pinned_forms: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Returns the alternatives as a request writes them, with names pinned to their versions, so
    that the request in the answer can be asked again with the same result."""
    clusters = list[dict[str, Any]]()
    for i, cluster in enumerate(alternatives.clusters):
        pinned = pinned_forms[f"alternatives.clusters[{i}]"]
        # An alternative without a stack of its own runs the question's.
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


def _layout_answer_fields(
    recommendation: Recommendation, pipeline_thresholds: list[Threshold] | None
) -> dict[str, Any]:
    """Returns the fields of the answer about layouts: the list of layouts, and for each role, such
    as "fastest", the position of its layout in the list."""
    cluster = recommendation.problem.cluster
    layouts = recommendation.layouts
    positions = {layout.prediction.layout: position for position, layout in enumerate(layouts)}

    def position_of(candidate: Candidate) -> int:
        return positions[candidate.prediction.layout]

    return {
        "layouts": [CandidateAnswer.of(candidate, cluster) for candidate in layouts],
        "recommended": position_of(recommendation.recommended),
        "fastest": position_of(recommendation.fastest),
        "simplest": position_of(recommendation.simplest),
        "simplest_gap": recommendation.simplest_gap,
        # A layout that is faster than the recommended one, but less sure to fit in memory.
        "bolder": recommendation.bolder
        and BolderAnswer(
            layout=position_of(recommendation.bolder), gain=recommendation.bolder_gain
        ),
        "ranked": [position_of(candidate) for candidate in recommendation.ranked],
        "front": [position_of(candidate) for candidate in recommendation.front],
        "chips_used": recommendation.chips_used,
        "fewer_chips": recommendation.fewer_chips
        and FewerChipsAnswer.from_attributes(recommendation.fewer_chips),
        "pipelining": PipeliningAnswer.of(
            recommendation.pipelining, positions, pipeline_thresholds
        ),
        "certificate": CertificateAnswer.from_attributes(recommendation.certificate),
    }
