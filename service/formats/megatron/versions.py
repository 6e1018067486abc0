"""Argument dumps of other versions and forks of Megatron, put into the names of Megatron-Core 0.19.

Megatron-LM of 2019 to 2022, Megatron-DeepSpeed of BigScience and of Microsoft, and Megatron-LLM of
EPFL say the same things in other words. What a version did not have yet is filled in as it ran:
before `swiglu` no MLP was gated and every linear layer had a bias. An argument that a dump of
today's version should have is never filled in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from service.formats.launch.facts import facts

_OLD_ARGUMENTS = (
    "checkpoint_activations",
    "activations_checkpoint_method",
    "DDP_impl",
    "model_parallel_size",
    "batch_size",
)
"""Arguments of Megatron-LM before 2023, all older than `swiglu`. Forks kept some for longer."""
VERSIONS = "megatron_versions"
"""The table of names, and of what versions did that had no argument for it."""
_NEOX_ARGUMENT = "pipe_parallel_size"
GATED_ACTIVATIONS = {"swiglu", "fast-swiglu", "geglu", "fast-geglu", "reglu", "fast-reglu"}
"""The activations of NeMo 1 that have a gate."""
_GATED = {"swiglu", "geglu", "reglu", "liglu"}
_LIST_OF_ONE = re.compile(r"\[\s{0,9}(\d{1,9})\s{0,9}\]", re.ASCII)
_WHOLE = re.compile(r"(\d{1,9})(?:\.0)?", re.ASCII)


def is_of_gpt_neox(arguments: Mapping[str, str]) -> bool:
    """Returns True for a dump of GPT-NeoX, in which arguments have other meanings."""
    return _NEOX_ARGUMENT in arguments


def is_of_deepspeed(arguments: Mapping[str, str]) -> bool:
    """Returns True where DeepSpeed shards the optimizer, to the degree that `zero_stage` gives."""
    if "deepspeed" in arguments:
        return arguments["deepspeed"].strip() == "True"
    return "zero_stage" in arguments


def in_todays_names(arguments: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the arguments with names of other versions and forks translated:
    {"tensor_model_parallel_size": "8"} for {"model_parallel_size": "8"}. A dump of today's
    version is unchanged. Values that cannot be read are passed on."""
    renamed = dict(arguments)
    for name, name_today in facts(VERSIONS)["renamed"].items():
        if name in arguments and _is_unset(renamed, name_today):
            renamed[name_today] = arguments[name]
    renamed |= _recompute_argument(arguments)
    renamed |= _model_arguments(arguments)
    renamed |= _batch_arguments(arguments, renamed)
    renamed |= _expert_arguments(arguments, renamed)
    if is_of_deepspeed(arguments):
        renamed["deepspeed"] = "True"
        # DeepSpeed shards the optimizer itself, so these dumps lack Megatron's own switch.
        renamed.setdefault("use_distributed_optimizer", "False")
    if any(name in arguments for name in _OLD_ARGUMENTS):  # a version before 2023
        # Some arguments came in together. A dump that has one of them was made by a version that
        # has all, and a missing one was cut off. Any other dump gets the values of the time before.
        for came_together, values in facts(VERSIONS)["only_before"]:
            if not any(name in arguments for name in came_together):
                renamed = {**values, **renamed}
        renamed |= _feed_forward_width(arguments)
    return renamed


def _is_unset(arguments: Mapping[str, str], name: str) -> bool:
    return arguments.get(name, "").strip() in ("", "None")


def _whole_number(arguments: Mapping[str, str], name: str) -> int | None:
    """Returns the whole number that an argument holds; None where it holds none."""
    match = _WHOLE.fullmatch(arguments.get(name, "").strip())
    return int(match.group(1)) if match else None


def _recompute_argument(arguments: Mapping[str, str]) -> dict[str, str]:
    """Returns today's argument for older arguments of recompute, none where the dump has a
    granularity. Older switches for checkpointing activations recompute whole layers: "full"."""
    if not _is_unset(arguments, "recompute_granularity"):
        return {}
    if not _is_unset(arguments, "activations_checkpoint_granularity"):  # renamed by the table
        return {}
    if arguments.get("checkpoint_activations", "").strip() == "True":
        return {"recompute_granularity": "full"}
    if not _is_unset(arguments, "activations_checkpoint_method"):
        return {"recompute_granularity": "full"}
    if arguments.get("recompute_activations", "").strip() == "True":
        return {"recompute_granularity": "selective"}
    # "None" is a dump's word for no recompute. Where the dump has none of the old switches, they
    # may have been cut off, and nothing is said.
    switches = ("checkpoint_activations", "activations_checkpoint_method")
    return {"recompute_granularity": "None"} if any(name in arguments for name in switches) else {}


def _feed_forward_width(arguments: Mapping[str, str]) -> dict[str, str]:
    """Returns four times the hidden size as the width of the MLP, for versions that had no
    argument for it or printed None."""
    hidden = _whole_number(arguments, "hidden_size")
    came_later = "micro_batch_size" in arguments
    if not hidden or not _is_unset(arguments, "ffn_hidden_size"):
        return {}
    # Versions with micro_batch_size print this argument: here it was cut off.
    if came_later and "ffn_hidden_size" not in arguments:
        return {}
    return {"ffn_hidden_size": str(4 * hidden)}


def _model_arguments(arguments: Mapping[str, str]) -> dict[str, str]:
    """Returns today's arguments for gates, tied embeddings, groups of heads and fp8 of other
    versions."""
    renamed: dict[str, str] = {}
    # A gated MLP costs the same with any activation, so `swiglu` stands for all of them.
    if "glu_activation" in arguments and _is_unset(arguments, "swiglu"):
        renamed["swiglu"] = str(arguments["glu_activation"].strip().lower() in _GATED)
    if arguments.get("geglu", "").strip() == "True":
        renamed["swiglu"] = "True"
    elif "geglu" in arguments:  # a fork that has geglu, and need not have swiglu
        renamed.setdefault("swiglu", arguments.get("swiglu", "False"))
    if "tie_embed_logits" in arguments:
        renamed["untie_embeddings_and_output_weights"] = str(
            arguments["tie_embed_logits"].strip() == "False"
        )
    for name in ("num_attention_heads_kv", "num_key_value_heads"):
        groups = _whole_number(arguments, name)
        if groups and "group_query_attention" not in arguments:
            renamed |= {"group_query_attention": "True", "num_query_groups": str(groups)}
    if arguments.get("attention_head_type", "").strip() == "multiquery":
        renamed |= {"group_query_attention": "True", "num_query_groups": "1"}
    fp8_switches = (arguments.get(name, "").strip() for name in ("fp8_hybrid", "fp8_e4m3"))
    if _is_unset(arguments, "fp8") and "True" in fp8_switches:
        renamed["fp8"] = "hybrid"  # e4m3 in backward too, which costs the same
    return renamed


def _batch_arguments(arguments: Mapping[str, str], renamed: Mapping[str, str]) -> dict[str, str]:
    """Returns today's batch arguments. `batch_size` of 2019 and 2020 counts the sequences of
    one data-parallel rank in a micro-batch. `renamed` has the arguments translated so far."""
    per_rank = _whole_number(arguments, "batch_size")
    if per_rank is None or not _is_unset(arguments, "micro_batch_size"):
        return {}
    batch = {"micro_batch_size": str(per_rank)}
    world = _whole_number(renamed, "world_size")
    tp = _whole_number(renamed, "tensor_model_parallel_size")
    pp = _whole_number(renamed, "pipeline_model_parallel_size") or 1
    ranks = _whole_number(arguments, "data_parallel_size")
    if ranks is None and world and tp:  # these versions have no context parallelism
        ranks = world // (tp * pp)
    if ranks and _is_unset(renamed, "global_batch_size"):
        micro_batches = _whole_number(arguments, "num_microbatches_in_minibatch") or 1
        batch["global_batch_size"] = str(per_rank * ranks * micro_batches)
    return batch


def _expert_arguments(arguments: Mapping[str, str], renamed: Mapping[str, str]) -> dict[str, str]:
    """Returns today's arguments for the experts of Megatron-DeepSpeed. It prints their
    number as a list, [1] for a dense model, and has experts in every `expert_interval`-th layer.
    The number is typed without brackets."""
    shape = _WHOLE if is_of_deepspeed(arguments) else _LIST_OF_ONE
    text = arguments.get("num_experts", "").strip()
    listed = _LIST_OF_ONE.fullmatch(text) or shape.fullmatch(text)
    if listed is None:
        return {}
    experts = int(listed.group(1))
    if experts <= 1:
        return {"num_experts": "None", "expert_model_parallel_size": "1"}
    interval = _whole_number(arguments, "expert_interval") or 1
    layers = _whole_number(renamed, "num_layers") or 0
    arguments_of_experts = {"num_experts": str(experts)}
    if interval > 1 and 0 < layers <= 1024:  # no model has more, and the list must stay short
        switches = (str(int((index + 1) % interval == 0)) for index in range(layers))
        arguments_of_experts["moe_layer_freq"] = f"[{','.join(switches)}]"
    if arguments.get("enable_expert_tensor_parallelism", "").strip() != "True":
        # Experts are then whole on each rank. Today's default would be to split them over tp.
        arguments_of_experts["expert_tensor_parallel_size"] = "1"
    return arguments_of_experts
