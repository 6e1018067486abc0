"""The model, workload, stack and layout that arguments of Megatron-Core describe, in the JSON form
of requests. The arguments come from launches of Megatron-LM and of Megatron-Bridge.

A *stop* is a setting with which the framework refuses to start. A *reservation* is a remark that a
setting could matter and is not, or not fully, taken into account. `stops.attempt` notes the stop
that a call raises, and goes on with the value `instead`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from models.cost.pipeline.bubble import micro_batch_group
from models.errors import Invalid
from models.spec import catalogue
from models.spec.switches import Condition, read_switches, releases
from service.formats.launch.job import LaunchReading
from service.formats.launch.megatron.job_arguments import PIPELINE_INSIDE
from service.formats.launch.megatron.refusals import refusals
from service.formats.launch.megatron.writer import NAME
from service.formats.megatron.arguments import (
    data_parallel_axes,
    data_parallel_degree,
    expert_axes,
    read_memory_knobs,
    read_recompute,
    read_workload,
    refuse_gpt_neox,
)
from service.formats.megatron.derived import unpadded_vocabulary
from service.formats.megatron.layer_pattern import layer_switches
from service.formats.megatron.models import num_layers, read_model, require_layer_pattern
from service.formats.megatron.stages import layers_per_chunk, virtual_stages
from service.formats.megatron.values import Arguments
from service.formats.settings.reservation import Reservation
from service.formats.settings.settings import UnreadSettings
from service.formats.settings.stop import Stop, Stops
from service.formats.shell.faults import invalid_launch

_DEEPSPEED_STACK = "megatron-deepspeed"
"""The stack of Megatron-DeepSpeed, a fork of Megatron-LM that has its flags."""
_OF_FORK = (
    "the launch is of Megatron-DeepSpeed, whose flags are read by the table of Megatron-LM: of its"
    " own rules none is checked"
)
SHAPE = ("num_layers", "hidden_size", "num_attention_heads")
_BALANCING = {
    "aux_loss": "micro_batch_loss",
    "seq_aux_loss": "micro_batch_loss",
    "global_aux_loss": "global_batch_loss",
}
_CONTEXT_EXCHANGES = {"p2p": "ring", "a2a": "ulysses", "allgather": "allgather", "a2a+p2p": "ring"}
_COUNTS = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
    "expert_model_parallel_size", "expert_tensor_parallel_size",
    "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank",
    "num_distributed_optimizer_instances", "recompute_num_layers", "micro_batch_size",
)  # fmt: skip
"""Arguments that must be at least 1."""
_GROUP = "microbatch_group_size_per_vp_stage"
_SCHEDULES = (
    "megatron-core 0.19.2: core/pipeline_parallel/schedules.py,"
    " forward_backward_pipelining_with_interleaving"
)
_ARGUMENTS_OF_FIELDS = {
    "model.num_layers": "num_layers",
    "model.hidden_size": "hidden_size",
    "model.intermediate_size": "ffn_hidden_size",
    "model.num_attention_heads": "num_attention_heads",
    "model.num_key_value_heads": "num_query_groups",
    "model.head_dim": "kv_channels",
    "model.moe.num_experts": "num_experts",
    "model.moe.experts_per_token": "moe_router_topk",
    "model.moe.intermediate_size": "moe_ffn_hidden_size",
    "model.moe.shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
    "workload.seq_len": "seq_length",
    "workload.global_batch": "global_batch_size",
    "workload.optimizer": "optimizer",
}
"""The arguments that say the fields of a request."""
_ARGUMENTS_OF_FORMATS = {"fp8": "fp8", "mxfp8": "fp8_recipe", "nvfp4": "fp4"}
"""The arguments that say a precision."""
_LAYER_PATTERNS = ("moe_layer_freq", "window_attn_skip_freq", "linear_attention_freq")
_MOST_SWITCHES = 1024  # as many as a model may have layers


def without_refused(args: Arguments, stops: Stops) -> Arguments:
    """Returns the arguments with legal values in place of those that Megatron refuses, whatever
    else is set: counts below 1, and layer patterns of the wrong length. Notes a stop for each."""
    for name in _COUNTS:
        count = stops.attempt(partial(args.integer, name), instead=None)
        if count is None and args.text(name) is not None:
            args = args.replaced(**{name: "1"})
    if args.integer("num_layers") is None:
        return args
    layers = num_layers(args)
    for name in _LAYER_PATTERNS:
        is_full = stops.attempt(partial(require_layer_pattern, args, name, layers), instead=False)
        if not is_full:
            pattern = _pattern_of_length(args.text(name) or "", layers)
            cure = f"{args.called(name)} {pattern}, as the model is read here"
            # The last stop is the one that `attempt` has just noted.
            stops.noted[-1] = replace(stops.noted[-1], cure=cure)
            args = args.replaced(**{name: pattern})
    return args


def launch_reading(
    args: Arguments,
    stops: Stops,
    *,
    stack_id: str,
    framework: str,
    release: str | None,
    environment: Mapping[str, str],
    switches: Mapping[str, Any],
    unread: UnreadSettings,
) -> LaunchReading:
    """Returns the reading of arguments whose defaults are filled in. `switches` has the
    arguments that the text itself sets, by the names in models.spec.switches. `unread` has the
    settings that nothing reads."""
    args = _with_assumed_experts(args)
    pp = args.integer("pipeline_model_parallel_size") or 1
    virtual = stops.attempt(lambda: virtual_stages(args, pp), instead=1)
    # All that reads the arguments below must see the same number, also after a stop.
    args = args.replaced(virtual_pipeline_model_parallel_size=str(virtual))
    refuse_gpt_neox(args)  # whose arguments have the same names and other meanings
    if stack_id == NAME:  # raises Invalid without it; Megatron-Bridge's recipes set it themselves
        args.required("micro_batch_size")
    layout = _layout(args, pp, virtual, stops)
    workload = _workload(args)
    reserved = [*_micro_batch_group_reservations(args, layout, stops)]
    is_newest = stack_id == NAME and release is None
    # Megatron-DeepSpeed is a fork of earlier releases, with rules of its own.
    is_fork = args.boolean("deepspeed")
    broken = () if is_fork else refusals(args, environment, is_newest=is_newest)
    # Megatron-LM takes one micro-batch of each rank where there is no --global-batch-size.
    takes_one = stack_id == NAME and "global_batch" not in workload
    return LaunchReading(
        format=stack_id,
        framework=framework,
        version=release or list(releases(stack_id))[-1],  # the newest
        model=_model(args),
        workload=workload,
        stack=_stack(args, layout, stack_id, release, switches),
        layout=layout,
        num_devices=args.integer("world_size"),
        num_micro_batches=1 if takes_one else None,
        unpadded_vocabulary=unpadded_vocabulary(args.given),
        assumed=(_OF_FORK,) if is_fork else (),
        settings_of_fields=_settings_of_fields(args, workload["precision"]),
        stops=(*stops.noted, *unread.stops, *broken),
        reservations=(*unread.reservations, *reserved),
        ignored=unread.no_account,
    )


def _settings_of_fields(args: Arguments, precision: str) -> dict[str, str]:
    """Returns the settings that say the fields of the request, by field, where they are given."""
    arguments = {
        **_ARGUMENTS_OF_FIELDS,
        "workload.precision": _ARGUMENTS_OF_FORMATS.get(precision, precision),
    }
    return {
        field: args.called(name)
        for field, name in arguments.items()
        if args.text(name) not in (None, "False")
    }


def _with_assumed_experts(args: Arguments) -> Arguments:
    """Returns the arguments with as many experts as ranks of expert parallelism, where they
    do not describe the model. Without experts, `ep` would be read as 1."""
    ranks = args.integer("expert_model_parallel_size") or 1
    has_model = any(map(args.text, (*SHAPE, "num_experts")))
    return args if has_model or ranks == 1 else args.replaced(num_experts=str(ranks))


def _model(args: Arguments) -> dict[str, Any] | None:
    """Returns the model; None where the arguments do not set it."""
    return read_model(args) if any(map(args.text, SHAPE)) else None


def _workload(args: Arguments) -> dict[str, Any]:
    """Returns the fields of the workload; the sequence length and the batch only where an
    argument sets them."""
    # `read_workload` requires both, so that 1 stands for a missing one and is removed again.
    required = {"seq_length": "seq_len", "global_batch_size": "global_batch"}
    missing = [name for name in required if args.integer(name) is None]
    workload = read_workload(args.replaced(**dict.fromkeys(missing, "1")))
    for name in missing:
        del workload[required[name]]
    if args.text("num_experts") is not None:
        workload["load_balancing"] = _load_balancing(args)
    return workload


def _load_balancing(args: Arguments) -> str:
    """Returns how experts are balanced, as a request writes it: "bias", the kind of auxiliary
    loss, or "none"."""
    if args.boolean("moe_router_enable_expert_bias"):
        return "bias"
    types = re.findall(r"\w{1,40}", args.text("moe_router_load_balancing_type") or "", re.ASCII)
    # A number, or a list of numbers, with any digit but 0.
    has_weight = re.search(r"[1-9]", args.text("moe_aux_loss_coeff") or "") is not None
    if types == ["none"] and has_weight:
        types = ["aux_loss"]  # a weight without a type is of Megatron's default type
    return next((_BALANCING[name] for name in types if name in _BALANCING), "none")


def _pattern_of_length(text: str, layers: int) -> str:
    """Returns a layer pattern of this length in place of one that Megatron refuses, so that the
    reading can go on: "([0]*3+[1]*58)" for 61 layers and "([0]*3+[1]*40)". It cuts the pattern, or
    repeats its last entry. Returns "1", a period of one layer, for a text that is no pattern."""
    is_on_by_layer = layer_switches(text.replace(" ", ""), _MOST_SWITCHES)[:layers]
    is_on_by_layer += is_on_by_layer[-1:] * (layers - len(is_on_by_layer))
    runs = [f"[{int(is_on)}]*{len(list(run))}" for is_on, run in groupby(is_on_by_layer)]
    return f"({'+'.join(runs)})" if runs else "1"


def _layout(args: Arguments, pp: int, virtual: int, stops: Stops) -> dict[str, Any]:
    """Returns the fields of the layout. Where Megatron refuses a part, a legal value stands in
    its place and a stop is noted. `virtual` is the number of chunks of a pipeline rank."""
    tp = args.integer("tensor_model_parallel_size") or 1
    cp = args.integer("context_parallel_size") or 1
    dp = None  # where ranks are not known, or do not divide evenly
    is_divided = (args.integer("world_size", least=0) or 0) % (tp * pp * cp) == 0
    if is_divided and (args.text("world_size") or args.text("data_parallel_size")):
        dp = data_parallel_degree(args, tp * pp * cp)
    even_split: list[int] = []  # even chunks need no numbers
    chunks = stops.attempt(lambda: layers_per_chunk(args, pp, virtual), instead=even_split)
    num_layers = args.integer("num_layers") or 0  # 0 stands for an unknown number
    layers = num_layers or 10**4  # more than any model has
    # One replica stands in for numbers of replicas that do not divide the ranks.
    one_instance = args.replaced(num_distributed_optimizer_instances="1")
    # The pipeline of DeepSpeed balances what does not divide (runtime/pipe/module.py).
    is_uneven = args.boolean("deepspeed") and num_layers % pp > 0
    layout: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        **stops.attempt(
            lambda: data_parallel_axes(args, dp), instead=data_parallel_axes(one_instance, dp)
        ),
        **expert_axes(args, tp),
        "micro_batch": args.integer("micro_batch_size"),
        "schedule": "interleaved" if virtual > 1 else "1f1b",
        "virtual_stages": virtual,
        "balanced": is_uneven or len(set(chunks)) > 1,  # chunks may have unequal layers
        **stops.attempt(
            lambda: read_recompute(args, layers, pp * virtual), instead={"recompute": "selective"}
        ),
        "sequence_parallel": tp > 1 and args.boolean("sequence_parallel"),
        **read_memory_knobs(args),
    }
    if layout["micro_batch"] is None:  # a recipe may have it
        del layout["micro_batch"]
    if layout["balanced"]:
        layout["recompute_layers"] = 0  # layouts state it only for equal chunks
    # Layouts may have no layers in the first and the last chunk alone.
    if len(set(chunks)) > 1 and all(chunks[1:-1]) and len(chunks) == pp * virtual:
        layout["layers_per_chunk"] = chunks
    if args.boolean("use_tp_pp_dp_mapping"):
        layout["placement"] = list(PIPELINE_INSIDE)
    return layout


def _micro_batch_group_reservations(
    args: Arguments, layout: Mapping[str, Any], stops: Stops
) -> Iterator[Reservation]:
    """Yields a reservation where micro-batches pass a virtual stage in larger groups than
    predictions assume. Notes a stop where they pass in groups that Megatron-Core refuses. A group
    has as many micro-batches as there are stages, unless an argument says otherwise."""
    stages = layout["pp"]
    batch = args.integer("global_batch_size")
    of_rank = ("dp_shard", "dp_replicate", "micro_batch")
    is_known = all(name in layout for name in of_rank)
    if layout["virtual_stages"] == 1 or batch is None or not is_known:
        return
    micro_batches, remainder = divmod(batch, math.prod(layout[name] for name in of_rank))
    if remainder or micro_batches < stages:  # the rules of layouts refuse these
        return
    given = args.integer(_GROUP, least=0)
    group = stages if given is None else given
    assumed = int(micro_batch_group(stages, micro_batches))
    all_of_rank = f"the {micro_batches} micro-batches of a rank"
    rule = ""
    if not stages <= group <= micro_batches:
        rule = f"must be from the {stages} stages of the pipeline to {all_of_rank}"
    elif 0 < micro_batches % group < stages:
        last = micro_batches % group
        left = f"of {group} leaves {last} of {all_of_rank} in the last group"
        rule = f"{left}, fewer than the {stages} stages"
    setting = args.called(_GROUP)
    if rule:
        cure = f"{setting} {assumed}"
        stop = Stop(setting=setting, value=given, rule=rule, source=_SCHEDULES, cure=cure)
        stops.noted.append(stop)
    elif group > assumed:
        reason = "larger groups keep the activations of more micro-batches"
        yield Reservation(setting=f"{setting} {given}", reason=reason, cure=f"write {assumed}")


def _stack(
    args: Arguments,
    layout: Mapping[str, Any],
    stack_id: str,
    release: str | None,
    switches: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the fields of the stack, with each switch as the arguments set it, or as the
    release does by default. Raises Invalid for a value that a switch does not have."""
    if args.boolean("deepspeed"):
        stack_id = _DEEPSPEED_STACK
    try:
        fields = read_switches(
            stack_id, switches, release, lambda condition: _applies(condition, args, layout)
        )
    except Invalid as error:
        raise invalid_launch(error.value, error.rule) from None
    return {"name": stack_id, **fields, **_stack_of_layout(args, layout, stack_id)}


def _stack_of_layout(args: Arguments, layout: Mapping[str, Any], stack_id: str) -> dict[str, Any]:
    """Returns the fields of the stack that arguments decide without being switches: sequence
    parallelism, the exchange of context parallelism, and running statistics of balance."""
    fields: dict[str, Any] = {}
    stack = catalogue.stack(stack_id)
    if stack_id == _DEEPSPEED_STACK:
        if args.boolean("use_flash_attn"):
            fields["attention_kernel"] = "flash2"  # without the flag it has a fused softmax
        # The catalogue has what was published of it. Its pipeline goes with ZeRO 1 at most.
        if layout["zero_stage"] not in stack.zero_stages and layout["pp"] == 1:
            fields["zero_stages"] = [*stack.zero_stages, layout["zero_stage"]]
        if layout["recompute"] not in stack.recompute:
            fields["recompute"] = [*stack.recompute, layout["recompute"]]
    if layout["tp"] > 1 and layout["sequence_parallel"] not in stack.sequence_parallel:
        fields["sequence_parallel"] = [True, False]  # the catalogue's stack has the other alone
    if layout["cp"] > 1:
        types = re.findall(r"[\w+]{1,40}", args.text("cp_comm_type") or "", re.ASCII)
        # Of a list with a type for each layer the first counts; half_read notes what is lost.
        fields["context"] = _CONTEXT_EXCHANGES.get(types[0] if types else "p2p", "ring")
    if "global_aux_loss" in (args.text("moe_router_load_balancing_type") or ""):
        # Its statistics run over the micro-batches so far (core/transformer/moe/router.py).
        fields["running_balance"] = True
    return fields


def _applies(condition: Condition, args: Arguments, layout: Mapping[str, Any]) -> bool:
    """Returns True where a switch with this condition, such as "tp" or "moe", applies to the
    launch. Unknown conditions count as met."""
    is_sparse = args.text("num_experts") is not None
    is_low = any(args.text(name) not in (None, "False") for name in ("fp8", "fp4"))
    holds: dict[str, bool] = {
        "tp": layout["tp"] > 1,
        "sp": layout["sequence_parallel"],
        "pp": layout["pp"] > 1,
        "cp": layout["cp"] > 1,
        "ep": layout["ep"] > 1,
        "ep_beside": layout["ep"] > 1,  # all-to-alls of experts beside another micro-batch
        "interleaved": layout["virtual_stages"] > 1,
        "moe": is_sparse,
        "dense": not is_sparse,
        "zero_1_2": layout["zero_stage"] in (1, 2),
        "zero_3": layout["zero_stage"] == 3,
        "low_precision_zero": is_low and layout["zero_stage"] > 0,
        "fp16": args.boolean("fp16"),
        "not_fp16": not args.boolean("fp16"),
        "never": False,  # no argument sets it
    }
    return holds.get(condition, True)
