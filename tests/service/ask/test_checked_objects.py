"""Checks of objects that describe a job, sent as JSON or as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

COMMAND = (
    "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048"
    " --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
    " --vocab-size 50257 --micro-batch-size 1 --global-batch-size 64 --bf16"
    " --tensor-model-parallel-size 2"
)
CONTAINER = {
    "command": ["bash", "-c"],
    "args": [COMMAND],
    "resources": {"limits": {"nvidia.com/gpu": 8}},
}
PODS = {"spec": {"containers": [CONTAINER]}}
RESOURCES = {"limits": {"nvidia.com/gpu": 8}}
OBJECTS: Mapping[str, dict[str, Any]] = {
    "Job": {"apiVersion": "batch/v1", "spec": {"parallelism": 2, "template": PODS}},
    "JobSet": {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "spec": {
            "replicatedJobs": [
                {"replicas": 1, "template": {"spec": {"parallelism": 2, "template": PODS}}}
            ]
        },
    },
    "PyTorchJob": {
        "apiVersion": "kubeflow.org/v1",
        "spec": {
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": PODS},
                "Worker": {"replicas": 1, "template": PODS},
            }
        },
    },
    "TrainJob": {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "spec": {
            "trainer": {
                "numNodes": 2,
                "numProcPerNode": 8,
                "command": COMMAND.split(),
                "resourcesPerNode": RESOURCES,
            }
        },
    },
    "RayJob": {
        "apiVersion": "ray.io/v1",
        "spec": {
            "entrypoint": COMMAND,
            "rayClusterSpec": {
                "workerGroupSpecs": [
                    {
                        "replicas": 2,
                        "template": {"spec": {"containers": [{"resources": RESOURCES}]}},
                    }
                ]
            },
        },
    },
}
VOLCANO = {
    "kind": "Job",
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "spec": {"tasks": [{"replicas": 2, "template": PODS}]},
}
SKY = {"resources": {"accelerators": "H100:8"}, "num_nodes": 2, "run": COMMAND}
SENT = {
    **{kind: {"kind": kind, **rest} for kind, rest in OBJECTS.items()},
    "Volcano": VOLCANO,
    "SkyPilot": SKY,
}


@pytest.mark.parametrize("kind", SENT)
def test_an_object_is_answered_as_its_text_is(shared_client, kind: str) -> None:
    found = []
    for arguments in (SENT[kind], yaml.safe_dump(SENT[kind], width=10_000)):
        body = {"launch": {"arguments": arguments}, "cluster": {"preset": "h100"}}
        answer = shared_client.post("/v1/checks", json=body)
        assert answer.status_code == 200, answer.text
        found.append(answer.json())
    of_object, of_text = found
    assert of_object["layout"]["tp"] == 2
    assert of_object["launch_read"] == of_text["launch_read"]
    assert of_object["prediction"] == of_text["prediction"]
    assert of_object["verdict"] == of_text["verdict"] != "cannot_tell"
