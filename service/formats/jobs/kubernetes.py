"""Objects of Kubernetes that start training: Job, JobSet, PyTorchJob, TrainJob, Volcano's Job,
RayJob and their like."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from service.formats.jobs.job_text import (
    JobText,
    as_list,
    as_mapping,
    environment_of,
    positive_integer,
    slurm_header,
)
from service.formats.shell.headers import Header

_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "google.com/tpu", "habana.ai/gaudi")
_CHIP_LABELS = (
    "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-tpu-accelerator", "node.kubernetes.io/instance-type", "gpu.product",
)  # fmt: skip
"""Labels by which a pod asks for nodes with a kind of chip."""
_COUNTS = ("replicas", "parallelism", "completions", "numNodes", "minMember")
_REPLICATED = ("template", "spec", "jobTemplate")
"""Fields with an object of which there are as many as the counts beside it say."""
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
    """Returns True for an object of Kubernetes, which always has these two fields."""
    fields = as_mapping(document)
    return "kind" in fields and "apiVersion" in fields


def job_of(documents: Sequence[Mapping[str, Any]]) -> JobText | None:
    """Returns the job among some Kubernetes objects, with the files of their ConfigMaps; None
    where no object starts anything."""
    files = {
        str(name): str(text)
        for document in documents
        if document.get("kind") == "ConfigMap"
        for name, text in as_mapping(document.get("data")).items()
    }
    for document in documents:
        job = _job_of_object(document)
        if job is not None:
            return replace(job, files=files)
    return None


def _job_of_object(document: Mapping[str, Any]) -> JobText | None:
    """Returns the job that an object starts; None where it starts none. It is the first
    container with a command, in a pod with accelerators where there are such pods."""
    spec = as_mapping(document.get("spec"))
    trainer = as_mapping(spec.get("trainer"))
    if trainer:
        return _job_of_train_job(trainer)
    pods = [*_pods_inside(spec, count=1, depth=0)][:_MOST_PODS]
    working = [pod for pod in pods if _gpus_of_pod(pod.spec)] or pods
    entrypoint = spec.get("entrypoint")  # of a RayJob
    # Pods with accelerators come first. Those of an MPIJob may have no command: its launcher, a
    # pod without accelerators, starts mpirun.
    for pod in (*working, *pods):
        for container in as_list(pod.spec.get("containers")):
            text = str(entrypoint) if entrypoint else _command_line(as_mapping(container))
            if text:
                return JobText(
                    text=text,
                    environment=environment_of(as_mapping(container).get("env")),
                    header=_header_of_pods(working),
                )
    return None


def _job_of_train_job(trainer: Mapping[str, Any]) -> JobText | None:
    """Returns the job of a TrainJob, which starts torchrun on each node; None without a command."""
    gpus = _gpus_of_resources(as_mapping(trainer.get("resourcesPerNode")))
    nodes = positive_integer(trainer.get("numNodes")) or 1
    per_node = positive_integer(trainer.get("numProcPerNode"))
    text = _command_line(trainer)
    if not text:
        return None
    as_written = {"nodes": f"numNodes: {nodes}", "gpus-per-node": f"resourcesPerNode: {gpus}"}
    # torchrun starts a process for each GPU, so their number stands in for that of GPUs.
    trainer_header = slurm_header(
        "TrainJob", nodes=nodes, gpus=gpus or per_node, chip=None, as_written=as_written
    )
    return JobText(text=text, environment=environment_of(trainer.get("env")), header=trainer_header)


def _pods_inside(node: Mapping[str, Any], count: int, depth: int) -> Iterator[_Pod]:
    """Yields each kind of pod inside an object, with the number of its copies. `count` is the
    number of copies of the object; its field `replicas` or the like multiplies that number for
    the pods inside. Fields at a depth that no kind of object has are not read."""
    if depth > _MOST_DEPTH:
        return
    if as_list(node.get("containers")):
        yield _Pod(node, count)
        return
    # An object says its count in one field, under the name that its kind has for it.
    counts = filter(None, (positive_integer(node.get(name)) for name in _COUNTS))
    replicas = next(counts, 1)
    for name, value in node.items():
        times = replicas if name in _REPLICATED else 1
        for child in _objects_with_pods(name, value):
            yield from _pods_inside(as_mapping(child), count=count * times, depth=depth + 1)


def _objects_with_pods(name: str, value: Any) -> Iterable[Any]:
    """Returns the objects, in a field of this name, that may contain pods."""
    if name in _REPLICATED or name in ("rayClusterSpec", "headGroupSpec"):
        return [value]
    if name.endswith("ReplicaSpecs"):  # PyTorchJob and its like: by role
        return as_mapping(value).values()
    return as_list(value) if name in _LISTS else []


def _gpus_of_pod(spec: Mapping[str, Any]) -> int | None:
    """Returns the accelerators of all containers of a pod; None where they ask for none."""
    counts = [
        _gpus_of_resources(as_mapping(as_mapping(container).get("resources")))
        for container in as_list(spec.get("containers"))
    ]
    return sum(filter(None, counts)) or None


def _gpus_of_resources(resources: Mapping[str, Any]) -> int | None:
    """Returns the accelerators that a container's resources ask for; None where they ask for
    none."""
    for place in ("limits", "requests"):
        for name in _GPUS:
            count = positive_integer(as_mapping(resources.get(place)).get(name))
            if count:
                return count
    return None


def _header_of_pods(pods: Sequence[_Pod]) -> Header | None:
    """Returns the machines of a job, whose pods are a node each. None where the pods have unequal
    numbers of accelerators, or none."""
    per_node = {_gpus_of_pod(pod.spec) for pod in pods}
    if len(per_node) != 1 or None in per_node:
        return None
    gpus = per_node.pop()
    nodes = sum(pod.count for pod in pods)
    labels = [as_mapping(pod.spec.get("nodeSelector")) for pod in pods]
    chips = [str(label[name]) for label in labels for name in _CHIP_LABELS if name in label]
    # The first label stands for all. "NVIDIA-H100-80GB-HBM3" -> "H100-80GB-HBM3"
    chip = re.sub(r"^(?:NVIDIA-|nvidia-)", "", chips[0]) if chips else None
    as_written = {
        "nodes": f"{nodes} pods",
        "gpus-per-node": f"{gpus} accelerators in resources.limits",
    }
    return slurm_header("Kubernetes", nodes=nodes, gpus=gpus, chip=chip, as_written=as_written)


def _command_line(container: Mapping[str, Any]) -> str:
    """Returns the command of a container as a shell line, with references $(NAME) replaced by
    its variables, as Kubernetes does. A reference to no variable stays as it is."""
    environment = environment_of(container.get("env"))
    words = [*_words(container.get("command")), *_words(container.get("args"))]
    words = [
        _VARIABLE.sub(lambda match: environment.get(match[1], match[0]), word) for word in words
    ]
    return " ".join(map(shlex.quote, words))


def _words(value: Any) -> list[str]:
    """Returns the words of a command that is a list or a single text."""
    return [str(word) for word in as_list(value)] or ([value] if isinstance(value, str) else [])
