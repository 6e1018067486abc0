"""The question that a Megatron run answers, read from its arguments: model, workload and layout in
their wire form. The *dump* is the list of all arguments that Megatron prints at its start.

Names and meanings are those of Megatron-Core 0.19; `versions` first translates the names of other
versions. Megatron prints the dump after it has filled in what follows from other arguments, so the
dump also has arguments that a script leaves out. A missing argument that the dump should have is
refused: it may have been cut off, and does not mean that the argument is off. Typed arguments come
here from `service.formats.launch.megatron.reader`, which fills them in. A pipeline *chunk* is
consecutive layers of a stage, which has several where its schedule is interleaved.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from models.errors import Invalid
from models.spec.recompute import MODULES
from models.spec.workload import MAX_CAPACITY
from service.formats.megatron.layers import chunks_of, pattern_of
from service.formats.megatron.models import num_layers, read_model
from service.formats.megatron.values import DUMP_PATH, Arguments
from service.formats.megatron.versions import in_todays_names, is_of_gpt_neox

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
"""For each part of the question, the fields that take the value of one argument unchanged."""
_OPTIMIZERS = {
    "adam": "adamw", "sgd": "sgd_momentum", "muon": "muon", "dist_muon": "muon", "lion": "lion",
}  # fmt: skip
HALF_DTYPES = ("bf16", "fp16", "bfloat16", "float16", "torch.bfloat16", "torch.float16")
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


def question(arguments: Mapping[str, str], optional: Collection[str] = ()) -> Mapping[str, Any]:
    """Returns the `model`, `workload`, `layout` and `num_chips` of a run, by the arguments that
    it dumped. A part named in `optional` is left out where it cannot be read. Raises Invalid or
    Unsupported for any other part with an argument that is missing, wrong, or not modelled."""
    args = Arguments(in_todays_names(arguments))
    fields: dict[str, Any] = {}
    for part, read in (
        ("model", read_model),
        ("workload", read_workload),
        ("layout", read_layout),
    ):
        # The request states an optional part itself, so that one may be unreadable here.
        try:
            refuse_gpt_neox(args)
            fields[part] = read(args)
        except Invalid:
            if part not in optional:
                raise
    if "layout" in fields:
        layout = fields["layout"]
        # Experts are spread over these same chips, so that ep is no further factor.
        shards = layout["dp_shard"] * layout["dp_replicate"]
        fields["num_chips"] = layout["tp"] * layout["pp"] * layout["cp"] * shards
    return fields


def stated_values(arguments: Mapping[str, str]) -> Mapping[str, Mapping[str, Any]]:
    """Returns the model, workload and layout that the arguments state, to compare with a
    request. A part that cannot be read as a whole has only the values that can be read one by
    one."""
    args = Arguments(in_todays_names(arguments))
    # Every part is optional here: what cannot be read must not hide the other parts.
    parts: dict[str, Mapping[str, Any]] = dict(question(arguments, optional=_PLAIN_VALUES))
    for part, names in _PLAIN_VALUES.items():
        if part in parts:
            continue
        values: dict[str, Any] = {}
        for field, name in names.items():
            with suppress(Invalid):
                values[field] = args.required(name)
        parts[part] = values
    return {part: parts[part] for part in _PLAIN_VALUES}


def refuse_gpt_neox(args: Arguments) -> None:
    """Raises Invalid for arguments of GPT-NeoX, which have the same names and other meanings."""
    if is_of_gpt_neox(args.given):
        rule = (
            "are those of GPT-NeoX, which are not read: give model, workload and layout in the"
            " request beside the log"
        )
        raise Invalid(DUMP_PATH, None, rule)


def stack_fields(arguments: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of the stack that the arguments set. Arguments that are missing or
    without effect set none."""
    fields: dict[str, Any] = {}
    with suppress(Invalid):  # an unreadable argument ends the reading; earlier fields are kept
        for name, value in _iterate_stack_fields(Arguments(in_todays_names(arguments))):
            fields[name] = value
    return fields


def _iterate_stack_fields(args: Arguments) -> Iterator[tuple[str, Any]]:
    """Yields the fields of the stack that the arguments set, with their values. Raises Invalid
    at the first argument that cannot be read."""
    if (args.integer("tensor_model_parallel_size") or 1) > 1:
        if not args.boolean("sequence_parallel"):
            # Stacks may offer tp only with it; this run shows that its software goes without.
            yield "sequence_parallel", [True, False]
        yield from _overlap_field(args, "overlap_tensor")
    if not args.boolean("use_torch_fsdp2"):  # these arguments do not switch FSDP2's own overlap
        yield from _overlap_field(args, "overlap_data")
    has_experts = args.text("num_experts") is not None
    if has_experts and (args.integer("expert_model_parallel_size") or 1) > 1:
        yield from _overlap_field(args, "overlap_expert")
        if dispatcher := _DISPATCHERS.get(args.text("moe_token_dispatcher_type") or ""):
            yield "dispatcher", dispatcher
    # Only bf16 accumulates in fp32 by itself.
    if args.boolean("fp16") and args.text("accumulate_allreduce_grads_in_fp32") is not None:
        yield "gradient_bytes", 4 if args.boolean("accumulate_allreduce_grads_in_fp32") else 2
    elif args.text("grad_reduce_in_bf16") is not None:
        yield "gradient_bytes", 2 if args.boolean("grad_reduce_in_bf16") else 4  # or fp32
    if (args.text("attention_backend") or "").endswith("unfused"):  # or AttnBackend.unfused
        yield "attention_kernel", "unfused"
    if args.text("cross_entropy_loss_fusion") is not None:
        yield "loss", "fused" if args.boolean("cross_entropy_loss_fusion") else "stepwise"


def _overlap_field(args: Arguments, name: str) -> Iterator[tuple[str, bool]]:
    """Yields the field of the stack called `name`, such as overlap_data, and whether it is on.
    Yields nothing where the dump has none of the arguments that switch it on."""
    arguments = [argument for argument in _OVERLAPS[name] if args.text(argument) is not None]
    if arguments:
        yield name, any(map(args.boolean, arguments))


def read_workload(args: Arguments) -> dict[str, Any]:
    """Returns the fields of the workload. Raises Invalid without a sequence length or a global
    batch."""
    workload: dict[str, Any] = {
        "seq_len": args.required("seq_length"),
        "global_batch": args.required("global_batch_size"),
        "precision": _precision(args),
    }
    # A field that is left out has the default of a request.
    if args.text("optimizer") is not None:
        workload["optimizer"] = _optimizer(args)
    if args.boolean("moe_router_force_load_balancing"):
        workload["routing"] = "balanced"
    return workload | _capacity_field(args)


def _capacity_field(args: Arguments) -> dict[str, float]:
    """Returns the capacity factor of experts; none where no token is dropped, which a negative
    factor means too (core/transformer/transformer_config.py)."""
    factor = args.value("moe_expert_capacity_factor")
    if factor is None or factor < 0 or args.text("num_experts") is None:
        return {}
    if not 0 < factor <= MAX_CAPACITY:
        rule = f"must be above 0 and at most {MAX_CAPACITY:g}, or negative to drop no token"
        raise args.invalid("moe_expert_capacity_factor", rule)
    return {"capacity_factor": factor}


def _precision(args: Arguments) -> str:
    """Returns the precision of matrix products. Raises Invalid where the dump does not tell."""
    if args.text("fp4") not in (None, "False"):
        return "nvfp4"
    if args.text("fp8") not in (None, "False"):
        return "mxfp8" if args.text("fp8_recipe") == "mxfp8" else "fp8"
    for name in ("bf16", "fp16"):
        if args.boolean(name):
            return name
    for name in ("bf16", "fp16"):  # one that is missing may have been cut off, and have been True
        args.require_any(name, part="workload")
    return "fp32"


def _optimizer(args: Arguments) -> str:
    """Returns the optimizer as requests name it. Raises Unsupported for one that is not
    modelled."""
    name = _OPTIMIZERS.get(args.text("optimizer") or "")
    if name is None:
        raise args.unsupported("optimizer", "the state of this optimizer")
    moments = (args.text("exp_avg_dtype"), args.text("exp_avg_sq_dtype"))
    has_half_moments = all(dtype in HALF_DTYPES for dtype in moments)
    return "adamw_bf16_moments" if name == "adamw" and has_half_moments else name


def read_layout(args: Arguments) -> dict[str, Any]:
    """Returns the fields of the layout of a run, from its dump. Raises Invalid where a deciding
    argument is missing."""
    layers = num_layers(args)
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size"):
        args.require_any(name, part="layout")
    _refuse_ulysses(args)
    tp = args.integer("tensor_model_parallel_size") or 1
    pp = args.integer("pipeline_model_parallel_size") or 1
    cp = args.integer("context_parallel_size") or 1
    # Without the argument cp counts as 1, which the two sizes confirm where the dump has both.
    if "world_size" not in args or "data_parallel_size" not in args:
        args.require_any("context_parallel_size", part="layout")
    dp = data_parallel_degree(args, tp * pp * cp)
    if tp > 1:
        args.require_any("sequence_parallel", part="layout")
    virtual = _virtual_stages(args, layers, pp)
    return {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        **data_parallel_axes(args, dp),
        **expert_axes(args, tp),
        "micro_batch": args.required("micro_batch_size"),
        "schedule": "interleaved" if virtual > 1 else "1f1b",
        "virtual_stages": virtual,
        # `balanced` layouts give the stages numbers of layers that make them equally fast.
        "balanced": _has_uneven_chunks(args, layers, pp * virtual),
        **read_recompute(args, layers, pp * virtual),
        "sequence_parallel": tp > 1 and args.boolean("sequence_parallel"),
        **read_memory_knobs(args),
    }


def data_parallel_axes(args: Arguments, dp: int | None) -> dict[str, int]:
    """Returns the ZeRO stage and the data-parallel degrees. Where `dp`, the number of
    data-parallel ranks, is not known, the degree that follows from it is left out."""
    stage = _zero_stage(args)
    axes = {"zero_stage": stage}
    # States are sharded within an instance of the optimizer, and the instances are replicas.
    # Without a ZeRO stage all data-parallel ranks are replicas.
    replicas = (args.integer("num_distributed_optimizer_instances") or 1) if stage else dp
    if replicas is None:
        return {"dp_shard": 1, **axes}
    if dp is None:
        return {"dp_replicate": replicas, **axes}
    if dp % replicas:
        rule = f"must divide the data-parallel size = {dp}"
        raise args.stopped("num_distributed_optimizer_instances", rule)
    return {"dp_shard": dp // replicas, "dp_replicate": replicas, **axes}


def read_memory_knobs(args: Arguments) -> dict[str, bool]:
    """Returns what is offloaded to the host, and whether FSDP frees parameters after forward, as
    fields of the layout. Raises Unsupported for recomputed layers with inputs on the host."""
    if args.text("checkpoint_in_cpu") not in (None, "False"):
        missing = "the inputs of recomputed layers in the memory of the host"
        raise args.unsupported("checkpoint_in_cpu", missing)
    return {
        "reshard": args.text("torch_fsdp2_reshard_after_forward") != "False",
        "offload_activations": _offloads_activations(args),
        "offload_optimizer": args.boolean("optimizer_cpu_offload"),
    }


def _refuse_ulysses(args: Arguments) -> None:
    """Raises Unsupported for the sequence parallelism of DeepSpeed-Ulysses, which layouts do not
    have."""
    name = "ds_sequence_parallel_size"
    if (args.integer(name) or 1) > 1:
        raise args.unsupported(name, "sequence parallelism of DeepSpeed-Ulysses")


def data_parallel_degree(args: Arguments, model_parallel: int) -> int:
    """Returns the number of data-parallel ranks: `data_parallel_size`, or the world size divided
    by `model_parallel`, the product of tp, pp and cp. Raises Invalid where the two differ."""
    dp = args.integer("data_parallel_size")
    world = args.integer("world_size")
    if world is None:
        return args.required("data_parallel_size") if dp is None else dp
    if world % model_parallel or dp not in (None, world // model_parallel):
        size = "" if dp is None else f" * data_parallel_size({dp})"
        rule = f"is not tensor * pipeline * context({model_parallel}){size}"
        raise args.invalid("world_size", rule)
    return world // model_parallel


def _virtual_stages(args: Arguments, layers: int, pp: int) -> int:
    """Returns the number of chunks of a pipeline stage, from a dump; `stages.virtual_stages` reads
    typed arguments. Raises Invalid where the dump has none of the arguments that set the number,
    or the layers do not divide over the chunks."""
    if pp == 1:
        return 1
    args.require_any(*_VIRTUAL_STAGE_ARGUMENTS, part="layout")
    for name in ("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"):
        if virtual_stages := args.integer(name):
            return virtual_stages
    name = "num_layers_per_virtual_pipeline_stage"
    chunk_layers = args.integer(name)
    if chunk_layers is None:
        return 1
    if layers % (pp * chunk_layers):
        raise args.invalid(name, f"times {pp} stages must divide {layers} layers")
    return layers // (pp * chunk_layers)


def _has_uneven_chunks(args: Arguments, layers: int, num_chunks: int) -> bool:
    """Returns True where chunks have different numbers of layers, which makes up for the time of
    the embedding and the loss: the field `balanced` of a layout."""
    pattern = pattern_of(args)  # of a hybrid's layers, in which | divides the chunks
    if pattern is not None and len(chunks_of(pattern)) > 1:
        return len({*map(len, chunks_of(pattern))}) > 1
    sets_layers = any(args.text(name) is not None for name in _UNEVEN_SPLIT_ARGUMENTS)
    is_asked_for = sets_layers or any(map(args.boolean, _SPLIT_WITH_ENDS_FLAGS))
    return num_chunks > 1 and (is_asked_for or layers % num_chunks > 0)


def _zero_stage(args: Arguments) -> int:
    """Returns the ZeRO stage that the distributed optimizer, Megatron-FSDP, FSDP2 or DeepSpeed
    amounts to. Raises Invalid where the dump does not tell, or names an unknown sharding."""
    if args.boolean("use_torch_fsdp2"):
        return 3
    if args.boolean("deepspeed"):
        return _deepspeed_stage(args)
    args.require_any("use_distributed_optimizer", part="layout")
    if not (args.boolean("use_megatron_fsdp") or args.boolean("use_custom_fsdp")):
        # The distributed optimizer shards optimizer states alone: stage 1. dist_muon implies it.
        # Plain data parallelism is stage 0.
        is_implied = args.text("optimizer") == "dist_muon"
        return int(args.boolean("use_distributed_optimizer") or is_implied)
    # Without the argument Megatron-FSDP shards everything: that is the default of the flag.
    strategy = args.text("data_parallel_sharding_strategy") or "optim_grads_params"
    if strategy not in _ZERO_STAGES:
        raise args.invalid(
            "data_parallel_sharding_strategy", f"must be one of {', '.join(_ZERO_STAGES)}"
        )
    return _ZERO_STAGES[strategy]


def _deepspeed_stage(args: Arguments) -> int:
    """Returns the ZeRO stage of DeepSpeed, written as 1 or as 1.0. Raises Invalid for any other
    text."""
    args.require_any("zero_stage", part="layout")
    stage = (args.text("zero_stage") or "").removesuffix(".0")
    if stage not in ("0", "1", "2", "3"):
        raise args.invalid("zero_stage", "must be 0, 1, 2 or 3")
    return int(stage)


def expert_axes(args: Arguments, tp: int) -> dict[str, int]:
    """Returns the expert-parallel degree and the tensor-parallel degree of experts, which is
    `tp` unless an argument sets it."""
    if args.text("num_experts") is None:
        return {"ep": 1, "etp": 1}
    return {
        "ep": args.integer("expert_model_parallel_size") or 1,
        "etp": args.integer("expert_tensor_parallel_size") or tp,
    }


def _offloads_activations(args: Arguments) -> bool:
    offloads_layers = bool(args.integer("cpu_offloading_num_layers", least=0))
    return offloads_layers or args.boolean("fine_grained_activation_offloading")


def read_recompute(args: Arguments, layers: int, chunks: int) -> dict[str, Any]:
    """Returns the recompute as fields of the layout: {"recompute": "selective",
    "recompute_modules": ["core_attn"]}. `chunks` is the number of pipeline chunks. Raises Invalid
    for an unknown granularity, and Stopped for unknown modules."""
    args.require_any("recompute_granularity", part="layout")
    granularity = args.text("recompute_granularity") or "none"
    if granularity not in ("none", "selective", "full"):
        raise args.invalid("recompute_granularity", "must be full or selective")
    fields: dict[str, Any] = {"recompute": granularity}
    if granularity == "selective":
        modules = re.findall(r"\w{1,40}", args.text("recompute_modules") or "", re.ASCII)
        if not set(modules) <= set(MODULES):
            raise args.stopped("recompute_modules", f"must be among {', '.join(MODULES)}")
        fields["recompute_modules"] = modules
    elif granularity == "full" and args.text("recompute_method") == "block":
        # The first layers of each chunk. A layout can say so only where chunks are equal;
        # otherwise all layers of a chunk count as recomputed, which 0 means.
        count = args.required("recompute_num_layers")
        is_part = layers % chunks == 0 and count * chunks < layers
        fields["recompute_layers"] = count if is_part else 0
    return fields
