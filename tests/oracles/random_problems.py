"""Random problems: of the catalogue's parts, with any of these replaced by one that is made up, or
small enough to write down all their layouts.

A problem is the same whenever it is drawn with a generator of the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, Literal, Protocol, TypeVar, get_args

import numpy as np

from models.errors import Invalid
from models.layouts.factors import divisors
from models.spec import catalogue
from models.spec.adapters import Lora
from models.spec.architecture import Architecture, MlaShape, MoeShape
from models.spec.attention import Attention, Compression, Indexer
from models.spec.encoder import Encoder, Projector
from models.spec.feed_forward import Mlp, Moe
from models.spec.hardware import Chip, Cluster, Fabric, Level
from models.spec.layer import Layer
from models.spec.layout import AXES, SCHEDULES
from models.spec.problem import Problem
from models.spec.recompute import MODULES
from models.spec.recurrence import (
    DeltaNet,
    LightningAttention,
    Mamba2,
    Recurrence,
    ShortConvolution,
)
from models.spec.stack import KERNELS, Stack
from models.spec.switches import changed, switches_of
from models.spec.trained import as_trained
from models.spec.workload import (
    Head,
    LoadBalancing,
    Packing,
    Precision,
    Reference,
    Routing,
    Trained,
    Workload,
)

T = TypeVar("T")


class Choose(Protocol):
    """Chooses one of some values."""

    def __call__(self, values: Sequence[T], /) -> T: ...


def pick(rng: np.random.Generator, values: Sequence[T]) -> T:
    return values[int(rng.integers(len(values)))]


def chance(rng: np.random.Generator, probability: float) -> bool:
    return bool(rng.random() < probability)


def mostly(rng: np.random.Generator, usual: T, others: Sequence[T]) -> T:
    return usual if chance(rng, 0.6) else pick(rng, others)


# -- problems of every kind

CHIPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 72, 80, 96, 128, 144, 192, 256, 320, 384, 512,
          576, 768, 1000, 1024, 1152, 1536, 2048, 3072, 4096, 4608, 8192, 9216, 16384)  # fmt: skip
FEW_CHIPS = tuple(n for n in CHIPS if n <= 64)
_USUAL_CHIPS = (8, 16, 32, 64, 128, 256, 512, 24, 96, 384)
_SEQ_LENS = (512, 1024, 2048, 2048, 4096, 4096, 4096, 6144, 8192, 8192, 16384, 32768, 131072)
_ODD_SEQ_LENS = (1, 77, 1000, 3000, 5120)
_BATCHES = (1, 2, 3, 4, 6, 7, 8, 12, 16, 24, 32, 48, 60, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
            1536, 1600, 2048, 4096, 15360)  # fmt: skip
_ROUNDS_OF_BATCH = (1, 1, 2, 3, 4, 4, 6, 8, 16, 16, 24, 64)
"""Sequences of each chip in one step."""
_OPTIMIZERS = (
    "adamw", "adamw_bf16_moments", "adamw_8bit", "adafactor", "muon", "sgd_momentum",
)  # fmt: skip
_ATTEMPTS = 20
"""To find other parts that go with a kind of links and a recipe."""


def random_problem(rng: np.random.Generator, chips: Sequence[int] = CHIPS) -> Problem:
    """A problem of the catalogue's parts, or with any of them replaced by one that is made up;
    `chips` are the sizes that its cluster may have."""
    while True:
        torus, recipe = chance(rng, 0.2), _recipe(rng)
        for _ in range(_ATTEMPTS):
            try:
                problem = _drawn(rng, chips, torus, recipe)
            except Invalid:  # parts that do not go together, such as a chip and a precision
                continue
            return problem


def random_hybrid(rng: np.random.Generator, chips: Sequence[int] = CHIPS) -> Problem:
    """A problem with layers of the newer kinds among those of its model, or of fine-tuning, or with
    an encoder of images."""
    problem = random_problem(rng, chips)
    model = hybrid(rng, problem.architecture)
    workload = _fine_tuning(rng, problem.workload)
    if chance(rng, 0.4):
        model = replace(model, encoder=random_encoder(rng, model.hidden_size, workload))
    try:
        return replace(problem, architecture=model, workload=workload)
    except Invalid:  # adapters of matrices that the model does not have
        whole = replace(workload, lora=None)
        return replace(problem, architecture=model, workload=whole)


def random_encoder(rng: np.random.Generator, hidden: int, workload: Workload) -> Encoder:
    """One for a model of this hidden size. Beside adapters it is frozen."""
    heads, dim, patches = pick(rng, (12, 16)), pick(rng, (64, 72, 80, 88)), pick(rng, (1, 4, 16))
    attention = Attention(
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=dim,
        v_head_dim=dim,
        causal=False,
        attention_bias=chance(rng, 0.5),
    )
    network = Mlp(intermediate_size=4 * heads * dim, gated=chance(rng, 0.5))
    layers = [Layer(attention=attention, feed_forward=network)] * pick(rng, (2, 27, 48))
    if chance(rng, 0.3):
        local = replace(attention, sliding_window=pick(rng, (64, 256)), chunked_attention=True)
        layers = [*layers, *[replace(layers[0], attention=local)] * len(layers)]
    size = heads * dim
    trained, projector = pick(rng, ((True, True), (False, True), (False, False)))
    return Encoder(
        hidden_size=size,
        layers=tuple(layers),
        tokens_per_sequence=max(int(workload.seq_len * pick(rng, (0.01, 0.3, 0.9))), 1),
        tokens_per_image=min(pick(rng, (64, 256, 1024)), workload.seq_len),
        patches_per_token=patches,
        patch_elements=pick(rng, (588, 1536)),
        other_parameters=pick(rng, (0, 2_655_360)),
        projector=Projector(matrices=((patches * size, hidden), (hidden, hidden))),
        trained=trained and not workload.lora,
        projector_trained=projector and not workload.lora,
    )


def _fine_tuning(rng: np.random.Generator, workload: Workload) -> Workload:
    packing, lora = None, None
    if chance(rng, 0.3):
        mean = workload.seq_len * pick(rng, (0.01, 0.1, 0.5))
        mean = max(mean, 1.0)
        most = (workload.seq_len / mean - 1) ** 0.5 if mean < workload.seq_len else 0.0
        packing = Packing(mean_length=mean, spread=most * pick(rng, (0.0, 0.2, 0.5, 1.0)) * 0.999)
    if chance(rng, 0.3):
        targets = pick(rng, (("attention",), ("mlp", "experts"), ("attention", "mlp", "experts")))
        lora = Lora(rank=pick(rng, (1, 16, 256)), targets=targets, base_bits=pick(rng, (4, 8, 16)))
    masters = chance(rng, 0.7) or workload.precision == "fp32"
    return replace(workload, packing=packing, lora=lora, master_weights=masters)


def random_fine_tuning(rng: np.random.Generator, chips: Sequence[int] = CHIPS) -> Problem:
    """A problem of which some parameters are frozen, forwards run beside training, or the head
    gives one number."""
    problem = random_hybrid(rng, chips)
    model, workload = problem.architecture, problem.workload
    layers: tuple[int, ...] | None = ()
    if workload.lora is None:
        some = tuple(rng.integers(0, model.num_layers, 3).tolist())
        layers = pick(rng, ((), None, (-1,), (0,), some))
    if chance(rng, 0.7):
        embedding, head = chance(rng, 0.3), chance(rng, 0.5)
        trains_some = workload.lora or embedding or head or layers != ()
        trained = Trained(layers=layers, embedding=embedding, head=head or not trains_some)
        workload = replace(workload, trained=trained)
    if chance(rng, 0.5):
        reference = Reference(forwards=pick(rng, (0.5, 1.0, 3.0)), own_weights=chance(rng, 0.5))
        workload = replace(workload, reference=reference)
    workload = replace(
        workload,
        head=mostly(rng, "vocabulary", get_args(Head)),
        moment_rank=mostly(rng, None, (1, 64, 1024)),
    )
    return replace(problem, architecture=as_trained(model, workload), workload=workload)


def hybrid(rng: np.random.Generator, model: Architecture) -> Architecture:
    """The model with each of its kinds of layers as it is, or with another mixer or network."""
    kinds = {kind: _newer(rng, kind, model.hidden_size) for kind in model.kinds}
    streams = pick(rng, (1, 1, 4))
    kinds = {kind: replace(newer, residual_streams=streams) for kind, newer in kinds.items()}
    return replace(model, layers=tuple(kinds[layer] for layer in model.layers))


def _drawn(
    rng: np.random.Generator, chips: Sequence[int], torus: bool, recipe: Mapping[str, Any]
) -> Problem:
    """One on a torus, or on none, with this recipe. Raises Invalid where its parts do not go
    together."""
    stack = _stack(rng)
    runs = [chip for chip in _chips_of(stack) if (chip.fabric.torus is not None) == torus]
    if not runs:
        raise Invalid("stack", stack.id, "runs on no such chips")
    cluster = _cluster(rng, pick(rng, runs), pick(rng, chips))
    problem = Problem(
        architecture=_architecture(rng),
        cluster=cluster,
        workload=_workload(rng, cluster, recipe),
        stack=stack,
    )
    _require_sound(problem)
    return problem


def catalogue_problem(rng: np.random.Generator, stack: Stack) -> Problem:
    """A problem of the catalogue's parts, with switches of the stack that stand anyhow. Raises
    Invalid where the parts do not go together."""
    chip, size = pick(rng, _chips_of(stack)), pick(rng, _USUAL_CHIPS)
    problem = Problem(
        architecture=pick(rng, _models()),
        cluster=catalogue.cluster(chip.id, size),
        workload=Workload(
            seq_len=pick(rng, (2048, 4096, 8192, 16384)),
            global_batch=pick(rng, (64, 96, 256, 512, 1024, 1536)),
            **_recipe(rng),
        ),
        stack=_with_switches(rng, stack),
    )
    _require_sound(problem)
    return problem


def _require_sound(problem: Problem) -> None:
    """Raise Invalid where the cluster has no such links or no such peak, which it says only when it
    is asked."""
    cluster = problem.cluster
    _ = cluster.dims, cluster.device_orders, cluster.peak_flops_16
    cluster.peak_flops(problem.workload.number_format.gemm)


@cache
def _models() -> tuple[Architecture, ...]:
    return tuple(dict.fromkeys(catalogue.architectures().values()))


def _chips_of(stack: Stack) -> list[Chip]:
    """The chips that a stack runs on."""
    every = dict.fromkeys(catalogue.chips().values())
    return [chip for chip in every if not stack.vendors or chip.vendor in stack.vendors]


@cache
def _stacks() -> tuple[Stack, ...]:
    return tuple(dict.fromkeys(catalogue.stacks().values()))


def _workload(rng: np.random.Generator, cluster: Cluster, recipe: Mapping[str, Any]) -> Workload:
    """Mostly of a batch that many degrees divide."""
    rounds = cluster.num_chips * pick(rng, _ROUNDS_OF_BATCH)
    return Workload(
        seq_len=pick(rng, _SEQ_LENS) if chance(rng, 0.9) else pick(rng, _ODD_SEQ_LENS),
        global_batch=rounds if chance(rng, 0.6) else pick(rng, _BATCHES),
        **recipe,
    )


def _recipe(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "precision": mostly(rng, "bf16", get_args(Precision)),
        "optimizer": mostly(rng, "adamw", _OPTIMIZERS),
        "load_balancing": pick(rng, get_args(LoadBalancing)),
        "routing": pick(rng, get_args(Routing)),
    }


# -- stacks

_SWITCHED: Mapping[str, Sequence[Any]] = {
    "attention_kernel": ("auto", "pytorch", "triton", *KERNELS),
    "gather_unit": ("layer", "matrix"),
    "gradient_bytes": (2, 4),
    "gather_bytes": (0, 2, 4),
    "tensor_gathers_in": ((), ("fp8",), ("fp8", "mxfp8", "nvfp4")),
    "fp8_scaling": ("tensorwise", "rowwise"),
    "dispatcher": ("alltoall", "deduplicated", "allgather"),
    "node_limit": (None, 1, 2, 4),
    "context": ("ring", "allgather", "ulysses"),
    "overlap_data": (False, True),
    "overlap_zero1": (False, True),
    "overlap_tensor": (False, True),
    "overlap_tensor_not_in": ((), ("bf16",), ("fp8", "nvfp4")),
    "overlap_expert": (False, True),
    "overlap_pipeline": (False, True),
    "recomputes_last": (False, True),
    "whole_gradients": (False, True),
    "keeps_operands": (False, True),
    "parameter_shards": (False, True),
    "shards": ("in_place", "flat", "each"),
    "parallel_loss": (False, True),
    "loss": ("fused", "fused_linear", "compiled", "pytorch", "stepwise"),
    "loss_chunks": (1, 2, 8),
    "tiled_mlp": (False, True),
    "offloads_gradients": (False, True),
    "parameters_on_host": (False, True),
    "host_buffers": (1.0, 1.5),
    "keeps_logits": (False, True),
    "scaled_token_bytes": (0, 4),
    "low_precision_activations": (False, True),
    "fused": (False, True),
    "fused_norm": (False, True),
    "launch": ("eager", "compiled", "graph"),
    "moe_graphs": ("none", "partial", "full"),
    "static_experts": (True, True, False),
    "pads": ("nothing", "vocabulary", "products"),
    "experts_at_once": (False, True),
    "expert_loop": ("kernels", "modules", "gathered_modules"),
    "fused_routing": (False, True),
    "age_years": (0.0, 0.3, 1.0, 2.5, 6.0),
}
"""Fields of a stack that decide what layouts cost, with the values that are drawn."""
_OFFERED: Mapping[str, Sequence[Any]] = {
    "schedules": (SCHEDULES, ("1f1b", "interleaved"), ("afab",), ("zero_bubble_v", "1f1b")),
    "max_virtual_stages": (1, 2, 4, 16),
    "micro_batch_groups": ("stages", "equal", "any"),
    "plain_micro_batches": ("any", "stages", "multiple"),
    "partition": ("even", "balanced", "threshold"),
    "zero_stages": ((0, 1, 2, 3), (0, 3), (1, 2), (3,)),
    "reshard": ((True,), (False,), (True, False)),
    "hybrid_stages": ((), (1,), (2, 3), (1, 2, 3)),
    "placements": ((), (AXES,), (AXES, ("tp", "cp", "pp", "dp_shard", "dp_replicate"))),
    "equal_data_parallel": (False, True),
    "max_pp": (1, 4, 10**6),
    "max_tp": (1, 8, 64),
    "max_cp": (1, 8, 64),
    "max_ep": (1, 8, 64, 1024),
    "unsearched_axes": ((), ("tp",), ("cp", "ep")),
    "unsearched_zero_stages": ((), (1, 2)),
    "sequence_parallel": ((False,), (True,), (True, False)),
    "unsearched_sequence_parallel": ((), (False,)),
    "replicates_kv_heads": (False, True),
    "exchanges_repeated_kv_heads": (False, True),
    "expert_tensor_parallel": (False, True),
    "expert_folding": ("all", "shard", "beside_tensor"),
    "context_in_pipeline": (False, True),
    "max_zero_in_pipeline": (1, 3),
    "experts_alone": (False, True),
    "shards_over_context_and_experts": (False, True),
    "min_zero_in_context": (0, 2),
    "interleaves_hybrids": (False, True),
    "mtp_alone": (False, True),
    "whole_blocks": (False, True),
    "recompute": (("none", "selective", "full"), ("none", "full"), ("selective",)),
    "recompute_modules": ((), ("core_attn", "moe"), MODULES),
    "recompute_layers": (False, True),
    "offload": ((), ("activations",), ("optimizer",), ("activations", "optimizer")),
    "offload_alone": (False, True),
    "offloads_checkpoints": (False, True),
    "checkpoint_offload_stages": ((0, 1, 2, 3), (3,)),
    "offloads_recurrences": (False, True),
    "overlap_expert_of_hybrids": (False, True),
    "offloads_adam_alone": (False, True),
    "narrow_moment_stages": ((0, 1, 2, 3), (1, 2, 3)),
    "fp8_stages": ((0, 1, 2, 3), (3,)),
    "tensor_alone": (False, True),
    "ties_in_pipeline": (False, True),
    "running_balance": (False, True),
}
"""Fields that decide what is legal."""
SELECTIVE = [
    (("layernorm", "mlp_act", "moe_act", "mla_up_proj"),),
    (
        ("core_attn",),
        ("layernorm",),
        ("layernorm", "moe_act"),
        ("mlp",),
        ("mlp", "mlp_act", "moe"),
        ("shared_experts",),
    ),
    (("alternate_mm",), ("alternate_mm", "mlp"), ("mlp",)),
    (("grouped_mm",), ("alternate_mm", "grouped_mm", "moe_act"), ("grouped_mm", "moe")),
]


def _stack(rng: np.random.Generator) -> Stack:
    """A stack as it is, with its switches set anyhow, or with any values of its fields."""
    stack = catalogue.stack("generic") if chance(rng, 0.2) else pick(rng, _stacks())
    kind = pick(rng, ("as it is", "switched", "replaced", "replaced"))
    if kind == "as it is":
        return stack
    if kind == "switched":
        return _with_switches(rng, stack)
    fields = {
        name: pick(rng, values)
        for table, share in ((_SWITCHED, 0.35), (_OFFERED, 0.12))
        for name, values in table.items()
        if chance(rng, share)
    }
    if chance(rng, 0.2):
        fields["selective"] = pick(rng, SELECTIVE)
    return replace(stack, **fields)


def _with_switches(rng: np.random.Generator, stack: Stack) -> Stack:
    """Another value, of those that the framework has, for some of its switches."""
    found = {}
    for switch in switches_of(stack):
        values = [setting.value for setting in switch.settings]
        if values and chance(rng, 0.3):
            found[switch.field] = pick(rng, values)
    return changed(stack, found)


# -- clusters


def _cluster(rng: np.random.Generator, chip: Chip, size: int) -> Cluster:
    """As the data sheet or a preset has it, or with links that are made up."""
    if chance(rng, 0.05):
        chip = replace(chip, devices_per_chip=2)
    cluster = Cluster(chip=chip, fabric=chip.fabric, num_chips=size)
    kind = pick(rng, ("data sheet", "preset", "changed", "made up", "made up"))
    if kind == "preset":
        own = [fabric for fabric in _fabrics() if catalogue.fabric_chip(fabric.id) == chip.id]
        return replace(cluster, fabric=pick(rng, own)) if own else cluster
    if kind == "changed":
        return _changed(rng, cluster)
    if kind == "made up":
        return _made_up_torus(rng, cluster) if cluster.is_torus else _made_up_levels(rng, cluster)
    return cluster


@cache
def _fabrics() -> tuple[Fabric, ...]:
    return tuple(dict.fromkeys(catalogue.fabrics().values()))


def _changed(rng: np.random.Generator, cluster: Cluster) -> Cluster:
    """With links of other speeds, domains of another size, or part of the chips of each."""
    up, out = (10 ** rng.uniform(-1.5, 1.0) for _ in range(2))
    cluster = cluster.with_changes(scale_up=up, scale_out=out)
    domain = cluster.fabric.domain
    if domain is None:
        return cluster
    if chance(rng, 0.5):
        return cluster.with_changes(domain=pick(rng, (2, 3, 4, 6, 12, 16, 32, 72)))
    some = int(rng.integers(1, min(domain, cluster.num_chips) + 1))
    return replace(cluster, chips_per_domain=some)


def _made_up_levels(rng: np.random.Generator, cluster: Cluster) -> Cluster:
    """One to four nested levels of any speeds and sizes, that need not divide each other; perhaps
    without switches inside, and perhaps just as large as the cluster."""
    sizes = sorted(rng.choice([2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 72, 256], 3, replace=False))
    sizes = [int(size) for size in sizes[: int(rng.integers(0, 4))]]
    last = cluster.num_chips if chance(rng, 0.3) else None
    sizes = [size for size in sizes if last is None or size < last]
    ups = int(rng.integers(1, 3))
    levels = []
    for index, size in enumerate([*sizes, last]):
        speed = float(10 ** rng.uniform(0.5, 3.0))
        meshed = size is not None and chance(rng, 0.3 if index == 0 else 0.1)
        levels.append(
            Level(
                name=f"level {index}",
                gb_s_per_chip=speed,
                size=size,
                scale="up" if index < ups else "out",
                peer_gb_s=speed / pick(rng, (1, 3, 7)) if meshed else None,
            )
        )
    fabric = replace(cluster.fabric, levels=tuple(levels))
    return replace(cluster, fabric=fabric)


def _made_up_torus(rng: np.random.Generator, cluster: Cluster) -> Cluster:
    """A torus of any shape, of which several slices may be joined."""
    torus = cluster.fabric.torus
    assert torus is not None
    lengths = [d for d in divisors(cluster.num_chips) if d <= 32]
    shape: tuple[int, ...] | None = tuple(pick(rng, lengths) for _ in range(torus.ndim))
    if cluster.num_chips % math.prod(shape or ()):
        shape = None
    torus = replace(
        torus,
        max_chips=10**6,
        wrap=pick(rng, ("cubes", "length")),
        wrap_length=pick(rng, (2, 4, 8, 16)),
        gb_s_per_link=torus.gb_s_per_link * 10 ** rng.uniform(-1.0, 0.5),
    )
    levels = [Level(name="network", gb_s_per_chip=10 ** rng.uniform(0.3, 2.0))]
    if chance(rng, 0.3):
        joined = math.prod(shape or (64,)) * pick(rng, (2, 3, 4))
        scale: Literal["up", "out"] = "up" if chance(rng, 0.5) else "out"
        levels.insert(0, Level(name="pod", gb_s_per_chip=100.0, size=joined, scale=scale))
    fabric = replace(cluster.fabric, torus=torus, levels=tuple(levels))
    return replace(cluster, fabric=fabric, torus_shape=shape)


# -- architectures


def _architecture(rng: np.random.Generator) -> Architecture:
    """Of the catalogue, as it is or changed, or made up."""
    kind = pick(rng, ("catalogue", "changed", "made up", "made up"))
    if kind == "made up":
        return _made_up_architecture(rng)
    model = pick(rng, _models())
    if kind == "catalogue":
        return model
    model = model.with_depth_scaled(pick(rng, (0.2, 0.5, 1.0, 1.5)))
    return replace(model, tie_word_embeddings=chance(rng, 0.5), mtp_layers=pick(rng, (0, 1, 2)))


def _made_up_architecture(rng: np.random.Generator) -> Architecture:
    """One to three kinds of layers that follow each other, take turns, or are mixed."""
    layers = pick(rng, (1, 2, 3, 4, 6, 8, 12, 16, 24, 27, 30, 32, 36, 40, 48, 60, 61, 64, 96, 126))
    hidden = pick(rng, (256, 512, 1024, 1536, 2048, 2880, 4096, 5120, 7168, 8192, 12288, 16384))
    kinds = _kinds(rng, hidden, pick(rng, (1, 1, 2, 3)))
    arrangement = pick(rng, ("in a row", "in turns", "mixed"))
    if arrangement == "in a row":
        order = np.sort(rng.integers(0, len(kinds), layers))
    elif arrangement == "in turns":
        turn = np.repeat(np.arange(len(kinds)), rng.integers(1, 5, len(kinds)))
        order = np.resize(turn, layers)
    else:
        order = rng.integers(0, len(kinds), layers)
    return Architecture(
        name="made up",
        hidden_size=hidden,
        vocab_size=pick(rng, (1000, 32000, 50257, 128256, 151936)),
        layers=tuple(kinds[int(kind)] for kind in order),
        tie_word_embeddings=chance(rng, 0.25),
        mtp_layers=pick(rng, (0, 0, 0, 1, 2)),
        learned_positions=pick(rng, (0, 0, 2048)),
        lm_head_bias=chance(rng, 0.2),
        final_norm_bias=chance(rng, 0.2),
    )


def _kinds(rng: np.random.Generator, hidden: int, count: int) -> list[Layer]:
    """So many layers that mostly have heads in common. All or none have latents."""
    attends = _latent_attention if chance(rng, 0.25) else _attention
    attention = attends(rng)
    dense = Mlp(intermediate_size=_width(rng), gated=chance(rng, 0.7), bias=chance(rng, 0.2))
    kinds = []
    for _ in range(count):
        own = attends(rng) if chance(rng, 0.1) else _windowed(rng, attention)
        sparse = chance(rng, 0.5)
        norms = pick(rng, (1, 2, 2, 2, 4))
        kinds.append(
            Layer(
                attention=own,
                feed_forward=_mixture(rng, hidden) if sparse else dense,
                num_norms=norms,
                post_norms=norms == 2 and chance(rng, 0.15),
                norm_bias=chance(rng, 0.15),
                parallel=chance(rng, 0.6 if norms == 1 else 0.05),
            )
        )
    return kinds


def _width(rng: np.random.Generator) -> int:
    return pick(rng, (512, 1024, 1536, 2048, 2816, 2832, 4096, 8192, 11008, 14336, 28672, 49152))


def _attention(rng: np.random.Generator) -> Attention:
    heads = pick(rng, (4, 8, 12, 16, 32, 40, 64, 96, 128))
    bias = chance(rng, 0.25)
    dim = pick(rng, (64, 80, 96, 128, 128, 192, 256))
    return Attention(
        num_attention_heads=heads,
        num_key_value_heads=pick(rng, divisors(heads)),
        head_dim=dim,
        v_head_dim=dim,
        attention_bias=bias,
        attention_output_bias=bias and chance(rng, 0.5),
        qk_norm=chance(rng, 0.3),
        qk_norm_all_heads=chance(rng, 0.2),
        sinks=chance(rng, 0.2),
    )


def _latent_attention(rng: np.random.Generator) -> Attention:
    heads = pick(rng, (8, 16, 32, 40, 64, 128))
    rope = pick(rng, (32, 64))
    return Attention(
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=rope + pick(rng, (64, 128)),
        v_head_dim=pick(rng, (64, 128, 192)),
        q_lora_rank=pick(rng, (None, 384, 1536)),
        kv_lora_rank=pick(rng, (256, 512)),
        qk_rope_head_dim=rope,
        attention_bias=chance(rng, 0.25),
    )


def _newer(rng: np.random.Generator, layer: Layer, hidden: int) -> Layer:
    """A recurrence in place of attention or beside it, attention over chosen or pooled keys, gates,
    a latent of experts, or only one of mixer and network."""
    if chance(rng, 0.3) and layer.moe:
        latent = pick(rng, (128, hidden // 2))
        return replace(layer, feed_forward=replace(layer.moe, latent_size=latent))
    only = {"num_norms": 1, "parallel": False, "post_norms": False}
    attention = layer.attention
    choice = pick(rng, ("recurrence", "beside", "chosen", "pooled", "mixer", "network", "as it is"))
    if choice == "recurrence":
        return replace(layer, attention=None, recurrence=_recurrence(rng))
    if choice == "beside":
        return replace(layer, recurrence=_recurrence(rng))
    if choice == "mixer":
        return replace(layer, feed_forward=None, **only)
    if choice == "network":
        return replace(layer, attention=None, **only)
    if attention is None or choice == "as it is":
        return layer
    indexer = Indexer(
        num_heads=pick(rng, (4, 64)), head_dim=128, top_k=pick(rng, (256, 2048)),
        weighs_heads=chance(rng, 0.5), norm_parameters=256,
    )  # fmt: skip
    if choice == "chosen":
        return replace(layer, attention=replace(attention, indexer=indexer, output_gate="element"))
    pooled = replace(
        attention,
        q_lora_rank=attention.q_lora_rank or 384,
        sliding_window=attention.sliding_window or 128,
        compression=Compression(rate=pick(rng, (4, 128)), overlap=chance(rng, 0.5)),
        indexer=indexer if chance(rng, 0.5) else None,
    )
    return replace(layer, attention=pooled)


def _recurrence(rng: np.random.Generator) -> Recurrence:
    heads = pick(rng, (8, 16, 32, 64))
    shape = {
        "num_heads": heads,
        "num_key_heads": heads // pick(rng, (1, 2, 4)),
        "value_head_dim": 64,
    }
    if chance(rng, 0.3):
        lightning = LightningAttention(**shape, key_head_dim=64)
        return pick(rng, (lightning, ShortConvolution.of(heads * 64, conv_kernel=3)))
    if chance(rng, 0.5):
        return Mamba2(**shape, key_head_dim=pick(rng, (16, 128)), conv_kernel=4)
    rank = pick(rng, (None, 128))
    return DeltaNet(
        **shape,
        key_head_dim=128,
        conv_kernel=4,
        decay_per_element=rank is not None,
        decay_rank=rank,
        gate_rank=rank,
    )


def _windowed(rng: np.random.Generator, attention: Attention) -> Attention:
    """The same with a window, in half of all cases."""
    window = pick(rng, (None, None, None, 128, 1024, 4096))
    return replace(
        attention, sliding_window=window, chunked_attention=window is not None and chance(rng, 0.3)
    )


def _mixture(rng: np.random.Generator, hidden: int) -> Moe:
    experts = pick(rng, (2, 4, 8, 16, 24, 60, 64, 128, 256, 384))
    groups = pick(rng, [d for d in divisors(experts) if d <= 8]) if chance(rng, 0.4) else 1
    chosen_groups = int(rng.integers(1, groups + 1))
    within_reach = experts // groups * chosen_groups
    return Moe(
        num_experts=experts,
        experts_per_token=min(pick(rng, (1, 2, 4, 6, 8)), within_reach),
        intermediate_size=pick(rng, (256, 512, 768, 1408, 1536, 2048, 4096, hidden)),
        shared_expert_intermediate_size=pick(rng, (0, 0, 512, 1408, 2048)),
        gated=chance(rng, 0.8),
        bias=chance(rng, 0.2),
        router_bias=chance(rng, 0.2),
        shared_gate=chance(rng, 0.2),
        selection_bias=chance(rng, 0.2),
        num_groups=groups,
        groups_per_token=chosen_groups,
    )


# -- small problems

_UNUSUAL: list[dict[str, Any]] = [
    {},
    {"tie_word_embeddings": True},
    {"mtp_layers": 1},
    {"num_norms": 1},
    {"intermediate_size": 2832},  # an odd number of blocks of 16
    {"sliding_window": 512, "full_attention_period": 2},
    {"hybrid": True},
    {
        "mla": MlaShape(
            kv_lora_rank=256,
            q_lora_rank=384,
            qk_nope_head_dim=64,
            qk_rope_head_dim=32,
            v_head_dim=64,
        )
    },
]
"""What else may tell a model from Llama."""
_GPU = ["megatron", "torchtitan", "deepspeed", "generic", "nanotron"]
_STACKS_OF_CHIP = {
    "h100-sxm-80gb": [*_GPU, "deepseek"],
    "a100-sxm-40gb": _GPU,
    "mi300x": _GPU,
    "pvc-tile-64gb": ["torchtitan", "deepspeed", "fsdp", "generic"],
    "tpu-v5p": ["maxtext", "generic"],
}


def small_model(
    *,
    sparse: bool,
    layers: int,
    intermediate_size: int = 2816,
    hybrid: bool = False,
    **unusual: Any,
) -> Architecture:
    """A hybrid has Mamba-2 in every second layer, and attention over chosen keys in the others."""
    moe = MoeShape(
        num_experts=4,
        experts_per_token=2,
        num_groups=2,
        groups_per_token=1,
        moe_intermediate_size=512,
        first_k_dense=1,
    )
    model = Architecture.from_shape(
        name="small", num_layers=layers, hidden_size=1024, intermediate_size=intermediate_size,
        num_attention_heads=8, num_key_value_heads=4, vocab_size=32000, moe=moe if sparse else None,
        **unusual,
    )  # fmt: skip
    if not hybrid:
        return model
    mamba = Mamba2(num_heads=16, num_key_heads=4, key_head_dim=64, value_head_dim=64, conv_kernel=4)
    indexer = Indexer(num_heads=4, head_dim=64, top_k=256)
    newer = [
        replace(layer, attention=None, recurrence=mamba)
        if index % 2 == 0 or layer.attention is None
        else replace(layer, attention=replace(layer.attention, indexer=indexer))
        for index, layer in enumerate(model.layers)
    ]
    return replace(model, layers=tuple(newer))


def small_problem(choose: Choose) -> Problem:
    """A problem of a small model on few chips, each choice made by `choose`."""
    chip = choose(list(_STACKS_OF_CHIP))
    chips = choose([1, 2, 3, 4, 6, 8, 12, 16] if chip != "tpu-v5p" else [1, 2, 4, 6, 8, 12, 16])
    sparse, stack = choose([False, True]), choose(_STACKS_OF_CHIP[chip])
    cluster = catalogue.cluster(chip, chips)
    if choose([False, True]):
        cluster = _any_levels(choose, cluster)
    return Problem(
        architecture=small_model(sparse=sparse, layers=choose([3, 4, 6]), **choose(_UNUSUAL)),
        cluster=with_host(cluster, choose([None, 0.05, 0.5, 5.0])),
        workload=Workload(
            seq_len=choose([1024, 4096, 32768]),
            global_batch=choose([4, 6, 16, 48]),
            load_balancing=choose(["none", "global_batch_loss"]),
            precision=choose(["bf16", "fp8"] if chip in ("h100-sxm-80gb", "mi300x") else ["bf16"]),
        ),
        stack=replace(
            catalogue.stack(stack),
            max_virtual_stages=2,
            keeps_logits=choose([False, True]),
            keeps_operands=choose([False, True]),
            whole_blocks=choose([False, True]),
            recomputes_last=choose([False, True]),
            loss_chunks=choose([1, 8]),
            shards=choose(["in_place", "flat", "each"]),
            selective=choose(SELECTIVE),
            recompute_layers=choose([False, True]),
            whole_gradients=choose([False, True]),
            overlap_zero1=choose([False, True]),
        ),
    )


def _any_levels(choose: Choose, cluster: Cluster) -> Cluster:
    """Nested levels of any speeds: what a caller describes need not slow down outwards. Or a torus
    of any shape."""
    chips = cluster.num_chips
    if cluster.fabric.torus is not None:
        torus = replace(cluster.fabric.torus, wrap_length=choose([2, 4]))
        shapes = [
            s
            for s in product([1, 2, 4, 8], repeat=3)
            if chips % np.prod(s) == 0 and 2 * np.prod(s) >= chips / 3
        ]
        shape = choose(shapes)
        return replace(cluster, fabric=replace(cluster.fabric, torus=torus), torus_shape=shape)
    levels = tuple(
        Level(name=name, gb_s_per_chip=choose([20.0, 60.0, 450.0]), size=size)
        for name, size in (("inner", 2), ("middle", 4), ("outer", None))
    )
    return replace(cluster, fabric=replace(cluster.fabric, levels=levels))


def with_host(cluster: Cluster, gb: float | None) -> Cluster:
    return replace(cluster, chip=replace(cluster.chip, host_memory_gb=gb))
