"""A layout and its workload in the arguments of Megatron-Core, by name. The writers of Megatron and
of Megatron-Bridge say them in their own spelling.

The text of an Inexpressible says why no argument does what was asked for, and what to ask for
instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from models.cost.pipeline.bubble import micro_batch_group
from models.spec.layout import AXES, TORUS_AXES
from models.spec.problem import Problem
from models.spec.recompute import MODULES
from models.spec.switches import applies, launch_arguments, switches_of
from service.formats.launch.job import Inexpressible, Job
from service.formats.launch.megatron.mixers import shared_indexers
from service.formats.launch.megatron.model import has_biases
from service.formats.launch.megatron.patterns import has_pattern, num_letters
from service.formats.launch.megatron.stages import stage_arguments

PIPELINE_INSIDE = ("tp", "cp", "pp", "dp_shard", "dp_replicate")
"""The order of ranks with --use-tp-pp-dp-mapping, innermost first."""
_NO_MODULES = ("mlp_act", "alternate_mm", "grouped_mm", "out_proj", "mlp_gate")
MODULE_WORDS = tuple(name for name in MODULES if name not in _NO_MODULES)
"""The modules that --recompute-modules names."""
_CP_COMM_TYPES = {"ring": "p2p", "ulysses": "a2a", "allgather": "allgather"}
_OFFLOADED_MODULES = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm")
_FSDP_STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}
OPTIMIZERS = {
    "adamw": "adam", "adamw_bf16_moments": "adam", "muon": "muon", "sgd_momentum": "sgd",
    "lion": "lion",
}  # fmt: skip
_UNKNOWN_OPTIMIZERS = ("adafactor", "adamw_8bit")
"""The optimizers that --optimizer does not offer (megatron/training/arguments.py)."""
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "fp16": {"fp16": True},
    "bf16": {"bf16": True},
    "fp8": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "mxfp8": {"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"bf16": True, "fp4": "e2m1", "fp4_recipe": "nvfp4"},
}
BALANCING: dict[str, dict[str, Any]] = {
    "none": {},  # nothing is said of it: the loss is the framework's, its weight the caller's
    "micro_batch_loss": {"moe_router_load_balancing_type": ["aux_loss"]},
    "global_batch_loss": {"moe_router_load_balancing_type": ["global_aux_loss"]},
    "bias": {
        "moe_router_load_balancing_type": ["none"],
        "moe_router_enable_expert_bias": True,
        "moe_router_score_function": "sigmoid",
    },
}


def require_expressible(job: Job) -> None:
    """Raises Inexpressible for a job that Megatron-Core cannot run."""
    layout = job.layout
    workload = job.problem.workload
    # All forward passes run before all backward passes ("afab"), which one micro-batch always does.
    runs_backwards_late = layout.schedule == "afab" and (layout.pp > 1 or job.num_micro_batches > 1)
    if layout.schedule not in ("1f1b", "interleaved", "afab") or runs_backwards_late:
        cure = "its pipelines run 1f1b, or interleaved with virtual stages; ask with one of these"
        if workload.load_balancing == "global_batch_loss":
            cure += ", and with stack.running_balance true, as it balances a global batch"
        raise Inexpressible("layout.schedule", layout.schedule, cure)
    if layout.zero_stage == 3 and not layout.reshard:
        cure = "Megatron-FSDP drops gathered parameters after forward; ask with reshard true"
        raise Inexpressible("layout.reshard", layout.reshard, cure)
    if layout.torus_axes != TORUS_AXES[0] or layout.torus_block > 1:
        cure = "it numbers devices as they come; leave torus_axes and torus_block out"
        raise Inexpressible("layout.torus_axes", list(layout.torus_axes), cure)
    if workload.precision not in PRECISIONS:
        cure = f"ask with one of {', '.join(PRECISIONS)}"
        raise Inexpressible("workload.precision", workload.precision, cure, is_refused=True)
    if workload.optimizer not in OPTIMIZERS:
        cure = f"ask with one of {', '.join(OPTIMIZERS)}"
        is_refused = workload.optimizer in _UNKNOWN_OPTIMIZERS
        raise Inexpressible("workload.optimizer", workload.optimizer, cure, is_refused=is_refused)
    if workload.optimizer == "adamw_bf16_moments" and not layout.zero_stage:
        cure = "its moments are narrower in a distributed optimizer only; ask with zero_stage 1"
        raise Inexpressible("layout.zero_stage", 0, cure)
    if layout.offload_optimizer and OPTIMIZERS[workload.optimizer] != "adam":
        cure = f"it keeps on the host what adam has, not {workload.optimizer}; ask with false"
        raise Inexpressible("layout.offload_optimizer", True, cure)
    # Without copies in the format of GEMMs, fp8 parameters are gathered in fp8.
    gathers_fp8 = "fp8" in PRECISIONS[workload.precision] and not job.problem.stack.keeps_operands
    if layout.offload_optimizer and layout.zero_stage and gathers_fp8:
        cure = "parameters on the host are gathered in 16 bits; ask with keeps_operands true"
        raise Inexpressible("stack.keeps_operands", False, cure)
    if workload.optimizer in ("muon", "lion") and layout.zero_stage > 1:
        cure = "Megatron-FSDP has adam and sgd; ask with zero_stage 1"
        raise Inexpressible("layout.zero_stage", layout.zero_stage, cure)
    if job.problem.stack.attention_kernel == "fused_softmax":
        cure = "its backend local is for layers that no argument asks for; ask with unfused"
        raise Inexpressible("stack.attention_kernel", "fused_softmax", cure)
    model = job.problem.architecture
    if model.is_moe and has_biases(model) and layout.etp > 1:
        cure = "experts with biases are not split over tensor parallelism; ask with etp 1"
        raise Inexpressible("layout.etp", layout.etp, cure)
    _require_expressible_mixers(job)
    if job.problem.is_partly_captured and layout.offload_activations:
        # core/transformer/transformer_config.py: "CUDA graphs not supported with CPU offloading"
        cure = "graphs without experts go with no activations on the host; ask with none"
        raise Inexpressible("stack.moe_graphs", "partial", cure)
    # Without a capacity factor, HybridEP makes the buffers of fixed size (static_experts).
    has_rank_capacity = model.is_moe and job.problem.stack.static_experts and not job.has_capacity
    if has_rank_capacity and layout.ep * layout.tp == 1:  # token_dispatcher.py asserts it
        cure = "HybridEP needs ep or tp above 1; ask with capacity_factor, or moe_graphs none"
        raise Inexpressible("stack.static_experts", True, cure)
    repeats_routing = layout.recompute == "full" or "moe" in layout.recompute_modules
    if job.problem.is_partly_captured and repeats_routing:  # transformer_config.py asserts it
        cure = "graphs without experts go with no full recompute, nor that of moe; ask with none"
        raise Inexpressible("stack.moe_graphs", "partial", cure)
    if layout.virtual_stages > 1 and layout.pp == 2 and not job.problem.stack.overlap_pipeline:
        cure = "two stages exchange several chunks only beside compute; ask with true, or pp 4"
        raise Inexpressible("stack.overlap_pipeline", False, cure)
    if _overlaps_experts(job) and workload.precision == "fp32":
        cure = "all-to-alls of experts run beside compute in 16 bits only; ask with false"
        raise Inexpressible("stack.overlap_expert", True, cure)
    if job.problem.stack.context not in _CP_COMM_TYPES:
        cure = f"ask with one of {', '.join(_CP_COMM_TYPES)}"
        raise Inexpressible("stack.context", job.problem.stack.context, cure)


def _require_expressible_mixers(job: Job) -> None:
    """Raises Inexpressible for layouts that Megatron-Core does not combine with recurrent layers,
    or with shared indexers: layers that attend to the keys which an earlier layer chose."""
    layout = job.layout
    model = job.problem.architecture
    shared = shared_indexers(model)
    first = 0  # the index of the chunk's first layer
    for count in job.layers_per_chunk:
        if layout.pp > 1 and count and shared[first]:
            cure = "a chunk must begin with a layer that has an indexer of its own; ask with pp 1"
            raise Inexpressible("layout.pp", layout.pp, cure)
        first += count
    if layout.offload_activations and any(layer.recurrence for layer in model.kinds):
        cure = "it does not offload what state-space and linear-attention layers keep"
        raise Inexpressible("layout.offload_activations", True, cure)


def switches(job: Job) -> dict[str, Any]:
    """Returns the arguments of the stack's switches (choices of software, such as an overlap).
    DeepEP becomes HybridEP where experts have a capacity: both send a token to each node once,
    but only HybridEP pads experts (transformer_config.py)."""
    arguments = dict(launch_arguments(job.problem, job.layout))
    if job.has_capacity:
        return {
            name: "hybridep" if value == "deepep" else value for name, value in arguments.items()
        }
    return arguments


def other_stack_fields(problem: Problem) -> Collection[str]:
    """Returns the fields of the stack that arguments of the job express, beside those of switches:
    how context parallelism communicates, as --cp-comm-type. A request that sets any other field is
    refused. Other formats need the problem to tell."""
    return ("context",)


def uses_fsdp(job: Job) -> bool:
    """Returns True where Megatron-FSDP shards in place of the distributed optimizer, which is
    ZeRO 1."""
    return job.layout.zero_stage > 1


def offloads_layers(job: Job) -> bool:
    """Returns True where activations are offloaded by whole layers. Megatron allows this only
    without a pipeline, recompute and layer patterns, and keeps at least one layer on the device
    (transformer_config.py)."""
    layout = job.layout
    goes_alone = layout.pp == 1 and layout.recompute == "none"
    model = job.problem.architecture
    has_layers = model.num_layers > 1 and not has_pattern(model)
    return layout.offload_activations and goes_alone and has_layers


def layout_arguments(job: Job) -> dict[str, Any]:
    """Returns the arguments of the degrees of parallelism, the pipeline's split, sharding and
    the batch, by name: {"tensor_model_parallel_size": 8, …}."""
    layout = job.layout
    workload = job.problem.workload
    arguments: dict[str, Any] = {
        "tensor_model_parallel_size": layout.tp,
        "sequence_parallel": layout.sequence_parallel,
        "pipeline_model_parallel_size": layout.pp,
        **_stage_split_arguments(job),
        "context_parallel_size": layout.cp,
    }
    if layout.cp > 1:
        arguments["cp_comm_type"] = [_cp_comm_type(job)]  # a list of one is for all layers
    if job.problem.architecture.is_moe:
        arguments["expert_model_parallel_size"] = layout.ep
        arguments["expert_tensor_parallel_size"] = layout.etp
    if _is_pipeline_inside(job):
        arguments["use_tp_pp_dp_mapping"] = True
    return {
        **arguments,
        **_sharding_arguments(job),
        "micro_batch_size": layout.micro_batch,
        "global_batch_size": workload.global_batch,
        "seq_length": workload.seq_len,
    }


def _cp_comm_type(job: Job) -> str:
    """Returns the value of cp_comm_type, by which context parallelism exchanges keys and values.
    Sparse attention supports allgather only (transformer_config.py)."""
    model = job.problem.architecture
    if any(attention.is_sparse for attention in model.attentions):
        return "allgather"
    return _CP_COMM_TYPES[job.problem.stack.context]


def _stage_split_arguments(job: Job) -> dict[str, Any]:
    """Returns the arguments that split layers over the chunks of a pipeline, and the number of
    micro-batches that pass a stage's chunk before its next one, where that is not the default. A
    layer pattern (megatron/patterns) states the split itself."""
    layout = job.layout
    model = job.problem.architecture
    arguments: dict[str, Any] = {}
    if not has_pattern(model):
        arguments = stage_arguments(
            job.layers_per_chunk, layout.pp, layout.virtual_stages, model.mtp_layers
        )
    if layout.virtual_stages > 1:
        group = int(micro_batch_group(layout.pp, job.num_micro_batches))
        if group != layout.pp:  # pp is Megatron's default
            arguments["microbatch_group_size_per_vp_stage"] = group
    return arguments


def _is_pipeline_inside(job: Job) -> bool:
    """Returns True for the order of ranks with pipeline parallelism inside data parallelism, and
    False for the default order. Raises Inexpressible for any other, which Megatron does not
    have."""
    layout = job.layout

    def active(order: tuple[str, ...]) -> list[str]:
        return [axis for axis in order if getattr(layout, axis) > 1]

    order_of_job = active(layout.placement)
    if order_of_job == active(AXES):
        return False
    if order_of_job == active(PIPELINE_INSIDE):
        return True
    cure = f"its ranks are in the order {', '.join(AXES)}, or {', '.join(PIPELINE_INSIDE)}"
    raise Inexpressible("layout.placement", list(layout.placement), cure)


def _sharding_arguments(job: Job) -> dict[str, Any]:
    """Returns the arguments of the ZeRO stage; none for stage 0."""
    layout = job.layout
    if not layout.zero_stage:
        return {}
    arguments: dict[str, Any] = {"use_distributed_optimizer": True}
    if uses_fsdp(job):
        arguments |= {
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": _FSDP_STRATEGIES[layout.zero_stage],
            "ckpt_format": "fsdp_dtensor",  # the only one that Megatron-FSDP saves
        }
    if layout.dp_replicate > 1:
        # An instance is a group of ranks with one whole copy of the optimizer's state.
        arguments["num_distributed_optimizer_instances"] = layout.dp_replicate
    return arguments


def recompute_arguments(job: Job) -> dict[str, Any]:
    """Returns the arguments of activation recompute; none without it. Raises Inexpressible for
    modules that --recompute-modules does not name."""
    layout = job.layout
    if layout.recompute == "none":
        return {}
    if layout.recompute == "full":
        block = layout.recompute_layers  # the first layers of each chunk; 0 stands for all
        if has_pattern(job.problem.architecture):  # hybrids count attention and MLP as two layers
            block = num_letters(job.problem.architecture, block)
        return {
            "recompute_granularity": "full",
            "recompute_method": "block" if block else "uniform",
            "recompute_num_layers": block or 1,  # uniform by 1 is a checkpoint at each layer
        }
    modules = layout.recompute_modules or job.problem.stack.selective[0]  # the stack's own
    present = [name for name in modules if job.problem.has_module(name)]
    missing = [name for name in present if name not in MODULE_WORDS]
    if missing or not present:
        cure = f"it recomputes {', '.join(MODULE_WORDS)}; ask for some of these"
        raise Inexpressible("layout.recompute_modules", list(modules), cure)
    return {"recompute_granularity": "selective", "recompute_modules": present}


def memory_arguments(job: Job) -> dict[str, Any]:
    """Returns the arguments of the optimizer, of its state's number formats, and of what is
    offloaded to host memory."""
    layout = job.layout
    optimizer = job.problem.workload.optimizer
    arguments: dict[str, Any] = {"optimizer": OPTIMIZERS[optimizer]}
    if optimizer == "adamw_bf16_moments":
        arguments |= {
            "use_precision_aware_optimizer": True,
            "exp_avg_dtype": "bf16",
            "exp_avg_sq_dtype": "bf16",
        }
    if layout.offload_optimizer:
        # Megatron refuses the first without the second.
        arguments |= {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
    if offloads_layers(job):  # all layers but one, which Megatron keeps on the device
        arguments["cpu_offloading_num_layers"] = job.problem.architecture.num_layers - 1
    elif layout.offload_activations:  # beside a pipeline or recompute only modules can go
        arguments["fine_grained_activation_offloading"] = True
        arguments["offload_modules"] = list(_OFFLOADED_MODULES)
    return arguments


def balancing_arguments(job: Job) -> dict[str, Any]:
    """Returns the arguments that balance the load of experts, and their capacity; none for a
    dense model."""
    workload = job.problem.workload
    if not job.problem.architecture.is_moe:
        return {}
    arguments = dict(BALANCING[workload.load_balancing])
    # By default Megatron takes the softmax over the chosen experts' scores: over a single one it is
    # 1, without a gradient. "bias" scores experts by a sigmoid, so no softmax is taken.
    if _chooses_one_expert(job) and workload.load_balancing != "bias":
        arguments["moe_router_pre_softmax"] = True
    # As in benchmarks: random scores spread tokens evenly, in place of the router's own.
    if workload.routing == "balanced":
        arguments["moe_router_force_load_balancing"] = True
    if job.has_capacity:
        arguments["moe_expert_capacity_factor"] = workload.capacity_factor
        arguments["moe_pad_expert_input_to_capacity"] = True
    return arguments


def _chooses_one_expert(job: Job) -> bool:
    kinds = job.problem.architecture.kinds
    return any(kind.moe is not None and kind.moe.experts_per_token == 1 for kind in kinds)


def environment(job: Job) -> dict[str, str]:
    """Returns the environment variables without which the arguments would be refused or run wrongly
    (megatron/training/arguments.py, validate_args).

    On chips before Blackwell, kernels of tensor and context parallelism start in the right order
    with one hardware queue only; those of Megatron-FSDP need more than one.
    """
    layout = job.layout
    chip = job.problem.cluster.chip
    variables: dict[str, str] = {}
    is_new = chip.vendor == "nvidia" and chip.generation in MANY_QUEUES
    if _overlaps_experts(job) and not is_new:
        variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"  # the most queues that CUDA has
    elif not is_new and not uses_fsdp(job) and (layout.tp > 1 or layout.cp > 1):
        variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if layout.offload_activations and not offloads_layers(job):
        variables["NVTE_CPU_OFFLOAD_V1"] = "1"
    return variables


def _overlaps_experts(job: Job) -> bool:
    """Returns True where the stack overlaps all-to-alls of experts with another micro-batch, and
    that switch applies to the job."""
    problem = job.problem
    return problem.stack.overlap_expert and any(
        switch.field == "overlap_expert" and applies(switch, problem, job.layout)
        for switch in switches_of(problem.stack)
    )


MANY_QUEUES = ("blackwell", "rubin")
"""Generations of chips that start kernels in order whatever the number of hardware queues."""


def notes(job: Job) -> Iterator[str]:
    """Yields what the caller must know of this layout in Megatron-Core beyond the arguments."""
    layout = job.layout
    if job.problem.workload.load_balancing == "micro_batch_loss" and (
        job.problem.architecture.is_moe
    ):
        yield "The coefficient of the auxiliary loss is 0 unless it is set, and balances nothing."
    if job.problem.workload.load_balancing == "none" and job.problem.architecture.is_moe:
        yield (
            "The request says nothing of how experts are kept busy (workload.load_balancing): that"
            " is left to the framework, or to the recipe."
        )
    if job.problem.workload.precision == "fp8":
        yield (
            "fp8 is scaled by tensor, from the values at hand; the recipe blockwise of Hopper takes"
            " as many bytes."
        )
    if job.has_capacity:
        yield (
            f"Tokens over a capacity factor of {job.problem.workload.capacity_factor:g} are"
            " dropped, and experts that get fewer are padded."
        )
    elif job.problem.architecture.is_moe and job.problem.stack.static_experts:
        yield (
            "Tokens over the rank capacity factor of 1.5 are dropped: experts have buffers of a"
            " fixed size, as a graph of the whole step needs them."
        )
    if "hybridep" in switches(job).values() and job.has_capacity:
        yield "Tokens are dispatched by HybridEP: DeepEP does not pad experts to a capacity."
    if layout.cp > 1 and _cp_comm_type(job) != _CP_COMM_TYPES[job.problem.stack.context]:
        yield "Context parallelism gathers keys: sparse attention has no other way."
    if any(layer.recurrence for layer in job.problem.architecture.kinds):
        yield (
            "State-space layers need mamba-ssm and causal-conv1d, and gated delta nets"
            " flash-linear-attention."
        )
    if uses_fsdp(job):
        yield "Megatron-FSDP saves checkpoints of the format fsdp_dtensor only."
    if layout.offload_activations and not offloads_layers(job):
        yield "Fine-grained offload keeps what attention and norms leave for backward on the host."
