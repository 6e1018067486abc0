"""Where a recommendation may run: the cluster of its question, and the alternatives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from models.advice.cluster_choice import Choice
from models.errors import Invalid, UnknownName
from service.json_pointers import instead_of
from service.resolve.resolution import Resolved, Resolver
from service.schemas.recommendation import RecommendationRequest

OWN = "cluster"
_OF_A_PLACE = ("stack", "workload.precision")
"""What a chip may lack, and another has."""


@dataclass(frozen=True, slots=True)
class CandidateClusters:
    """By where each stands in the request: the question there, as it was asked, as it is written,
    and resolved, unless the chips there cannot run it; `refused` says why."""

    asked: dict[str, RecommendationRequest] = field(default_factory=dict)
    written: dict[str, dict[str, Any]] = field(default_factory=dict)
    resolved: dict[str, Resolved] = field(default_factory=dict)
    refused: list[Choice] = field(default_factory=list)

    def add(self, resolver: Resolver, name: str, asked: RecommendationRequest) -> None:
        price = asked.objective.usd_per_chip_hour
        place, stack = resolver.place(asked.cluster, price), resolver.stack(asked.stack)
        self.asked[name], self.written[name] = asked, {"cluster": place.form, "stack": stack.form}
        try:
            resolved = resolver.problem(asked, price)
            resolved.problem.cluster.peak_flops(resolved.problem.workload.number_format.gemm)
        except Invalid as error:
            if name == OWN or error.field not in _OF_A_PLACE or isinstance(error, UnknownName):
                raise
            chip, chips = place.cluster.chip.id, place.cluster.num_chips
            self.refused.append(
                Choice(
                    name=name,
                    chip=chip,
                    num_chips=chips,
                    refused=f"{error.field} {error.value}: {error.rule}",
                )
            )
        else:
            self.resolved[name] = resolved


def places_of(resolver: Resolver, request: RecommendationRequest) -> CandidateClusters:
    found = CandidateClusters()
    if request.allocation is not None and request.cluster.num_chips is None:
        held = request.cluster.model_copy(update={"num_chips": request.allocation.chips})
        with instead_of("cluster.num_chips", "allocation"):
            found.add(resolver, OWN, request.model_copy(update={"cluster": held}))
    else:
        found.add(resolver, OWN, request)
    for name, asked in _of_clusters(request):
        with instead_of("cluster", name), instead_of("stack", f"{name}.stack"):
            found.add(resolver, name, asked)
    sizes = {found.resolved[OWN].problem.cluster.num_chips}
    for i, chips in enumerate(request.alternatives.num_chips):
        if chips not in sizes:
            sizes.add(chips)
            add_number(found, resolver, f"alternatives.num_chips[{i}]", chips)
    return found


def add_number(places: CandidateClusters, resolver: Resolver, name: str, chips: int) -> None:
    """So many chips of the question's own cluster, of each domain as many as there or all."""
    own = places.asked[OWN]
    held = own.cluster.chips_per_domain
    changed = {"num_chips": chips, "torus_shape": None} | (
        {"chips_per_domain": min(held, chips)} if held else {}
    )
    sized = own.cluster.model_copy(update=changed)
    with instead_of("cluster.num_chips", name):
        places.add(resolver, name, own.model_copy(update={"cluster": sized}))


def _of_clusters(request: RecommendationRequest) -> Iterator[tuple[str, RecommendationRequest]]:
    for i, cluster in enumerate(request.alternatives.clusters):
        stack = request.stack if cluster.stack is None else cluster.stack
        yield (
            f"alternatives.clusters[{i}]",
            request.model_copy(update={"cluster": cluster, "stack": stack}),
        )
