"""The items of a sweep, which is many questions asked as one job: every combination of what its
request lists (models, clusters and so on), and the question that each asks. The *position* of an
item counts the combinations from 0. A *pinned* name has the version that it stood for when the
sweep was created."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from models.spec.stack import Stack
from service.json_pointers import relocate_errors
from service.resolve.profiles import requested_profile
from service.resolve.resolution import ResolvedPart, Resolver
from service.schemas.objective import OtherForm
from service.schemas.sweep import SweepRequest
from service.store import Rows

Form = TypeVar("Form")
Resolved = TypeVar("Resolved")

_LISTS = {
    "model": "models",
    "cluster": "clusters",
    "workload": "workloads",
    "stack": "stacks",
    "constraints": "constraints",
}
"""The lists of a request by the field of a question that they list; the last varies fastest."""


def count(request: Mapping[str, Any]) -> int:
    return math.prod(len(request[name]) for name in _LISTS.values())


def combination(request: Mapping[str, Any], position: int) -> dict[str, int]:
    """Returns the index of the item at this position into each list of the request, by the field
    that the list varies. The last list varies fastest, as the last digit of a number does."""
    indices: dict[str, int] = {}
    for field, name in reversed(_LISTS.items()):
        # The remainder is the digit of this list, and the quotient goes on to the list before it.
        position, indices[field] = divmod(position, len(request[name]))
    return {field: indices[field] for field in _LISTS}


def item_question(request: Mapping[str, Any], position: int) -> dict[str, Any]:
    """Returns the request for a recommendation that the item at this position stands for. The stack
    that a cluster names replaces that of the list."""
    indices = combination(request, position)
    parts = {field: request[name][indices[field]] for field, name in _LISTS.items()}
    common = {
        name: request[name]
        for name in ("profile", "tolerance", "time_limit_s", "objective")
        if request.get(name) is not None  # earlier releases stored no objective
    }
    own_stack = parts["cluster"].get("stack")
    if own_stack is not None:
        cluster = {name: value for name, value in parts["cluster"].items() if name != "stack"}
        parts |= {"cluster": cluster, "stack": own_stack}
    return {**parts, **common}


def pin_names(rows: Rows, request: SweepRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the request with each name pinned to its present version: it then means the same
    until the end of the sweep. Returns with it the names to show for each model, cluster and stack.

    Raises Invalid or UnknownName where no combination could be computed.
    """
    resolver = Resolver(rows)
    profile = requested_profile(rows, request.profile)
    models = _resolve_each("model", "models", request.models, resolver.architecture)
    clusters = _resolve_each("cluster", "clusters", request.clusters, resolver.cluster)
    own_stacks = _resolve_own_stacks(resolver, request.clusters)
    stacks = _resolve_each("stack", "stacks", request.stacks, resolver.stack)
    document = {
        "models": [model.pinned_form for model in models],
        "clusters": [
            {**cluster.pinned_form, **({"stack": stack.pinned_form} if stack else {})}
            for cluster, stack in zip(clusters, own_stacks, strict=True)
        ],
        "workloads": [workload.model_dump(mode="json") for workload in request.workloads],
        "stacks": [stack.pinned_form for stack in stacks],
        # Constraints and objective stay as they were written, without defaults.
        "constraints": [
            constraints.model_dump(mode="json", exclude_unset=True)
            for constraints in request.constraints
        ],
        "profile": {"id": profile.id, "version": profile.version},
        "tolerance": request.tolerance,
        "time_limit_s": request.time_limit_s,
    }
    if request.objective is not None:
        document["objective"] = request.objective.model_dump(mode="json", exclude_unset=True)
    names = {
        "models": [model.used.name for model in models],
        "clusters": [
            {
                "chip": cluster.chip.name,
                "num_chips": cluster.cluster.num_chips,
                "stack": stack.used.name if stack else None,
            }
            for cluster, stack in zip(clusters, own_stacks, strict=True)
        ],
        "stacks": [stack.used.name for stack in stacks],
    }
    return document, names


def _resolve_own_stacks(
    resolver: Resolver, clusters: Sequence[OtherForm]
) -> list[ResolvedPart[Stack] | None]:
    """Returns for each cluster, resolved, the stack that it names in place of the list's; None
    where it names none."""
    stacks = list[ResolvedPart[Stack] | None]()
    for index, cluster in enumerate(clusters):
        with relocate_errors("stack", f"clusters[{index}].stack"):
            stacks.append(None if cluster.stack is None else resolver.stack(cluster.stack))
    return stacks


def _resolve_each(
    field: str, name: str, forms: Sequence[Form], resolve: Callable[[Form], Resolved]
) -> list[Resolved]:
    """Returns each entry of a list of the sweep, resolved. `field` is the name of an entry in a
    question, and `name` that of the list. Errors about "model" are moved to "models[2]", the
    entry's place in the request."""
    resolved = list[Resolved]()
    for index, form in enumerate(forms):
        with relocate_errors(field, f"{name}[{index}]"):
            resolved.append(resolve(form))
    return resolved
