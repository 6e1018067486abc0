"""The patch of a job (RFC 6902) that was checked: an annotation with the verdict, and variables by
which the run finds its service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardwright.hooks.finding import Finding
from shardwright.hooks.policy import HookPolicy

ANNOTATION = "shardwright/check"


def patch_of(job: Mapping[str, Any], finding: Finding, policy: HookPolicy) -> list[dict[str, Any]]:
    """Returns the operations of the patch; none where there was no verdict. Variables that the job
    already sets stay as they are."""
    if finding.mark is None:
        return []
    operations = [*_annotation_operations(job, finding.mark)]
    for path, container in _containers(job):
        operations += _variable_operations(path, container, finding.variables(policy.service.url))
    return operations


def _annotation_operations(job: Mapping[str, Any], mark: str) -> Iterator[dict[str, Any]]:
    """Yields the operation that adds the verdict as an annotation. `mark` is that of a finding,
    such as "shardwright:go:check-0199c2f4"."""
    verdict = mark.partition(":")[2]
    if not (job.get("metadata") or {}).get("annotations"):
        # A member cannot be added to an object that is not there.
        yield _add("/metadata/annotations", {ANNOTATION: verdict})
    else:
        yield _add(f"/metadata/annotations/{_step(ANNOTATION)}", verdict)


def _containers(job: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the JSON Pointer and the content of each part of a job that may set environment
    variables: its containers, or the trainer of a TrainJob."""
    spec = job.get("spec") or {}
    if job["kind"] == "TrainJob" and spec.get("trainer"):
        yield "/spec/trainer", spec["trainer"]
    for path, template in _pod_templates(job["kind"], spec):
        for index, container in enumerate(template["spec"].get("containers") or ()):
            yield f"{path}/spec/containers/{index}", container


def _pod_templates(kind: str, spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the JSON Pointer and the content of each pod template in the specification of a
    job."""
    if kind == "Job":
        yield "/spec/template", spec["template"]
    elif kind == "JobSet":
        for index, replicated in enumerate(spec.get("replicatedJobs") or ()):
            path = f"/spec/replicatedJobs/{index}/template/spec/template"
            yield path, replicated["template"]["spec"]["template"]
    elif kind == "PyTorchJob":
        for role, replica in (spec.get("pytorchReplicaSpecs") or {}).items():
            yield f"/spec/pytorchReplicaSpecs/{_step(role)}/template", replica["template"]


def _variable_operations(
    path: str, container: Mapping[str, Any], variables: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yields the operations that add those variables which a container does not set yet."""
    existing = {variable.get("name") for variable in container.get("env") or ()}
    added = [
        {"name": name, "value": value} for name, value in variables.items() if name not in existing
    ]
    if not container.get("env"):
        yield _add(f"{path}/env", added)
    else:
        yield from (_add(f"{path}/env/-", variable) for variable in added)


def _add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def _step(name: str) -> str:
    """Returns a name as one step of a JSON Pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
