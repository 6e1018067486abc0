"""What Megatron-Core stops at before the first step, beyond the rules of layouts
(megatron/training/arguments.py, validate_args; core/transformer/transformer_config.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from service.formats.megatron.values import Arguments
from service.formats.settings.stop import Stop


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason to stop. `argument` is the one to blame."""

    argument: str
    stops: Callable[[Arguments], bool]
    rule: str


def refusals(
    given: Arguments, environment: Mapping[str, str], *, is_newest: bool
) -> tuple[Stop, ...]:
    """Every reason at which Megatron-Core would stop."""
    found = [
        Stop(
            setting=given.called(refusal.argument),
            value=given.shown(refusal.argument),
            rule=refusal.rule,
        )
        for refusal in (*_REFUSALS, *(_OF_TODAY if is_newest else ()))
        if refusal.stops(given)
    ]
    is_fsdp = given.flag("use_megatron_fsdp") or given.flag("use_torch_fsdp2")
    if is_fsdp and environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        name = "use_megatron_fsdp" if given.flag("use_megatron_fsdp") else "use_torch_fsdp2"
        rule = "needs CUDA_DEVICE_MAX_CONNECTIONS above 1 or unset, and it is 1"
        found.append(Stop(setting=given.called(name), value=True, rule=rule))
    return tuple(found)


def _has(given: Arguments, name: str) -> bool:
    return given.word(name) is not None


def _on(given: Arguments, name: str) -> bool:
    return given.word(name) not in (None, "False")


def _size(given: Arguments, name: str) -> int:
    return given.count(name, 1, least=0)


def _modules(given: Arguments) -> str:
    is_selective = given.word("recompute_granularity") == "selective"
    return given.word("recompute_modules") or "" if is_selective else ""


def _sharded(given: Arguments) -> bool:
    return (
        given.flag("use_distributed_optimizer")
        or given.flag("use_megatron_fsdp")
        or given.word("optimizer") == "dist_muon"
    )


def _overlaps_experts(given: Arguments) -> bool:
    return given.flag("overlap_moe_expert_parallel_comm")


_RECOMPUTE = (
    Refusal(
        "recompute_granularity",
        lambda given: (
            given.word("recompute_granularity") == "full"
            and not (_has(given, "recompute_method") and _has(given, "recompute_num_layers"))
        ),
        "full needs --recompute-method uniform or block, and --recompute-num-layers",
    ),
    Refusal(
        "recompute_granularity",
        lambda given: (
            given.word("recompute_granularity") == "selective"
            and (_has(given, "recompute_method") or _has(given, "recompute_num_layers"))
        ),
        "selective goes without --recompute-method and --recompute-num-layers",
    ),
    Refusal(
        "recompute_modules",
        lambda given: "moe_act" in _modules(given) and not given.flag("moe_grouped_gemm"),
        "with moe_act needs --moe-grouped-gemm",
    ),
    Refusal(
        "recompute_modules",
        lambda given: "mla_up_proj" in _modules(given) and not given.flag("multi_latent_attention"),
        "with mla_up_proj needs --multi-latent-attention",
    ),
    Refusal(
        "recompute_modules",
        lambda given: (
            "shared_experts" in _modules(given)
            and given.flag("moe_shared_expert_overlap")
            and _has(given, "moe_shared_expert_intermediate_size")
        ),
        "with shared_experts goes without --moe-shared-expert-overlap",
    ),
    Refusal(
        "recompute_modules",
        lambda given: (
            _on(given, "fp8")
            and given.word("fp8_recipe") == "delayed"
            and ("moe_act" in _modules(given) or "layernorm" in _modules(given))
        ),
        "with moe_act or layernorm needs another --fp8-recipe than delayed",
    ),
    Refusal(
        "cpu_offloading_num_layers",
        lambda given: (
            _has(given, "num_layers")
            and _size(given, "cpu_offloading_num_layers") >= given.count("num_layers")
            and _size(given, "cpu_offloading_num_layers") > 0
        ),
        "must be less than the layers of the model",
    ),
    Refusal(
        "fine_grained_activation_offloading",
        lambda given: (
            given.flag("fine_grained_activation_offloading")
            and given.word("offload_modules") in (None, "[]")
        ),
        "needs --offload-modules",
    ),
)
_SHARDING = (
    Refusal(
        "overlap_param_gather",
        lambda given: given.flag("overlap_param_gather") and not _sharded(given),
        "needs --use-distributed-optimizer or --use-megatron-fsdp",
    ),
    Refusal(
        "overlap_param_gather",
        lambda given: given.flag("overlap_param_gather") and not given.flag("overlap_grad_reduce"),
        "needs --overlap-grad-reduce",
    ),
    Refusal(
        "use_torch_fsdp2",
        lambda given: (
            given.flag("use_torch_fsdp2")
            and (
                _size(given, "pipeline_model_parallel_size") > 1
                or _size(given, "expert_model_parallel_size") > 1
                or given.flag("use_distributed_optimizer")
                or given.flag("gradient_accumulation_fusion")
            )
        ),
        "goes with neither pipeline nor expert parallelism nor --use-distributed-optimizer, and"
        " needs --no-gradient-accumulation-fusion",
    ),
    Refusal(
        "use_megatron_fsdp",
        lambda given: (
            given.flag("use_megatron_fsdp") and given.word("ckpt_format") != "fsdp_dtensor"
        ),
        "needs --ckpt-format fsdp_dtensor",
    ),
    Refusal(
        "optimizer",
        lambda given: (
            given.flag("use_megatron_fsdp") and given.word("optimizer") not in ("adam", "sgd")
        ),
        "must be adam or sgd with --use-megatron-fsdp",
    ),
    Refusal(
        "optimizer_cpu_offload",
        lambda given: (
            given.flag("optimizer_cpu_offload") and not given.flag("use_precision_aware_optimizer")
        ),
        "needs --use-precision-aware-optimizer",
    ),
    Refusal(
        "use_precision_aware_optimizer",
        lambda given: (
            given.flag("use_precision_aware_optimizer")
            and (given.word("optimizer") != "adam" or not _sharded(given))
        ),
        "goes with --optimizer adam and a distributed optimizer",
    ),
)
_PARALLELISM = (
    Refusal(
        "attention_backend",
        lambda given: given.word("attention_backend") == "local",
        "local goes with --spec local, which pretrain_gpt.py does not load",
    ),
    Refusal(
        "tp_comm_overlap",
        lambda given: (
            given.flag("tp_comm_overlap")
            and not (
                given.flag("sequence_parallel") and _size(given, "tensor_model_parallel_size") > 1
            )
        ),
        "needs --sequence-parallel and tensor parallelism",
    ),
    Refusal(
        "expert_model_parallel_size",
        lambda given: (
            _size(given, "expert_model_parallel_size") > 1 and not _has(given, "num_experts")
        ),
        "needs --num-experts",
    ),
    Refusal(
        "cp_comm_type",
        lambda given: (
            "a2a+p2p" in (given.word("cp_comm_type") or "")
            and not _has(given, "hierarchical_context_parallel_sizes")
        ),
        "a2a+p2p needs --hierarchical-context-parallel-sizes",
    ),
    Refusal(
        "overlap_moe_expert_parallel_comm",
        lambda given: (
            _overlaps_experts(given)
            and (
                _size(given, "expert_model_parallel_size") <= 1
                or given.word("moe_token_dispatcher_type") == "allgather"
                or not (given.flag("bf16") or given.flag("fp16"))
                or given.count("mtp_num_layers", 0, least=0) > 1
            )
        ),
        "needs expert parallelism, --moe-token-dispatcher-type alltoall or flex, 16-bit numbers and"
        " at most one module of multi-token prediction",
    ),
    Refusal(
        "overlap_moe_expert_parallel_comm",
        lambda given: (
            _overlaps_experts(given)
            and (
                given.word("recompute_granularity") == "full"
                or "'moe'" in _modules(given)
                or given.flag("moe_shared_expert_overlap")
            )
        ),
        "goes with neither full recompute, recompute of moe nor --moe-shared-expert-overlap",
    ),
    Refusal(
        "overlap_moe_expert_parallel_comm",
        lambda given: (
            _overlaps_experts(given)
            and _size(given, "pipeline_model_parallel_size") > 1
            and _size(given, "virtual_pipeline_model_parallel_size") <= 1
        ),
        "needs virtual stages in a pipeline",
    ),
    Refusal(
        "delay_wgrad_compute",
        lambda given: given.flag("delay_wgrad_compute") and not _overlaps_experts(given),
        "needs --overlap-moe-expert-parallel-comm",
    ),
    Refusal(
        "overlap_p2p_comm",
        lambda given: (
            given.word("overlap_p2p_comm") == "False"
            and _size(given, "virtual_pipeline_model_parallel_size") > 1
            and _size(given, "pipeline_model_parallel_size") <= 2
        ),
        "needs more than 2 pipeline stages where there are virtual ones",
    ),
)
_MODEL_AND_FORMATS = (
    Refusal("bf16", lambda given: _on(given, "bf16") and _on(given, "fp16"), "excludes --fp16"),
    Refusal("fp4", lambda given: _on(given, "fp4") and _on(given, "fp8"), "excludes --fp8-format"),
    Refusal(
        "multi_latent_attention",
        lambda given: given.flag("multi_latent_attention") and given.flag("group_query_attention"),
        "excludes --group-query-attention",
    ),
    Refusal(
        "moe_router_enable_expert_bias",
        lambda given: (
            given.flag("moe_router_enable_expert_bias")
            and given.word("moe_router_score_function") == "softmax"
        ),
        "needs --moe-router-score-function sigmoid",
    ),
    Refusal(
        "moe_router_topk",
        lambda given: (
            _has(given, "num_experts")
            and given.word("moe_router_topk") == "1"
            and given.word("moe_router_score_function") == "softmax"
            and not given.flag("moe_router_pre_softmax")
            and "sinkhorn" not in (given.word("moe_router_load_balancing_type") or "")
        ),
        "of 1 needs --moe-router-pre-softmax",
    ),
    Refusal(
        "moe_pad_expert_input_to_capacity",
        lambda given: (
            given.flag("moe_pad_expert_input_to_capacity")
            and not _has(given, "moe_expert_capacity_factor")
        ),
        "needs --moe-expert-capacity-factor",
    ),
    Refusal(
        "moe_pad_expert_input_to_capacity",
        lambda given: (
            given.flag("moe_pad_expert_input_to_capacity")
            and given.word("moe_token_dispatcher_type") == "flex"
            and given.word("moe_flex_dispatcher_backend") in (None, "deepep")
        ),
        "goes without DeepEP: use --moe-token-dispatcher-type alltoall",
    ),
    Refusal(
        "moe_expert_capacity_factor",
        lambda given: (
            _has(given, "moe_expert_capacity_factor")
            and any(
                name in (given.word("moe_router_load_balancing_type") or "")
                for name in ("sinkhorn", "quantile_balancing")
            )
        ),
        "goes with an auxiliary loss or none: use --moe-router-load-balancing-type aux_loss",
    ),
    Refusal(
        "max_position_embeddings",
        lambda given: (
            _has(given, "max_position_embeddings")
            and _has(given, "seq_length")
            and given.count("max_position_embeddings") < given.count("seq_length")
        ),
        "must be at least --seq-length",
    ),
)


def _outdated(argument: str, today: str) -> Refusal:
    return Refusal(argument, lambda given: _on(given, argument), f"is outdated, use {today}")


_OF_TODAY = (
    _outdated("batch_size", "--micro-batch-size"),
    _outdated("model_parallel_size", "--tensor-model-parallel-size"),
    _outdated("checkpoint_activations", "--recompute-granularity full"),
    _outdated("warmup", "--lr-warmup-fraction"),
    Refusal(
        "cross_entropy_loss_fusion",
        lambda given: (
            given.flag("cross_entropy_loss_fusion")
            and given.word("cross_entropy_fusion_impl") == "te"
        ),
        "goes with --cross-entropy-fusion-impl native",
    ),
)
"""Reasons of today's parser of Megatron-LM, which others that use Megatron-Core do not have."""
_REFUSALS: tuple[Refusal, ...] = (
    *_RECOMPUTE,
    *_SHARDING,
    *_PARALLELISM,
    *_MODEL_AND_FORMATS,
)
