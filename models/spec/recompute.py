"""Recompute: the part of forward that backward computes again instead of keeping it.

A policy recomputes nothing, some modules of every layer ("selective"), or whole layers ("full"):
all of a pipeline stage's chunk, or its first few. Modules have the names of Megatron-Core's
`--recompute-modules` (megatron/core/transformer/transformer_config.py), with five more. `mlp_act`
is the activation function of a dense MLP. `alternate_mm` is every second matrix product outside the
experts, and `grouped_mm` the products of experts; torchtitan's operator-level policy does not save
these two (torchtitan/distributed/activation_checkpoint.py). `out_proj` is the output projection of
attention, and `mlp_gate` one of the two up-projections of a gated MLP; MaxText's policies name the
tensors that they put out (maxtext layers/nnx_decoders.py). In arrays, a policy is one number, its
code, with a bit for every module. What a module computes differs between layers, so costs go by
*pieces* of a layer's forward (PIECES).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from models.spec.layer import Layer

RECOMPUTE = ("none", "selective", "full")
Module = Literal[
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
MODULES: tuple[str, ...] = get_args(Module)
NONE = 0
STACK_SELECTIVE = 1 << len(MODULES)
"""The code of selective recompute of the modules that the stack takes unless told otherwise."""
FULL = 2 * STACK_SELECTIVE

PIECES = (
    "norm",
    "dense_act",
    "expert_act",
    "attention",
    "up",
    "keys",
    "output",
    "dense",
    "dense_half",
    "experts",
    "grouped",
)
"""The pieces of a layer's forward that can be computed again by themselves.

`up` are the up-projections of MLA. `keys` is the projection of keys, and `output` that of the
output, with the residual stream behind it. These three are parts of attention. `dense_half` are the
products of an MLP that `alternate_mm` does not save, which for a gated MLP is its second
up-projection. `grouped` are the products of experts, with their sorted tokens where these come from
no other device. `experts` is the rest of what brings tokens to experts and back.
"""
LAST = "last"
"""The last product of a dense feed-forward network. Compilers leave it out of recompute where
backward does not need its result."""
_INPUTS = "inputs"
"""The inputs that tensor parallelism gathers for the products that `alternate_mm` does not save.
They are traffic without work."""


def policy_code(recompute: str, modules: Collection[str] = ()) -> int:
    """Return the code of a recompute policy, given its name and, for selective recompute, its
    modules. Without modules that is STACK_SELECTIVE, which stands for the stack's own modules."""
    if recompute == "selective" and modules:
        return sum(1 << MODULES.index(name) for name in set(modules))
    return {"none": NONE, "selective": STACK_SELECTIVE, "full": FULL}[recompute]


def decode_policy(code: int) -> tuple[str, tuple[str, ...]]:
    """Return the name of the recompute policy with this code ("none", "selective" or "full"), and
    its modules. No modules with "selective" stand for those that the stack takes by itself."""
    if code in (NONE, STACK_SELECTIVE, FULL):
        return {NONE: "none", STACK_SELECTIVE: "selective", FULL: "full"}[code], ()
    return "selective", tuple(name for bit, name in enumerate(MODULES) if code >> bit & 1)


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The part of a layer that is computed again: the whole of it, or some pieces, by their names
    in PIECES."""

    whole: bool
    pieces: frozenset[str]
    skips_last: bool = False
    """The last product of a dense network is not computed again (Stack.skips_last_product)."""
    unsent_share: float = 0.0
    """The share of forward's tensor-parallel traffic that the skipped last product would have
    brought."""

    @property
    def tensor(self) -> float:
        """The share of forward's tensor-parallel traffic that recompute repeats.

        In forward the mixer and the feed-forward network each gather their input and scatter their
        output: four messages, of a quarter each. Recompute of the network repeats its two messages,
        and recompute of its gate projection only the gather. Recompute of attention's output
        projection repeats the scatter behind it. Recompute of `alternate_mm` repeats both gathers
        but no scatter, since the results of reduce_scatter_tensor are saved
        (torchtitan/distributed/activation_checkpoint.py).
        """
        if self.whole:
            return 1.0 - self.unsent_share
        gathered = 0.25 if self.pieces & {"dense", "dense_half", "experts"} else 0.0
        if _INPUTS in self.pieces:  # `alternate_mm`: a quarter each of mixer and network
            gathered = 0.5
        scattered = 0.25 if self.pieces & {"dense", "experts"} else 0.0
        if "output" in self.pieces and _INPUTS not in self.pieces:
            scattered += 0.25
        # No more is saved than the quarter that `scattered` has for the network, even in a parallel
        # layer, where the skipped product would bring half of the traffic.
        unsent = min(self.unsent_share, 0.25) if "dense" in self.pieces else 0.0
        return gathered + scattered - unsent

    @property
    def context(self) -> float:
        """The share of forward's context-parallel traffic that recompute repeats."""
        return 1.0 if self.whole or "attention" in self.pieces else 0.0

    @property
    def expert(self) -> float:
        """The share of forward's expert-parallel traffic that recompute repeats."""
        return 1.0 if self.whole or "experts" in self.pieces else 0.0


def recomputed(policy: int, layer: Layer) -> Recomputed:
    """Return the part of a layer that a recompute policy, given by its code, repeats. The caller
    must have replaced STACK_SELECTIVE by the stack's modules (Stack.recomputed does)."""
    pieces: set[str] = set()
    _, modules = decode_policy(policy)
    for module in modules:
        pieces |= _pieces(module, layer)
    return Recomputed(policy == FULL, frozenset(pieces))


def _pieces(module: str, layer: Layer) -> set[str]:
    """Return the pieces of a layer's forward (PIECES) that recompute of a module repeats; none
    where the layer lacks the module. For example, "mlp_act" of a dense layer is {"dense_act"}.
    Costs go by pieces, because what a module computes differs between layers.
    """
    # "dense_half" is the second up-projection of a gated MLP.
    dense = {"dense", "dense_half", "dense_act"} if layer.dense else set()
    if module in ("mlp", "shared_experts", "moe"):
        # Only dense layers have "mlp", and only sparse layers have the other two.
        has_module = (layer.moe is None) == (module == "mlp")
        if not has_module:
            return set()
        return dense if module != "moe" else {*dense, "experts", "grouped", "expert_act"}
    if module == "grouped_mm":
        return {"grouped"} if layer.moe else set()
    if module == "moe_act":
        return {"expert_act"} if layer.moe else set()
    if module == "mlp_act":
        return {"dense_act"} if layer.dense else set()
    if module == "mla_up_proj":
        return {"up"} if layer.attention and layer.attention.is_mla else set()
    if module == "alternate_mm":
        # The products that are not saved, and the tensor-parallel inputs of those.
        is_mla = layer.attention and layer.attention.is_mla
        of_attention = {"up"} if is_mla else {"keys", "output"}
        return of_attention | {_INPUTS} | ({"dense_half"} if layer.dense else set())
    if module == "core_attn":
        return {"attention"} if layer.attention else set()
    if module == "out_proj":
        return {"output"} if layer.attention else set()
    if module == "mlp_gate":
        return {"dense_half"} if layer.dense and layer.dense.gated else set()
    return {"norm"}  # "layernorm"
