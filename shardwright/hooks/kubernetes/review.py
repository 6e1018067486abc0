"""Admission reviews (admission.k8s.io/v1) of jobs: each is allowed, with what was found as
warnings, unless the administrator has such jobs refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

from shardwright.hooks.checking import check_job, check_request, launch_of_object
from shardwright.hooks.finding import Finding
from shardwright.hooks.kubernetes.patch import patch_of
from shardwright.hooks.policy import HookPolicy

KINDS = ("Job", "JobSet", "PyTorchJob", "TrainJob")
"""The kinds that are checked. All others, such as the workloads that Kueue makes of these, pass."""
_QUEUE = "kueue.x-k8s.io/queue-name"
_LONGEST = 256  # characters of a warning that the API server is sure to hand on (KEP-1693)


def reviewed(review: Mapping[str, Any], policy: HookPolicy) -> dict[str, Any]:
    """Returns the review with its response. Jobs of kinds that train are checked when they are
    created, and all else is allowed. Raises KeyError where it is no review."""
    request = review["request"]
    job = request.get("object") or {}
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    if request.get("operation", "CREATE") == "CREATE" and job.get("kind") in KINDS:
        chip = policy.chip_of(_places(job, request))
        finding = check_job(policy, check_request(launch_of_object(job), chip=chip))
        response |= _response(job, finding, policy)
    return {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}


def _response(job: Mapping[str, Any], finding: Finding, policy: HookPolicy) -> dict[str, Any]:
    """Returns the members of the response that tell what the check found: a refusal, or warnings
    and a patch."""
    more = f"shardwright check {job['kind'].lower()}.yaml"
    if finding.is_refused:
        message = finding.line(more)
        return {
            "allowed": False,
            "status": {"code": 403, "reason": "Forbidden", "message": message},
        }
    response: dict[str, Any] = {}
    if finding.sentences:
        sentences = [*finding.sentences, f"more: {more}"] if finding.verdict else finding.sentences
        response["warnings"] = [_short(f"shardwright: {sentence}") for sentence in sentences]
    patch = patch_of(job, finding, policy) if policy.patch else []
    if patch:
        encoded = base64.b64encode(json.dumps(patch).encode()).decode()
        response |= {"patchType": "JSONPatch", "patch": encoded}
    return response


def _short(warning: str) -> str:
    return warning if len(warning) <= _LONGEST else f"{warning[: _LONGEST - 1]}…"


def _places(job: Mapping[str, Any], request: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names by which a site may know the chips of a job: node labels, its queue, its
    runtime and its namespace."""
    yield from _node_labels(job.get("spec"))
    labels = (job.get("metadata") or {}).get("labels") or {}
    runtime = ((job.get("spec") or {}).get("runtimeRef") or {}).get("name")
    yield from filter(None, (labels.get(_QUEUE), runtime, request.get("namespace")))


def _node_labels(part: Any) -> Iterator[str]:
    """Yields the values of the node labels that any pod of a job asks for."""
    if isinstance(part, list):
        for item in part:
            yield from _node_labels(item)
    elif isinstance(part, Mapping):
        for name, value in part.items():
            if name == "nodeSelector" and isinstance(value, Mapping):
                yield from map(str, value.values())
            else:
                yield from _node_labels(value)
