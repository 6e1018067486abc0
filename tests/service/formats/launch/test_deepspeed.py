from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import Invalid
from service.formats.launch.deepspeed import reader as deepspeed_reader
from service.formats.launch.deepspeed import writer as deepspeed_writer
from service.formats.launch.formats import FORMATS
from service.formats.launch.job import Inexpressible
from tests.service.formats.launch.jobs import job_of, layout_read, problem_of, written

DENSE = problem_of("deepspeed")
SPARSE = problem_of("deepspeed", "mixtral-8x7b")
CHOICES: dict[str, tuple[Any, ...]] = {
    "zero_stage": (0, 1, 2, 3),
    "recompute": ("none", "full"),
    "offload_optimizer": (False, True),
    "ep": (1, 2, 4),
    "balanced": (False,),
    "micro_batch": (1, 4),
}
BATCH = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
}


BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def read(document: dict[str, Any]) -> Any:
    return deepspeed_reader.read(json.dumps(document), None)


@pytest.mark.parametrize("problem", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_a_layout_that_is_written_is_read_again(problem) -> None:
    @given(written(problem, deepspeed_writer.write, **CHOICES))
    def check(made: Any) -> None:
        job, configuration = made
        reading = read(dict(configuration.settings))
        assert layout_read(reading, problem) == job.layout
        assert reading.num_devices == job.layout.num_devices
        assert reading.num_micro_batches == job.num_micro_batches
        assert reading.workload["global_batch"] == problem.workload.global_batch
        assert reading.workload["precision"] == "bf16"
        assert not reading.reservations

    check()


def test_zero_3_is_written_as_a_document() -> None:
    job = job_of(DENSE, dp_shard=16, zero_stage=3, micro_batch=2, recompute="full")
    configuration = deepspeed_writer.write(job)
    assert configuration.settings == {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "overlap_comm": True},
        "activation_checkpointing": {"partition_activations": False},
        "optimizer": {"type": "AdamW"},
    }
    assert configuration.slurm == {
        "nodes": 2,
        "ntasks-per-node": 1,
        "gpus-per-node": 8,
        "exclusive": True,
    }
    assert [*configuration.placeholders] == ["optimizer.params.lr", "gradient_clipping"]
    assert any("gradient_checkpointing_enable" in note for note in configuration.notes)


def test_a_pipeline_is_code_and_the_notes_say_which() -> None:
    job = job_of(DENSE, pp=4, dp_replicate=4, zero_stage=0, balanced=False)
    configuration = deepspeed_writer.write(job)
    assert configuration.settings["pipeline"] == {"stages": 4, "partition": "uniform"}
    assert any("num_stages=4" in note for note in configuration.notes)


@pytest.mark.parametrize(
    ("knobs", "knob", "cure"),
    [
        ({"dp_shard": 8, "dp_replicate": 2, "zero_stage": 3}, "dp_replicate", "dp_shard 16"),
        (
            {"dp_replicate": 16, "zero_stage": 0, "offload_optimizer": True},
            "offload_optimizer",
            "zero_stage 1",
        ),
        ({"dp_shard": 4, "tp": 2, "cp": 2, "zero_stage": 1}, "cp", "tp 1 or cp 1"),
        ({"pp": 2, "tp": 2, "dp_replicate": 4, "balanced": False}, "tp", "tp 1 or pp 1"),
        ({"dp_shard": 16, "zero_stage": 3, "recompute": "selective"}, "recompute", "none or full"),
        ({"dp_shard": 16, "zero_stage": 3, "reshard": False}, "reshard", "zero_stage 2"),
        (
            {"dp_shard": 8, "tp": 2, "zero_stage": 1, "sequence_parallel": True},
            "sequence_parallel",
            "false",
        ),
        (
            {"pp": 2, "dp_replicate": 8, "layers_per_chunk": (15, 17), "balanced": True},
            "layers_per_chunk",
            "balanced false",
        ),
        (
            {"tp": 2, "dp_shard": 8, "zero_stage": 1, "placement": tuple(reversed(
                ("tp", "cp", "dp_shard", "dp_replicate", "pp")))},
            "placement",
            "innermost first",
        ),
    ],
)  # fmt: skip
def test_what_it_cannot_say_is_named_with_the_cure(
    knobs: dict[str, Any], knob: str, cure: str
) -> None:
    with pytest.raises(Inexpressible) as caught:
        FORMATS["deepspeed"].write(job_of(DENSE, **knobs))
    assert caught.value.field == f"layout.{knob}"
    assert "deepspeed" in caught.value.rule
    assert cure in caught.value.rule


def test_ranks_of_tensor_parallelism_count_in_the_batch() -> None:
    configuration = deepspeed_writer.write(job_of(DENSE, dp_shard=8, tp=2, zero_stage=1))
    assert configuration.settings["train_batch_size"] == 128
    found = read(dict(configuration.settings))
    assert (found.workload["global_batch"], found.layout["dp_shard"], found.layout["tp"]) == (
        64,
        8,
        2,
    )
    assert any("2 times the 64 sequences" in note for note in configuration.notes)


def test_a_precision_that_it_lacks_is_named() -> None:
    problem = problem_of("deepspeed", precision="fp8")
    with pytest.raises(Inexpressible, match=r"workload\.precision"):
        deepspeed_writer.write(job_of(problem, dp_shard=16, zero_stage=3))


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"zero_optimization": {"stage": 2}}, {"zero_stage": 2, "dp_shard": 16}),
        ({}, {"zero_stage": 0, "dp_replicate": 16}),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}},
            {"zero_stage": 3, "offload_optimizer": True},
        ),
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, {"offload_optimizer": True}),
        (
            {"activation_checkpointing": {"cpu_checkpointing": True}},
            {"recompute": "full", "offload_activations": True},
        ),
        ({"tensor_parallel": {"autotp_size": 4}}, {"tp": 4, "dp_replicate": 4}),
        ({"tensor_parallel": {"autotp_size": 0}}, {"tp": 1}),
        ({"expert_parallel": {"enabled": True, "autoep_size": 8}}, {"ep": 8}),
        ({"expert_parallel": {"enabled": False, "autoep_size": 8}}, {"ep": 1}),
        ({"sequence_parallel_size": 2, "data_parallel_size": 16}, {"cp": 2}),
    ],
)
def test_knobs_are_read(document: dict[str, Any], expected: dict[str, Any]) -> None:
    found = read({**BATCH, **document}).layout
    assert {knob: found.get(knob) for knob in expected} == expected


def test_defaults_and_switches_are_those_of_the_release() -> None:
    found = read({**BATCH, "zero_optimization": {"stage": 3}})
    assert found.stack == {
        "name": "deepspeed",
        "overlap_data": True,
        "gradient_bytes": 2,
        "attention_kernel": "pytorch",
        "loss": "pytorch",
        "launch": "eager",
        "tiled_mlp": False,
        "parameters_on_host": False,
    }
    assert found.workload == {"precision": "fp32", "global_batch": 64}
    two = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    assert read({**BATCH, **two}).stack["overlap_data"] is False
    wide = {**two, "data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}
    assert read({**BATCH, **wide}).stack["gradient_bytes"] == 4
    assert not read({**BATCH, **wide}).reservations


@pytest.mark.parametrize(
    ("document", "unread"),
    [
        ({"train_batch_size": "auto"}, "train_batch_size = auto (another program fills it in"),
        ({"zero_optimization": {"zero_hpz_partition_size": 8}}, "zero_hpz_partition_size = 8"),
        ({"compile": {"deepcompile": True}}, "compile.deepcompile = true"),
        ({"optimizer": {"type": "Lamb"}}, "optimizer.type = Lamb"),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}},
            "reads and writes of NVMe",
        ),
        ({"communication_data_type": "fp32", "bf16": {"enabled": True}}, "communication_data_type"),
    ],
)
def test_what_could_matter_and_is_not_understood_is_listed(
    document: dict[str, Any], unread: str
) -> None:
    assert any(unread in each.text for each in read({**BATCH, **document}).reservations)


def test_what_does_not_matter_is_passed_over() -> None:
    found = read(
        {
            **BATCH,
            "steps_per_print": 10,
            "gradient_clipping": 1.0,
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}},
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95]}},
            "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8},
            "fp16": {"enabled": False, "loss_scale": 0},
        }
    )
    assert not found.reservations
    assert len(found.ignored) == 8


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({**BATCH, "zero_optimization": {"stage": 4}}, "must be 0, 1, 2 or 3"),
        ({**BATCH, "zero_optimization": {"stage": "x"}}, "whole number"),
        ({**BATCH, "bf16": {"enabled": "perhaps"}}, "true or false"),
    ],
)
def test_what_cannot_be_is_refused(document: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        read(document)
    assert caught.value.field == "launch.arguments"


@pytest.mark.parametrize(
    ("document", "setting", "rule", "cure"),
    [
        (
            {"train_batch_size": 66},
            "train_batch_size",
            "no whole number of ranks",
            "train_batch_size 64 or 68",
        ),
        (
            {"data_parallel_size": 4},
            "train_batch_size",
            "gives 16 data-parallel ranks",
            "train_batch_size 16",
        ),
        (
            {"train_micro_batch_size_per_gpu": None, "data_parallel_size": 5},
            "train_batch_size",
            "micro * accumulation(2) * ranks(5)",
            "train_batch_size 60 or 70",
        ),
        (
            {"bf16": {"enabled": True}, "fp16": {"enabled": True}},
            "fp16.enabled",
            "does not go with bf16",
            "drop one",
        ),
        (
            {"tensor_parallel": {"autotp_size": 3}},
            "tensor_parallel.autotp_size",
            "must divide ranks(16)",
            "1, 2, 4 or 8",
        ),
    ],
)
def test_what_deepspeed_stops_at(
    document: dict[str, Any], setting: str, rule: str, cure: str
) -> None:
    (stop,) = read({**BATCH, **document}).stops
    assert stop.setting == setting
    assert rule in stop.rule
    assert cure in stop.cure


@pytest.mark.parametrize(
    "batch", [{}, {"train_batch_size": 64}, {"train_micro_batch_size_per_gpu": 1}]
)
def test_data_parallel_ranks_that_do_not_follow_are_left_open(batch: dict[str, Any]) -> None:
    found = read({**batch, "zero_optimization": {"stage": 1}})
    assert found.num_devices is None
    assert not {"dp_shard", "dp_replicate"} & found.layout.keys()


@pytest.mark.parametrize(
    "text", ["", "[1, 2]", "&a [*a]", "a: *b", "{", "- x", "1: 2", "x" * 10**5]
)
def test_texts_that_are_no_document_are_refused(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        deepspeed_reader.read(text, None)
    assert caught.value.field == "launch.arguments"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from([*BATCH, "bf16", "enabled", "zero_optimization", "stage", "x"]),
                inner,
            )
        ),
    )
)
def test_any_document_is_read_or_refused(document: Any) -> None:
    with suppress(Invalid):
        deepspeed_reader.read(json.dumps(document), None)


@pytest.mark.parametrize(
    "text", ["[" * 60_000, "{a: " * 15_000, "a:\n" + "- " * 30_000, "<<a\n" * 16_000]
)
def test_texts_that_nest_without_end_are_refused_at_once(text: str) -> None:
    with pytest.raises(Invalid):
        deepspeed_reader.read(text, None)


def test_a_script_that_writes_the_document_is_read() -> None:
    script = """
    cat > deepspeed.json <<'EOF'
    {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
     "zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW", "params": {"lr": ${LR}}}}
    EOF
    deepspeed train.py --deepspeed_config deepspeed.json
    """
    found = deepspeed_reader.read(script, None)
    assert (found.num_devices, found.layout["zero_stage"]) == (16, 2)
    assert found.ignored == ("optimizer.params.lr = $LR",)


@pytest.mark.parametrize(
    "command",
    [
        "deepspeed train.py --deepspeed_config ds.json",
        "torchrun --nproc_per_node 8 train.py --deepspeed --deepspeed_config=ds.json",
        "torchrun --nproc_per_node 8 train.py --deepspeed ds.json --bf16",
    ],
)
def test_a_document_that_a_command_names_must_be_sent(command: str) -> None:
    reserved = [one for one in deepspeed_reader.read(command, None).reservations if one.is_open]
    assert [one.cure for one in reserved] == ["send it as launch.files['ds.json']"]
    reading = deepspeed_reader.read(
        'cat > ds.json <<EOF\n{"train_batch_size": 8}\nEOF\n' + command, None
    )
    assert reading.workload["global_batch"] == 8


def test_a_text_without_a_document_is_told_what_to_send() -> None:
    reading = deepspeed_reader.read("deepspeed train.py --epochs 3", None)
    (reserved,) = [one for one in reading.reservations if one.is_open]
    assert "launch.files['ds.json']" in reserved.cure
    with pytest.raises(Invalid, match="neither a document nor a command that trains"):
        deepspeed_reader.read("cat notes.txt <<E\nE\n", None)


def test_misspelt_keys_name_the_key_that_may_be_meant() -> None:
    reading = read({"zero_optimisation": {"stage": 3}, "bf16": {"enabeld": True}})
    (warning,) = reading.warnings
    assert warning.endswith("which ignores it: did you mean zero_optimization.stage?")
    (stop,) = reading.stops
    assert (stop.setting, stop.cure) == ("bf16.enabeld", "bf16.enabled")


def test_a_key_that_deepspeed_has_is_not_taken_for_another() -> None:
    reading = read({"zero_optimization": {"offload_param": {"device": "cpu"}}})
    lines = (*(each.text for each in reading.reservations), *reading.warnings)
    assert not any("did you mean" in line for line in lines)


def test_parameters_may_be_on_the_host_beside_the_optimizer() -> None:
    host = {"device": "cpu", "pin_memory": True}
    zero = {"stage": 3, "offload_optimizer": host, "offload_param": host}
    found = read({**BATCH, "zero_optimization": zero})
    assert found.stack["parameters_on_host"]
    assert found.layout["offload_optimizer"]
    assert not found.reservations


def test_a_batch_alone_is_one_micro_batch_of_each_rank() -> None:
    reading = read({"train_batch_size": 64, "bf16": {"enabled": True}})
    assert reading.num_micro_batches == 1
    assert "default" in reading.default_origins["num_micro_batches"]
    others = dict.fromkeys(BATCH_KEYS, "auto")
    assert read({**others, "train_batch_size": 64}).num_micro_batches is None
    assert read({"train_micro_batch_size_per_gpu": 2}).num_micro_batches is None


def test_a_precision_that_another_program_fills_in_is_left_open() -> None:
    assert "precision" not in read({"bf16": {"enabled": "auto"}}).workload
    silent = read({"train_batch_size": 64})
    assert silent.workload["precision"] == "fp32"
    assert "workload.precision" in silent.default_origins
