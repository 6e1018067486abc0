"""Overrides of Megatron-Bridge and NeMo, in the forms in which people keep them."""

from __future__ import annotations

import pytest

from models.errors import Invalid
from service.formats.launch.formats import FORMATS
from service.formats.launch.megatron_bridge import reader as megatron_bridge_reader
from service.formats.launch.rendering import as_shell
from tests.service.formats.launch.jobs import job_of, problem_of


@pytest.mark.parametrize(
    "text",
    [
        "model.tensor_model_parallel_size=4 model.pipeline_model_parallel_size=8"
        " train.global_batch_size=512 train.micro_batch_size=1 dataset.seq_length=8192",
        "run.py --tensor_model_parallel_size 4 -pp 8 -gb 512 -mb 1 -sl 8192",
        "python run.py -tp 2 -tp 4 -pp 8 -gb 512 --micro_batch_size=1 --seq_length 8192",
        "trainer.strategy.tensor_model_parallel_size=4 data.seq_length=8192"
        " trainer.strategy.pipeline_model_parallel_size=8 data.global_batch_size=512"
        " data.micro_batch_size=1",
        "cfg.model.tensor_model_parallel_size = 4\ncfg.model.pipeline_model_parallel_size = 8\n"
        "cfg.train.global_batch_size = 512  # sequences\ncfg.train.micro_batch_size = 1\n"
        "cfg.model.seq_length = 8192",
        "model:\n  tensor_model_parallel_size: 4\n  pipeline_model_parallel_size: 8\n"
        "train:\n  global_batch_size: 512\n  micro_batch_size: 1\ndataset:\n  seq_length: 8192\n",
    ],
)
def test_overrides_have_many_forms(text: str) -> None:
    reading = megatron_bridge_reader.read(text)
    assert (reading.layout["tp"], reading.layout["pp"]) == (4, 8)
    assert reading.layout["zero_stage"] == 1
    assert reading.layout["sequence_parallel"]
    assert reading.workload["global_batch"] == 512
    assert reading.workload["seq_len"] == 8192
    assert reading.model is None
    assert [each.setting for each in reading.reservations] in ([], ["run.py"])


def test_a_trainer_says_how_many_devices_there_are() -> None:
    text = "trainer.num_nodes=32 trainer.devices=8 data.micro_batch_size=1"
    assert megatron_bridge_reader.read(text).num_devices == 256
    assert megatron_bridge_reader.read("run.py -ng 64 -mb 1").num_devices == 64


def test_a_recipe_that_is_named_has_values_of_its_own() -> None:
    reading = megatron_bridge_reader.read("python run.py --recipe llama3_70b -tp 2 -mb 1")
    (recipe,) = reading.reservations
    assert recipe.text == "recipe llama3_70b (what the recipe sets itself is not known)"


def _script(recipe: str, **knobs: int) -> str:
    """A script as it is written here, with a recipe filled in."""
    job = job_of(problem_of("megatron-bridge"), **knobs, zero_stage=1)
    script = as_shell(FORMATS["megatron-bridge"].write(job))
    return script.replace("set -euo pipefail\n", f"set -euo pipefail\nRECIPE={recipe}\n")


@pytest.mark.parametrize("recipe", ["llama3_8b_pretrain_config", "qwen3_8b_sft_config"])
def test_a_recipe_of_which_all_is_overridden_need_not_be_known(recipe: str) -> None:
    reading = megatron_bridge_reader.read(_script(recipe, dp_shard=8, tp=2))
    assert reading.reservations == ()
    assert reading.layout["tp"] == 2
    assert reading.model is not None
    assert reading.model["num_layers"] == 32


@pytest.mark.parametrize(
    ("recipe", "left_out"),
    [
        ("llama3_8b_pretrain_config", "model.num_layers=32"),
        ("llama3_8b_pretrain_config", "model.recompute_granularity=null"),
        ("llama3_8b_pretrain_config", "model.context_parallel_size=1"),
        ("llama3_8b_pretrain_config", "train.micro_batch_size=1"),
        ("llama3_8b_pretrain_config", "mixed_precision.bf16=true"),
        ("llama3_8b_lora_config", ""),  # it makes adapters, of which nothing is said
    ],
)
def test_what_is_left_to_a_recipe_is_not_known(recipe: str, left_out: str) -> None:
    script = _script(recipe, dp_shard=8, tp=2)
    assert left_out in script
    reading = megatron_bridge_reader.read(script.replace(f"  {left_out} \\\n", ""))
    reasons = {one.setting: one.reason for one in reading.reservations}
    assert reasons[f"recipe {recipe}"] == "what the recipe sets itself is not known"


@pytest.mark.parametrize(
    ("name", "precision", "keeps"),
    [
        ("bf16_mixed", "bf16", None),
        ("bf16-mixed", "bf16", None),
        ("fp16_mixed", "fp16", None),
        ("bf16_with_fp8_subchannel_scaling_mixed", "fp8", True),
        ("bf16_with_fp8_current_scaling_mixed", "fp8", False),
        ("bf16_with_mxfp8_mixed", "mxfp8", False),
        ("bf16_with_nvfp4_mixed", "nvfp4", False),
        ("fp16_with_mxfp8_mixed", "mxfp8", False),
        ("16", "fp16", None),
        ("bf16", "bf16", None),
    ],
)
def test_mixed_precisions_have_names(name: str, precision: str, keeps: bool | None) -> None:
    text = f"mixed_precision={name} train.micro_batch_size=1"
    reading = megatron_bridge_reader.read(text)
    assert reading.workload["precision"] == precision
    assert reading.stack.get("keeps_operands") is keeps


def test_a_mixed_precision_goes_before_what_is_said_elsewhere() -> None:
    text = "ddp.grad_reduce_in_fp32=false train.micro_batch_size=1"
    named = f"{text} mixed_precision=bf16_mixed"
    assert megatron_bridge_reader.read(named).stack["gradient_bytes"] == 4
    stated = f"{text} mixed_precision.grad_reduce_in_fp32=false"
    assert megatron_bridge_reader.read(stated).stack["gradient_bytes"] == 2


@pytest.mark.parametrize(
    ("text", "value", "rule"),
    [
        ("mixed_precision=bf16_mixd", "mixed_precision=bf16_mixd", "did you mean bf16_mixed?"),
        (
            "model.tensor_model_parallel_size=x",
            "model.tensor_model_parallel_size x",
            "whole number",
        ),
        ("run.py -c fp9", "compute_dtype fp9", "must be one of"),
    ],
)
def test_a_wrong_override_is_named(text: str, value: str, rule: str) -> None:
    with pytest.raises(Invalid) as refused:
        megatron_bridge_reader.read(f"{text} train.micro_batch_size=1")
    assert refused.value.value == value
    assert rule in refused.value.rule


def test_unknown_overrides_are_listed() -> None:
    text = "model.tensor_model_paralel_size=4 train.micro_batch_size=1 logger.log_interval=1"
    reading = megatron_bridge_reader.read(text)
    (misspelt,) = reading.reservations
    assert misspelt.setting == "model.tensor_model_paralel_size = 4"
    assert misspelt.cure == "did you mean model.tensor_model_parallel_size?"
    assert reading.ignored == ("logger.log_interval = 1",)


def test_stops_are_told_in_fields() -> None:
    text = "model.recompute_granularity=full train.micro_batch_size=1"
    stops = megatron_bridge_reader.read(text).stops
    assert [stop.setting for stop in stops] == ["model.recompute_granularity"]
    assert "model.recompute_num_layers" in stops[0].rule


@pytest.mark.parametrize(
    ("text", "rank", "targets", "unread"),
    [
        ("run.py --peft_scheme lora -mb 1", 32, ["attention", "mlp", "experts"], ()),
        ("run.py --peft_scheme dora -mb 1", 32, ["attention", "mlp", "experts"], ("dora",)),
        ("+peft.dim=8 +peft.target_modules=[linear_fc1,linear_fc2] train.micro_batch_size=1",
         8, ["mlp", "experts"], ()),
        ("cfg.peft = LoRA(dim=8, alpha=16, target_modules=['linear_qkv'])\n"
         "cfg.train.micro_batch_size = 1", 8, ["attention"], ("target_modules",)),
        ("peft:\n  _target_: megatron.bridge.peft.lora.LoRA\n  dim: 8\n  lora_dtype: null\n"
         "train:\n  micro_batch_size: 1\n", 8, ["attention", "mlp", "experts"], ()),
    ],
)  # fmt: skip
def test_adapters_have_many_forms(text: str, rank: int, targets: list[str], unread) -> None:
    reading = megatron_bridge_reader.read(text)
    assert reading.workload["lora"] == {"rank": rank, "targets": targets}
    listed = [each.text for each in reading.reservations if each.setting != "run.py"]
    assert len(listed) == len(unread)
    assert all(word in each for word, each in zip(unread, listed, strict=True))


def test_what_makes_no_adapters_is_refused() -> None:
    for wrong in ("peft.dim=many", "peft.target_modules=[lm_head]"):
        with pytest.raises(Invalid, match=wrong.partition("=")[0]):
            megatron_bridge_reader.read(f"train.micro_batch_size=1 +{wrong}")
    assert "lora" not in megatron_bridge_reader.read("peft=none train.micro_batch_size=1").workload


def test_parts_of_a_model_that_are_not_read_are_listed() -> None:
    text = "train.micro_batch_size=1 model.freeze_vision_model=false"
    (encoder,) = megatron_bridge_reader.read(text).reservations
    assert "model.encoder" in encoder.cure
    packed = megatron_bridge_reader.read("-mb 1 dataset.enable_offline_packing=true")
    assert "attention then does not cross documents" in packed.reservations[0].reason


def test_a_precision_with_layers_in_16_bits_is_half_read() -> None:
    name = "nemotron_h_bf16_with_fp8_current_scaling_mixed"
    reading = megatron_bridge_reader.read(f"mixed_precision={name} train.micro_batch_size=1")
    assert reading.workload["precision"] == "fp8"
    assert [one.setting for one in reading.reservations] == [f"mixed_precision = {name}"]


def test_a_wrong_precision_is_called_as_it_was_written() -> None:
    with pytest.raises(Invalid) as refused:
        megatron_bridge_reader.read("trainer.precision=bf17 model.micro_batch_size=1")
    assert refused.value.value == "trainer.precision=bf17"


def test_yaml_of_nemo_1_says_its_model() -> None:
    text = """name: megatron_llama
trainer:
  devices: 8
  num_nodes: 2
  precision: bf16
model:
  mcore_gpt: true
  micro_batch_size: 1
  num_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  max_position_embeddings: 4096
  bias: false
  activation: fast-swiglu
  optim:
    name: distributed_fused_adam
    lr: 1e-4
"""
    reading = megatron_bridge_reader.read(text)
    assert reading.reservations == ()
    assert (reading.num_devices, reading.workload["precision"]) == (16, "bf16")
    assert reading.model is not None
    assert reading.model["gated_mlp"]
    assert not reading.model["attention_output_bias"]
    (other,) = megatron_bridge_reader.read(text.replace("distributed_", "")).reservations
    assert other.setting.startswith("model.optim.name")


def test_a_recipe_of_nemo_2_that_is_called_says_its_ranks() -> None:
    call = "'llama3_8b(num_nodes=4, num_gpus_per_node=8)'"
    text = f"nemo llm pretrain --factory {call} -y data.micro_batch_size=1"
    reading = megatron_bridge_reader.read(text)
    assert (reading.model, reading.num_devices) == ({"name": "llama-3-8b"}, 32)
    options = "--model_family_name llama --model_recipe_name llama3_8b --num_gpus 8 -mb 1"
    launched = megatron_bridge_reader.read(f"python performance/setup_experiment.py {options}")
    assert (launched.model, launched.num_devices) == ({"name": "llama-3-8b"}, 8)
    endless = options.replace("8 -mb", f"{'9' * 5000} -mb")
    assert megatron_bridge_reader.read(f"python setup_experiment.py {endless}").num_devices is None
