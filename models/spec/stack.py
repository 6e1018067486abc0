"""The software that runs a layout: what it can schedule, shard, overlap and recompute.

A stack is data (data/stacks.json); "what if this stack could…" is `dataclasses.replace`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from models.errors import Invalid
from models.spec.hardware import MAX_CHIPS
from models.spec.layout import AXES, PLACEMENTS
from models.spec.recompute import MODULES

Kernel = Literal[
    "auto",
    "pytorch",
    "triton",
    "unfused",
    "fused_softmax",
    "flash1",
    "flash2",
    "flash3",
    "cudnn",
    "flash4",
    "splash",
]
VENDORS = (
    "nvidia",
    "amd",
    "intel",
    "google",
    "aws",
    "huawei",
)  # of other vendors' chips nothing is known
KERNELS: tuple[str, ...] = (
    "unfused",
    "fused_softmax",
    "flash1",
    "flash2",
    "flash3",
    "cudnn",
    "flash4",
    "splash",
)
_PYTORCH = {"volta": "fused_softmax", "blackwell": "cudnn", "tpu": "splash"}
_PICKED = {
    "auto": {**_PYTORCH, "hopper": "cudnn"},
    "pytorch": _PYTORCH,
    "triton": {**_PYTORCH, "ampere": "flash1"},
}
"""By the generation of the chip; FlashAttention-2 on others."""
_RUNS_ON: dict[str, tuple[str, ...]] = {
    "flash3": ("hopper",),
    "flash4": ("hopper", "blackwell"),
    "cudnn": ("ampere", "ada", "hopper", "blackwell"),
    "splash": ("tpu",),
}
"""The generations that a kernel is written for; other kernels run wherever somebody ported them."""
_HAS_OWN = ("tpu", "volta")  # generations that FlashAttention does not run on
_KNOWN = {*_HAS_OWN, *(name for names in _RUNS_ON.values() for name in names)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What one training stack can do.

    vendors                 whose chips it runs on; none named: any schedules               pipeline
    schedules it runs (names of models.spec.layout.SCHEDULES) max_virtual_stages      most model
    chunks a device may hold; 1: no interleaving micro_batch_groups      of what sizes interleaving
    passes them through a chunk: "stages": pp each; "equal": as many each, pp or more; "any": pp or
    more each plain_micro_batches     how many of them schedules without virtual stages need:
    "stages": pp or more (PyTorch's PipelineScheduleSingle); "multiple": a multiple of pp (MaxText
    configs/types.py) partition               "even": layers must divide over the stages;
    "balanced": any contiguous split; "threshold": every stage takes layers until the cost of all so
    far passes its share zero_stages             which of ZeRO 0 (plain data parallel) to 3 (FSDP)
    it offers reshard                 after forward, FSDP drops gathered parameters (True), keeps
    them (False), or either placements              orders of the mesh axes over ranks that it has,
    innermost first; none given: any equal_data_parallel     a pipeline inside data parallelism
    needs as many data-parallel ranks for experts as for the rest (Megatron-Core parallel_state.py)
    hybrid_stages           ZeRO stages in which it may shard over a part of the data-parallel chips
    and replicate over the rest max_pp, max_tp, max_cp, max_ep  largest degree; 1: the axis does not
    exist here experts_alone           ZeRO 3 goes with expert parallelism only without context
    parallelism (DeepSpeed engine.py, _validate_zero3_moe_compatibility) context_in_pipeline     a
    pipeline goes with context parallelism max_zero_in_pipeline    the highest ZeRO stage that goes
    with a pipeline mtp_alone               a model's multi-token prediction goes with neither of
    the two (torchtitan models/deepseek_v3/mtp.py) muon_stages             ZeRO stages that Muon
    goes with, which works on whole matrices fp8_at_once_on          vendors on whose chips fp8 goes
    with one micro-batch only outside a pipeline (MaxText configs/types.py) replicates_kv_heads
    tp may exceed the key and value heads, each then on several ranks sequence_parallel       with
    tp > 1, norms and residuals are sharded too: always, never or either context                 how
    attention sees other chunks: "ring", "allgather" or "ulysses" expert_tensor_parallel  etp may
    differ from 1 expert_folding          dense axes that expert parallelism may fold over: "all",
    "shard" (not dp_replicate), or "beside_tensor" (dp_shard and cp; experts are sharded over tp as
    the rest is: etp = tp) dispatcher              "alltoall": a copy per chosen expert;
    "deduplicated": one per domain it is sent to; "allgather": every token to every expert's chip
    deduplicated_since      the year it began to send one per domain; a copy per expert before
    node_limit              a token is routed to at most this many scale-up domains (DeepSeek-V3
    §2.1.2: 4) overlap_*               whether the traffic of that axis runs beside compute
    overlap_tensor_not_in   formats of GEMMs in which tensor-parallel traffic does not overlap_zero1
    with data parallelism beside compute, what ZeRO 1 scatters and gathers once a step is too
    overlap_expert_since    the year that all-to-alls of experts began to run beside another
    micro-batch overlap_switches        what it has to be told for that, where it does not by itself
    recompute, offload      policies it offers; `default_recompute` is on unless told otherwise
    offload_alone           activations go to the host only without a pipeline and without recompute
    (Megatron-Core transformer_config.py) selective               modules that it recomputes
    together (models.spec.recompute.MODULES), its own choice first recompute_modules       others
    that it can be told to recompute recomputes_last         of a layer that is computed again its
    last product is too, of which backward needs nothing (torch/utils/checkpoint.py stops early, and
    compilers leave it out) recompute_layers        may recompute the first few layers of a stage
    only gather_unit             what FSDP gathers at a time: a layer, or (XLA) a weight matrix
    gradient_bytes          an element of the accumulated gradient, in memory and on the wire
    gather_bytes            an element of a gathered parameter on the wire; 0: the GEMM operand
    format. fp32 training moves four bytes whatever these say whole_gradients         ZeRO 1
    all-reduces gradients, where others scatter what each device will update whole_blocks
    what a device has of a weight in a format below 16 bits has sides that are multiples of the
    format's block, or kernels refuse it (Transformer Engine pytorch/utils.py and
    pytorch/tensor/mxfp8_tensor.py); others pad it or leave it in 16 bits keeps_operands
    beside parameters in use there are their copies in the format of GEMMs, as they are and
    transposed (Transformer Engine's weight cache, without --fp8-param-gather) parameter_shards
    ZeRO 3 keeps shards of the parameters in use beside the fp32 ones (Rajbhandari et al., arXiv
    1910.02054 §5: 16 bytes of states a parameter), which others gather from shards
    how ZeRO 3 keeps a layer: its tensors "in_place"; "flat", as views of one tensor whose gradients
    are joined, and cast where they are sent wider (FullyShardedDataParallel); or "each", copied out
    of what was gathered and into what is reduced (fully_shard,
    torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py) parallel_loss           with tp > 1
    the loss works on each device's part of the vocabulary, not on gathered logits loss
    what makes loss and gradient of logits: one "fused" kernel, PyTorch's cross_entropy "compiled",
    its several kernels ("pytorch"), or one for every operation ("stepwise") loss_since
    the year that began; it was `earlier_loss` before loss_chunks             parts of a micro-batch
    that head and loss work on one after the other loss_chunks_since       the year that began; all
    at once before keeps_logits            a pipeline's last stage keeps those of all micro-batches
    until a step ends keeps_logits_until      the year that ended low_precision_activations   inputs
    of activation functions are kept in the GEMM format (DeepSeek-V3 §3.3.3) fused
    norms, activations and rotary are fused kernels (hand-written or compiled) fused_norm
    norms are, even where the others are not launch                  "eager", "compiled" or "graph":
    what a kernel launch costs the host captures_experts        steps of sparse models are captured
    as graphs, whatever `launch` is captures_experts_since  the year that began experts_at_once
    one grouped kernel multiplies for all experts of a device, and a loop launches none for each
    fused_routing           router, permutations and dispatch are a few fused kernels
    attention_kernel        a kernel, or who picks it by the chip: "auto" takes the fastest,
    "pytorch" what eager PyTorch does: FlashAttention-2 before Blackwell (torchtitan
    models/attention.py), "triton" on Ampere a Triton kernel as fast as FlashAttention's first
    version flash_since             the year its default attention became a flash kernel; a fused
    softmax before fastest_since           the year it became the fastest that PyTorch has ("auto");
    what PyTorch picks before one_sequence_since      the year its pipelines' micro-batches became
    one sequence unless told otherwise; before, there were as many of them as stages usual_seq_len
    tokens of a sequence that it trains on unless told otherwise usual_sequences         sequences a
    device, likewise; all of a device's at once, without accumulating gradients usual_sharding
    of parameters (ZeRO 3), likewise: over the devices of a "slice", replicated over slices
    age_years               how far behind the newest software that profiles were fitted to like
    the stack that it is but for what is said here, and whose coefficients it shares
    ties_in_pipeline        a pipeline may have its first and last stage share the embedding of a
    model that ties it running_balance         keeps running statistics for a global-batch balancing
    loss, so that it constrains nothing
    """

    id: str
    name: str
    schedules: tuple[str, ...]
    zero_stages: tuple[int, ...]
    aliases: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    max_virtual_stages: int = 1
    micro_batch_groups: Literal["stages", "equal", "any"] = "stages"
    plain_micro_batches: Literal["any", "stages", "multiple"] = "any"
    partition: Literal["even", "balanced", "threshold"] = "even"
    reshard: tuple[bool, ...] = (True,)
    placements: tuple[tuple[str, ...], ...] = ()
    equal_data_parallel: bool = False
    hybrid_stages: tuple[int, ...] = ()
    max_pp: int = MAX_CHIPS
    max_tp: int = 1
    max_cp: int = 1
    max_ep: int = 1
    experts_alone: bool = False
    context_in_pipeline: bool = True
    max_zero_in_pipeline: int = 3
    mtp_alone: bool = False
    muon_stages: tuple[int, ...] = (0, 1, 2, 3)
    fp8_at_once_on: tuple[str, ...] = ()
    replicates_kv_heads: bool = True
    sequence_parallel: tuple[bool, ...] = (False,)
    context: Literal["ring", "allgather", "ulysses"] = "ring"
    expert_tensor_parallel: bool = False
    expert_folding: Literal["all", "shard", "beside_tensor"] = "all"
    dispatcher: Literal["alltoall", "deduplicated", "allgather"] = "alltoall"
    deduplicated_since: float | None = None
    node_limit: int | None = None
    overlap_data: bool = True
    overlap_zero1: bool = True
    overlap_tensor: bool = False
    overlap_tensor_not_in: tuple[str, ...] = ()
    overlap_expert: bool = False
    overlap_expert_since: float | None = None
    overlap_pipeline: bool = True
    overlap_switches: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ("none", "selective", "full")
    default_recompute: str = "none"
    selective: tuple[tuple[str, ...], ...] = (("layernorm", "mlp_act", "moe_act", "mla_up_proj"),)
    recompute_modules: tuple[str, ...] = ()
    recomputes_last: bool = True
    recompute_layers: bool = False
    offload: tuple[str, ...] = ()
    offload_alone: bool = False
    attention_kernel: Kernel = "auto"
    gather_unit: Literal["layer", "matrix"] = "layer"
    gradient_bytes: float = 4
    gather_bytes: float = 2
    whole_gradients: bool = False
    whole_blocks: bool = False
    keeps_operands: bool = False
    parameter_shards: bool = False
    shards: Literal["in_place", "flat", "each"] = "in_place"
    parallel_loss: bool = True
    loss: Literal["fused", "compiled", "pytorch", "stepwise"] = "fused"
    loss_since: float | None = None
    loss_chunks: int = 1
    loss_chunks_since: float | None = None
    keeps_logits: bool = False
    keeps_logits_until: float | None = None
    earlier_loss: Literal["pytorch", "stepwise"] = "pytorch"
    low_precision_activations: bool = False
    fused: bool = True
    fused_norm: bool = False
    launch: Literal["eager", "compiled", "graph"] = "eager"
    captures_experts: bool = False
    captures_experts_since: float | None = None
    experts_at_once: bool = False
    fused_routing: bool = False
    flash_since: float | None = None
    fastest_since: float | None = None
    one_sequence_since: float | None = None
    usual_seq_len: int | None = None
    usual_sequences: int | None = None
    usual_sharding: Literal["slice"] | None = None
    age_years: float = 0.0
    ties_in_pipeline: bool = True
    running_balance: bool = False
    like: str | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if not self.schedules:
            raise Invalid("stack.schedules", self.schedules, "must name at least one schedule")
        if not set(self.zero_stages) <= {0, 1, 2, 3} or not self.zero_stages:
            raise Invalid("stack.zero_stages", self.zero_stages, "must be some of 0, 1, 2, 3")
        if not self.selective or not all(
            names and set(names) <= set(MODULES) for names in self.selective
        ):
            raise Invalid(
                "stack.selective", self.selective, f"must be sets of {', '.join(MODULES)}"
            )
        if not set(self.placements) <= set(PLACEMENTS):
            raise Invalid(
                "stack.placements", self.placements, f"must be orders of all of {', '.join(AXES)}"
            )
        if self.attention_kernel not in (*_PICKED, *KERNELS):
            rule = f"must be one of {', '.join((*_PICKED, *KERNELS))}"
            raise Invalid("stack.attention_kernel", self.attention_kernel, rule)

    def as_of(self, year: float) -> Stack:
        """With the attention, the loss, the launches, the overlap and the dispatcher that it had
        then."""
        earlier: tuple[tuple[float | None, str, Any], ...] = (
            (self.flash_since, "attention_kernel", "fused_softmax"),
            (self.fastest_since, "attention_kernel", "pytorch"),
            (self.loss_since, "loss", self.earlier_loss),
            (self.loss_chunks_since, "loss_chunks", 1),
            (self.keeps_logits_until, "keeps_logits", True),
            (self.captures_experts_since, "captures_experts", False),
            (self.overlap_expert_since, "overlap_expert", False),
            (self.deduplicated_since, "dispatcher", "alltoall"),
        )
        changes = {field: value for since, field, value in earlier if since and year < since}
        return replace(self, **changes)

    @property
    def calibrated_as(self) -> str:
        """What coefficients call it, and runs on others that are alike."""
        return self.like or self.id

    def all_reduces_gradients(self, zero_stage: Any) -> Any:
        """Whether gradients are all-reduced at a ZeRO stage, or at each of an array of them."""
        return zero_stage <= int(self.whole_gradients)

    @property
    def recomputable_modules(self) -> tuple[str, ...]:
        """Those that it can recompute."""
        mine = {name for names in (*self.selective, self.recompute_modules) for name in names}
        return tuple(name for name in MODULES if name in mine)

    @property
    def splits_by_threshold(self) -> bool:
        return self.partition == "threshold"

    def missing_kernel_reason(self, generation: str, vendor: str) -> str | None:
        """Why its attention kernel does not run on a chip of a generation; on chips of vendors and
        generations that nothing is known of all do."""
        kernel = self.kernel_on(generation)
        runs_on = _RUNS_ON.get(kernel)
        if (
            runs_on
            and generation not in runs_on
            and (vendor not in ("nvidia", "google") or generation in _KNOWN)
        ):
            return f"runs on chips of {' and '.join(runs_on)} only, not of {generation}"
        if kernel in ("flash1", "flash2") and generation in _HAS_OWN:
            return f"does not run on chips of {generation}: {_PYTORCH[generation]} does"
        return None

    def kernel_on(self, generation: str) -> str:
        """The attention kernel this stack picks on a chip generation."""
        if self.attention_kernel not in _PICKED:
            return self.attention_kernel
        return _PICKED[self.attention_kernel].get(generation, "flash2")
