"""Objects of Kubernetes that start training: Job, JobSet, PyTorchJob, TrainJob, Volcano's Job,
RayJob and their like."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.formats.jobs.job_text import (
    JobText,
    environment_of,
    header,
    listed,
    mapping,
    whole,
)
from service.formats.shell.headers import Header

_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "google.com/tpu", "habana.ai/gaudi")
_CHIP_LABELS = (
    "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-tpu-accelerator", "node.kubernetes.io/instance-type", "gpu.product",
)  # fmt: skip
"""Labels by which a pod asks for nodes with a kind of chip."""
_COUNTS = ("replicas", "parallelism", "completions", "numNodes", "minMember")
_LISTS = ("replicatedJobs", "tasks", "workerGroupSpecs")
_MOST_PODS = 64  # of one training: objects have a template for each role, not one for each pod
_MOST_DEPTH = 24  # twice the depth at which any kind of object has its pods
_VARIABLE = re.compile(r"\$\((\w{1,100})\)", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Pod:
    """One kind of pod of a job, and how many of it there are."""

    spec: Mapping[str, Any]
    count: int


def is_object(document: Any) -> bool:
    fields = mapping(document)
    return "kind" in fields and "apiVersion" in fields


def job_of(documents: Sequence[Mapping[str, Any]]) -> JobText | None:
    """Returns the job among some objects; None where none of them starts anything."""
    files = {
        str(name): str(text)
        for document in documents
        if document.get("kind") == "ConfigMap"
        for name, text in mapping(document.get("data")).items()
    }
    for document in documents:
        found = _of_object(document)
        if found is not None:
            return JobText(
                text=found.text,
                environment=found.environment,
                header=found.header,
                files=files,
            )
    return None


def _of_object(document: Mapping[str, Any]) -> JobText | None:
    spec = mapping(document.get("spec"))
    trainer = mapping(spec.get("trainer"))
    if trainer:
        return _of_trainer(trainer)
    pods = [*_pods(spec, 1, 0)][:_MOST_PODS]
    working = [pod for pod in pods if _gpus(pod.spec)] or pods
    entrypoint = spec.get("entrypoint")  # of a RayJob
    for pod in (*working, *pods):  # mpirun is started by a pod without accelerators
        for container in listed(pod.spec.get("containers")):
            text = str(entrypoint) if entrypoint else _command(mapping(container))
            if text:
                return JobText(
                    text=text,
                    environment=environment_of(mapping(container).get("env")),
                    header=_header(working),
                )
    return None


def _of_trainer(trainer: Mapping[str, Any]) -> JobText | None:
    """Returns the job of a TrainJob, whose runtime starts torchrun on each node."""
    gpus = _gpus_of(mapping(trainer.get("resourcesPerNode")))
    nodes = whole(trainer.get("numNodes")) or 1
    per_node = whole(trainer.get("numProcPerNode"))
    text = _command(trainer)
    if not text:
        return None
    written = {"nodes": f"numNodes: {nodes}", "gpus-per-node": f"resourcesPerNode: {gpus}"}
    trainer_header = header(
        "TrainJob", nodes=nodes, gpus=gpus or per_node, chip=None, written=written
    )
    return JobText(text=text, environment=environment_of(trainer.get("env")), header=trainer_header)


def _pods(node: Mapping[str, Any], count: int, depth: int) -> Iterator[_Pod]:
    """Yields the pods of an object with how many there are: each level says how often it has what
    is below."""
    if depth > _MOST_DEPTH:
        return
    if listed(node.get("containers")):
        yield _Pod(node, count)
        return
    own = next((n for name in _COUNTS if (n := whole(node.get(name)))), 1)
    for name, value in node.items():
        if name in ("template", "spec", "jobTemplate"):
            yield from _pods(mapping(value), count * own, depth + 1)
        elif name.endswith("ReplicaSpecs"):  # PyTorchJob and its like: by role
            for role in mapping(value).values():
                yield from _pods(mapping(role), count, depth + 1)
        elif name in _LISTS:
            for pod in listed(value):
                yield from _pods(mapping(pod), count, depth + 1)
        elif name in ("rayClusterSpec", "headGroupSpec"):
            yield from _pods(mapping(value), count, depth + 1)


def _gpus(spec: Mapping[str, Any]) -> int | None:
    counts = [
        _gpus_of(mapping(mapping(container).get("resources")))
        for container in listed(spec.get("containers"))
    ]
    return sum(filter(None, counts)) or None


def _gpus_of(resources: Mapping[str, Any]) -> int | None:
    for place in ("limits", "requests"):
        for name in _GPUS:
            count = whole(mapping(resources.get(place)).get(name))
            if count:
                return count
    return None


def _header(pods: Sequence[_Pod]) -> Header | None:
    """Returns the nodes of a job: its pods with accelerators, which have as many each."""
    per_node = {_gpus(pod.spec) for pod in pods}
    if len(per_node) != 1 or None in per_node:
        return None
    gpus = per_node.pop()
    nodes = sum(pod.count for pod in pods)
    labels = [mapping(pod.spec.get("nodeSelector")) for pod in pods]
    chips = [str(label[name]) for label in labels for name in _CHIP_LABELS if name in label]
    chip = re.sub(r"^(?:NVIDIA-|nvidia-)", "", chips[0]) if chips else None
    written = {
        "nodes": f"{nodes} pods",
        "gpus-per-node": f"{gpus} accelerators in resources.limits",
    }
    return header("Kubernetes", nodes=nodes, gpus=gpus, chip=chip, written=written)


def _command(container: Mapping[str, Any]) -> str:
    """Returns the command of a container as a shell would be told it."""
    words = [
        *_words(container.get("command")),
        *_words(container.get("args")),
    ]
    environment = environment_of(container.get("env"))
    put = [_VARIABLE.sub(lambda m: environment.get(m[1], m[0]), word) for word in words]
    return " ".join(map(shlex.quote, put))


def _words(value: Any) -> list[str]:
    return [str(word) for word in listed(value)] or ([value] if isinstance(value, str) else [])
