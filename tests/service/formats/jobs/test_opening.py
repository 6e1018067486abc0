"""Objects that describe a job: what they start, on which chips, with which variables."""

from __future__ import annotations

import json

import pytest
import yaml

from service.formats.jobs.opening import open_job
from service.formats.shell.command import Command, split_command
from service.formats.shell.files import LaunchFiles

JOB = """apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: 2
  completions: 2
  template:
    spec:
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
      containers:
      - name: main
        image: x
        command: [torchrun, --nnodes=2, --nproc_per_node=8, pretrain_gpt.py]
        args: ["--tensor-model-parallel-size", "$(TP)", "--bf16"]
        env:
        - {name: TP, value: "4"}
        resources: {limits: {nvidia.com/gpu: 8}}
"""
PYTORCH_JOB = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master: &role
      replicas: 1
      template: &template
        spec:
          containers:
          - name: pytorch
            command: ["bash", "-c"]
            args: ["torchrun --nproc_per_node 8 train.py --a $A"]
            env: [{name: A, value: "3"}]
            resources: {limits: {nvidia.com/gpu: "8"}}
    Worker:
      replicas: 3
      template: *template
"""
JOB_SET = """apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
spec:
  replicatedJobs:
  - name: slice
    replicas: 2
    template:
      spec:
        parallelism: 4
        template:
          spec:
            nodeSelector: {cloud.google.com/gke-accelerator: nvidia-h100-80gb}
            containers:
            - command: ["sh", "-c", "python3 -m MaxText.train base.yml per_device_batch_size=2"]
              resources: {limits: {nvidia.com/gpu: 8}}
"""
TRAIN_JOB = """apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
spec:
  trainer:
    numNodes: 4
    numProcPerNode: 8
    command: ["torchrun", "train.py"]
    args: ["--a", "1"]
    resourcesPerNode: {limits: {nvidia.com/gpu: 8}}
"""
VOLCANO = """apiVersion: batch.volcano.sh/v1alpha1
kind: Job
spec:
  minAvailable: 3
  tasks:
  - name: master
    replicas: 1
    template: {spec: {containers: [{command: [sleep, "1"]}]}}
  - name: worker
    replicas: 2
    template:
      spec:
        containers:
        - command: ["/bin/sh", "-c"]
          args: ["torchrun --nnodes 2 --nproc_per_node 8 train.py --a 1"]
          resources: {requests: {nvidia.com/gpu: 8}}
"""
RAY_JOB = """apiVersion: ray.io/v1
kind: RayJob
spec:
  entrypoint: python train.py --a 1
  rayClusterSpec:
    headGroupSpec:
      template: {spec: {containers: [{name: head}]}}
    workerGroupSpecs:
    - replicas: 4
      template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: 8}}}]}}
"""
SKY = """name: train
resources:
  accelerators: H100:8
num_nodes: 2
envs:
  MB: 2
setup: pip install x
run: |
  torchrun --nnodes $SKYPILOT_NUM_NODES --nproc_per_node $SKYPILOT_NUM_GPUS_PER_NODE \\
    train.py --mb $MB
"""
SKY_OF_ANY = SKY.replace("H100:8", "{H100:8, A100-80GB:8}")
SKY_OF_TPUS = """resources: {accelerators: tpu-v5p-16}
run: python3 -m maxtext.trainers.pre_train.train base.yml
"""
DSTACK = """type: task
nodes: 2
env: [HF_TOKEN, MB=2]
commands:
- pip install x
- torchrun --nnodes $DSTACK_NODES_NUM --nproc_per_node $DSTACK_GPUS_PER_NODE train.py --mb $MB
resources: {gpu: "H100:8", shm_size: 24GB}
"""
SKY_OF_SEVERAL = SKY.replace(
    "  accelerators: H100:8", "  any_of: [{accelerators: H100:8}, {accelerators: H200:8}]"
)
MPI_JOB = """apiVersion: kubeflow.org/v2beta1
kind: MPIJob
spec:
  slotsPerWorker: 8
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
        spec: {containers: [{command: [mpirun], args: ["-np", "32", python, train.py, --a, "1"]}]}
    Worker:
      replicas: 4
      template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: 8}}}]}}
"""
CONFIG_MAP = """apiVersion: v1
kind: ConfigMap
data:
  run.sh: |
    torchrun --nproc_per_node 8 train.py --a 1
---
apiVersion: batch/v1
kind: Job
spec:
  template:
    spec:
      containers:
      - command: ["bash", "/config/run.sh"]
        resources: {limits: {nvidia.com/gpu: 8}}
"""
SIDECAR = JOB.replace(
    "      - name: main",
    """      - name: daemon
        command: ["/bin/sh", "-c", "/fts/entrypoint.sh --num_nics=8"]
      - name: main""",
)
GROUP = """apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 4
    workerTemplate: &pod
      spec:
        containers:
        - command: [torchrun, --nnodes=4, --nproc_per_node=8, train.py, --a, "1"]
          resources: {limits: {nvidia.com/gpu: 8}}
"""
FROM_CONFIG_MAP = PYTORCH_JOB.replace(
    'env: [{name: A, value: "3"}]', "envFrom: [{configMapRef: {name: e}}]"
)
FROM_CONFIG_MAP = f"""apiVersion: v1
kind: ConfigMap
metadata: {{name: e}}
data: {{A: "3"}}
---
{FROM_CONFIG_MAP}"""
RECIPE = """DEPENDENCIES:
  dockerfile: |
    FROM ${BASE}
ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: '1'}
MODEL_ARGS:
  num_layers: 24
  --bf16: true
  swiglu: false
  recompute_modules: [moe_act, layernorm]
"""
OBJECTS = [
    JOB,
    PYTORCH_JOB,
    JOB_SET,
    TRAIN_JOB,
    VOLCANO,
    RAY_JOB,
    SKY,
    MPI_JOB,
    DSTACK,
    CONFIG_MAP,
    SIDECAR,
    GROUP,
    FROM_CONFIG_MAP,
    RECIPE,
]


def started(text: str, environment: dict[str, str] | None = None) -> Command:
    return split_command(*open_job(text, LaunchFiles(environment=environment or {})))


@pytest.mark.parametrize(
    ("text", "words", "ranks", "chip"),
    [
        (JOB, "--tensor-model-parallel-size 4 --bf16", 16, "H100-80GB-HBM3"),
        (PYTORCH_JOB, "--a 3", 32, None),
        (JOB_SET, "base.yml per_device_batch_size=2", 64, "h100-80gb"),
        (TRAIN_JOB, "--a 1", 32, None),
        (VOLCANO, "--a 1", 16, None),
        (RAY_JOB, "--a 1", 32, None),
        (SKY, "--mb 2", 16, "H100"),
        (SKY_OF_ANY, "--mb 2", 16, "H100"),
        (SKY_OF_SEVERAL, "--mb 2", 16, "H100"),
        (SKY_OF_TPUS, "base.yml", 8, "v5p"),
        (MPI_JOB, "--a 1", 32, None),
        (DSTACK, "--mb 2", 16, "H100"),
        (DSTACK.replace('"H100:8"', "{name: H100, count: 8}"), "--mb 2", 16, "H100"),
        (CONFIG_MAP, "--a 1", 8, None),
        (SIDECAR, "--tensor-model-parallel-size 4 --bf16", 16, "H100-80GB-HBM3"),
        (GROUP, "--a 1", 32, None),
        (f"{GROUP}    leaderTemplate: *pod\n", "--a 1", 32, None),
        (FROM_CONFIG_MAP, "--a 3", 32, None),
        (RECIPE, "--num-layers 24 --bf16 --recompute-modules moe_act layernorm", None, None),
    ],
)
def test_an_object_says_its_command_and_its_chips(
    text: str, words: str, ranks: int | None, chip: str | None
) -> None:
    command = started(text)
    assert list(command.words) == words.split()
    assert (command.num_ranks, command.chip) == (ranks, chip)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("text", OBJECTS)
def test_an_object_in_json_starts_what_it_does_in_yaml(text: str, indent: int | None) -> None:
    documents = [*yaml.safe_load_all(text)]
    whole = documents[0] if len(documents) == 1 else {"kind": "List", "items": documents}
    assert started(json.dumps(whole, indent=indent)) == started(text)


def test_the_files_of_all_config_maps_are_sent() -> None:
    other = "kind: ConfigMap\napiVersion: v1\ndata: {a.yaml: b}\n"
    _, files = open_job(f"{CONFIG_MAP}---\n{other}", LaunchFiles())
    assert files.texts.keys() == {"run.sh", "a.yaml"}


def test_variables_of_the_request_go_before_those_of_the_object() -> None:
    assert started(PYTORCH_JOB, {"A": "9"}).words == ("--a", "9")
    assert started(SKY, {"MB": "9"}).words == ("--mb", "9")


def test_the_variables_of_a_recipe_are_its_environment() -> None:
    assert started(RECIPE).environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


@pytest.mark.parametrize(
    "text", ["a: 1", "bf16: true\nrun_name: x", "torchrun train.py --kind: x", '{"kind": 1}', "{"]
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    files = LaunchFiles()
    assert open_job(text, files) == (text, files)
