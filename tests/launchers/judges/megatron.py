"""Megatron-LM's parser, its checks, its configurations and its process groups, on the arguments of
a job."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

import torch
from judges import megatron_core
from judges.harness import main, require
from megatron.training import arguments
from megatron.training.training import get_megatron_ddp_config, get_megatron_optimizer_config

PARSER = arguments.add_megatron_arguments(ArgumentParser(allow_abbrev=False))
arguments.add_megatron_arguments = lambda _: PARSER  # which takes a tenth of a second to make
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.uint8: "fp8"}


def judge(configuration: dict[str, Any]) -> dict[str, Any]:
    words = configuration["arguments"]
    os.environ["WORLD_SIZE"] = str(configuration["devices"])
    os.environ["RANK"] = "0"
    sys.argv = ["pretrain_gpt.py", *words]
    args = arguments.parse_args()
    written = dict(vars(args))
    arguments.validate_args(args)
    config = arguments.core_transformer_config_from_args(args)
    optimizer, _ = get_megatron_optimizer_config(args)
    get_megatron_ddp_config(args)
    require_kept(words, written, args)
    of_rank = args.global_batch_size // args.data_parallel_size
    megatron_core.require_trainable(config, of_rank // args.micro_batch_size)
    mesh = megatron_core.mesh(
        config,
        args.world_size,
        replicas=args.num_distributed_optimizer_instances,
        pipeline_inside=args.use_tp_pp_dp_mapping,
    )
    return {
        **mesh,
        **megatron_core.model(config, args.vocab_size, args.hybrid_layer_pattern),
        **megatron_core.memory(config),
        "seq_len": args.seq_length,
        "global_batch": args.global_batch_size,
        "micro_batch": args.micro_batch_size,
        "zero_stage": zero_stage(args),
        "offload_optimizer": optimizer.optimizer_cpu_offload,
        "precision": megatron_core.precision(config),
        "optimizer": megatron_core.optimizer(optimizer),
    }


def require_kept(words: list[str], written: dict[str, Any], args: Namespace) -> None:
    """Megatron switches some options off with a warning. With Muon it only calls the distributed
    optimizer by another name."""
    for action in PARSER._actions:
        if not set(action.option_strings) & set(words) or not hasattr(args, action.dest):
            continue
        if action.dest == "use_distributed_optimizer" and args.use_layer_wise_distributed_optimizer:
            continue
        was, is_now = written[action.dest], getattr(args, action.dest)
        same = plain(was) == plain(is_now)
        require(same, f"{action.option_strings[0]}: {was!r} became {is_now!r}")


def plain(value: Any) -> Any:
    """A value as it was written: Megatron parses names of types and takes lists of one apart."""
    if isinstance(value, list) and len(value) == 1:
        return plain(value[0])
    return TYPES.get(value, value) if isinstance(value, torch.dtype) else value


def zero_stage(args: Namespace) -> int:
    if args.use_megatron_fsdp:
        return megatron_core.ZERO_STAGES[args.data_parallel_sharding_strategy]
    return int(args.use_distributed_optimizer or args.use_layer_wise_distributed_optimizer)


main(judge, "device", "transformer_engine", "process_group")
