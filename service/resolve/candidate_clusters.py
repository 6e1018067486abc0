"""The clusters that a recommendation may run on: the question's own, and the alternatives. An
*allocation* is a list of nodes that the caller holds, with their chips."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from models.advice.choice import Choice
from models.errors import Invalid, UnknownName
from service.json_pointers import relocate_errors
from service.resolve.resolution import ResolvedQuestion, Resolver
from service.schemas.recommendation import RecommendationRequest

OWN_CLUSTER = "cluster"
"""The name of the question's own cluster, which is where it stands in the request."""

_CHIP_DEPENDENT_FIELDS = ("stack", "workload.precision")
"""Fields that one chip may be unable to run and another can: an alternative that breaks only these,
or the question's own cluster, is refused by itself, not the whole request."""


@dataclass(slots=True)
class CandidateClusters:
    """The candidate clusters of a recommendation, each with the question on it.

    Every mapping is keyed by where the cluster stands in the request, such as "cluster" or
    "alternatives.num_chips[0]".
    """

    questions: dict[str, RecommendationRequest] = field(default_factory=dict)
    """The request with its cluster and stack replaced by those of the candidate."""
    pinned_forms: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`cluster` and `stack` as a request writes them, with catalogue names pinned to a version."""
    resolved: dict[str, ResolvedQuestion] = field(default_factory=dict)
    """The questions that the chips there can run."""
    refused: list[Choice] = field(default_factory=list)
    """The other candidates, each with the reason."""
    first_error: Invalid | None = None
    """Why the first of those cannot run the question."""

    def add(self, resolver: Resolver, name: str, question: RecommendationRequest) -> None:
        """Adds a candidate by the name of its place in the request, or records why its chips cannot
        run the question.

        Raises Invalid for errors that have nothing to do with the abilities of a chip.
        """
        prices = resolver.prices(question.objective)
        sized = resolver.cluster(question.cluster, prices)
        stack = resolver.stack(question.stack)
        self.questions[name] = question
        self.pinned_forms[name] = {"cluster": sized.pinned_form, "stack": stack.pinned_form}
        try:
            resolved = resolver.resolve(question, prices)
            problem = resolved.problem
            # Raises Invalid where the chip has no peak in the precision of the workload.
            _ = problem.cluster.peak_flops(problem.workload.number_format.gemm)
        except Invalid as error:
            depends_on_chip = error.field in _CHIP_DEPENDENT_FIELDS
            if not depends_on_chip or isinstance(error, UnknownName):
                raise
            self.first_error = self.first_error or error
            refused = Choice(
                name=name,
                chip=sized.cluster.chip.id,
                num_chips=sized.cluster.num_chips,
                refused=f"{error.field} {error.value}: {error.rule}",
            )
            self.refused.append(refused)
        else:
            self.resolved[name] = resolved

    def is_on_torus(self, name: str) -> bool:
        resolved = self.resolved.get(name)
        return resolved is not None and resolved.problem.cluster.is_torus

    def add_chip_count(self, resolver: Resolver, name: str, num_chips: int) -> None:
        """Adds a candidate with this number of the question's own chips.

        Its scale-up domains have as many chips as the question says, or all chips if there are
        fewer.
        """
        question = self.questions[OWN_CLUSTER]
        # A torus shape is of the question's own number of chips only.
        changes: dict[str, Any] = {"num_chips": num_chips, "torus_shape": None}
        if question.cluster.chips_per_domain:
            changes["chips_per_domain"] = min(question.cluster.chips_per_domain, num_chips)
        cluster = question.cluster.model_copy(update=changes)
        with relocate_errors("cluster.num_chips", name):
            self.add(resolver, name, question.model_copy(update={"cluster": cluster}))


def resolve_candidates(resolver: Resolver, request: RecommendationRequest) -> CandidateClusters:
    """Returns the question's own cluster and every alternative that the request names. Raises
    Invalid where the chips of none of them can run the question."""
    candidates = CandidateClusters()
    _add_own_cluster(candidates, resolver, request)
    _add_other_allocations(candidates, resolver, request)
    for name, question in _questions_elsewhere(request):
        with relocate_errors("cluster", name), relocate_errors("stack", f"{name}.stack"):
            candidates.add(resolver, name, question)
    # Chips that cannot run the question cannot do so in another number.
    if OWN_CLUSTER in candidates.resolved:
        _add_chip_counts(candidates, resolver, request)
    if not candidates.resolved and candidates.first_error is not None:
        raise candidates.first_error
    return candidates


def _add_chip_counts(
    candidates: CandidateClusters, resolver: Resolver, request: RecommendationRequest
) -> None:
    """Adds the question's own cluster with each other number of chips in `alternatives.num_chips`;
    a number that is repeated is added once."""
    counts = {candidates.resolved[OWN_CLUSTER].problem.cluster.num_chips}
    for i, num_chips in enumerate(request.alternatives.num_chips):
        if num_chips not in counts:
            counts.add(num_chips)
            candidates.add_chip_count(resolver, f"alternatives.num_chips[{i}]", num_chips)


def _add_own_cluster(
    candidates: CandidateClusters, resolver: Resolver, request: RecommendationRequest
) -> None:
    """Adds the cluster of the request, with the chips of its allocation if it gives no number
    itself."""
    if request.allocation is None or request.cluster.num_chips is not None:
        candidates.add(resolver, OWN_CLUSTER, request)
        return
    # The allocation says how many chips there are, so it is what an error about them is about.
    cluster = request.cluster.model_copy(update={"num_chips": request.allocation.chips})
    with relocate_errors("cluster.num_chips", "allocation"):
        candidates.add(resolver, OWN_CLUSTER, request.model_copy(update={"cluster": cluster}))


def _add_other_allocations(
    candidates: CandidateClusters, resolver: Resolver, request: RecommendationRequest
) -> None:
    """Adds the request's cluster on each alternative allocation, which is a list of nodes with
    their chips."""
    for i, allocation in enumerate(request.alternatives.allocations):
        cluster = request.cluster.model_copy(update={"num_chips": allocation.chips})
        question = request.model_copy(update={"allocation": allocation, "cluster": cluster})
        name = f"alternatives.allocations[{i}]"
        with relocate_errors("cluster.num_chips", name), relocate_errors("cluster", name):
            candidates.add(resolver, name, question)


def _questions_elsewhere(
    request: RecommendationRequest,
) -> Iterator[tuple[str, RecommendationRequest]]:
    """Yields the question on each cluster of `alternatives.clusters`, with the place of that
    cluster in the request."""
    for i, cluster in enumerate(request.alternatives.clusters):
        stack = request.stack if cluster.stack is None else cluster.stack
        # The nodes of the request's allocation belong to its own cluster.
        changes = {"cluster": cluster, "stack": stack, "allocation": None}
        question = request.model_copy(update=changes)
        yield f"alternatives.clusters[{i}]", question
