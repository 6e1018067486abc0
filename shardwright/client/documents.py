"""The documents of the service. `make client` writes this file."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

NumChip: TypeAlias = int


class AuditEntry(TypedDict):
    id: str
    created_at: str
    action: str
    subject: str
    tenant: str | None
    key_id: str | None
    details: dict[str, Any]


class AuditPage(TypedDict):
    items: list[AuditEntry]
    next: str | None


class BenchmarkPoint(TypedDict):
    what: str
    bytes: NotRequired[int | None]
    m: NotRequired[int | None]
    n: NotRequired[int | None]
    k: NotRequired[int | None]
    dtype: NotRequired[Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"] | None]
    measured_s: float
    predicted_s: float
    published_s: NotRequired[float | None]


class BolderAnswer(TypedDict):
    layout: int
    gain: float


class BriefPage(TypedDict):
    items: list[dict[str, Any]]
    next: str | None


class BrokenRuleAnswer(TypedDict):
    name: str
    kind: NotRequired[Literal["framework", "search"]]
    field: str
    setting: str | None
    value: Any
    rule: str
    source: str
    cure: str


class ByConvention(TypedDict):
    causal: float
    full: float


class CalibrationRequest(TypedDict):
    since: NotRequired[str | None]
    until: NotRequired[str | None]
    activate: NotRequired[bool]
    from_scratch: NotRequired[bool]


class CatalogEntry(TypedDict):
    kind: Literal["chips", "clusters", "architectures", "stacks"]
    name: str
    source: Literal["shipped", "registered"]
    version: int | None
    pinned_name: str | None
    created_at: str | None
    aliases: list[str]
    given: dict[str, Any] | None
    resolved: dict[str, Any]
    assumptions: list[str]


class CatalogPage(TypedDict):
    items: list[CatalogEntry]
    next: str | None


class CertificateAnswer(TypedDict):
    space: int
    cardinality: dict[str, int]
    rejected: dict[str, int]
    over_memory: int
    pruned_by_memory: int
    pruned_by_bound: int
    evaluated: int
    closing_bound_s: float | None
    exact: bool
    gap: float


class Time(TypedDict):
    compute_s: float
    recompute_s: float
    tensor_s: float
    context_s: float
    expert_s: float
    data_s: float
    pipeline_s: float
    bubble_s: float
    offload_s: float
    optimizer_s: float
    fixed_s: float
    jitter_s: float


class MemoryGib(TypedDict):
    parameters_gib: float
    gradients_gib: float
    optimizer_gib: float
    activations_gib: float
    logits_gib: float
    context_gib: float
    fragmentation_gib: float


class CheckedPrediction(TypedDict):
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    mfu: ByConvention
    mfu_low: ByConvention
    mfu_high: ByConvention
    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_high: float
    tokens_per_s_per_chip: float
    num_micro_batches: int
    time: Time
    memory_gib: MemoryGib


Source: TypeAlias = str


TorusShapeItem: TypeAlias = int


class ClusterPreset(TypedDict):
    num_chips: NotRequired[int | None]
    torus_shape: NotRequired[list[TorusShapeItem] | None]
    chips_per_domain: NotRequired[int | None]
    scale_out_gb_s: NotRequired[float | None]
    usable_memory_gib: NotRequired[float | None]
    usd_per_chip_hour: NotRequired[float | None]
    preset: str


class Combination(TypedDict):
    model: int
    cluster: int
    workload: int
    stack: int
    constraints: int


class CompressionFields(TypedDict):
    rate: int
    overlap: NotRequired[bool]


PpItem: TypeAlias = int


DpReplicateItem: TypeAlias = int


DpShardItem: TypeAlias = int


DpItem: TypeAlias = int


CpItem: TypeAlias = int


TpItem: TypeAlias = int


EpItem: TypeAlias = int


EtpItem: TypeAlias = int


MicroBatchItem: TypeAlias = int


MicroBatchToken: TypeAlias = int


VirtualStage: TypeAlias = int


RecomputeLayer: TypeAlias = int


class ConstraintFields(TypedDict):
    pp: NotRequired[int | list[PpItem] | None]
    dp_replicate: NotRequired[int | list[DpReplicateItem] | None]
    dp_shard: NotRequired[int | list[DpShardItem] | None]
    dp: NotRequired[int | list[DpItem] | None]
    cp: NotRequired[int | list[CpItem] | None]
    tp: NotRequired[int | list[TpItem] | None]
    ep: NotRequired[int | list[EpItem] | None]
    etp: NotRequired[int | list[EtpItem] | None]
    micro_batch: NotRequired[int | list[MicroBatchItem] | None]
    micro_batch_tokens: NotRequired[int | list[MicroBatchToken] | None]
    virtual_stages: NotRequired[int | list[VirtualStage] | None]
    schedule: NotRequired[
        Literal["1f1b", "interleaved", "afab", "zero_bubble", "zero_bubble_v", "dualpipe"]
        | list[
            Literal[
                "1f1b",
                "interleaved",
                "afab",
                "zero_bubble",
                "zero_bubble_v",
                "dualpipe",
            ]
        ]
        | None
    ]
    balanced: NotRequired[bool | list[bool] | None]
    recompute: NotRequired[
        Literal["none", "selective", "full"] | list[Literal["none", "selective", "full"]] | None
    ]
    recompute_modules: NotRequired[
        list[
            Literal[
                "layernorm",
                "mlp_act",
                "moe_act",
                "core_attn",
                "mla_up_proj",
                "mlp",
                "shared_experts",
                "moe",
                "alternate_mm",
                "grouped_mm",
                "out_proj",
                "mlp_gate",
            ]
        ]
        | None
    ]
    recompute_layers: NotRequired[int | list[RecomputeLayer] | None]
    zero_stage: NotRequired[Literal[0, 1, 2, 3] | list[Literal[0, 1, 2, 3]] | None]
    torus_block: NotRequired[Literal[1, 2, 4] | list[Literal[1, 2, 4]] | None]
    reshard: NotRequired[bool | list[bool] | None]
    sequence_parallel: NotRequired[bool | list[bool] | None]
    offload_activations: NotRequired[bool | list[bool] | None]
    offload_optimizer: NotRequired[bool | list[bool] | None]
    memory_reserve_gib: NotRequired[float]
    min_fit_probability: NotRequired[float]
    use_all_chips: NotRequired[bool]


class CrossingAnswer(TypedDict):
    axis: str
    at: dict[str, float]
    above: float
    below: float
    estimate: float


class DeltaNetFields(TypedDict):
    num_heads: int
    num_key_heads: NotRequired[int | None]
    key_head_dim: int
    value_head_dim: NotRequired[int | None]
    kind: Literal["gated_delta_net", "kimi_delta_attention"]
    conv_kernel: NotRequired[int]
    decay_rank: NotRequired[int | None]
    gate_rank: NotRequired[int | None]


class Difference(TypedDict):
    asked: str | int | float | bool
    run: str | int | float | bool


ProjectorItemItem: TypeAlias = int


ProjectorItem: TypeAlias = list[ProjectorItemItem]


class EntryUsed(TypedDict):
    name: str
    source: Literal["shipped", "registered", "given", "huggingface"]
    version: NotRequired[int | None]


class EventAnswer(TypedDict):
    stage: int
    name: str
    start_s: float
    end_s: float
    micro_batch: int | None
    chunk: int | None


class Failure(TypedDict):
    stage: NotRequired[int | None]
    peak_gib: NotRequired[float | None]


class FewerChipsAnswer(TypedDict):
    rule: str | None
    message: str
    num_chips: int
    all_chips_s: float | None


class GemmFields(TypedDict):
    m: int
    n: int
    k: int
    dtype: NotRequired[Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"] | None]
    tflops: float


ScaleUpItem: TypeAlias = float


ScaleOutItem: TypeAlias = float


DomainItem: TypeAlias = int


Layer: TypeAlias = float


class GridFields(TypedDict):
    scale_up: NotRequired[list[ScaleUpItem] | None]
    scale_out: NotRequired[list[ScaleOutItem] | None]
    domain: NotRequired[list[DomainItem] | None]
    num_chips: NotRequired[list[NumChip] | None]
    layers: NotRequired[list[Layer] | None]


class HostAnswer(TypedDict):
    node: str
    domain: str
    group: int
    first_rank: int
    ranks: int
    chips: int


class HuggingFaceConfig(TypedDict):
    pass


class IndexerFields(TypedDict):
    num_heads: int
    head_dim: int
    top_k: int
    weighs_heads: NotRequired[bool]
    norm_parameters: NotRequired[int]
    shared: NotRequired[bool]


class ItemError(TypedDict):
    field: str
    pointer: str | None
    value: Any
    rule: str


class ItemProblem(TypedDict):
    type: str
    detail: str


class KindErrors(TypedDict):
    kind: str
    runs: int
    error_before: float
    error_after: float


class LaunchAnswer(TypedDict):
    format: str
    framework: str
    version: str
    settings: dict[str, Any]
    arguments: list[str]
    environment: dict[str, str]
    placeholders: dict[str, str]
    slurm: dict[str, bool | int | str]
    notes: list[str]


Argument: TypeAlias = str


class LaunchForm(TypedDict):
    format: NotRequired[
        Literal[
            "megatron",
            "megatron-bridge",
            "torchtitan",
            "maxtext",
            "deepspeed",
            "accelerate",
        ]
        | None
    ]
    arguments: NotRequired[str | list[Argument] | dict[str, Any] | None]
    settings: NotRequired[dict[str, Any] | None]
    files: NotRequired[dict[str, str]]
    environment: NotRequired[dict[str, str]]
    version: NotRequired[str | None]
    framework: NotRequired[str | None]
    placeholders: NotRequired[dict[str, Any] | None]
    slurm: NotRequired[dict[str, Any] | None]
    notes: NotRequired[list[Any] | None]


class LaunchRead(TypedDict):
    format: Literal[
        "megatron",
        "megatron-bridge",
        "torchtitan",
        "maxtext",
        "deepspeed",
        "accelerate",
    ]
    format_from: NotRequired[str | None]
    framework: str
    version: str
    unread: list[str]
    unread_count: NotRequired[int]
    ignored_count: int
    warnings: NotRequired[list[str]]
    assumed: list[str]


class LaunchUnsaid(TypedDict):
    format: str
    error: str


class LayerMoeFields(TypedDict):
    num_experts: int
    experts_per_token: int
    moe_intermediate_size: int
    num_shared_experts: NotRequired[int]
    shared_expert_intermediate_size: NotRequired[int | None]
    bias: NotRequired[bool]
    num_groups: NotRequired[int]
    groups_per_token: NotRequired[int | None]
    gated: NotRequired[bool]
    router_bias: NotRequired[bool | None]
    shared_gate: NotRequired[bool]
    selection_bias: NotRequired[bool]
    selection_bias_is_parameter: NotRequired[bool]
    router_scales: NotRequired[bool]
    latent_size: NotRequired[int | None]
    latent_norm: NotRequired[bool]
    zero_experts: NotRequired[int]


LayersPerChunkItem: TypeAlias = int


class LayoutFields(TypedDict):
    pp: NotRequired[int]
    dp_replicate: NotRequired[int]
    dp_shard: NotRequired[int]
    cp: NotRequired[int]
    tp: NotRequired[int]
    ep: NotRequired[int]
    etp: NotRequired[int]
    placement: NotRequired[list[Literal["tp", "cp", "dp_shard", "dp_replicate", "pp"]]]
    torus_axes: NotRequired[list[Literal["x", "y", "z"]] | None]
    torus_block: NotRequired[Literal[1, 2, 4] | None]
    micro_batch: NotRequired[int]
    micro_batch_tokens: NotRequired[int | None]
    schedule: NotRequired[
        Literal["1f1b", "interleaved", "afab", "zero_bubble", "zero_bubble_v", "dualpipe"] | None
    ]
    virtual_stages: NotRequired[int | None]
    balanced: NotRequired[bool]
    layers_per_chunk: NotRequired[list[LayersPerChunkItem]]
    recompute: NotRequired[Literal["none", "selective", "full"]]
    recompute_modules: NotRequired[
        list[
            Literal[
                "layernorm",
                "mlp_act",
                "moe_act",
                "core_attn",
                "mla_up_proj",
                "mlp",
                "shared_experts",
                "moe",
                "alternate_mm",
                "grouped_mm",
                "out_proj",
                "mlp_gate",
            ]
        ]
    ]
    recompute_layers: NotRequired[int]
    zero_stage: NotRequired[Literal[0, 1, 2, 3]]
    reshard: NotRequired[bool]
    sequence_parallel: NotRequired[bool]
    offload_activations: NotRequired[bool]
    offload_optimizer: NotRequired[bool]


class LearnedFrom(TypedDict):
    chip: str | None
    stack: str | None
    model: str | None
    parameters: int | None
    runs: int
    benchmarks: int
    latest: list[str]
    step_time_change: float


class LevelFields(TypedDict):
    name: NotRequired[str]
    size: NotRequired[int | None]
    gb_s_per_chip: float
    peer_gb_s: NotRequired[float | None]
    scale: NotRequired[Literal["up", "out"]]


class LiftAnswer(TypedDict):
    field: Literal["cluster.num_chips", "workload.global_batch"]
    value: int


class LightningFields(TypedDict):
    num_heads: int
    num_key_heads: NotRequired[int | None]
    key_head_dim: int
    value_head_dim: NotRequired[int | None]
    kind: Literal["lightning_attention"]
    conv_kernel: NotRequired[int]


class Link(TypedDict):
    name: str
    kind: Literal["switch", "ring", "line"]
    scale: Literal["up", "out"]
    domain: int
    gb_s: float


class LogLevel(TypedDict):
    first_step: int
    steps: int
    value: float


class LoraFields(TypedDict):
    rank: NotRequired[int]
    targets: NotRequired[list[Literal["attention", "mlp", "experts"]]]
    modules: NotRequired[
        list[
            Literal[
                "q_proj",
                "k_proj",
                "v_proj",
                "o_proj",
                "gate_proj",
                "up_proj",
                "down_proj",
            ]
        ]
    ]
    base_bits: NotRequired[Literal[2, 3, 4, 8, 16]]


class Mamba2Fields(TypedDict):
    kind: Literal["mamba2"]
    num_heads: int
    head_dim: int
    state_size: int
    num_groups: NotRequired[int]
    conv_kernel: NotRequired[int]
    conv_bias: NotRequired[bool]
    bias: NotRequired[bool]
    norm: NotRequired[bool]


class MeasuredMemory(TypedDict):
    allocated_gib: NotRequired[float | None]
    reserved_gib: NotRequired[float | None]
    stage: NotRequired[int | None]


class MeasuredMfu(TypedDict):
    value: float
    attention: Literal["causal", "full", "none"]
    peak_tflops: NotRequired[float | None]
    peak_dtype: NotRequired[Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"] | None]


class MeasuredParts(TypedDict):
    exposed_communication_s: NotRequired[float | None]
    expert_imbalance: NotRequired[float | None]


class MeasuredRun(TypedDict):
    step_time_s: float | None
    tokens_per_s_per_chip: float | None
    mfu: ByConvention | None
    converted: bool
    memory_gib: float | None


class MeasuredSpeed(TypedDict):
    given: Literal["step_time_s", "tokens_per_s", "tokens_per_s_per_chip", "tflops_per_chip", "mfu"]
    conversion: str
    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_chip: float
    mfu: dict[str, float]


class MeasuredTflops(TypedDict):
    value: float
    attention: Literal["causal", "full", "none"]


class MemoryComparison(TypedDict):
    allocated_gib: float | None
    reserved_gib: float | None
    stage: int | None
    allocated_residual: float | None
    reserved_residual: float | None


class MemoryShare(TypedDict):
    term: str
    gib: float
    share: float
    meaning: str


class MfuPeak(TypedDict):
    dtype: str
    tflops_per_chip: float


class MlaFields(TypedDict):
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: NotRequired[int | None]


class MlpFields(TypedDict):
    intermediate_size: int
    gated: NotRequired[bool]
    bias: NotRequired[bool]
    learned_activation: NotRequired[bool]


class MoeFields(TypedDict):
    num_experts: int
    experts_per_token: int
    moe_intermediate_size: int
    num_shared_experts: NotRequired[int]
    shared_expert_intermediate_size: NotRequired[int | None]
    bias: NotRequired[bool]
    num_groups: NotRequired[int]
    groups_per_token: NotRequired[int | None]
    first_k_dense: NotRequired[int]
    moe_layer_freq: NotRequired[int]


class MovedAnswer(TypedDict):
    coefficient: str
    scope: str
    before: float
    after: float
    shift_in_spreads: float
    spread_before: float
    spread_after: float


class NodeFields(TypedDict):
    name: str
    chips: int
    domain: NotRequired[str | None]
    leaf: NotRequired[str]


class ObjectiveFields(TypedDict):
    minimize: NotRequired[Literal["step_time", "time", "cost", "chips"]]
    tokens: NotRequired[float | None]
    deadline_hours: NotRequired[float | None]
    budget_usd: NotRequired[float | None]
    deadline_probability: NotRequired[float]
    usd_per_chip_hour: NotRequired[float | None]
    prices: NotRequired[dict[str, float]]
    failures_per_chip_hour: NotRequired[float]
    checkpoint_s: NotRequired[float]
    restart_s: NotRequired[float]


class Observation(TypedDict):
    code: Literal[
        "speed_changed",
        "unsteady",
        "slow_steps",
        "warm_up",
        "ramp_up",
        "not_finite",
        "clock_ahead",
        "restarted",
        "few_steps",
        "unread_lines",
        "cut_lines",
        "memory_near_limit",
        "memory_to_spare",
        "memory_unexpected",
        "other_processes",
        "fragmentation",
        "allocated",
        "allocator_retries",
        "sockets",
        "network_faults",
        "network_warnings",
        "collective_timeouts",
        "device_faults",
        "throttling",
        "stragglers",
        "data_waits",
        "profiling",
        "other_switches",
    ]
    message: str
    cost: NotRequired[float | None]


class OtherSetting(TypedDict):
    value: str
    step_time_s: float
    needed_gib: float
    how: str


class OutOfMemoryRun(TypedDict):
    report_id: str
    measured_at: str
    layout: LayoutFields
    needed_gib: float


class PackingFields(TypedDict):
    mean_length: float
    spread: NotRequired[float]


class Parameters(TypedDict):
    total: int
    active: int
    mtp: int
    encoder: NotRequired[int]


class PartsComparison(TypedDict):
    exposed_communication_s: float | None
    predicted_exposed_communication_s: float
    expert_imbalance: float | None


class PointAnswer(TypedDict):
    at: dict[str, float]
    without_s: float | None
    with_s: float | None
    without: LayoutFields | None
    with_pp: LayoutFields | None
    gap: float | None
    gap_low: float | None
    gap_high: float | None
    pipeline_needed: Literal["yes", "no", "undecided", "unknown"]
    exact: bool
    refused: str | None
    chips_per_domain: int | None


class Policy(TypedDict):
    mode: NotRequired[Literal["manual", "automatic"]]
    margin: NotRequired[float]
    min_tenants: NotRequired[int]
    after_reports: NotRequired[int | None]
    own_after_reports: NotRequired[int | None]


class PredictedRun(TypedDict):
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    mfu: ByConvention
    reserved_gib: float
    fits: bool


class PredictionBrief(TypedDict):
    id: str
    created_at: str
    location: str
    launch: str | None
    nodes: int | None
    devices_per_node: int | None
    notes: list[str]
    layout: dict[str, Any]
    layout_summary: str | None
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    needed_gib: float
    usable_gib: float
    fit_probability: float | None
    rank: int
    of: int
    warnings: list[str]


class ProfileUsed(TypedDict):
    id: str
    version: int


class ProfileWanted(TypedDict):
    id: NotRequired[str]
    version: int


class Promotion(TypedDict):
    promoted: bool
    reason: str


class ReasonFacts(TypedDict):
    kind: Literal[
        "slip",
        "out_of_memory",
        "cluster",
        "fewest_chips",
        "fewer_chips",
        "fastest",
        "recommended",
        "micro_batch_group",
        "pipelining",
        "data_traffic",
        "memory",
        "fit",
        "bolder",
        "unsupported",
        "learned",
        "stopped",
        "groups",
        "spare_chips",
    ]
    figures: dict[str, float | str | bool | None]


class RecommendationBrief(TypedDict):
    id: str
    created_at: str
    location: str
    launch: str | None
    nodes: int | None
    devices_per_node: int | None
    notes: list[str]
    layout: dict[str, Any]
    layout_summary: str | None
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    needed_gib: float
    usable_gib: float
    fit_probability: float | None
    chips_used: int
    exact: bool
    reasons: list[str]


class RecommendationResult(TypedDict):
    chips_used: int
    layout_summary: str | None
    step_time_s: float
    mfu: ByConvention
    fit_probability: float | None
    exact: bool
    faster_on: NotRequired[int | None]


class RecommendationSummary(TypedDict):
    id: str
    created_at: str
    location: str
    profile: ProfileUsed
    request: dict[str, Any]
    result: RecommendationResult | None


class ReferenceFields(TypedDict):
    forwards: NotRequired[float]
    own_weights: NotRequired[bool]


class RemedyAnswer(TypedDict):
    change: str
    kind: Literal["layout", "switch", "search"]
    knob: str | None
    layout: LayoutFields
    step_time_s: float
    gain: float | None
    saved_s: float | None
    fits: bool
    fit_probability: float
    needed_gib: float
    caveat: str | None


class ReplayRequest(TypedDict):
    since: NotRequired[str | None]
    until: NotRequired[str | None]
    limit: NotRequired[int]


class ReplayedLayout(TypedDict):
    rank: int
    step_time_s: float
    replayed_step_time_s: float
    fits: bool
    replayed_fits: bool


class ReplayedReports(TypedDict):
    runs: int
    error_active: float | None
    error_replayed: float | None


class ReportBatch(TypedDict):
    reports: list[Any]
    all_or_nothing: NotRequired[bool]


class ReportCounts(TypedDict):
    found: int
    used: int
    down_weighted: int
    left_out: int
    waiting: int


class ReportGroup(TypedDict):
    reports: int
    measured: int
    out_of_memory: int
    crashed: int
    aborted: int
    residual_median: float | None
    residual_low: float | None
    residual_high: float | None
    median_abs_error: float | None
    within_interval: float | None
    key: dict[str, str]


class ReservationAnswer(TypedDict):
    setting: str
    reason: str
    cure: str


class ResidualStatistics(TypedDict):
    reports: int
    measured: int
    out_of_memory: int
    crashed: int
    aborted: int
    residual_median: float | None
    residual_low: float | None
    residual_high: float | None
    median_abs_error: float | None
    within_interval: float | None


class RooflineAnswer(TypedDict):
    tokens: float
    flops_per_token: float
    flops_s: float
    bytes: float
    bytes_s: float
    tokens_needed: float


SettingChange = TypedDict(
    "SettingChange",
    {
        "name": str,
        "from": Any,
        "to": Any,
    },
    closed=True,
)


class ShortConvolutionFields(TypedDict):
    kind: Literal["short_convolution"]
    num_channels: int
    conv_kernel: NotRequired[int]
    bias: NotRequired[bool]


class Side(TypedDict):
    layout: NotRequired[LayoutFields | None]
    constraints: NotRequired[ConstraintFields | None]


class SpeedExplained(TypedDict):
    measured_step_time_s: float | None
    measured_mfu: ByConvention | None
    predicted_step_time_s: float
    predicted_low_s: float
    predicted_high_s: float
    predicted_mfu: ByConvention
    slower_by: float | None
    within_interval: bool | None
    summary: str


Placement: TypeAlias = list[Literal["tp", "cp", "dp_shard", "dp_replicate", "pp"]]


SelectiveItem: TypeAlias = list[
    Literal[
        "layernorm",
        "mlp_act",
        "moe_act",
        "core_attn",
        "mla_up_proj",
        "mlp",
        "shared_experts",
        "moe",
        "alternate_mm",
        "grouped_mm",
        "out_proj",
        "mlp_gate",
    ]
]


class StackFields(TypedDict):
    name: str
    version: NotRequired[str | None]
    schedules: NotRequired[
        list[
            Literal[
                "1f1b",
                "interleaved",
                "afab",
                "zero_bubble",
                "zero_bubble_v",
                "dualpipe",
            ]
        ]
        | None
    ]
    max_virtual_stages: NotRequired[int | None]
    interleaves_hybrids: NotRequired[bool | None]
    micro_batch_groups: NotRequired[Literal["stages", "equal", "any"] | None]
    plain_micro_batches: NotRequired[Literal["any", "stages", "multiple"] | None]
    partition: NotRequired[Literal["even", "balanced", "threshold"] | None]
    zero_stages: NotRequired[list[Literal[0, 1, 2, 3]] | None]
    reshard: NotRequired[list[bool] | None]
    placements: NotRequired[list[Placement] | None]
    equal_data_parallel: NotRequired[bool | None]
    hybrid_stages: NotRequired[list[Literal[0, 1, 2, 3]] | None]
    max_pp: NotRequired[int | None]
    max_tp: NotRequired[int | None]
    max_cp: NotRequired[int | None]
    max_ep: NotRequired[int | None]
    unsearched_axes: NotRequired[list[Literal["pp", "tp", "cp", "ep"]] | None]
    unsearched_zero_stages: NotRequired[list[Literal[0, 1, 2, 3]] | None]
    experts_alone: NotRequired[bool | None]
    shards_over_context_and_experts: NotRequired[bool | None]
    min_zero_in_context: NotRequired[Literal[0, 1, 2, 3] | None]
    context_in_pipeline: NotRequired[bool | None]
    max_zero_in_pipeline: NotRequired[Literal[0, 1, 2, 3] | None]
    mtp_alone: NotRequired[bool | None]
    muon_stages: NotRequired[list[Literal[0, 1, 2, 3]] | None]
    narrow_moment_stages: NotRequired[list[Literal[0, 1, 2, 3]] | None]
    fp8_stages: NotRequired[list[Literal[0, 1, 2, 3]] | None]
    tensor_alone: NotRequired[bool | None]
    fp8_at_once_on: NotRequired[
        list[Literal["nvidia", "amd", "intel", "google", "aws", "huawei"]] | None
    ]
    replicates_kv_heads: NotRequired[bool | None]
    sequence_parallel: NotRequired[list[bool] | None]
    unsearched_sequence_parallel: NotRequired[list[bool] | None]
    context: NotRequired[Literal["ring", "allgather", "ulysses"] | None]
    expert_tensor_parallel: NotRequired[bool | None]
    expert_folding: NotRequired[Literal["all", "shard", "beside_tensor"] | None]
    ties_in_pipeline: NotRequired[bool | None]
    dispatcher: NotRequired[Literal["alltoall", "deduplicated", "allgather"] | None]
    node_limit: NotRequired[int | None]
    overlap_data: NotRequired[bool | None]
    overlap_zero1: NotRequired[bool | None]
    overlap_tensor: NotRequired[bool | None]
    overlap_tensor_not_in: NotRequired[
        list[Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"]] | None
    ]
    overlap_expert: NotRequired[bool | None]
    overlap_expert_of_hybrids: NotRequired[bool | None]
    overlap_pipeline: NotRequired[bool | None]
    recompute: NotRequired[list[Literal["none", "selective", "full"]] | None]
    selective: NotRequired[list[SelectiveItem] | None]
    recompute_modules: NotRequired[
        list[
            Literal[
                "layernorm",
                "mlp_act",
                "moe_act",
                "core_attn",
                "mla_up_proj",
                "mlp",
                "shared_experts",
                "moe",
                "alternate_mm",
                "grouped_mm",
                "out_proj",
                "mlp_gate",
            ]
        ]
        | None
    ]
    recomputes_last: NotRequired[bool | None]
    recompute_layers: NotRequired[bool | None]
    offload: NotRequired[list[Literal["activations", "optimizer"]] | None]
    offload_alone: NotRequired[bool | None]
    offloads_checkpoints: NotRequired[bool | None]
    checkpoint_offload_stages: NotRequired[list[Literal[0, 1, 2, 3]] | None]
    offloads_recurrences: NotRequired[bool | None]
    offloads_adam_alone: NotRequired[bool | None]
    offloads_gradients: NotRequired[bool | None]
    parameters_on_host: NotRequired[bool | None]
    host_buffers: NotRequired[float | None]
    attention_kernel: NotRequired[
        Literal[
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
        | None
    ]
    whole_gradients: NotRequired[bool | None]
    gradient_bytes: NotRequired[float | None]
    reduce_bytes: NotRequired[float | None]
    gather_bytes: NotRequired[float | None]
    tensor_gathers_in: NotRequired[
        list[Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"]] | None
    ]
    fp8_scaling: NotRequired[Literal["tensorwise", "rowwise"] | None]
    whole_blocks: NotRequired[bool | None]
    keeps_operands: NotRequired[bool | None]
    parameter_shards: NotRequired[bool | None]
    parallel_loss: NotRequired[bool | None]
    loss: NotRequired[Literal["fused", "fused_linear", "compiled", "pytorch", "stepwise"] | None]
    loss_chunks: NotRequired[int | None]
    tiled_mlp: NotRequired[bool | None]
    low_precision_activations: NotRequired[bool | None]
    fused: NotRequired[bool | None]
    fused_norm: NotRequired[bool | None]
    launch: NotRequired[Literal["eager", "compiled", "graph"] | None]
    moe_graphs: NotRequired[Literal["none", "partial", "full"] | None]
    static_experts: NotRequired[bool | None]
    experts_at_once: NotRequired[bool | None]
    expert_loop: NotRequired[Literal["kernels", "modules", "gathered_modules"] | None]
    fused_routing: NotRequired[bool | None]
    running_balance: NotRequired[bool | None]
    age_years: NotRequired[float | None]


class StackUsed(TypedDict):
    name: str
    source: Literal["shipped", "registered", "given", "huggingface"]
    version: NotRequired[int | None]
    changes: dict[str, Any]


class StepTimeChange(TypedDict):
    chip: str
    stack: str
    runs: int
    step_time_change: float


class StoredBenchmark(TypedDict):
    id: str
    created_at: str
    measured_at: str
    source: str | None
    kind: Literal["collective", "gemm"]
    operation: (
        Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"] | None
    )
    chip: str
    num_chips: int
    profile: ProfileUsed
    predicted_from: NotRequired[str]
    unread: int
    median_abs_error: float
    offsets: dict[str, float]
    withdrawn_at: NotRequired[str | None]
    points: list[BenchmarkPoint]
    submission: str


class SweepAnswer(TypedDict):
    id: str
    created_at: str
    location: str
    state: Literal["running", "finished", "cancelled"]
    total: int
    outcomes: dict[Literal["waiting", "ok", "infeasible", "refused", "failed", "cancelled"], int]
    profile: ProfileUsed
    finished_at: str | None
    items: str
    events: str


class SweepDetails(TypedDict):
    id: str
    created_at: str
    location: str
    state: Literal["running", "finished", "cancelled"]
    total: int
    outcomes: dict[Literal["waiting", "ok", "infeasible", "refused", "failed", "cancelled"], int]
    profile: ProfileUsed
    finished_at: str | None
    items: str
    events: str
    waits_for: NotRequired[str | None]
    request: dict[str, Any]


class SweepPage(TypedDict):
    items: list[SweepAnswer]
    next: str | None


class SweptLayout(TypedDict):
    layout: dict[str, Any]
    layout_summary: str
    chips_used: int
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    tokens_per_s: float
    mfu: ByConvention
    usd_per_million_tokens: float | None
    needed_gib: float
    usable_gib: float
    fit_probability: float
    hours: NotRequired[float | None]
    hours_low: NotRequired[float | None]
    hours_high: NotRequired[float | None]
    usd: NotRequired[float | None]
    meets: NotRequired[bool | None]
    meets_probability: NotRequired[float | None]
    missing: NotRequired[str | None]
    pipelining: str
    exact: bool


class SwitchAnswer(TypedDict):
    field: str
    name: str
    value: str
    is_default: bool
    default: str
    since: str | None
    otherwise: OtherSetting


class SwitchSuspect(TypedDict):
    switch: str
    assumed: Any
    otherwise: Any
    field: str
    step_time_s: float


class TermAnswer(TypedDict):
    coefficient: str
    scope: str
    mean: float
    spread: float
    runs: int
    source: str


class TermBasis(TypedDict):
    ground: Literal["measured", "inherited", "data_sheet"]
    scope: str
    runs: int
    sources: int | None


class ThresholdAnswer(TypedDict):
    axis: str
    is_above: bool
    value: float
    holds_at: float
    changes_at: float | None
    exact: bool


class TicketAnswer(TypedDict):
    url: str
    ticket: str | None
    expires_at: str | None


class TicketRequest(TypedDict):
    stream: str


class TimeShare(TypedDict):
    term: str
    seconds: float
    share: float
    meaning: str


class TimelineAnswer(TypedDict):
    profile: ProfileUsed
    stages: int
    micro_batches: int
    of_micro_batches: int
    pipeline_s: float
    closed_form_s: float | None
    step_time_s: float
    events: list[EventAnswer]


class TorusFields(TypedDict):
    ndim: int
    max_chips: int
    gb_s_per_link: float
    wrap: Literal["cubes", "length"]
    wrap_length: int


class TraceEvent(TypedDict):
    ph: Literal["M", "X"]
    name: str
    pid: int
    tid: int
    args: dict[str, str | int]
    cat: NotRequired[str | None]
    ts: NotRequired[float | None]
    dur: NotRequired[float | None]


Layer1: TypeAlias = int


class TrainedFields(TypedDict):
    layers: NotRequired[list[Layer1] | None]
    embedding: NotRequired[bool]
    head: NotRequired[bool]


class Unidentified(TypedDict):
    coefficient: str
    scope: str


class UnreadLine(TypedDict):
    line: int
    text: str
    reason: str


class UnseenErrors(TypedDict):
    runs: int
    error_before: float
    error_after: float
    coverage: float
    kinds: list[KindErrors]


class Unusable(TypedDict):
    report: str
    reason: str


class VersionSummary(TypedDict):
    version: int
    created_at: str
    origin: Literal["shipped", "calibrated"]
    made_by: str


class WarningAnswer(TypedDict):
    code: str
    message: str
    numbers: dict[str, float]


class Window(TypedDict):
    first: str | None
    last: str | None
    reports: int
    benchmarks: int
    all_reports: int
    sources: NotRequired[int]


class WorkloadFields(TypedDict):
    seq_len: int
    global_batch: NotRequired[int]
    global_batch_tokens: NotRequired[int | None]
    precision: NotRequired[Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"]]
    optimizer: NotRequired[
        Literal[
            "adamw",
            "adamw_bf16_moments",
            "adamw_8bit",
            "paged_adamw",
            "paged_adamw_8bit",
            "lion",
            "lion_8bit",
            "adafactor",
            "muon",
            "sgd_momentum",
        ]
    ]
    load_balancing: NotRequired[Literal["none", "micro_batch_loss", "global_batch_loss", "bias"]]
    routing: NotRequired[Literal["balanced", "natural"]]
    capacity_factor: NotRequired[float | None]
    token_budget: NotRequired[float | None]
    packing: NotRequired[PackingFields | None]
    master_weights: NotRequired[bool]
    lora: NotRequired[LoraFields | None]
    trained: NotRequired[TrainedFields | None]
    reference: NotRequired[ReferenceFields | None]
    head: NotRequired[Literal["vocabulary", "score"]]
    moment_rank: NotRequired[int | None]


ServiceSchemasCheckChangeAnswer = TypedDict(
    "ServiceSchemasCheckChangeAnswer",
    {
        "words": str,
        "knob": str,
        "from": Any,
        "to": Any,
        "settings": list[SettingChange],
        "step_time_s": float,
        "gain_s": float | None,
        "gain": float | None,
        "fit_probability": float,
    },
    closed=True,
)


class ServiceSchemasSummaryChangeAnswer(TypedDict):
    since: str
    last_before: str
    slower: float
    p_value: float
    report_ids: NotRequired[list[str]]


class ProblemError(TypedDict):
    field: str
    pointer: str | None
    value: Any
    rule: str


class SurestLayout(TypedDict):
    layout: dict[str, Any]
    fit_probability: float


class Problem(TypedDict):
    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str | None
    errors: NotRequired[list[ProblemError] | None]
    constraint: NotRequired[str | None]
    needed: NotRequired[Any]
    available: NotRequired[Any]
    unit: NotRequired[str | None]
    enough_chips: NotRequired[int | None]
    surest: NotRequired[SurestLayout | None]
    min_fit_probability: NotRequired[float | None]


class AllocationAnswer(TypedDict):
    chips_per_group: int
    hosts: list[HostAnswer]
    spares: dict[str, int]


class AllocationFields(TypedDict):
    nodes: list[NodeFields]


class AnswerSummary(TypedDict):
    id: str
    created_at: str
    location: str
    profile: ProfileUsed
    request: dict[str, Any]


class ArchitectureUsed(TypedDict):
    name: str
    source: Literal["shipped", "registered", "given", "huggingface"]
    version: NotRequired[int | None]
    parameters: Parameters
    num_layers: int
    text_tower: bool
    model: NotRequired[dict[str, Any] | None]


class AttentionFields(TypedDict):
    num_attention_heads: int
    num_key_value_heads: NotRequired[int | None]
    head_dim: NotRequired[int | None]
    v_head_dim: NotRequired[int | None]
    mla: NotRequired[MlaFields | None]
    q_lora_rank: NotRequired[int | None]
    o_lora_rank: NotRequired[int | None]
    o_groups: NotRequired[int]
    sliding_window: NotRequired[int | None]
    chunked_attention: NotRequired[bool]
    attention_bias: NotRequired[bool]
    attention_output_bias: NotRequired[bool | None]
    qk_norm: NotRequired[bool]
    qk_norm_all_heads: NotRequired[bool]
    kv_norm: NotRequired[bool]
    values_are_keys: NotRequired[bool]
    sinks: NotRequired[bool]
    output_gate: NotRequired[Literal["element", "head"] | None]
    compression: NotRequired[CompressionFields | None]
    indexer: NotRequired[IndexerFields | None]


class BatchItem(TypedDict):
    index: int
    id: NotRequired[str | None]
    location: NotRequired[str | None]
    residual: NotRequired[float | None]
    within_interval: NotRequired[bool | None]
    flag: NotRequired[str | None]
    errors: NotRequired[list[ItemError]]


class BenchmarkAnswer(TypedDict):
    id: str
    created_at: str
    measured_at: str
    source: str | None
    kind: Literal["collective", "gemm"]
    operation: (
        Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"] | None
    )
    chip: str
    num_chips: int
    profile: ProfileUsed
    predicted_from: NotRequired[str]
    unread: int
    median_abs_error: float
    offsets: dict[str, float]
    withdrawn_at: NotRequired[str | None]
    points: list[BenchmarkPoint]


class BenchmarkSummary(TypedDict):
    id: str
    created_at: str
    measured_at: str
    source: str | None
    kind: Literal["collective", "gemm"]
    operation: (
        Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"] | None
    )
    chip: str
    num_chips: int
    profile: ProfileUsed
    predicted_from: NotRequired[str]
    unread: int
    median_abs_error: float
    offsets: dict[str, float]
    withdrawn_at: NotRequired[str | None]


class BestAnswer(TypedDict):
    layout: LayoutFields
    summary: str
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    mfu: ByConvention
    fit_probability: float
    gain_s: float | None
    gain: float | None
    gain_probability: float | None
    exact: bool


class CalibrationAnswer(TypedDict):
    based_on: int
    window: Window
    promotion: Promotion
    unseen: UnseenErrors | None
    unseen_memory: NotRequired[UnseenErrors | None]
    published: UnseenErrors | None
    reports: ReportCounts
    observations: int
    waiting: NotRequired[int]
    changes: NotRequired[list[StepTimeChange]]
    moved: list[MovedAnswer]
    unidentified: list[Unidentified]
    outliers: list[str]
    unusable: list[Unusable]
    error_before: float | None
    error_after: float | None
    memory_error_before: float | None
    memory_error_after: float | None


class CheckBrief(TypedDict):
    id: str | None
    location: str | None
    verdict: Literal["go", "go_with_warnings", "will_not_fit", "illegal", "cannot_tell"]
    summary: str
    layout_summary: str | None
    step_time_s: float | None
    step_time_low_s: float | None
    step_time_high_s: float | None
    fit_probability: float | None
    first_change: str | None
    settings: list[SettingChange]
    problems: list[str]


class CheckSummary(TypedDict):
    id: str
    created_at: str
    location: str
    profile: ProfileUsed
    request: dict[str, Any]
    verdict: Literal["go", "go_with_warnings", "will_not_fit", "illegal", "cannot_tell"]
    summary: str


class ChoiceAnswer(TypedDict):
    name: str
    cluster: NotRequired[dict[str, Any] | None]
    stack: NotRequired[str | dict[str, Any] | None]
    chip: str
    num_chips: int
    chips_used: int | None
    all_chips_s: NotRequired[float | None]
    step_time_s: float | None
    step_time_low_s: NotRequired[float | None]
    step_time_high_s: NotRequired[float | None]
    grade: NotRequired[Literal["measured", "inherited", "data_sheet"] | None]
    layout: NotRequired[LayoutFields | None]
    layout_summary: NotRequired[str | None]
    mfu: NotRequired[ByConvention | None]
    mfu_low: NotRequired[ByConvention | None]
    mfu_high: NotRequired[ByConvention | None]
    tokens_per_s: float | None
    tokens_per_s_low: NotRequired[float | None]
    tokens_per_s_high: NotRequired[float | None]
    goodput: float | None
    checkpoint_every_s: float | None
    hours: float | None
    hours_low: NotRequired[float | None]
    hours_high: NotRequired[float | None]
    usd_per_chip_hour: NotRequired[float | None]
    usd: float | None
    usd_low: NotRequired[float | None]
    usd_high: NotRequired[float | None]
    usd_used: NotRequired[float | None]
    usd_per_million_tokens: float | None
    missing: NotRequired[str | None]
    meets: bool
    meets_probability: NotRequired[float | None]
    exact: bool
    refused: str | None


class ChoiceList(TypedDict):
    items: list[ChoiceAnswer]


class ChromeTrace(TypedDict):
    traceEvents: list[TraceEvent]
    displayTimeUnit: Literal["ms"]
    otherData: dict[str, int]


class Conventions(TypedDict):
    mfu: dict[str, str]
    mfu_peak: MfuPeak
    interval: str
    units: str


class DriftSeries(TypedDict):
    chip: str
    fabric: str
    stack: str
    family: str
    runs: int
    first: str
    last: str
    residual_median: float
    changes: list[ServiceSchemasSummaryChangeAnswer]
    sentence: str


class EvidenceAnswer(TypedDict):
    id: str
    source: dict[str, str]
    family: str
    trust: str
    date: str | None
    distance: float
    differs: dict[str, Difference]
    model: dict[str, Any]
    cluster: dict[str, Any]
    workload: dict[str, Any]
    stack: dict[str, Any]
    layout: LayoutFields
    layout_summary: str
    assumed: list[str]
    outcome: Literal["ok", "out_of_memory"]
    measured: MeasuredRun
    predicted: PredictedRun
    residual: float | None
    within_interval: bool | None
    fit_verdict_agrees: bool


class EvidenceList(TypedDict):
    items: list[EvidenceAnswer]
    profile: ProfileUsed
    found: int
    runs: int
    next: str | None


class EvidenceShown(TypedDict):
    id: str
    title: str
    where: str
    date: str | None
    distance: float
    differs: dict[str, Difference]
    layout: LayoutFields
    measured_step_time_s: float
    predicted_step_time_s: float
    predicted_step_time_low_s: float
    predicted_step_time_high_s: float
    residual: float


class FabricUsed(TypedDict):
    name: str
    source: Literal["shipped", "registered", "given", "huggingface"]
    version: NotRequired[int | None]
    links: list[Link]


class FailureExplained(TypedDict):
    kind: Literal[
        "broken_rule",
        "out_of_memory",
        "unlikely_out_of_memory",
        "memory_likely",
        "not_of_the_layout",
    ]
    summary: str
    error_line: str | None
    broken_rules: list[BrokenRuleAnswer]
    needed_gib: float | None
    needed_low_gib: float | None
    needed_high_gib: float | None
    usable_gib: float | None
    stage: int | None
    fit_probability: float | None
    memory: list[MemoryShare]


class FitAnswer(TypedDict):
    probability: float
    needed_gib: float
    needed_low_gib: float
    needed_high_gib: float
    usable_gib: float
    over_gib: float
    stage: int
    largest_term: str
    largest_gib: float
    enough: list[ServiceSchemasCheckChangeAnswer]


class GapExplained(TypedDict):
    gap_s: float
    term: str | None
    excess_s: float | None
    probability: float | None
    undescribed_probability: float | None
    summary: str
    look_at: str | None
    switches: list[SwitchSuspect]


class LaunchedSide(TypedDict):
    layout: NotRequired[LayoutFields | None]
    constraints: NotRequired[ConstraintFields | None]
    launch: NotRequired[LaunchForm | None]


class LayerFields(TypedDict):
    attention: NotRequired[AttentionFields | None]
    recurrence: NotRequired[
        Mamba2Fields | DeltaNetFields | LightningFields | ShortConvolutionFields | None
    ]
    mlp: NotRequired[MlpFields | None]
    moe: NotRequired[LayerMoeFields | None]
    num_norms: NotRequired[int | None]
    post_norms: NotRequired[bool]
    norm_weight: NotRequired[bool]
    norm_bias: NotRequired[bool]
    parallel_blocks: NotRequired[bool | None]
    attention_residuals: NotRequired[bool]


class LayerGroup(TypedDict):
    attention: NotRequired[AttentionFields | None]
    recurrence: NotRequired[
        Mamba2Fields | DeltaNetFields | LightningFields | ShortConvolutionFields | None
    ]
    mlp: NotRequired[MlpFields | None]
    moe: NotRequired[LayerMoeFields | None]
    num_norms: NotRequired[int | None]
    post_norms: NotRequired[bool]
    norm_weight: NotRequired[bool]
    norm_bias: NotRequired[bool]
    parallel_blocks: NotRequired[bool | None]
    attention_residuals: NotRequired[bool]
    count: NotRequired[int]


class LayerRepetition(TypedDict):
    repeat: int
    layers: list[str | LayerGroup]


class Learned(TypedDict):
    sentence: str
    against_version: int
    step_time_change: float
    reports: list[LearnedFrom]


class ListedVersion(TypedDict):
    version: int
    created_at: str
    origin: Literal["shipped", "calibrated"]
    made_by: str
    active: bool
    calibration: CalibrationAnswer | None


class LogExplained(TypedDict):
    framework: (
        Literal[
            "megatron",
            "nemo",
            "torchtitan",
            "maxtext",
            "ms-swift",
            "deepspeed",
            "huggingface",
        ]
        | None
    )
    unit: Literal["step_time_s", "tokens_per_s_per_chip"] | None
    value: float | None
    low: float | None
    high: float | None
    steps_found: int
    steps_used: int
    levels: list[LogLevel]
    observations: list[Observation]


class LogReading(TypedDict):
    framework: Literal[
        "megatron",
        "nemo",
        "torchtitan",
        "maxtext",
        "ms-swift",
        "deepspeed",
        "huggingface",
    ]
    unit: Literal["step_time_s", "tokens_per_s_per_chip"]
    value: float
    low: float
    high: float
    steps_found: int
    steps_used: int
    left_out: dict[str, int]
    levels: list[LogLevel]
    restarts: int
    global_batch: int | None
    memory_gib: float | None
    memory_kind: Literal["reserved", "allocated"] | None
    unread: list[UnreadLine]
    from_arguments: list[str]
    out_of_memory: bool


class Measured(TypedDict):
    step_time_s: NotRequired[float | None]
    tokens_per_s: NotRequired[float | None]
    tokens_per_s_per_chip: NotRequired[float | None]
    tflops_per_chip: NotRequired[MeasuredTflops | None]
    mfu: NotRequired[MeasuredMfu | None]


class OtherPreset(TypedDict):
    num_chips: NotRequired[int | None]
    torus_shape: NotRequired[list[TorusShapeItem] | None]
    chips_per_domain: NotRequired[int | None]
    scale_out_gb_s: NotRequired[float | None]
    usable_memory_gib: NotRequired[float | None]
    usd_per_chip_hour: NotRequired[float | None]
    preset: str
    stack: NotRequired[str | StackFields | None]


class PipeliningAnswer(TypedDict):
    without: int | None
    with_pp: int | None
    gap: float | None
    gap_low: float | None
    gap_high: float | None
    needed: Literal["yes", "no", "undecided", "unknown"]
    needed_probability: float | None
    lifted_by: NotRequired[list[LiftAnswer]]
    split: dict[str, float]
    verdict: str
    forbidden: NotRequired[list[str]]
    roofline: RooflineAnswer | None
    thresholds: NotRequired[list[ThresholdAnswer] | None]


class ProfileAnswer(TypedDict):
    id: str
    tenant: NotRequired[str | None]
    active_version: int | None
    policy: Policy
    versions: list[VersionSummary]


class ProfilePage(TypedDict):
    items: list[ProfileAnswer]
    next: str | None


class ProfileVersionAnswer(TypedDict):
    version: int
    created_at: str
    origin: Literal["shipped", "calibrated"]
    made_by: str
    id: str
    residual_spread: float
    terms: list[TermAnswer]
    calibration: CalibrationAnswer | None


class ProvenanceAnswer(TypedDict):
    grade: Literal["measured", "inherited", "data_sheet"]
    terms: dict[str, TermBasis]
    outside: list[str]


class RecommendationPage(TypedDict):
    items: list[RecommendationSummary]
    next: str | None


class Replayed(TypedDict):
    kind: Literal["prediction", "recommendation"]
    id: str
    location: str
    made_with: ProfileUsed
    layouts: list[ReplayedLayout]
    another_first: bool


class ReportSummary(TypedDict):
    overall: ResidualStatistics
    by: dict[str, dict[str, ResidualStatistics]]
    groups: NotRequired[list[ReportGroup]]


class ScaleUpFields(TypedDict):
    gb_s_per_chip: float
    domain: NotRequired[int | None]
    peer_gb_s: NotRequired[float | None]
    torus: NotRequired[TorusFields | None]
    note: NotRequired[str | None]


class SweepItem(TypedDict):
    position: int
    combination: Combination
    model: str
    chip: str
    num_chips: int
    seq_len: int
    global_batch: int
    stack: str
    outcome: Literal["waiting", "ok", "infeasible", "refused", "failed", "cancelled"]
    recommended: SweptLayout | None
    problem: ItemProblem | None


class SweepItemPage(TypedDict):
    items: list[SweepItem]
    next: str | None


class VersionPage(TypedDict):
    items: list[ListedVersion]
    next: str | None


class AnswerPage(TypedDict):
    items: list[AnswerSummary]
    next: str | None


class BatchAnswer(TypedDict):
    accepted: int
    refused: int
    items: list[BatchItem]


class BenchmarkPage(TypedDict):
    items: list[BenchmarkSummary]
    next: str | None


class CatalogUsed(TypedDict):
    chip: EntryUsed
    fabric: FabricUsed
    architecture: ArchitectureUsed
    stack: StackUsed


class CheckAnswer(TypedDict):
    request: dict[str, Any]
    profile: ProfileUsed
    catalogue: CatalogUsed
    conventions: Conventions
    assumptions: list[str]
    switches: NotRequired[list[SwitchAnswer]]
    learned: NotRequired[Learned | None]
    id: NotRequired[str | None]
    created_at: NotRequired[str | None]
    location: NotRequired[str | None]
    verdict: Literal["go", "go_with_warnings", "will_not_fit", "illegal", "cannot_tell"]
    summary: str
    legal: bool
    broken_rules: list[BrokenRuleAnswer]
    broken_rule_count: int
    layout: LayoutFields | None
    prediction: CheckedPrediction | None
    fits: FitAnswer | None
    best: BestAnswer | None
    first_change: ServiceSchemasCheckChangeAnswer | None
    warnings: list[WarningAnswer]
    launch_read: NotRequired[LaunchRead | None]
    reservations: NotRequired[list[ReservationAnswer]]


class CheckPage(TypedDict):
    items: list[CheckSummary]
    next: str | None


class ChipFields(TypedDict):
    name: NotRequired[str]
    vendor: NotRequired[str]
    generation: str
    year: NotRequired[int | None]
    peak_tflops: dict[Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"], float]
    memory_gb: float
    usable_memory_gib: float
    memory_bandwidth_gb_s: float
    host_memory_gb: NotRequired[float | None]
    compute_units: NotRequired[int]
    devices_per_chip: NotRequired[int]
    tdp_w: NotRequired[float | None]
    scale_up: NotRequired[ScaleUpFields | None]
    scale_out_gb_s: NotRequired[float | None]
    usd_per_chip_hour: NotRequired[float | None]
    price_source: NotRequired[str | None]
    sources: NotRequired[list[Source]]
    confidence: NotRequired[str | None]
    caveats: NotRequired[str | None]


class ClusterFields(TypedDict):
    num_chips: NotRequired[int | None]
    torus_shape: NotRequired[list[TorusShapeItem] | None]
    chips_per_domain: NotRequired[int | None]
    scale_out_gb_s: NotRequired[float | None]
    usable_memory_gib: NotRequired[float | None]
    usd_per_chip_hour: NotRequired[float | None]
    chip: str | ChipFields
    levels: NotRequired[list[LevelFields] | None]
    torus: NotRequired[TorusFields | None]


class DriftAnswer(TypedDict):
    profile: ProfileUsed
    series: list[DriftSeries]
    runs: int
    left_out: int
    more: bool


class EncoderFields(TypedDict):
    tokens_per_sequence: int
    tokens_per_image: NotRequired[int | None]
    trained: NotRequired[bool]
    projector_trained: NotRequired[bool]
    hidden_size: int
    layers: list[LayerGroup]
    patches_per_token: NotRequired[int]
    patch_elements: int
    projector: list[ProjectorItem]
    projector_vectors: NotRequired[int]
    other_parameters: NotRequired[int]


class ExplanationAnswer(TypedDict):
    request: dict[str, Any]
    profile: ProfileUsed
    catalogue: CatalogUsed
    conventions: Conventions
    assumptions: list[str]
    switches: NotRequired[list[SwitchAnswer]]
    learned: NotRequired[Learned | None]
    first_fix: str
    outcome: Literal["ok", "out_of_memory", "crashed", "aborted"]
    layout: LayoutFields
    speed: SpeedExplained | None
    where_the_time_goes: list[TimeShare]
    gap: GapExplained | None
    failure: FailureExplained | None
    log: LogExplained | None
    what_to_try: list[RemedyAnswer]
    search_exact: bool
    warnings: list[WarningAnswer]
    launch_read: NotRequired[LaunchRead | None]
    reservations: NotRequired[list[ReservationAnswer]]


class FrontierAnswer(TypedDict):
    request: dict[str, Any]
    profile: ProfileUsed
    catalogue: CatalogUsed
    conventions: Conventions
    assumptions: list[str]
    switches: NotRequired[list[SwitchAnswer]]
    learned: NotRequired[Learned | None]
    points: list[PointAnswer]
    crossings: list[CrossingAnswer]
    reasons: list[str]


class LayerListFields(TypedDict):
    name: NotRequired[str]
    hidden_size: int
    vocab_size: int
    layers: list[str | LayerGroup | LayerRepetition]
    layer_kinds: NotRequired[dict[str, LayerFields]]
    tie_word_embeddings: NotRequired[bool]
    mtp_layers: NotRequired[int]
    residual_streams: NotRequired[int]
    learned_positions: NotRequired[int]
    lm_head_bias: NotRequired[bool]
    final_norm_weight: NotRequired[bool]
    final_norm_bias: NotRequired[bool]
    encoder: NotRequired[EncoderFields | None]


class NamedModelFields(TypedDict):
    name: str
    encoder: NotRequired[EncoderFields | None]


class OtherCluster(TypedDict):
    num_chips: NotRequired[int | None]
    torus_shape: NotRequired[list[TorusShapeItem] | None]
    chips_per_domain: NotRequired[int | None]
    scale_out_gb_s: NotRequired[float | None]
    usable_memory_gib: NotRequired[float | None]
    usd_per_chip_hour: NotRequired[float | None]
    chip: str | ChipFields
    levels: NotRequired[list[LevelFields] | None]
    torus: NotRequired[TorusFields | None]
    stack: NotRequired[str | StackFields | None]


class PredictedLayout(TypedDict):
    layout: LayoutFields
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_high: float
    tokens_per_s_per_chip: float
    tflops_per_chip: ByConvention
    mfu: ByConvention
    mfu_low: ByConvention
    mfu_high: ByConvention
    num_micro_batches: int
    micro_batch_group: NotRequired[int | None]
    layers_per_chunk: list[int]
    time: Time
    memory_gib: MemoryGib
    allocated_gib: float
    reserved_gib: float
    needed_gib: float
    needed_low_gib: float
    needed_high_gib: float
    usable_gib: float
    memory_stage: int
    host_gib: float
    host_usable_gib: float | None
    fits: bool
    fit_probability: float
    provenance: ProvenanceAnswer


class PredictionAnswer(TypedDict):
    id: str
    created_at: str
    request: dict[str, Any]
    profile: ProfileUsed
    catalogue: CatalogUsed
    conventions: Conventions
    assumptions: list[str]
    switches: NotRequired[list[SwitchAnswer]]
    learned: NotRequired[Learned | None]
    layouts: list[PredictedLayout]
    out_of_memory: NotRequired[list[OutOfMemoryRun]]
    warnings: NotRequired[list[str]]
    launch: NotRequired[LaunchAnswer | LaunchUnsaid | None]
    launch_read: NotRequired[LaunchRead | None]
    reservations: NotRequired[list[ReservationAnswer]]


class ReplayAnswer(TypedDict):
    profile: ProfileUsed
    active: ProfileUsed
    answers: list[Replayed]
    unusable: list[str]
    reports: ReplayedReports


class ReportAnswer(TypedDict):
    id: str
    created_at: str
    request: dict[str, Any]
    profile: ProfileUsed
    catalogue: CatalogUsed
    conventions: Conventions
    assumptions: list[str]
    switches: NotRequired[list[SwitchAnswer]]
    learned: NotRequired[Learned | None]
    outcome: Literal["ok", "out_of_memory", "crashed", "aborted"]
    prediction_id: str | None
    recommendation_id: str | None
    check_id: NotRequired[str | None]
    rank: int | None
    choice: Literal["recommended", "fastest", "simplest", "bolder"] | Literal["surer"] | None
    prediction: PredictedLayout
    measured: MeasuredSpeed | None
    residual: float | None
    within_interval: bool | None
    memory: MemoryComparison | None
    failure: Failure | None
    fit_verdict_agrees: bool | None
    parts: PartsComparison | None
    measured_at: str
    source: str | None
    labels: NotRequired[dict[str, str]]
    flag: str | None
    same_as: NotRequired[str | None]
    reservations: NotRequired[list[ReservationAnswer]]
    withdrawn_at: NotRequired[str | None]


class ReportPage(TypedDict):
    items: list[ReportAnswer]
    next: str | None


class ShapeFields(TypedDict):
    name: NotRequired[str]
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: NotRequired[int | None]
    head_dim: NotRequired[int | None]
    gated_mlp: NotRequired[bool]
    tie_word_embeddings: NotRequired[bool]
    qk_norm: NotRequired[bool]
    attention_bias: NotRequired[bool]
    attention_output_bias: NotRequired[bool | None]
    num_norms: NotRequired[int]
    parallel_blocks: NotRequired[bool | None]
    sliding_window: NotRequired[int | None]
    chunked_attention: NotRequired[bool]
    full_attention_period: NotRequired[int | None]
    mla: NotRequired[MlaFields | None]
    moe: NotRequired[MoeFields | None]
    mtp_layers: NotRequired[int]
    encoder: NotRequired[EncoderFields | None]


class StoredReport(TypedDict):
    id: str
    created_at: str
    request: dict[str, Any]
    profile: ProfileUsed
    catalogue: CatalogUsed
    conventions: Conventions
    assumptions: list[str]
    switches: NotRequired[list[SwitchAnswer]]
    learned: NotRequired[Learned | None]
    outcome: Literal["ok", "out_of_memory", "crashed", "aborted"]
    prediction_id: str | None
    recommendation_id: str | None
    check_id: NotRequired[str | None]
    rank: int | None
    choice: Literal["recommended", "fastest", "simplest", "bolder"] | Literal["surer"] | None
    prediction: PredictedLayout
    measured: MeasuredSpeed | None
    residual: float | None
    within_interval: bool | None
    memory: MemoryComparison | None
    failure: Failure | None
    fit_verdict_agrees: bool | None
    parts: PartsComparison | None
    measured_at: str
    source: str | None
    labels: NotRequired[dict[str, str]]
    flag: str | None
    same_as: NotRequired[str | None]
    reservations: NotRequired[list[ReservationAnswer]]
    withdrawn_at: NotRequired[str | None]
    submission: str


class SweepRequest(TypedDict):
    models: list[str | NamedModelFields | HuggingFaceConfig | LayerListFields | ShapeFields]
    clusters: list[OtherPreset | OtherCluster]
    workloads: list[WorkloadFields]
    stacks: list[str | StackFields]
    constraints: NotRequired[list[ConstraintFields]]
    objective: NotRequired[ObjectiveFields | None]
    profile: NotRequired[ProfileWanted | None]
    tolerance: NotRequired[float]
    time_limit_s: NotRequired[float]


class AlternativeFields(TypedDict):
    clusters: NotRequired[list[OtherPreset | OtherCluster]]
    num_chips: NotRequired[list[NumChip]]
    up_to_chips: NotRequired[int | None]
    multiple_of: NotRequired[int | None]
    allocations: NotRequired[list[AllocationFields]]


class ArchitectureEntry(TypedDict):
    name: str
    model: HuggingFaceConfig | LayerListFields | ShapeFields


class BenchmarkSubmission(TypedDict):
    cluster: ClusterPreset | ClusterFields
    stack: NotRequired[str | StackFields]
    nccl_tests: NotRequired[str | None]
    operation: NotRequired[
        Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"] | None
    ]
    gemms: NotRequired[list[GemmFields] | None]
    precision: NotRequired[Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"]]
    measured_at: NotRequired[str | None]
    source: NotRequired[str | None]


class CandidateAnswer(TypedDict):
    prediction: PredictedLayout
    complexity: int
    complexity_terms: dict[str, int]
    usd_per_million_tokens: float | None


class CheckRequest(TypedDict):
    model: str | NamedModelFields | HuggingFaceConfig | LayerListFields | ShapeFields
    cluster: ClusterPreset | ClusterFields
    workload: WorkloadFields
    stack: str | StackFields
    profile: NotRequired[ProfileWanted | None]
    wait_s: NotRequired[float | None]
    allocation: NotRequired[AllocationFields | None]
    constraints: NotRequired[ConstraintFields]
    time_limit_s: NotRequired[float]
    store: NotRequired[bool]
    layout: LayoutFields


class ChipEntry(TypedDict):
    name: str
    chip: ChipFields


class ClusterEntry(TypedDict):
    name: str
    cluster: ClusterFields


class ComparisonAnswer(TypedDict):
    request: dict[str, Any]
    profile: ProfileUsed
    catalogue: CatalogUsed
    conventions: Conventions
    assumptions: list[str]
    switches: NotRequired[list[SwitchAnswer]]
    learned: NotRequired[Learned | None]
    first: CandidateAnswer
    second: CandidateAnswer
    time: Time
    memory_gib: MemoryGib
    reasons: list[str]
    exact: bool
    launch_read: NotRequired[dict[str, LaunchRead]]
    reservations: NotRequired[dict[str, list[ReservationAnswer]]]


class ComparisonRequest(TypedDict):
    wait_s: NotRequired[float | None]
    model: str | NamedModelFields | HuggingFaceConfig | LayerListFields | ShapeFields
    cluster: ClusterPreset | ClusterFields
    workload: WorkloadFields
    stack: str | StackFields
    profile: NotRequired[ProfileWanted | None]
    first: Side
    second: NotRequired[Side]
    time_limit_s: NotRequired[float]


class ExplanationRequest(TypedDict):
    wait_s: NotRequired[float | None]
    log: NotRequired[str | None]
    framework: NotRequired[
        Literal[
            "megatron",
            "nemo",
            "torchtitan",
            "maxtext",
            "ms-swift",
            "deepspeed",
            "huggingface",
        ]
        | None
    ]
    outcome: NotRequired[Literal["ok", "out_of_memory", "crashed", "aborted"] | None]
    measured: NotRequired[Measured | None]
    memory: NotRequired[MeasuredMemory | None]
    failure: NotRequired[Failure | None]
    parts: NotRequired[MeasuredParts | None]
    time_limit_s: NotRequired[float]
    prediction_id: NotRequired[str | None]
    recommendation_id: NotRequired[str | None]
    check_id: NotRequired[str | None]
    rank: NotRequired[int | None]
    choice: NotRequired[Literal["recommended", "fastest", "simplest", "bolder"] | None]
    model: NotRequired[
        str | NamedModelFields | HuggingFaceConfig | LayerListFields | ShapeFields | None
    ]
    cluster: NotRequired[ClusterPreset | ClusterFields | None]
    workload: NotRequired[WorkloadFields | None]
    stack: NotRequired[str | StackFields | None]
    layout: NotRequired[LayoutFields | None]
    measured_at: NotRequired[str | None]
    source: NotRequired[str | None]
    profile: NotRequired[ProfileWanted | None]


class FrontierRequest(TypedDict):
    wait_s: NotRequired[float | None]
    model: str | NamedModelFields | HuggingFaceConfig | LayerListFields | ShapeFields
    cluster: ClusterPreset | ClusterFields
    workload: WorkloadFields
    stack: str | StackFields
    profile: NotRequired[ProfileWanted | None]
    grid: GridFields
    constraints: NotRequired[ConstraintFields]
    tolerance: NotRequired[float]
    time_limit_s: NotRequired[float]


class LaunchedCheckRequest(TypedDict):
    model: NotRequired[
        str | NamedModelFields | HuggingFaceConfig | LayerListFields | dict[str, Any] | None
    ]
    cluster: NotRequired[ClusterPreset | ClusterFields | None]
    workload: NotRequired[dict[str, Any]]
    stack: NotRequired[str | StackFields | None]
    profile: NotRequired[ProfileWanted | None]
    wait_s: NotRequired[float | None]
    allocation: NotRequired[AllocationFields | None]
    constraints: NotRequired[ConstraintFields]
    time_limit_s: NotRequired[float]
    store: NotRequired[bool]
    launch: LaunchForm


class LaunchedComparisonRequest(TypedDict):
    wait_s: NotRequired[float | None]
    model: NotRequired[
        str | NamedModelFields | HuggingFaceConfig | LayerListFields | dict[str, Any] | None
    ]
    cluster: NotRequired[ClusterPreset | ClusterFields | None]
    workload: NotRequired[dict[str, Any]]
    stack: NotRequired[str | StackFields | None]
    profile: NotRequired[ProfileWanted | None]
    first: LaunchedSide
    second: NotRequired[LaunchedSide]
    time_limit_s: NotRequired[float]


class LaunchedExplanationRequest(TypedDict):
    wait_s: NotRequired[float | None]
    log: NotRequired[str | None]
    framework: NotRequired[
        Literal[
            "megatron",
            "nemo",
            "torchtitan",
            "maxtext",
            "ms-swift",
            "deepspeed",
            "huggingface",
        ]
        | None
    ]
    outcome: NotRequired[Literal["ok", "out_of_memory", "crashed", "aborted"] | None]
    measured: NotRequired[Measured | None]
    memory: NotRequired[MeasuredMemory | None]
    failure: NotRequired[Failure | None]
    parts: NotRequired[MeasuredParts | None]
    time_limit_s: NotRequired[float]
    model: NotRequired[
        str | NamedModelFields | HuggingFaceConfig | LayerListFields | dict[str, Any] | None
    ]
    cluster: NotRequired[ClusterPreset | ClusterFields | None]
    workload: NotRequired[dict[str, Any]]
    stack: NotRequired[str | StackFields | None]
    profile: NotRequired[ProfileWanted | None]
    launch: LaunchForm
    measured_at: NotRequired[str | None]


class LaunchedLog(TypedDict):
    log: str
    framework: NotRequired[
        Literal[
            "megatron",
            "nemo",
            "torchtitan",
            "maxtext",
            "ms-swift",
            "deepspeed",
            "huggingface",
        ]
        | None
    ]
    outcome: NotRequired[Literal["ok", "out_of_memory", "crashed", "aborted"] | None]
    labels: NotRequired[dict[str, str]]
    model: NotRequired[
        str | NamedModelFields | HuggingFaceConfig | LayerListFields | dict[str, Any] | None
    ]
    cluster: NotRequired[ClusterPreset | ClusterFields | None]
    workload: NotRequired[dict[str, Any]]
    stack: NotRequired[str | StackFields | None]
    profile: NotRequired[ProfileWanted | None]
    launch: LaunchForm
    measured_at: NotRequired[str | None]
    source: NotRequired[str | None]


class LaunchedPredictionRequest(TypedDict):
    wait_s: NotRequired[float | None]
    model: NotRequired[
        str | NamedModelFields | HuggingFaceConfig | LayerListFields | dict[str, Any] | None
    ]
    cluster: NotRequired[ClusterPreset | ClusterFields | None]
    workload: NotRequired[dict[str, Any]]
    stack: NotRequired[str | StackFields | None]
    profile: NotRequired[ProfileWanted | None]
    launch: LaunchForm


class LaunchedReport(TypedDict):
    outcome: Literal["ok", "out_of_memory", "crashed", "aborted"]
    measured: NotRequired[Measured | None]
    memory: NotRequired[MeasuredMemory | None]
    failure: NotRequired[Failure | None]
    parts: NotRequired[MeasuredParts | None]
    labels: NotRequired[dict[str, str]]
    model: NotRequired[
        str | NamedModelFields | HuggingFaceConfig | LayerListFields | dict[str, Any] | None
    ]
    cluster: NotRequired[ClusterPreset | ClusterFields | None]
    workload: NotRequired[dict[str, Any]]
    stack: NotRequired[str | StackFields | None]
    profile: NotRequired[ProfileWanted | None]
    launch: LaunchForm
    measured_at: NotRequired[str | None]
    source: NotRequired[str | None]


class LogAnswer(TypedDict):
    reading: LogReading | None
    measured_at_from: Literal["request", "log", "arrival"]
    notes: list[str]
    repeated: bool
    report: ReportAnswer


class LogSubmission(TypedDict):
    log: str
    framework: NotRequired[
        Literal[
            "megatron",
            "nemo",
            "torchtitan",
            "maxtext",
            "ms-swift",
            "deepspeed",
            "huggingface",
        ]
        | None
    ]
    outcome: NotRequired[Literal["ok", "out_of_memory", "crashed", "aborted"] | None]
    labels: NotRequired[dict[str, str]]
    prediction_id: NotRequired[str | None]
    recommendation_id: NotRequired[str | None]
    check_id: NotRequired[str | None]
    rank: NotRequired[int | None]
    choice: NotRequired[Literal["recommended", "fastest", "simplest", "bolder"] | None]
    model: NotRequired[
        str | NamedModelFields | HuggingFaceConfig | LayerListFields | ShapeFields | None
    ]
    cluster: NotRequired[ClusterPreset | ClusterFields | None]
    workload: NotRequired[WorkloadFields | None]
    stack: NotRequired[str | StackFields | None]
    layout: NotRequired[LayoutFields | None]
    measured_at: NotRequired[str | None]
    source: NotRequired[str | None]


class PredictionRequest(TypedDict):
    wait_s: NotRequired[float | None]
    model: str | NamedModelFields | HuggingFaceConfig | LayerListFields | ShapeFields
    cluster: ClusterPreset | ClusterFields
    workload: WorkloadFields
    stack: str | StackFields
    profile: NotRequired[ProfileWanted | None]
    layout: NotRequired[LayoutFields | None]
    layouts: NotRequired[list[LayoutFields] | None]


class RecommendationAnswer(TypedDict):
    id: str
    created_at: str
    request: dict[str, Any]
    profile: ProfileUsed
    catalogue: CatalogUsed
    conventions: Conventions
    assumptions: list[str]
    switches: NotRequired[list[SwitchAnswer]]
    learned: NotRequired[Learned | None]
    layouts: list[CandidateAnswer]
    recommended: int
    fastest: int
    simplest: int
    simplest_gap: float
    bolder: NotRequired[BolderAnswer | None]
    ranked: list[int]
    front: list[int]
    reasons: list[str]
    reason_facts: NotRequired[list[ReasonFacts]]
    chips_used: int
    fewer_chips: FewerChipsAnswer | None
    pipelining: PipeliningAnswer
    launch: NotRequired[LaunchAnswer | LaunchUnsaid | None]
    allocation: AllocationAnswer | None
    choices: list[ChoiceAnswer]
    out_of_memory: list[OutOfMemoryRun]
    evidence: list[EvidenceShown]
    certificate: CertificateAnswer


class RecommendationRequest(TypedDict):
    wait_s: NotRequired[float | None]
    model: str | NamedModelFields | HuggingFaceConfig | LayerListFields | ShapeFields
    cluster: ClusterPreset | ClusterFields
    workload: WorkloadFields
    stack: str | StackFields
    profile: NotRequired[ProfileWanted | None]
    constraints: NotRequired[ConstraintFields]
    tolerance: NotRequired[float]
    top: NotRequired[int]
    alternatives: NotRequired[AlternativeFields]
    objective: NotRequired[ObjectiveFields]
    allocation: NotRequired[AllocationFields | None]
    include: NotRequired[list[Literal["thresholds"]]]
    time_limit_s: NotRequired[float]


class ReportSubmission(TypedDict):
    outcome: Literal["ok", "out_of_memory", "crashed", "aborted"]
    measured: NotRequired[Measured | None]
    memory: NotRequired[MeasuredMemory | None]
    failure: NotRequired[Failure | None]
    parts: NotRequired[MeasuredParts | None]
    labels: NotRequired[dict[str, str]]
    prediction_id: NotRequired[str | None]
    recommendation_id: NotRequired[str | None]
    check_id: NotRequired[str | None]
    rank: NotRequired[int | None]
    choice: NotRequired[Literal["recommended", "fastest", "simplest", "bolder"] | None]
    model: NotRequired[
        str | NamedModelFields | HuggingFaceConfig | LayerListFields | ShapeFields | None
    ]
    cluster: NotRequired[ClusterPreset | ClusterFields | None]
    workload: NotRequired[WorkloadFields | None]
    stack: NotRequired[str | StackFields | None]
    layout: NotRequired[LayoutFields | None]
    measured_at: NotRequired[str | None]
    source: NotRequired[str | None]
