"""Arguments of Megatron-Core whose values mean more than what is read of them. The answer to a
launch that sets one carries the reason, and advice on what to write instead."""

from __future__ import annotations

import re

from service.formats.megatron.arguments import HALF_DTYPES
from service.formats.megatron.layers import needs_layer_list
from service.formats.megatron.stages import has_early_mtp, has_empty_chunks
from service.formats.megatron.values import Arguments

_END_STAGES = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
_FULL_DTYPES = ("fp32", "float32", "torch.float32")


def why_half_read(argument: str, args: Arguments) -> tuple[str, str] | None:
    """Returns the reason why the value of an argument is read only in part, and advice on what
    to write instead; None where all of it is read."""
    if argument == "pipeline_model_parallel_layout" and has_early_mtp(args):
        return "multi-token prediction is read as on the last stage", "write m in front of L"
    if argument == "moe_expert_capacity_factor" and _pads_no_experts(args):
        reason = "an expert that gets fewer tokens is read as padded"
        return reason, "use --moe-pad-expert-input-to-capacity beside it"
    if argument in _END_STAGES and (args.integer("pipeline_model_parallel_size") or 1) == 1:
        built = args.integer(argument)
        layers = args.integer("num_layers")
        if built not in (None, layers):
            reason = f"with one pipeline stage Megatron builds {built} of the {layers} layers"
            return f"{reason}, and all are read", "leave it out, or use a pipeline"
    if _is_half_read(argument, args):
        return "a part of what it says is not described", "use a value that is simpler"
    return None


def _pads_no_experts(args: Arguments) -> bool:
    """Returns True where experts have a capacity, and those that get fewer tokens are not padded
    to it."""
    factor = args.value("moe_expert_capacity_factor") or 0
    return factor > 0 and not args.boolean("moe_pad_expert_input_to_capacity")


def _is_half_read(argument: str, args: Arguments) -> bool:
    """Returns True where the value of an argument means more than what is read of it, such as
    cp_comm_type with several values."""
    if argument == "cp_comm_type":
        types = set(re.findall(r"[\w+]{1,40}", args.text(argument) or "", re.ASCII))
        return len(types) > 1 or "a2a+p2p" in types
    if argument in ("exp_avg_dtype", "exp_avg_sq_dtype"):
        dtypes = {args.text("exp_avg_dtype"), args.text("exp_avg_sq_dtype")}
        have_32_bits = dtypes <= {*_FULL_DTYPES}
        have_16_bits = dtypes <= {*HALF_DTYPES}
        return not (have_32_bits or have_16_bits)  # only moments of one width are modelled
    if argument == "pipeline_model_parallel_layout":
        return has_empty_chunks(args)  # layouts can have no chunk without layers between the ends
    if argument == "moe_shared_expert_gate":
        return not needs_layer_list(args)  # models that are read by sizes alone have no gate
    if argument == "recompute_num_layers":  # "uniform" keeps one input for so many layers
        return args.text("recompute_method") == "uniform" and (args.integer(argument) or 1) > 1
    return False
