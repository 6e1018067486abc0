"""The configuration of NeMo 1, which its logger prints as one line of `cfg/name : value`, as
Megatron's arguments.

What a run is depends on two lines more: the padded vocabulary, and of how many processes the group
is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from service.formats.logs.lines import Log, printable

_LINE, _APART = " - PARAMETER cfg/", "  cfg/"
_VOCABULARY, _PADDED = "Padded vocab_size:", re.compile(r"Padded vocab_size:\s{0,20}(\d{1,12})\b")
_GROUP, _MEMBER = "MEMBER: ", re.compile(r"MEMBER: \d{1,12}/(\d{1,12})\b")
_MOST = 4000

_SAME = (
    "micro_batch_size", "global_batch_size", "tensor_model_parallel_size",
    "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "context_parallel_size",
    "expert_model_parallel_size", "expert_tensor_parallel_size", "num_layers", "hidden_size",
    "ffn_hidden_size", "num_attention_heads", "kv_channels", "num_query_groups",
    "sequence_parallel", "fp8", "qk_layernorm", "moe_router_topk", "moe_ffn_hidden_size",
    "moe_router_num_groups", "moe_router_group_topk",
)  # fmt: skip
_RENAMED = {
    "data/seq_length": "seq_length",
    "bias": "add_bias_linear",
    "num_moe_experts": "num_experts",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
}
_GATED = {"swiglu", "fast-swiglu", "geglu", "fast-geglu", "reglu", "fast-reglu"}
_SHARDED = {"distributed_fused_adam", "mcore_distributed_optim"}
_ADAMS = {*_SHARDED, "adam", "adamw", "fused_adam", "megatron_fused_adam"}
_HALVES = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16"}


def arguments(log: Log) -> Mapping[str, str]:
    """In Megatron's names, as far as they say what runs; empty where the line is not there, of
    several the last."""
    given = _printed(log)
    if not given:
        return {}
    found = {name: given[name] for name in _SAME if name in given}
    found |= {name: given[theirs] for theirs, name in _RENAMED.items() if theirs in given}
    found |= _worked_out(given)
    for name, mark, pattern in (
        ("padded_vocab_size", _VOCABULARY, _PADDED),
        ("world_size", _GROUP, _MEMBER),
    ):
        for line in log.lines(mark):
            if match := pattern.search(line.text[:5000]):
                found[name] = match.group(1)
    return found


def _printed(log: Log) -> dict[str, str]:
    given: dict[str, str] = {}
    for line in log.lines(_LINE):
        pairs = line.text.partition(_LINE)[2].split(_APART)[:_MOST]
        given = {
            name: printable(value.strip())
            for name, _, value in (pair.partition(" : ") for pair in pairs)
        }
    return given


def _worked_out(given: Mapping[str, str]) -> dict[str, str]:
    """What Megatron says in switches of its own."""
    optimizer, half = given.get("optim/name", ""), _HALVES.get(given.get("precision", ""))
    grouped = given.get("num_query_groups", "None") not in (
        "None",
        given.get("num_attention_heads"),
    )
    return {
        "group_query_attention": str(grouped),
        "swiglu": str(given.get("activation") in _GATED),
        "untie_embeddings_and_output_weights": str(
            given.get("share_embeddings_and_output_weights") == "False"
        ),
        "use_distributed_optimizer": str(optimizer in _SHARDED),
        "optimizer": "adam" if optimizer in _ADAMS else optimizer,
        **({half: "True"} if half else {}),
    }
