"""The software that runs a layout: what it can schedule, shard, overlap and recompute.

A stack is data (data/stacks.json). To ask "what if this stack could…", replace a field of it. A
layout that a caller states is predicted even where it uses axes that are not *searched*, which no
recommendation has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from models.errors import Invalid
from models.spec.hardware import MAX_CHIPS
from models.spec.layer import Layer
from models.spec.layout import AXES, PLACEMENTS
from models.spec.recompute import MODULES, STACK_SELECTIVE, Recomputed, policy_code, recomputed

KernelRule = Literal["auto", "pytorch", "triton"]
"""A rule that picks an attention kernel by the chip."""
KernelName = Literal[
    "unfused",
    "fused_softmax",
    "flash1",
    "flash2",
    "flash3",
    "cudnn",
    "flash4",
    "splash",
]
Kernel = Literal[KernelRule, KernelName]
KERNELS: tuple[str, ...] = get_args(KernelName)
VENDORS = ("nvidia", "amd", "intel", "google", "aws", "huawei")
"""The vendors for whose chips it is known which software runs on them."""

_PYTORCH_KERNELS = {"volta": "fused_softmax", "blackwell": "cudnn", "tpu": "splash"}
_KERNELS_PICKED = {
    "auto": {**_PYTORCH_KERNELS, "hopper": "cudnn"},
    "pytorch": _PYTORCH_KERNELS,
    "triton": {**_PYTORCH_KERNELS, "ampere": "flash1"},
}
"""The kernel that software takes on each generation of chips, for software that picks it by the
chip. On generations that are not listed it takes FlashAttention-2."""
_KERNEL_GENERATIONS: dict[str, tuple[str, ...]] = {
    "flash3": ("hopper",),
    "flash4": ("hopper", "blackwell"),
    "cudnn": ("ampere", "ada", "hopper", "blackwell"),
    "splash": ("tpu",),
}
"""The generations that a kernel is written for. A kernel that is not listed runs wherever somebody
ported it."""
_WITHOUT_FLASH = ("tpu", "volta")  # generations that FlashAttention does not run on
_KNOWN_GENERATIONS = {
    *_WITHOUT_FLASH,
    *(name for names in _KERNEL_GENERATIONS.values() for name in names),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The abilities of one training stack, and its behaviour unless told otherwise.

    Fields that software sets by its switches have the values that tuned recipes take.
    models.spec.switches has the frameworks' own values, and earlier values of both. Bytes are bytes
    of one element.
    """

    id: str
    name: str
    schedules: tuple[str, ...]
    """The pipeline schedules it runs, by their names in models.spec.layout.SCHEDULES."""
    zero_stages: tuple[int, ...]
    """The ZeRO stages it offers, from 0 (plain data parallelism) to 3 (FSDP)."""
    aliases: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    """The vendors on whose chips it runs. Where none is named it runs on all chips."""
    max_virtual_stages: int = 1
    """The most model chunks of a device that are searched; 1 means no interleaving."""
    interleaves_hybrids: bool = True
    """Hybrid models (Architecture.is_hybrid) may have several chunks on a device. Megatron-Bridge
    has no virtual stages for them (models/hybrid/hybrid_provider.py)."""
    micro_batch_groups: Literal["stages", "equal", "any"] = "stages"
    """The groups in which the interleaved schedule passes micro-batches through a chunk: of exactly
    pp ("stages"), of equal size from pp up ("equal"), or of any sizes from pp up ("any")."""
    plain_micro_batches: Literal["any", "stages", "multiple"] = "any"
    """The number of micro-batches that schedules without virtual stages need: any number, pp or
    more ("stages", PyTorch's PipelineScheduleSingle), or a multiple of pp ("multiple", MaxText
    configs/types.py)."""
    partition: Literal["even", "balanced", "threshold"] = "even"
    """The way in which it splits layers over stages: into equal numbers ("even"), into any
    contiguous stages ("balanced"), or so that each stage takes layers until the cost of all layers
    so far passes its share ("threshold")."""
    reshard: tuple[bool, ...] = (True,)
    """The choices of FSDP with gathered parameters after forward: it drops them (True), keeps them
    (False), or can do either (both)."""
    placements: tuple[tuple[str, ...], ...] = ()
    """The orders of the mesh axes over ranks that it offers, innermost first. Where none is named
    it offers any order."""
    equal_data_parallel: bool = False
    """A pipeline inside data parallelism needs as many data-parallel ranks for experts as for the
    rest of the model (Megatron-Core parallel_state.py)."""
    hybrid_stages: tuple[int, ...] = ()
    """The ZeRO stages in which it may shard over a part of the data-parallel ranks and replicate
    over the rest."""
    max_pp: int = MAX_CHIPS
    """The largest pipeline degree that is searched. Here and in `max_tp`, `max_cp` and `max_ep`, 1
    means that the stack does not have the axis, unless `unsearched_axes` names it."""
    max_tp: int = 1
    max_cp: int = 1
    max_ep: int = 1
    unsearched_axes: tuple[str, ...] = ()
    """Axes that the stack has and no search tries. Layouts that state them are predicted."""
    unsearched_zero_stages: tuple[int, ...] = ()
    """ZeRO stages that the stack has and no search tries. Layouts that state them are predicted."""
    experts_alone: bool = False
    """ZeRO 3 goes with expert parallelism only where there is no context parallelism (DeepSpeed
    engine.py, _validate_zero3_moe_compatibility)."""
    shards_over_context_and_experts: bool = False
    """The axes of context and expert parallelism shard parameters too, and so go with ZeRO 3 only
    (MaxText configs/base.yml, logical_axis_rules; accelerate, where they need FSDP2)."""
    min_zero_in_context: int = 0
    """The lowest ZeRO stage that goes with context parallelism, whose axis shards parameters too
    (torchtitan distributed/parallel_dims.py, the mesh fsdp)."""
    context_in_pipeline: bool = True
    """A pipeline goes with context parallelism."""
    max_zero_in_pipeline: int = 3
    """The highest ZeRO stage that goes with a pipeline."""
    mtp_alone: bool = False
    """Multi-token prediction goes neither with a pipeline nor with context parallelism (torchtitan
    models/deepseek_v3/mtp.py)."""
    muon_stages: tuple[int, ...] = (0, 1, 2, 3)
    """The ZeRO stages that go with Muon, which works on whole matrices."""
    narrow_moment_stages: tuple[int, ...] = (0, 1, 2, 3)
    """The ZeRO stages that go with moments of 16 bits (Megatron-Core optimizer/__init__.py: its
    precision-aware optimizer is a distributed one)."""
    fp8_stages: tuple[int, ...] = (0, 1, 2, 3)
    """The ZeRO stages that go with fp8 (accelerate: torchao gathers it with FSDP2)."""
    tensor_alone: bool = False
    """Tensor parallelism goes neither with a pipeline nor with context parallelism (DeepSpeed: a
    PipelineModule has no AutoTP, and AutoTP and Ulysses take the same ranks)."""
    fp8_at_once_on: tuple[str, ...] = ()
    """The vendors on whose chips fp8 without a pipeline allows one micro-batch only (MaxText
    configs/types.py)."""
    replicates_kv_heads: bool = True
    """tp may exceed the number of key-value heads. Each head is then on several ranks."""
    exchanges_repeated_kv_heads: bool = False
    """Under Ulysses there may be more ranks than key-value heads. Each head is then on several."""
    sequence_parallel: tuple[bool, ...] = (False,)
    """The choices for norms and residuals with tp > 1: they are sharded over tp (True), they are
    not (False), or both are offered."""
    unsearched_sequence_parallel: tuple[bool, ...] = ()
    """Choices of `sequence_parallel` that the stack has and no search tries. Layouts that state
    them are predicted."""
    context: Literal["ring", "allgather", "ulysses"] = "ring"
    """The way in which attention under context parallelism reaches the other chunks of a
    sequence."""
    expert_tensor_parallel: bool = False
    """etp may differ from 1."""
    expert_folding: Literal["all", "shard", "beside_tensor"] = "all"
    """The dense axes that expert parallelism may fold over: "all" of them, all but dp_replicate
    ("shard"), or dp_shard and cp ("beside_tensor"). With "beside_tensor" experts are sharded over
    tp like the rest of the model (etp = tp)."""
    dispatcher: Literal["alltoall", "deduplicated", "allgather"] = "alltoall"
    """The form in which tokens are sent to experts: a copy for each chosen expert ("alltoall"), a
    copy for each domain that holds some of them ("deduplicated"), or every token to the chips of
    every expert ("allgather")."""
    node_limit: int | None = None
    """The most scale-up domains that a token is routed to (4 in DeepSeek-V3, §2.1.2)."""
    overlap_data: bool = True
    """Data-parallel traffic runs beside compute."""
    overlap_zero1: bool = True
    """The scatter and the gather of ZeRO 1, once a step, run beside compute where data-parallel
    traffic does."""
    overlap_tensor: bool = False
    overlap_tensor_not_in: tuple[str, ...] = ()
    """The precisions in which tensor-parallel traffic does not overlap even so."""
    overlap_expert: bool = False
    overlap_expert_of_hybrids: bool = True
    """Expert-parallel traffic overlaps in hybrid models too. Megatron-Core has the schedules for
    GPTModel alone (core/models/gpt/gpt_model.py, build_schedule_plan)."""
    overlap_pipeline: bool = True
    recompute: tuple[str, ...] = ("none", "selective", "full")
    """The recompute policies it offers."""
    default_recompute: str = "none"
    """The policy that is on unless told otherwise."""
    selective: tuple[tuple[str, ...], ...] = (("layernorm", "mlp_act", "moe_act", "mla_up_proj"),)
    """Sets of modules (models.spec.recompute.MODULES) that it recomputes together. The first set is
    its own choice."""
    recompute_modules: tuple[str, ...] = ()
    """Further modules that it can be told to recompute."""
    recomputes_last: bool = True
    """Recompute of a layer repeats its last matrix product, though backward needs nothing of its
    result. torch/utils/checkpoint.py stops before that product, and compilers leave it out."""
    recompute_layers: bool = False
    """It can recompute only the first few layers of a chunk."""
    offload: tuple[str, ...] = ()
    """The tensors that it can keep in host memory: "activations", "optimizer"."""
    offload_alone: bool = False
    """Activations go to the host only without a pipeline and without recompute (Megatron-Core
    transformer_config.py)."""
    offloads_checkpoints: bool = False
    """Only the activations that full recompute keeps go to the host (accelerate: activation
    checkpointing of FSDP2; DeepSpeed activation_checkpointing/config.py, cpu_checkpointing)."""
    checkpoint_offload_stages: tuple[int, ...] = (0, 1, 2, 3)
    """The ZeRO stages in which the activations that full recompute keeps may go to the host."""
    offloads_recurrences: bool = True
    """The activations of state-space and linear-attention layers go to the host too."""
    offloads_adam_alone: bool = False
    """Optimizer states go to the host with Adam only (Megatron-Core optimizer/cpu_offloading)."""
    offloads_gradients: bool = False
    """The gradients of ZeRO 2 and 3 go to the host together with the optimizer's states. They go as
    they come, and are added up there in fp32 (ZeRO-Offload, arXiv 2101.06840 §4)."""
    parameters_on_host: bool = False
    """The parameters of ZeRO 3 are on the host together with the optimizer's states, and come to
    the device for every pass (DeepSpeed's offload_param; FSDP's CPU offload, which moves all
    three)."""
    host_buffers: float = 1.0
    """Host memory that offload takes, as a multiple of the bytes that are offloaded: 1.5 by
    DeepSpeed's estimators (runtime/zero/stage3.py, estimate_zero3_model_states_mem_needs,
    additional_buffer_factor)."""
    attention_kernel: Kernel = "auto"
    """A kernel, or the rule that picks one by the chip. "auto" takes the fastest. "pytorch" takes
    the kernel of eager PyTorch, which is FlashAttention-2 before Blackwell (torchtitan
    models/attention.py). "triton" takes, on Ampere, a Triton kernel as fast as FlashAttention's
    first version."""
    gather_unit: Literal["layer", "matrix"] = "layer"
    """The unit that FSDP gathers at a time: a layer or, with XLA, a weight matrix."""
    gradient_bytes: float = 4
    """Bytes of an accumulated gradient. In fp32 training, this field, `reduce_bytes` and
    `gather_bytes` count as 4 whatever they say."""
    reduce_bytes: float = 0
    """Bytes of a gradient on the wire; 0 stands for those of an accumulated gradient."""
    gather_bytes: float = 2
    """Bytes of a gathered parameter on the wire; 0 stands for those of the operand format of
    GEMMs."""
    tensor_gathers_in: tuple[str, ...] = ()
    """The precisions in which tensor parallelism casts the inputs of products before it gathers
    them (Transformer Engine pytorch/module/layernorm_linear.py; torchao
    float8/float8_tensor_parallel.py, with scales of whole tensors). In other precisions it gathers
    16 bits."""
    fp8_scaling: Literal["tensorwise", "rowwise"] = "tensorwise"
    """The part of a tensor that shares a scale of fp8: all of it, or a row of an operand. With
    scales of rows an operand is cast once for rows and once for columns, and weights are cast with
    every use, after they are gathered (torchao float8/config.py, Float8LinearRecipeName)."""
    whole_gradients: bool = False
    """ZeRO 1 all-reduces gradients. Other stacks reduce-scatter the part that each device
    updates."""
    whole_blocks: bool = False
    """In formats below 16 bits, kernels refuse weights whose sides on a device are no multiples of
    the format's block (Transformer Engine pytorch/utils.py, pytorch/tensor/mxfp8_tensor.py). Other
    stacks pad such weights or leave them in 16 bits."""
    keeps_operands: bool = False
    """It keeps copies of the parameters in use in the format of GEMMs, as they are and transposed
    (the weight cache of Transformer Engine, without --fp8-param-gather)."""
    parameter_shards: bool = False
    """ZeRO 3 keeps shards of the parameters in use beside the fp32 shards (Rajbhandari et al.,
    arXiv 1910.02054 §5: 16 bytes of states a parameter). Other stacks gather from the fp32
    shards."""
    shards: Literal["in_place", "flat", "each"] = "in_place"
    """The way in which ZeRO 3 keeps the tensors of a layer. "in_place" needs no copies. With "flat"
    they are views of one tensor, whose gradients are joined, and cast where they are sent in a
    wider format (FullyShardedDataParallel). With "each" they are copied out of the gathered buffer
    and into the one that is reduced (fully_shard,
    torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py)."""
    parallel_loss: bool = True
    """With tp > 1 the loss works on each device's part of the vocabulary instead of on gathered
    logits."""
    loss: Literal["fused", "fused_linear", "compiled", "pytorch", "stepwise"] = "fused"
    """The kernels of the loss and of the gradient of logits. "fused" is one kernel. "fused_linear"
    (Liger) is one kernel for each of many chunks of tokens, with the head's product, so that all
    logits are never in memory at once. "compiled" is PyTorch's cross_entropy compiled, "pytorch" is
    the several kernels that it has otherwise, and "stepwise" is a kernel for every operation."""
    loss_chunks: int = 1
    """The number of parts of a micro-batch for which head and loss run one after the other."""
    tiled_mlp: bool = False
    """Dense networks work on as many tokens at a time as the hidden size. They keep only their
    input, and compute forward once more in backward (ALST, arXiv 2506.13996; DeepSpeed
    runtime/sequence_parallel/ulysses_sp.py, TiledMLP)."""
    keeps_logits: bool = False
    """The last stage of a pipeline keeps the logits of all micro-batches until the step ends."""
    pads: Literal["nothing", "vocabulary", "products"] = "nothing"
    """The dimensions that it pads until the rows of matrices are whole vectors: the vocabulary
    (Megatron-LM --make-vocab-size-divisible-by), or every product that is not launched eagerly, as
    compilers do (XLA gpu/transforms/cublas_pad_for_gemms.h, PyTorch
    torch/_inductor/fx_passes/pad_mm.py)."""
    low_precision_activations: bool = False
    """Inputs of activation functions are kept in the format of GEMMs, and what attention puts out
    in 12 bits (DeepSeek-V3 §3.3.3)."""
    fused: bool = True
    """Norms, activations and rotary embeddings are fused kernels, hand-written or compiled."""
    fused_norm: bool = False
    """Norms are fused kernels, even where the other operations are not."""
    launch: Literal["eager", "compiled", "graph"] = "eager"
    """The way in which kernels are launched, which decides what a launch costs the host."""
    moe_graphs: Literal["none", "partial", "full"] = "none"
    """The part of a step of a sparse model that is captured as CUDA graphs, whatever `launch` is:
    nothing; all but the experts and what sends tokens to them and back ("partial"); or all."""
    static_experts: bool = False
    """The experts of a device have buffers of a fixed size, and tokens beyond it are dropped
    (Megatron-Core: the rank capacity of HybridEP, with paged stash)."""
    experts_at_once: bool = False
    """One grouped kernel multiplies for all experts of a device. Where it is false, a loop goes
    through the experts."""
    scaled_token_bytes: float = 0
    """Bytes that are kept of each element of a token that went through an expert, so that backward
    finds the gradient of its routing score, beside what the expert's products keep (torchtitan
    models/moe/moe.py, which multiplies by scores in fp32). Eager kernels keep 4 where this is not
    0."""
    expert_loop: Literal["kernels", "modules", "gathered_modules"] = "kernels"
    """The calls of a loop over experts. "kernels" are called from C++. "modules" are modules of
    Python, which run operation by operation. With "gathered_modules" ZeRO 3 gathers every matrix of
    such a module by itself, from its hooks in Python (DeepSpeed, unless the sparse layer is a leaf:
    deepspeed.utils.set_z3_leaf_modules)."""
    fused_routing: bool = False
    """The router, permutations and dispatch are a few fused kernels."""
    one_sequence_since: float | None = None
    """The year, with a fraction, from which the micro-batches of its pipelines have been one
    sequence unless told otherwise. Before, there were as many micro-batches as stages."""
    usual_virtual_stages: int | None = None
    """Chunks of a device under a schedule that interleaves them, unless told otherwise."""
    usual_seq_len: int | None = None
    """Tokens of a sequence, unless told otherwise."""
    usual_sequences: int | None = None
    """Sequences of a device, unless told otherwise: all in one micro-batch, without gradient
    accumulation."""
    usual_sharding: Literal["slice"] | None = None
    """The devices over which ZeRO 3 shards parameters unless told otherwise. "slice" means those of
    a slice, with replicas over slices."""
    age_years: float = 0.0
    """Years by which it is older than the newest software that profiles were fitted to."""
    ties_in_pipeline: bool = True
    """In a pipeline, the first and the last stage can share the embedding of a model that ties it
    to its head."""
    running_balance: bool = False
    """It keeps running statistics for a load-balancing loss over the global batch, which then
    constrains no schedule."""
    like: str | None = None
    """The stack that this one equals in all that its entry leaves out, and whose coefficients it
    shares."""
    source: str = ""

    def __post_init__(self) -> None:
        if not self.schedules:
            raise Invalid("stack.schedules", self.schedules, "must name at least one schedule")
        if not set(self.zero_stages) <= {0, 1, 2, 3} or not self.zero_stages:
            raise Invalid("stack.zero_stages", self.zero_stages, "must be some of 0, 1, 2, 3")
        known_modules = all(names and set(names) <= set(MODULES) for names in self.selective)
        if not self.selective or not known_modules:
            rule = f"must be sets of {', '.join(MODULES)}"
            raise Invalid("stack.selective", self.selective, rule)
        if not set(self.placements) <= set(PLACEMENTS):
            rule = f"must be orders of all of {', '.join(AXES)}"
            raise Invalid("stack.placements", self.placements, rule)
        if self.attention_kernel not in get_args(Kernel):
            rule = f"must be one of {', '.join(get_args(Kernel))}"
            raise Invalid("stack.attention_kernel", self.attention_kernel, rule)

    @property
    def calibrated_as(self) -> str:
        """The id of the stack whose coefficients it shares; its own id where `like` names none."""
        return self.like or self.id

    def all_reduces_gradients(self, zero_stage: Any) -> Any:
        """Say whether gradients are all-reduced, and not reduce-scattered, at a ZeRO stage. For an
        array of stages, return an array."""
        # Stage 0 always does, and stage 1 only where gradients are left whole.
        return zero_stage <= int(self.whole_gradients)

    @property
    def recomputable_modules(self) -> tuple[str, ...]:
        """Every module that it can recompute, in the order of MODULES."""
        names = {name for modules in (*self.selective, self.recompute_modules) for name in modules}
        return tuple(name for name in MODULES if name in names)

    def recomputed(self, policy: int, layer: Layer) -> Recomputed:
        """Return the part of a layer that a recompute policy, given by its code, computes again
        (models.spec.recompute). Selective recompute without modules takes the stack's own. Some
        stacks leave out the last product of a network, because backward does not read its
        result."""
        if policy == STACK_SELECTIVE:
            policy = policy_code("selective", self.selective[0])  # the first set is its own choice
        skips_last = self.skips_last_product(layer)
        unsent_share = 0.0
        if skips_last and not layer.moe:
            # Without the last product of a dense network, the scatter of its result is not repeated
            # either: one of the layer's four tensor-parallel messages in forward, or one of two in
            # a parallel layer.
            unsent_share = 0.5 if layer.parallel else 0.25
        return replace(recomputed(policy, layer), skips_last=skips_last, unsent_share=unsent_share)

    def skips_last_product(self, layer: Layer) -> bool:
        """Say whether recompute leaves out the down-projection of a layer's dense MLP or shared
        expert. That is possible where only a residual sum follows, because backward of a norm or a
        gate would need the output."""
        gated = layer.moe is not None and layer.moe.shared_gate
        return not (self.recomputes_last or layer.dense is None or layer.norm_follows or gated)

    @property
    def saves_scattered(self) -> bool:
        """True where selective recompute goes by operations and saves the results of
        tensor-parallel reduce-scatters (models.spec.recompute, `alternate_mm`), so that backward
        does not repeat that traffic."""
        return any("alternate_mm" in modules for modules in self.selective)

    @property
    def calls_expert_modules(self) -> bool:
        """True where a loop in Python goes through the experts of a sparse layer."""
        return not self.experts_at_once and self.expert_loop != "kernels"

    @property
    def gathers_experts_apart(self) -> bool:
        """True where ZeRO 3 gathers every matrix of every expert by itself, in small messages."""
        return not self.experts_at_once and self.expert_loop == "gathered_modules"

    @property
    def splits_by_threshold(self) -> bool:
        """True where each pipeline stage takes layers until their cost passes its share."""
        return self.partition == "threshold"

    def missing_kernel_reason(self, generation: str, vendor: str) -> str | None:
        """Return why the stack's attention kernel does not run on chips of a generation, such as
        "runs on chips of hopper only, not of ampere"; None where it runs.

        NVIDIA and Google may make generations that this module does not list. A kernel is assumed
        to run there. `vendor` is one of VENDORS: of others it is not known which software runs.
        """
        kernel = self.kernel_on(generation)
        runs_on = _KERNEL_GENERATIONS.get(kernel)
        may_be_new = vendor in ("nvidia", "google") and generation not in _KNOWN_GENERATIONS
        if runs_on and generation not in runs_on and not may_be_new:
            return f"runs on chips of {' and '.join(runs_on)} only, not of {generation}"
        if kernel in ("flash1", "flash2") and generation in _WITHOUT_FLASH:
            return f"does not run on chips of {generation}: {_PYTORCH_KERNELS[generation]} does"
        return None

    def kernel_on(self, generation: str) -> str:
        """Return the attention kernel that this stack runs on chips of a generation. Stacks whose
        `attention_kernel` is "auto", "pytorch" or "triton" pick it by the chip: FlashAttention-2,
        unless _KERNELS_PICKED lists another one for the generation."""
        if self.attention_kernel not in _KERNELS_PICKED:  # It names one kernel.
            return self.attention_kernel
        return _KERNELS_PICKED[self.attention_kernel].get(generation, "flash2")
