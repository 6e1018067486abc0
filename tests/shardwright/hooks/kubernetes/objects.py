"""Objects of Kubernetes that start training, and their reviews as an API server sends them."""

from __future__ import annotations

from typing import Any

_COMMAND = ["torchrun", "--nnodes", "2", "--nproc-per-node", "8", "pretrain_gpt.py"]
_ARGUMENTS = (
    "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64"
    " --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm"
    " --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 128256"
    " --seq-length 8192 --max-position-embeddings 8192 --bf16 --tensor-model-parallel-size TP"
    " --sequence-parallel --use-distributed-optimizer --micro-batch-size 1"
    " --global-batch-size 512"
)


def _arguments(tensor_parallel: int) -> list[str]:
    return _ARGUMENTS.replace("TP", str(tensor_parallel)).split()


def _template(arguments: list[str]) -> dict[str, Any]:
    container = {
        "name": "pytorch",
        "image": "megatron",
        "command": _COMMAND,
        "args": arguments,
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
    }
    return {
        "spec": {
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-B300"},
            "containers": [container],
            "restartPolicy": "Never",
        }
    }


def job(tensor_parallel: int = 8) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "llama", "namespace": "research"},
        "spec": {
            "completions": 2,
            "parallelism": 2,
            "completionMode": "Indexed",
            "template": _template(_arguments(tensor_parallel)),
        },
    }


def job_set(tensor_parallel: int = 8) -> dict[str, Any]:
    replicated = {
        "name": "workers",
        "replicas": 1,
        "template": {"spec": job(tensor_parallel)["spec"]},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "llama", "annotations": {"owner": "ann"}},
        "spec": {"replicatedJobs": [replicated]},
    }


def pytorch_job(tensor_parallel: int = 8) -> dict[str, Any]:
    template = _template(_arguments(tensor_parallel))
    template["spec"]["containers"][0]["env"] = [{"name": "NCCL_DEBUG", "value": "WARN"}]
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "llama"},
        "spec": {
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": template},
                "Worker": {"replicas": 1, "template": template},
            }
        },
    }


def train_job(tensor_parallel: int = 8) -> dict[str, Any]:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "llama", "labels": {"kueue.x-k8s.io/queue-name": "large"}},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "suspend": True,
            "trainer": {
                "image": "megatron",
                "numNodes": 2,
                "command": _COMMAND,
                "args": _arguments(tensor_parallel),
                "resourcesPerNode": {"limits": {"nvidia.com/gpu": "8"}},
            },
        },
    }


ALL = {"Job": job, "JobSet": job_set, "PyTorchJob": pytorch_job, "TrainJob": train_job}


def review(object_: dict[str, Any], operation: str = "CREATE") -> dict[str, Any]:
    """The review of an object (admission.k8s.io/v1), as the API server sends it."""
    group, _, version = object_["apiVersion"].rpartition("/")
    kind = {"group": group, "version": version, "kind": object_["kind"]}
    resource = {"group": group, "version": version, "resource": f"{object_['kind'].lower()}s"}
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": object_["metadata"]["name"],
            "namespace": "research",
            "operation": operation,
            "userInfo": {"username": "ann", "groups": ["system:authenticated"]},
            "object": object_,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }


def patched(object_: dict[str, Any], operations: list[dict[str, Any]]) -> dict[str, Any]:
    """The object as the API server changes it (RFC 6902); only "add" is asked for."""
    import copy

    changed = copy.deepcopy(object_)
    for operation in operations:
        assert operation["op"] == "add"
        steps = [
            step.replace("~1", "/").replace("~0", "~")
            for step in operation["path"].removeprefix("/").split("/")
        ]
        part: Any = changed
        for step in steps[:-1]:
            part = part[int(step)] if isinstance(part, list) else part[step]
        if isinstance(part, list):
            assert steps[-1] == "-"
            part.append(operation["value"])
        else:
            part[steps[-1]] = operation["value"]
    return changed
