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
_NODES_OF_TORCHRUN = "PET_NNODES"
"""The variable in which operators of Kubernetes tell torchrun the number of nodes."""
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
    config_maps: dict[str, Mapping[str, str]] = {}
    files: dict[str, str] = {}
    for document in documents:
        if document.get("kind") == "ConfigMap":
            data = as_mapping(document.get("data"))
            texts = {str(name): str(text) for name, text in data.items()}
            config_maps[str(as_mapping(document.get("metadata")).get("name"))] = texts
            files |= texts  # of those without a name too, as generators write them
    for document in documents:
        job = _job_of_object(document, config_maps)
        if job is not None:
            return replace(job, files=files)
    return None


def _job_of_object(
    document: Mapping[str, Any], config_maps: Mapping[str, Mapping[str, str]]
) -> JobText | None:
    """Returns the job that an object starts; None where it starts none. It is the first
    container with a command, those with accelerators first. `config_maps` are the texts of the
    ConfigMaps beside the object, by the name of each."""
    spec = as_mapping(document.get("spec"))
    trainer = as_mapping(spec.get("trainer"))
    if trainer:
        return _job_of_train_job(trainer, config_maps)
    pods = [*_pods_inside(spec, count=1, depth=0)][:_MOST_PODS]
    working = [pod for pod in pods if _gpus_of_pod(pod.spec)] or pods
    entrypoint = spec.get("entrypoint")  # of a RayJob
    # Pods with accelerators come first. Those of an MPIJob may have no command: its launcher, a
    # pod without accelerators, starts mpirun. So do containers with accelerators: one beside the
    # training, such as a daemon for the network, asks for none.
    for pod in (*working, *pods):
        containers = _containers(pod.spec)
        for container in sorted(containers, key=lambda asked: not _gpus_of_container(asked)):
            environment = _environment(container, config_maps)
            text = str(entrypoint) if entrypoint else _command_line(container, environment)
            if text:
                if document.get("kind") == "PyTorchJob":  # whose operator configures torchrun
                    environment = {_NODES_OF_TORCHRUN: str(_count_of(working)), **environment}
                return JobText(text=text, environment=environment, header=_header_of_pods(working))
    return None


def _job_of_train_job(
    trainer: Mapping[str, Any], config_maps: Mapping[str, Mapping[str, str]]
) -> JobText | None:
    """Returns the job of a TrainJob, which starts torchrun on each node; None without a command."""
    gpus = _gpus_of_resources(as_mapping(trainer.get("resourcesPerNode")))
    nodes = positive_integer(trainer.get("numNodes")) or 1
    per_node = positive_integer(trainer.get("numProcPerNode"))
    environment = _environment(trainer, config_maps)
    text = _command_line(trainer, environment)
    if not text:
        return None
    as_written = {"nodes": f"numNodes: {nodes}", "gpus-per-node": f"resourcesPerNode: {gpus}"}
    # torchrun starts a process for each GPU, so their number stands in for that of GPUs.
    trainer_header = slurm_header(
        "TrainJob", nodes=nodes, gpus=gpus or per_node, chip=None, as_written=as_written
    )
    environment = {_NODES_OF_TORCHRUN: str(nodes), **environment}
    return JobText(text=text, environment=environment, header=trainer_header)


def _pods_inside(node: Mapping[str, Any], count: int, depth: int) -> Iterator[_Pod]:
    """Yields each kind of pod inside an object, with the number of its copies. `count` is the
    number of copies of the object; its field `replicas` or the like multiplies that number for
    the pods inside. Fields at a depth that no kind of object has are not read."""
    if depth > _MOST_DEPTH:
        return
    if _containers(node):
        yield _Pod(node, count)
        return
    group = as_mapping(node.get("leaderWorkerTemplate"))
    if group:
        yield from _pods_of_group(group, depth + 1)
        return
    # An object says its count in one field, under the name that its kind has for it.
    counts = filter(None, (positive_integer(node.get(name)) for name in _COUNTS))
    replicas = next(counts, 1)
    for name, value in node.items():
        times = replicas if name in _REPLICATED else 1
        for child in _objects_with_pods(name, value):
            yield from _pods_inside(as_mapping(child), count=count * times, depth=depth + 1)


def _pods_of_group(group: Mapping[str, Any], depth: int) -> Iterator[_Pod]:
    """Yields each kind of pod in one group of a LeaderWorkerSet: `size` pods, of which the leader
    may have a template of its own. Further groups are replicas of the job."""
    size = positive_integer(group.get("size")) or 1
    leader = as_mapping(group.get("leaderTemplate"))
    if leader:
        yield from _pods_inside(leader, count=1, depth=depth)
        size -= 1
    if size:
        worker = as_mapping(group.get("workerTemplate"))
        yield from (replace(pod, count=size) for pod in _pods_inside(worker, 1, depth))


def _objects_with_pods(name: str, value: Any) -> Iterable[Any]:
    """Returns the objects, in a field of this name, that may contain pods."""
    if name in _REPLICATED or name in ("rayClusterSpec", "headGroupSpec"):
        return [value]
    if name.endswith("ReplicaSpecs"):  # PyTorchJob and its like: by role
        return as_mapping(value).values()
    return as_list(value) if name in _LISTS else []


def _containers(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [as_mapping(container) for container in as_list(spec.get("containers"))]


def _gpus_of_container(container: Mapping[str, Any]) -> int | None:
    """Returns the accelerators that a container asks for; None where it asks for none."""
    return _gpus_of_resources(as_mapping(container.get("resources")))


def _gpus_of_pod(spec: Mapping[str, Any]) -> int | None:
    """Returns the accelerators of all containers of a pod; None where they ask for none."""
    return sum(filter(None, map(_gpus_of_container, _containers(spec)))) or None


def _gpus_of_resources(resources: Mapping[str, Any]) -> int | None:
    """Returns the accelerators that a container's resources ask for; None where they ask for
    none."""
    for place in ("limits", "requests"):
        for name in _GPUS:
            count = positive_integer(as_mapping(resources.get(place)).get(name))
            if count:
                return count
    return None


def _count_of(pods: Sequence[_Pod]) -> int:
    return sum(pod.count for pod in pods)


def _header_of_pods(pods: Sequence[_Pod]) -> Header | None:
    """Returns the machines of a job, whose pods are a node each. None where the pods have unequal
    numbers of accelerators, or none."""
    per_node = {_gpus_of_pod(pod.spec) for pod in pods}
    if len(per_node) != 1 or None in per_node:
        return None
    gpus = per_node.pop()
    nodes = _count_of(pods)
    labels = [as_mapping(pod.spec.get("nodeSelector")) for pod in pods]
    chips = [str(label[name]) for label in labels for name in _CHIP_LABELS if name in label]
    # The first label stands for all. "NVIDIA-H100-80GB-HBM3" -> "H100-80GB-HBM3"
    chip = re.sub(r"^(?:NVIDIA-|nvidia-)", "", chips[0]) if chips else None
    as_written = {
        "nodes": f"{nodes} pods",
        "gpus-per-node": f"{gpus} accelerators in resources.limits",
    }
    return slurm_header("Kubernetes", nodes=nodes, gpus=gpus, chip=chip, as_written=as_written)


def _environment(
    container: Mapping[str, Any], config_maps: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """Returns the variables of a container: those of the ConfigMaps that it names, and its own,
    which override them."""
    variables: dict[str, str] = {}
    for source in map(as_mapping, as_list(container.get("envFrom"))):
        name = str(as_mapping(source.get("configMapRef")).get("name"))
        prefix = str(source.get("prefix") or "")
        variables |= {prefix + key: value for key, value in config_maps.get(name, {}).items()}
    return variables | environment_of(container.get("env"))


def _command_line(container: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Returns the command of a container as a shell line, with references $(NAME) replaced by
    its variables, as Kubernetes does. A reference to no variable stays as it is."""
    words = [*_words(container.get("command")), *_words(container.get("args"))]
    words = [
        _VARIABLE.sub(lambda match: environment.get(match[1], match[0]), word) for word in words
    ]
    return " ".join(map(shlex.quote, words))


def _words(value: Any) -> list[str]:
    """Returns the words of a command that is a list or a single text."""
    return [str(word) for word in as_list(value)] or ([value] if isinstance(value, str) else [])
