"""Facts that logs state of their own run."""

from __future__ import annotations

import pytest

from service.formats.logs.stated_facts import Fact, stated_facts

TITAN = "[rank0]:[titan] 2026-03-04 10:11:12,101 - root - INFO - "


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        (
            f"{TITAN}Model llama3 8B size: 8,030,261,248 total parameters",
            {"parameters": 8_030_261_248},
        ),
        (
            f"{TITAN}Trainer is initialized with local batch size 1, global batch size 64, gradient"
            " accumulation steps 1, sequence length 8192, total steps 90 (warmup 9)",
            {"global_batch": 64, "seq_len": 8192},
        ),
        (
            f"{TITAN}Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=4, cp=1,"
            " tp=8, ep=1",
            {"num_devices": 64},
        ),
        (f"{TITAN}Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]", {"num_devices": 8}),
        (
            f"{TITAN}Building llama3 8B with TransformerModelArgs(dim=4096, n_layers=32)",
            {"num_layers": 32},
        ),
        ("number parameters: 8.030 billion", {"parameters": 8.03e9}),
        ("Config param base_num_decoder_layers: 32", {"num_layers": 32}),
        ("Config param max_target_length: 8192", {"seq_len": 8192}),
        ("Config param global_batch_size_to_train_on: 512", {"global_batch": 512}),
        ("Num_devices: 256, shape (1, 1, 1, 256, 1)", {"num_devices": 256}),
        (
            "completed step: 3, seconds: 11.7, total_weights: 1572864, loss: 9.8",
            {"step_tokens": 1_572_864},
        ),
        (" Total number of parameters in billions: 8.03", {"parameters": 8.03e9}),
        (
            "using world size: 64, data-parallel size: 4, context-parallel size: 2, hierarchical"
            " context-parallel sizes: None, tensor-model-parallel size: 4,"
            " pipeline-model-parallel size: 2",
            {"num_devices": 64, "cp": 2, "tp": 4, "pp": 2},
        ),
        ("[20260211 07:08:10][rank-7/8][INFO ] [trainer.py:2560] :  ", {"num_devices": 8}),
        ("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/64", {"num_devices": 64}),
        (
            "[INFO|trainer.py:2134] 2024-04-19 >>   Number of trainable parameters = 8,030,261,248",
            {"trainable_parameters": 8_030_261_248},
        ),
        (
            "trainable params: 20,971,520 || all params: 8,051,232,768 || trainable%: 0.2605",
            {"adapter_parameters": 20_971_520, "parameters": 8_030_261_248},
        ),
        ('  "num_hidden_layers": 32,', {"num_layers": 32}),
        (
            "[2025-03-01 09:59:00,001] [INFO] [config.py:1000:print]   train_batch_size"
            " ............. 64",
            {"global_batch": 64},
        ),
        (
            "[2025-03-01 09:59:00,001] [INFO] [config.py:1000:print]  "
            " train_micro_batch_size_per_gpu  2",
            {"micro_batch": 2},
        ),
        (
            "[2025-03-01 09:59:00,001] [INFO] [config.py:1000:print]   world_size"
            " ................... 8",
            {"data_parallel": 8},
        ),
        (
            "[2025-03-01 09:59:00,001] [INFO] [config.py:1000:print]   zero_optimization_stage"
            " ...... 3",
            {"zero_stage": 3},
        ),
        ("step: 10 loss: 2.0 8,030 things", {}),
    ],
)
def test_a_line_states_these_facts_and_no_others(line: str, facts: dict[Fact, float]) -> None:
    found = {each.fact: each.value for each in stated_facts(f"\n{line}\n")}
    assert found == pytest.approx(facts)
    assert all(each.line == 2 for each in stated_facts(f"\n{line}\n"))


def test_the_batch_of_the_trainer_tells_its_ranks() -> None:
    said = (
        "  Instantaneous batch size per device = 1\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 64\n"
        "  Gradient Accumulation steps = 8\n"
    )
    facts = {each.fact: each.value for each in stated_facts(said)}
    assert facts == {"global_batch": 64, "data_parallel": 8}


def test_ranks_that_all_say_their_parameters_tell_those_of_the_model() -> None:
    line = (
        " > number of parameters on (tensor, pipeline) model parallel rank ({}, {}): 4015130624\n"
    )
    assert stated_facts(line.format(0, 0) + line.format(1, 1)) == []
    (found,) = stated_facts(line.format(0, 0) + line.format(1, 0))
    assert (found.fact, found.value) == ("sharded_parameters", 8_030_261_248)


def test_a_log_that_was_cut_says_nothing_of_the_ranks_that_it_lacks() -> None:
    sizes = "tensor-model-parallel size: 2, pipeline-model-parallel size: 2"
    line = " > number of parameters on (tensor, pipeline) model parallel rank ({}, {}): 401513\n"
    first_stage = [line.format(tensor, 0) for tensor in range(2)]
    parameters = {"sharded_parameters"}
    for shown in (first_stage[:1], first_stage):
        said = stated_facts(f"using world size: 4, {sizes}\n{''.join(shown)}")
        assert not parameters & {each.fact for each in said}
    whole = [*first_stage, *(line.format(tensor, 1) for tensor in range(2))]
    said = stated_facts(f"using world size: 4, {sizes}\n{''.join(whole)}")
    assert {each.value for each in said if each.fact in parameters} == {4 * 401_513}


def test_what_is_said_again_and_again_is_one_fact() -> None:
    assert len(stated_facts("[rank-7/8]\n" * 10**5)) == 1


def test_a_line_without_an_end_is_read_around_its_marks_alone() -> None:
    assert stated_facts("n_layers" * 10**6) == []
