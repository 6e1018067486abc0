from __future__ import annotations

import pytest

from service.schemas.comparison import ComparisonAnswer
from tests.service.asking import QUESTION, assert_problem, candidate, changed

SMALL = changed(QUESTION, "cluster.num_chips", 16)
TWO = {
    "first": {"layout": {"dp_shard": 16, "zero_stage": 3}},
    "second": {"layout": {"tp": 2, "dp_shard": 8}},
}


def test_the_terms_add_up_to_the_difference(shared_client) -> None:
    found = shared_client.post("/v1/comparisons", json={**SMALL, **TWO})
    assert found.status_code == 200
    body = found.json()
    ComparisonAnswer.model_validate(body)
    a, b = body["first"]["prediction"], body["second"]["prediction"]
    assert sum(body["time"].values()) == pytest.approx(a["step_time_s"] - b["step_time_s"])
    assert sum(body["memory_gib"].values()) == pytest.approx(a["needed_gib"] - b["needed_gib"])
    assert any("second.layout.zero_stage" in line for line in body["assumptions"])


@pytest.mark.parametrize("side", [{}, {"constraints": {"pp": 1}}])
def test_a_side_that_is_searched_for_fits_surely_unless_it_says_otherwise(
    shared_client, side: dict
) -> None:
    tight = {**SMALL, "cluster": {"preset": "h100", "num_chips": 1}}
    layout = {"layout": {"offload_optimizer": True}}
    body = shared_client.post("/v1/comparisons", json={**tight, "first": side, "second": layout})
    surely = body.json()["first"]["prediction"]
    assert surely["fit_probability"] >= 0.9 - 1e-9
    bold = {"constraints": {**side.get("constraints", {}), "min_fit_probability": 0.5}}
    body = shared_client.post("/v1/comparisons", json={**tight, "first": bold, "second": layout})
    assert body.json()["first"]["prediction"]["step_time_s"] < surely["step_time_s"]


def test_the_reasons_name_every_knob_that_differs(shared_client) -> None:
    body = shared_client.post("/v1/comparisons", json={**SMALL, **TWO}).json()
    layouts = [body[side]["prediction"]["layout"] for side in ("first", "second")]
    knobs = {knob for knob in layouts[0] if layouts[0][knob] != layouts[1][knob]}
    (line,) = (line for line in body["reasons"] if line.startswith("the first has"))
    assert (
        knobs
        == {part.split()[0] for part in line.removeprefix("the first has ").split("; ")}
        >= {"tp", "dp_shard"}
    )


def test_a_layout_against_itself_differs_in_nothing(shared_client) -> None:
    same = {"first": TWO["first"], "second": TWO["first"]}
    body = shared_client.post("/v1/comparisons", json={**SMALL, **same}).json()
    assert set(body["time"].values()) == set(body["memory_gib"].values()) == {0.0}


def test_constraints_are_held_against_the_fastest_of_all(shared_client) -> None:
    body = shared_client.post(
        "/v1/comparisons", json={**SMALL, "first": {"constraints": {"tp": 4}}}
    ).json()
    best = candidate(shared_client.post("/v1/recommendations", json=SMALL).json(), "fastest")
    assert body["first"]["prediction"]["layout"]["tp"] == 4
    assert body["second"] == best
    assert sum(body["time"].values()) > 0
    assert body["exact"]
    again = shared_client.post("/v1/comparisons", json=body["request"]).json()
    assert again["time"] == body["time"]


@pytest.mark.parametrize(
    ("sides", "name", "pointer"),
    [
        ({}, "invalid", "/first"),
        ({"first": {"layout": {}, "constraints": {}}}, "invalid", "/first"),
        ({"first": {"layout": {"tp": 3, "dp_shard": 16}}}, "invalid", "/first/layout"),
        (
            {"first": {}, "second": {"layout": {"dp_shard": 16, "zero_stage": 0}}},
            "invalid",
            "/second/layout/zero_stage",
        ),
        ({"first": {"constraints": {"speed": 1}}}, "invalid", "/first/constraints/speed"),
        ({"first": {"constraints": {"tp": 3}}}, "infeasible", None),
    ],
)
def test_what_is_wrong_is_named(
    shared_client, sides: dict[str, object], name: str, pointer: str | None
) -> None:
    assert_problem(shared_client.post("/v1/comparisons", json={**SMALL, **sides}), name, pointer)


def test_constraints_are_not_blamed_where_nothing_is_legal(shared_client) -> None:
    body = {
        **QUESTION,
        "stack": "megatron",
        "cluster": {"preset": "h100", "num_chips": 47},
        "second": {},
    }
    refused = [
        assert_problem(
            shared_client.post("/v1/comparisons", json={**body, "first": first}), "infeasible"
        )
        for first in ({}, {"constraints": {"tp": 8}})
    ]
    assert refused[0]["detail"] == refused[1]["detail"]


def test_a_side_that_time_cut_short_is_named(shared_client) -> None:
    """The first has so few layouts that a search is through with them before it looks at the
    clock."""
    body = {**QUESTION, "first": {"constraints": {"tp": 2}}, "time_limit_s": 1e-6}
    found = shared_client.post("/v1/comparisons", json=body).json()
    assert not found["exact"]
    assert found["reasons"][0] == "the search was stopped: the second may be slower than it need be"


def launch(**document: object) -> dict:
    arguments = {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1, **document}
    return {"launch": {"format": "deepspeed", "arguments": arguments}}


LAUNCHED = {name: value for name, value in SMALL.items() if name != "stack"}
ZERO_3 = launch(zero_optimization={"stage": 3})
ZERO_1 = launch(zero_optimization={"stage": 1})


def test_launches_are_compared_side_by_side(shared_client) -> None:
    sides = {"first": ZERO_3, "second": ZERO_1}
    answer = shared_client.post("/v1/comparisons", json={**LAUNCHED, **sides})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    ComparisonAnswer.model_validate(body)
    stages = [body[side]["prediction"]["layout"]["zero_stage"] for side in ("first", "second")]
    assert stages == [3, 1]
    assert body["launch_read"].keys() == {"first", "second"}
    assert any("zero_stage 3, not 1" in reason for reason in body["reasons"])


def test_switches_that_differ_are_compared_too(shared_client) -> None:
    wide = launch(zero_optimization={"stage": 1}, data_types={"grad_accum_dtype": "fp32"})
    narrow = launch(zero_optimization={"stage": 1}, data_types={"grad_accum_dtype": "bf16"})
    sides = {"first": wide, "second": narrow}
    body = shared_client.post("/v1/comparisons", json={**LAUNCHED, **sides}).json()
    assert body["memory_gib"]["gradients_gib"] > 0
    reason = (
        "the stack of the first has gradient_bytes 4 (data_types.grad_accum_dtype=fp32), not 2 ("
    )
    assert any(line.startswith(reason) for line in body["reasons"])
    stacks = [body["request"].get("stack"), body["request"]["second"].get("stack")]
    assert stacks[0] != stacks[1]


def test_a_side_without_a_launch_runs_the_stack_of_the_other(shared_client) -> None:
    body = shared_client.post("/v1/comparisons", json={**LAUNCHED, "second": ZERO_3, "first": {}})
    assert body.status_code == 200, body.text
    assert body.json()["request"]["stack"] == "deepspeed"
    assert body.json()["launch_read"].keys() == {"second"}


def test_launches_that_train_something_else_are_refused(shared_client) -> None:
    other = launch(zero_optimization={"stage": 3}, fp16={"enabled": True}, bf16={"enabled": False})
    refused = shared_client.post(
        "/v1/comparisons", json={**LAUNCHED, "first": ZERO_3, "second": other}
    )
    problem = assert_problem(refused, "invalid", "/second/launch/arguments")
    assert "first.launch" in problem["errors"][0]["rule"]


def megatron(**changes: str) -> dict:
    """A script of GPT with arguments in place of, or beside, its own."""
    arguments = {
        "num-layers": "24",
        "hidden-size": "2048",
        "num-attention-heads": "16",
        "seq-length": "2048",
        "max-position-embeddings": "2048",
        "vocab-size": "50257",
        "micro-batch-size": "1",
        "global-batch-size": "64",
        "tensor-model-parallel-size": "1",
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    words = " ".join(f"--{name} {value}" for name, value in arguments.items())
    text = f"torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py {words} --bf16"
    return {"launch": {"format": "megatron", "arguments": text}}


@pytest.mark.parametrize("degrees", [("1", "8"), ("8", "1"), ("2", "4")])
def test_scripts_that_pad_one_vocabulary_for_other_degrees_are_compared(
    shared_client, degrees: tuple[str, str]
) -> None:
    first, second = (megatron(tensor_model_parallel_size=degree) for degree in degrees)
    sides = {"first": first, "second": second, "cluster": {"preset": "h100"}}
    answer = shared_client.post("/v1/comparisons", json=sides)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    found = [body[side]["prediction"]["layout"]["tp"] for side in ("first", "second")]
    assert found == [int(degree) for degree in degrees]
    assert body["request"]["model"]["vocab_size"] == 50257


def test_scripts_of_other_vocabularies_are_refused(shared_client) -> None:
    first, second = megatron(), megatron(vocab_size="32000", tensor_model_parallel_size="2")
    sides = {"first": first, "second": second, "cluster": {"preset": "h100"}}
    refused = shared_client.post("/v1/comparisons", json=sides)
    assert_problem(refused, "invalid", "/second/launch/arguments")
    assert "vocab_size" in refused.text
