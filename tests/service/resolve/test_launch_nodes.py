"""The nodes of a script, as the cluster of its question."""

from __future__ import annotations

from typing import Any

import pytest

FLAGS = (
    " pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024"
    " --max-position-embeddings 1024 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64"
    " --bf16 --tensor-model-parallel-size 4"
)
BY_FOURS = "#SBATCH --nodes=16\n#SBATCH --gres=gpu:h100:4\nsrun torchrun --nnodes 16" + FLAGS


def predicted(client: Any, arguments: str, **members: Any) -> dict[str, Any]:
    body = {"launch": {"format": "megatron", "arguments": arguments}, **members}
    answer = client.post("/v1/predictions", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_node_with_fewer_chips_than_a_domain_ends_its_links(shared_client) -> None:
    cluster = {"preset": "h100"}
    answer = predicted(shared_client, BY_FOURS, cluster=cluster)
    assert answer["request"]["cluster"]["chips_per_domain"] == 4
    assert answer["request"]["cluster"]["num_chips"] == 64
    (said,) = [one for one in answer["launch_read"]["assumed"] if "chips_per_domain" in one]
    assert "which can join 8 chips, end at the node" in said
    by_twos = BY_FOURS.replace("h100:4", "2").replace("16", "32")
    slower = predicted(shared_client, by_twos, cluster=cluster)
    seconds = [one["layouts"][0]["step_time_s"] for one in (answer, slower)]
    assert seconds[1] > seconds[0] * 1.1


@pytest.mark.parametrize(
    ("arguments", "cluster"),
    [
        (BY_FOURS, {"preset": "gb200-nvl72"}),
        (BY_FOURS, {"preset": "h100", "chips_per_domain": 8}),
        (BY_FOURS.replace("gpu:h100:4", "gpu:8").replace("16", "8"), {"preset": "h100"}),
        (BY_FOURS.splitlines()[2].replace("nnodes 16", "nnodes 64"), {"preset": "h100"}),
    ],
)
def test_other_domains_are_as_they_were(
    shared_client, arguments: str, cluster: dict[str, Any]
) -> None:
    answer = predicted(shared_client, arguments, cluster={"num_chips": 64, **cluster})
    given = cluster.get("chips_per_domain")
    assert answer["request"]["cluster"].get("chips_per_domain") == given
    assert "chips_per_domain" not in str(answer["launch_read"]["assumed"])


def test_a_machine_joins_chips_that_are_sold_one_by_one(shared_client) -> None:
    """Nodes of four GH200, as Alps and JUPITER have them."""
    by_fours = BY_FOURS.replace("h100:4", "4")
    answer = predicted(shared_client, by_fours, cluster={"preset": "gh200"})
    assert answer["request"]["cluster"]["preset"] == "quad-gh200"
    assert any("cluster.preset is quad-gh200" in one for one in answer["launch_read"]["assumed"])
    asked = {"preset": "gh200", "chips_per_domain": 1}
    alone = predicted(shared_client, by_fours, cluster=asked)
    assert alone["request"]["cluster"]["preset"].startswith("gh200")


def test_the_chips_that_slurm_is_asked_for_need_no_preset(shared_client) -> None:
    answer = predicted(shared_client, BY_FOURS)
    assert answer["request"]["cluster"]["preset"] == "h100-sxm-80gb"
    sentences = answer["launch_read"]["assumed"]
    assert any(line.startswith("cluster.preset is h100: the chips that") for line in sentences)
    unknown = {"format": "megatron", "arguments": BY_FOURS.replace("h100", "big_one")}
    refused = shared_client.post("/v1/predictions", json={"launch": unknown})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/cluster"


SLICES = (
    "xpk workload create --cluster c --workload w --tpu-type={} --num-slices={} --command"
    ' "python3 -m maxtext.trainers.pre_train.train model_name=llama3.1-8b'
    ' per_device_batch_size=2 remat_policy=full dataset_type=synthetic"'
)


@pytest.mark.parametrize(
    ("type_", "count", "cluster", "shape"),
    [
        ("v5p-128", 2, None, [4, 4, 4]),
        ("v5p-128", 2, {"preset": "v5p", "num_chips": 128}, [4, 4, 4]),
        ("v5p-128", 2, {"preset": "v5p", "num_chips": 128, "torus_shape": [4, 4, 8]}, [4, 4, 8]),
        ("v5p-128", 2, {"preset": "v5p", "num_chips": 256}, None),
        ("v5p-128", 2, {"preset": "v6e", "num_chips": 128}, [8, 8]),
        ("v5p-128", 1, None, None),
        ("tpu7x-4x4x8", 4, None, [4, 4, 8]),
    ],
)
def test_slices_of_a_script_are_those_of_the_cluster(
    shared_client, type_: str, count: int, cluster: dict[str, Any] | None, shape: list[int] | None
) -> None:
    arguments = SLICES.format(type_, count)
    body = {"launch": {"format": "maxtext", "arguments": arguments}, "cluster": cluster}
    answer = shared_client.post("/v1/predictions", json=body).json()
    assert answer["request"]["cluster"].get("torus_shape") == shape
    said = [one for one in answer["launch_read"]["assumed"] if "cluster.torus_shape is" in one]
    assert bool(said) == (shape is not None and "torus_shape" not in (cluster or {}))
