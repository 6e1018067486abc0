"""The question that a Megatron run answers, read from its arguments: model, workload and layout in
their wire form.

Names and meanings are those of Megatron-Core 0.19; `megatron_versions` first puts those of other
versions into them. A dump is printed after Megatron has filled in what follows from other
arguments, so what a script leaves out is there. An argument that the dump should have and does not
have is refused: it may have been cut off, and is not the same as one that is off. Arguments as they
are typed come here from `service.formats.launch.megatron.reader`, which fills them in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from models.errors import Invalid, Unsupported
from models.spec.recompute import MODULES
from service.formats.launch.job import Stopped
from service.formats.logs.layer_pattern import layer_switches
from service.formats.logs.megatron_versions import in_todays_names, is_of_gpt_neox

_PATH = "log.arguments"
_TYPED_PATH = "launch.arguments"
_MAX_LAYERS = 1024
_WHOLE = re.compile(r"[-+]?\d{1,12}", re.ASCII)
_WINDOW = re.compile(r"[(\[]\s{0,9}(-?\d{1,9})\s{0,9},\s{0,9}-?\d{1,9}\s{0,9}[)\]]", re.ASCII)

_UNSUPPORTED_MODELS = {
    "is_hybrid_model": "layers other than of attention",
    "hybrid_override_pattern": "layers other than of attention",
    "hybrid_layer_pattern": "layers other than of attention",
    "linear_attention_freq": "linear attention layers",
    "experimental_attention_variant": "attention of this kind",
    "heterogeneous_layers_config_path": "layers that differ one by one",
    "moe_latent_size": "experts in a latent space",
    "num_experts_switch": "experts of a switch transformer",
}
_UNSUPPORTED_LAYOUTS = {
    "checkpoint_in_cpu": "the inputs of recomputed layers in the memory of the host",
}
"""Arguments that switch on what the cost model does not describe, and what that is."""
_EXPERT_ARGUMENTS = (
    "moe_router_topk", "moe_layer_freq", "moe_ffn_hidden_size", "expert_model_parallel_size",
)  # fmt: skip
"""Every dump that has one of these has `num_experts` too."""
_VIRTUAL_STAGE_ARGUMENTS = (
    "virtual_pipeline_model_parallel_size",
    "num_virtual_stages_per_pipeline_rank",
    "num_layers_per_virtual_pipeline_stage",
)
_PLAIN_VALUES = {
    "model": {"num_layers": "num_layers", "hidden_size": "hidden_size"},
    "workload": {"seq_len": "seq_length", "global_batch": "global_batch_size"},
    "layout": {
        "tp": "tensor_model_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "cp": "context_parallel_size",
        "micro_batch": "micro_batch_size",
    },
}
"""The arguments that are a field of the question as they are, for each part of it."""
_OPTIMIZERS = {"adam": "adamw", "sgd": "sgd_momentum", "muon": "muon", "dist_muon": "muon"}
HALF_DTYPES = (
    "bf16",
    "fp16",
    "bfloat16",
    "float16",
    "torch.bfloat16",
    "torch.float16",
)
_ZERO_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_OVERLAPS = {
    "overlap_data": ("overlap_grad_reduce", "overlap_param_gather"),
    "overlap_tensor": ("tp_comm_overlap",),
    "overlap_expert": ("overlap_moe_expert_parallel_comm",),
}
"""Switches of a stack. Any of the arguments turns its switch on."""
_DISPATCHERS = {"allgather": "allgather", "alltoall": "alltoall", "flex": "deduplicated"}
_UNEVEN_SPLIT_ARGUMENTS = (
    "pipeline_model_parallel_layout",
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
)
_SPLIT_WITH_ENDS_FLAGS = (
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Texts of arguments, read as values. An absent argument and "None" are the same."""

    values: Mapping[str, str]
    flags: Mapping[str, str] | None = None
    """Of arguments as they are typed, what each is called there; None of dumped ones."""

    def word(self, name: str) -> str | None:
        value = self.values.get(name, "").strip()
        return value if value not in ("", "None") else None

    def flag(self, name: str) -> bool:
        value = self.word(name)
        if value not in (None, "True", "False"):
            raise self.invalid(name, "must be True or False")
        return value == "True"

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.optional(name, least)
        if value is not None:
            return value
        if default is None:
            raise self.invalid(name, "is required")
        return default

    def optional(self, name: str, least: int = 1) -> int | None:
        value = self.word(name)
        if value is None:
            return None
        rule = f"must be a whole number of at least {least}"
        if not _WHOLE.fullmatch(value):
            raise self.invalid(name, rule)
        if int(value) < least:
            raise self.stopped(name, rule, f"{self.called(name)} {least}")
        return int(value)

    def replaced(self, **values: str) -> Arguments:
        """The arguments with other values of some."""
        return Arguments({**self.values, **values}, self.flags)

    def require_any(self, *names: str, part: str) -> None:
        """Raises Invalid unless the dump has one of the arguments, be it None."""
        if not any(name in self.values for name in names):
            rule = (
                "is not in the dump of arguments, and an absent argument is not one that is off:"
                f" send the whole dump, or give {part} in the request"
            )
            raise Invalid(f"{_PATH}.{names[0]}", None, rule)

    def called(self, name: str) -> str:
        """What an argument is called where it is given."""
        return name if self.flags is None else self.flags.get(name, name)

    def invalid(self, name: str, rule: str) -> Invalid:
        if self.flags is None:
            return Invalid(f"{_PATH}.{name}", self.shown(name), rule)
        return Invalid(_TYPED_PATH, self._as_typed(name), rule)

    def stopped(self, name: str, rule: str, cure: str = "") -> Invalid:
        """An error of a value that the parser takes and Megatron stops at. No run that printed a
        dump has one, so that of a dump it is as invalid as any."""
        if self.flags is None:
            return self.invalid(name, rule)
        return Stopped(self.called(name), self.shown(name), rule, cure)

    def unsupported(self, name: str, missing: str) -> Unsupported:
        if self.flags is None:
            return Unsupported(f"{_PATH}.{name}", self.shown(name), missing)
        return Unsupported(_TYPED_PATH, self._as_typed(name), missing)

    def _as_typed(self, name: str) -> str:
        """The flag and its value; the flag alone where it has none."""
        return " ".join(filter(None, (self.called(name), self.shown(name))))

    def shown(self, name: str) -> str | None:
        value = self.word(name)
        return value if value is None or len(value) <= 80 else value[:80] + "…"


def question(arguments: Mapping[str, str], settled: Collection[str] = ()) -> Mapping[str, Any]:
    """The `model`, `workload`, `layout` and `num_chips` of the run. A part that is `settled`
    elsewhere is left out where it cannot be read. Raises Invalid or Unsupported for another part of
    which an argument is missing, cannot be read, or means what the cost model does not describe."""
    given = Arguments(in_todays_names(arguments))
    found: dict[str, Any] = {}
    for part, read in (("model", read_model), ("workload", read_workload), ("layout", _layout)):
        try:
            require_known_version(given, part)
            found[part] = read(given)
        except Invalid:
            if part not in settled:
                raise
    if "layout" in found:
        layout = found["layout"]
        shards = layout["dp_shard"] * layout["dp_replicate"]
        found["num_chips"] = layout["tp"] * layout["pp"] * layout["cp"] * shards
    return found


def stated_values(arguments: Mapping[str, str]) -> Mapping[str, Mapping[str, Any]]:
    """What the arguments say of the model, the workload and the layout, as far as it can be read,
    to be compared with what is said elsewhere."""
    given = Arguments(in_todays_names(arguments))
    parts = question(arguments, settled=_PLAIN_VALUES)
    stated: dict[str, Mapping[str, Any]] = {}
    for part, names in _PLAIN_VALUES.items():
        values: dict[str, Any] = {}
        for field, name in names.items():
            with suppress(Invalid):
                values[field] = given.count(name)
        stated[part] = parts.get(part, values)
    return stated


def require_known_version(given: Arguments, part: str) -> None:
    """Refuse arguments of a version or of a kind that this part of the question cannot say."""
    if is_of_gpt_neox(given.values):
        rule = (
            "are those of GPT-NeoX, which are not read: give model, workload and layout in the"
            " request beside the log"
        )
        raise Invalid(_PATH, None, rule)
    unsupported = {"model": _UNSUPPORTED_MODELS, "layout": _UNSUPPORTED_LAYOUTS}.get(part, {})
    for name, missing in unsupported.items():
        if given.word(name) not in (None, "False"):
            raise given.unsupported(name, missing)


def _num_layers(given: Arguments) -> int:
    layers = given.count("num_layers")
    if layers > _MAX_LAYERS:
        raise given.invalid("num_layers", f"must be at most {_MAX_LAYERS}")
    return layers


def stack_fields(arguments: Mapping[str, str]) -> dict[str, Any]:
    """What the arguments say of the stack, in the fields of its wire form. Arguments that the dump
    does not have, that cannot be read, or that the run has no use for, say nothing."""
    found: dict[str, Any] = {}
    with suppress(Invalid):
        for name, value in _iterate_stack_fields(Arguments(in_todays_names(arguments))):
            found[name] = value
    return found


def _iterate_stack_fields(given: Arguments) -> Iterator[tuple[str, Any]]:
    if given.count("tensor_model_parallel_size", 1) > 1:
        if not given.flag("sequence_parallel"):
            yield "sequence_parallel", [True, False]
        yield from _overlaps(given, "overlap_tensor")
    if not given.flag("use_torch_fsdp2"):  # these arguments do not switch FSDP2's own overlap
        yield from _overlaps(given, "overlap_data")
    if given.word("num_experts") is not None and given.count("expert_model_parallel_size", 1) > 1:
        yield from _overlaps(given, "overlap_expert")
        if dispatcher := _DISPATCHERS.get(given.word("moe_token_dispatcher_type") or ""):
            yield "dispatcher", dispatcher
    if given.word("grad_reduce_in_bf16") is not None:
        yield "gradient_bytes", 2 if given.flag("grad_reduce_in_bf16") else 4
    if (given.word("attention_backend") or "").endswith("unfused"):
        yield "attention_kernel", "unfused"
    if given.word("cross_entropy_loss_fusion") is not None:
        yield "loss", "fused" if given.flag("cross_entropy_loss_fusion") else "stepwise"


def _overlaps(given: Arguments, name: str) -> Iterator[tuple[str, bool]]:
    """The overlap switch of this name, if the dump has any of the arguments that turn it on."""
    stated = [argument for argument in _OVERLAPS[name] if given.word(argument) is not None]
    if stated:
        yield name, any(map(given.flag, stated))


def read_model(given: Arguments) -> dict[str, Any]:
    layers = _num_layers(given)
    given.require_any("swiglu", "quick_geglu", part="model")
    given.require_any("untie_embeddings_and_output_weights", part="model")
    if any(name in given.values for name in _EXPERT_ARGUMENTS):
        given.require_any("num_experts", part="model")
    if given.word("kv_lora_rank") is not None:
        given.require_any("multi_latent_attention", part="model")
    model: dict[str, Any] = {
        "num_layers": layers,
        "hidden_size": given.count("hidden_size"),
        "intermediate_size": given.count("ffn_hidden_size"),
        "num_attention_heads": given.count("num_attention_heads"),
        **_vocabulary(given),
        "gated_mlp": given.flag("swiglu") or given.flag("quick_geglu"),
        "tie_word_embeddings": not given.flag("untie_embeddings_and_output_weights"),
        "qk_norm": given.flag("qk_layernorm") and not given.flag("multi_latent_attention"),
        "attention_bias": given.flag("add_qkv_bias") or given.flag("add_bias_linear"),
        "attention_output_bias": given.flag("add_bias_linear"),
        "mtp_layers": given.count("mtp_num_layers", 0, least=0),
        **_window(given, layers),
    }
    if given.flag("multi_latent_attention"):
        model["mla"] = _mla(given)
    else:
        model |= _heads(given)
    if given.word("num_experts") is not None:
        model["moe"] = _moe(given, layers)
    return model


def _vocabulary(given: Arguments) -> dict[str, int]:
    """The padded vocabulary. The tokenizer has it where arguments as they are typed do not."""
    size = given.optional("padded_vocab_size") or given.optional("vocab_size")
    if size is None and given.flags is not None:
        return {}
    return {"vocab_size": size or given.count("vocab_size")}


def _heads(given: Arguments) -> dict[str, int]:
    given.require_any("group_query_attention", part="model")
    grouped = given.flag("group_query_attention")
    heads = {
        "num_key_value_heads": given.count("num_query_groups" if grouped else "num_attention_heads")
    }
    size = given.optional("kv_channels")
    return heads if size is None else {**heads, "head_dim": size}


def _mla(given: Arguments) -> dict[str, int | None]:
    return {
        "q_lora_rank": given.optional("q_lora_rank"),
        "kv_lora_rank": given.count("kv_lora_rank"),
        "qk_nope_head_dim": given.count("qk_head_dim"),
        "qk_rope_head_dim": given.count("qk_pos_emb_head_dim"),
        "v_head_dim": given.count("v_head_dim"),
    }


def _window(given: Arguments, layers: int) -> dict[str, int]:
    """The sliding window. `window_size` (left, right) counts keys beside the query's own; with
    `window_attn_skip_freq` n every n-th layer sees the whole sequence."""
    text = given.word("window_size")
    if text is None:
        return {}
    match = _WINDOW.fullmatch(text)
    if match is None:
        raise given.invalid("window_size", "must be two whole numbers")
    left = int(match.group(1))
    if left < 0:
        return {}
    if given.word("window_attn_skip_freq") is None:
        return {"sliding_window": left + 1}
    has_window = _layer_pattern(
        given, "window_attn_skip_freq", layers, lambda period, index: (index + 1) % period > 0
    )
    full = [not windowed for windowed in has_window]
    period = full.index(True) + 1 if True in full else layers + 1
    if full != [(index + 1) % period == 0 for index in range(layers)]:
        raise given.unsupported(
            "window_attn_skip_freq", "full attention at other than regular distances"
        )
    if True not in full:
        return {"sliding_window": left + 1}
    return {"sliding_window": left + 1, "full_attention_period": period}


def _moe(given: Arguments, layers: int) -> dict[str, int | bool]:
    width = given.optional("moe_ffn_hidden_size") or given.count("ffn_hidden_size")
    first, period = _sparse_layers(given, layers)
    return {
        "num_experts": given.count("num_experts", least=2),
        "experts_per_token": given.count("moe_router_topk"),
        "moe_intermediate_size": width,
        "first_k_dense": first,
        "moe_layer_freq": period,
        "bias": given.flag("add_bias_linear"),
        **_groups(given),
        **_shared_expert(given),
    }


def _groups(given: Arguments) -> dict[str, int]:
    """The groups of experts. Without --moe-router-group-topk they limit nothing."""
    groups = given.optional("moe_router_num_groups")
    chosen = given.optional("moe_router_group_topk")
    return {"num_groups": groups, "groups_per_token": chosen} if groups and chosen else {}


def _shared_expert(given: Arguments) -> dict[str, int]:
    width = given.optional("moe_shared_expert_intermediate_size", least=0)
    return {"num_shared_experts": 1, "shared_expert_intermediate_size": width} if width else {}


def _sparse_layers(given: Arguments, layers: int) -> tuple[int, int]:
    """The number of dense layers that come first, and the period of sparse layers from there.

    Of the layers of a period Megatron makes the first sparse, and the wire form the last. That is
    as many layers of each kind, in another order.
    """
    sparse = _layer_pattern(
        given, "moe_layer_freq", layers, lambda period, index: index % period == 0
    )
    if not any(sparse):
        raise given.invalid("moe_layer_freq", f"leaves none of the {layers} layers sparse")
    first = sparse.index(True)
    if all(sparse[first:]):
        return first, 1
    distance = sparse.index(True, first + 1) - first if sum(sparse) > 1 else layers
    dense_first = first if first >= distance else 0
    shape = [index >= dense_first and (index + 1) % distance == 0 for index in range(layers)]
    if sparse == shape:
        return dense_first, distance
    period = layers // sum(sparse)
    per_period = [sum(sparse[start : start + period]) for start in range(0, layers, period)]
    if any(count != 1 for count in per_period) or layers % period:
        raise given.unsupported("moe_layer_freq", "sparse layers at other than regular distances")
    return 0, period


def require_layer_pattern(given: Arguments, name: str, layers: int) -> bool:
    """Raises Stopped where an argument that is given has no switch for each layer."""
    return given.word(name) is None or bool(_layer_pattern(given, name, layers, lambda *_: True))


def _layer_pattern(
    given: Arguments, name: str, layers: int, of_period: Callable[[int, int], bool]
) -> list[bool]:
    """A switch for each layer, from an expression of lists, or from a period by `of_period`, which
    gets the period and the index of a layer."""
    text = (given.word(name) or "1").replace(" ", "")
    if _WHOLE.fullmatch(text) and int(text) > 0:
        return [of_period(int(text), index) for index in range(layers)]
    switches = layer_switches(text, layers)
    if len(switches) != layers:
        rule = f"must be a whole number, or a list of 0 and 1 for each of the {layers} layers"
        raise given.stopped(name, rule)
    return switches


def read_workload(given: Arguments) -> dict[str, Any]:
    workload: dict[str, Any] = {
        "seq_len": given.count("seq_length"),
        "global_batch": given.count("global_batch_size"),
        "precision": _precision(given),
    }
    if given.word("optimizer") is not None:
        workload["optimizer"] = _optimizer(given)
    if given.flag("moe_router_force_load_balancing"):
        workload["routing"] = "balanced"
    return workload


def _precision(given: Arguments) -> str:
    if given.word("fp4") not in (None, "False"):
        return "nvfp4"
    if given.word("fp8") not in (None, "False"):
        return "mxfp8" if given.word("fp8_recipe") == "mxfp8" else "fp8"
    halves = [name for name in ("bf16", "fp16") if given.flag(name)]
    for name in () if halves else ("bf16", "fp16"):
        given.require_any(name, part="workload")
    return halves[0] if halves else "fp32"


def _optimizer(given: Arguments) -> str:
    name = _OPTIMIZERS.get(given.word("optimizer") or "")
    if name is None:
        raise given.unsupported("optimizer", "the state of this optimizer")
    moments = (given.word("exp_avg_dtype"), given.word("exp_avg_sq_dtype"))
    halved = name == "adamw" and all(each in HALF_DTYPES for each in moments)
    return "adamw_bf16_moments" if halved else name


def _layout(given: Arguments) -> dict[str, Any]:
    layers = _num_layers(given)
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size"):
        given.require_any(name, part="layout")
    _require_one_kind_of_sequence_parallelism(given)
    tp = given.count("tensor_model_parallel_size", 1)
    pp = given.count("pipeline_model_parallel_size", 1)
    cp = given.count("context_parallel_size", 1)
    if "world_size" not in given.values or "data_parallel_size" not in given.values:
        given.require_any("context_parallel_size", part="layout")
    dp = data_parallel(given, tp * pp * cp)
    if tp > 1:
        given.require_any("sequence_parallel", part="layout")
    virtual = _virtual_stages(given, layers, pp)
    return {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        **data_parallel_axes(given, dp),
        **expert_axes(given, tp),
        "micro_batch": given.count("micro_batch_size"),
        "schedule": "interleaved" if virtual > 1 else "1f1b",
        "virtual_stages": virtual,
        "balanced": _balanced(given, layers, pp * virtual),
        **read_recompute(given, layers, pp * virtual),
        "sequence_parallel": tp > 1 and given.flag("sequence_parallel"),
        **read_memory_knobs(given),
    }


def data_parallel_axes(given: Arguments, dp: int | None) -> dict[str, int]:
    """The axes of data parallelism and what is sharded over them. One of the axes is left out where
    the number of data-parallel ranks is not known."""
    stage = _zero_stage(given)
    replicas = given.count("num_distributed_optimizer_instances", 1) if stage else dp
    axes = {"zero_stage": stage}
    if replicas is None:
        return {"dp_shard": 1, **axes}
    if dp is None:
        return {"dp_replicate": replicas, **axes}
    if dp % replicas:
        rule = f"must divide the data-parallel size = {dp}"
        raise given.stopped("num_distributed_optimizer_instances", rule)
    return {"dp_shard": dp // replicas, "dp_replicate": replicas, **axes}


def read_memory_knobs(given: Arguments) -> dict[str, bool]:
    """What is offloaded to the host, and whether FSDP drops parameters after forward."""
    return {
        "reshard": given.word("torch_fsdp2_reshard_after_forward") != "False",
        "offload_activations": _offloads_activations(given),
        "offload_optimizer": given.flag("optimizer_cpu_offload"),
    }


def _require_one_kind_of_sequence_parallelism(given: Arguments) -> None:
    name = "ds_sequence_parallel_size"
    if given.count(name, 1) > 1:
        raise given.unsupported(name, "sequence parallelism of DeepSpeed-Ulysses")


def data_parallel(given: Arguments, others: int) -> int:
    """The data-parallel size, which is stated or what the other degrees leave of the world."""
    stated = given.optional("data_parallel_size")
    world = given.optional("world_size")
    if world is None:
        return given.count("data_parallel_size") if stated is None else stated
    if world % others or stated not in (None, world // others):
        size = "" if stated is None else f" * data_parallel_size({stated})"
        raise given.invalid("world_size", f"is not tensor * pipeline * context({others}){size}")
    return world // others


def _virtual_stages(given: Arguments, layers: int, pp: int) -> int:
    if pp == 1:
        return 1
    given.require_any(*_VIRTUAL_STAGE_ARGUMENTS, part="layout")
    if stated := given.optional("virtual_pipeline_model_parallel_size"):
        return stated
    if stated := given.optional("num_virtual_stages_per_pipeline_rank"):
        return stated
    chunk = given.optional("num_layers_per_virtual_pipeline_stage")
    if chunk is None:
        return 1
    if layers % (pp * chunk):
        raise given.invalid(
            "num_layers_per_virtual_pipeline_stage",
            f"times {pp} stages must divide {layers} layers",
        )
    return layers // (pp * chunk)


def _balanced(given: Arguments, layers: int, stages: int) -> bool:
    """Whether stages have different numbers of layers, to even out what else they do."""
    names_layers = any(given.word(name) is not None for name in _UNEVEN_SPLIT_ARGUMENTS)
    counts_ends = names_layers or any(map(given.flag, _SPLIT_WITH_ENDS_FLAGS))
    return stages > 1 and (counts_ends or layers % stages > 0)


def _zero_stage(given: Arguments) -> int:
    if given.flag("use_torch_fsdp2"):
        return 3
    if given.flag("deepspeed"):
        return _deepspeed_stage(given)
    given.require_any("use_distributed_optimizer", part="layout")
    strategy = given.word("data_parallel_sharding_strategy") or "optim_grads_params"
    if not (given.flag("use_megatron_fsdp") or given.flag("use_custom_fsdp")):
        return int(
            given.flag("use_distributed_optimizer") or given.word("optimizer") == "dist_muon"
        )
    if strategy not in _ZERO_STAGES:
        raise given.invalid(
            "data_parallel_sharding_strategy", f"must be one of {', '.join(_ZERO_STAGES)}"
        )
    return _ZERO_STAGES[strategy]


def _deepspeed_stage(given: Arguments) -> int:
    """The stage of DeepSpeed's ZeRO, which its command line has as 1 or as 1.0."""
    given.require_any("zero_stage", part="layout")
    stage = (given.word("zero_stage") or "").removesuffix(".0")
    if stage not in ("0", "1", "2", "3"):
        raise given.invalid("zero_stage", "must be 0, 1, 2 or 3")
    return int(stage)


def expert_axes(given: Arguments, tp: int) -> dict[str, int]:
    """The degrees of expert parallelism. Experts are split over tensor parallelism as the rest is,
    unless an argument says otherwise."""
    if given.word("num_experts") is None:
        return {"ep": 1, "etp": 1}
    return {
        "ep": given.count("expert_model_parallel_size", 1),
        "etp": given.count("expert_tensor_parallel_size", tp),
    }


def _offloads_activations(given: Arguments) -> bool:
    return given.count("cpu_offloading_num_layers", 0, least=0) > 0 or given.flag(
        "fine_grained_activation_offloading"
    )


def read_recompute(given: Arguments, layers: int, chunks: int) -> dict[str, Any]:
    given.require_any("recompute_granularity", part="layout")
    granularity = given.word("recompute_granularity") or "none"
    if granularity not in ("none", "selective", "full"):
        raise given.invalid("recompute_granularity", "must be full or selective")
    found: dict[str, Any] = {"recompute": granularity}
    if granularity == "selective":
        modules = re.findall(r"\w{1,40}", given.word("recompute_modules") or "", re.ASCII)
        if not set(modules) <= set(MODULES):
            raise given.stopped("recompute_modules", f"must be among {', '.join(MODULES)}")
        found["recompute_modules"] = modules
    elif granularity == "full" and given.word("recompute_method") == "block":
        first = given.count("recompute_num_layers")
        found["recompute_layers"] = first if layers % chunks == 0 and first * chunks < layers else 0
    return found
