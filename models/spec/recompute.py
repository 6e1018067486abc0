"""What backward computes again instead of keeping it from forward.

Nothing, some modules of every layer, or layers as a whole; of those all, or the first few of each
chunk of layers. Modules have the names of Megatron-Core's `--recompute-modules`
(megatron/core/transformer/transformer_config.py); `mlp_act` is the activation function of a dense
MLP, and `alternate_mm` every second matrix product outside the experts, which torchtitan's
operator-level policy does not save (torchtitan/distributed/activation_checkpoint.py). A policy is
one number in arrays: a bit for every module.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from models.spec.architecture import Layer

RECOMPUTE = ("none", "selective", "full")
MODULES = (
    "layernorm", "mlp_act", "moe_act", "core_attn", "mla_up_proj", "mlp", "shared_experts", "moe",
    "alternate_mm",
)  # fmt: skip
NONE = 0
STACK_SELECTIVE = 1 << len(
    MODULES
)  # selective, of the modules that the stack takes unless told otherwise
FULL = 2 * STACK_SELECTIVE

PIECES = (
    "norm",
    "dense_act",
    "expert_act",
    "attention",
    "up",
    "ends",
    "dense",
    "dense_half",
    "experts",
)
"""What a layer's forward consists of where it can be computed again by itself: `up` and `ends` are
projections of attention (of MLA; of keys and of the output), `dense_half` the products of an MLP
that `alternate_mm` leaves out."""
LAST = "last"
"""The last product of a dense feed-forward network, which compilers leave out where nothing of
backward needs it."""
_INPUTS = "inputs"
"""What tensor parallelism gathers for the products that `alternate_mm` leaves out: traffic, and no
work."""


def policy_code(recompute: str, modules: Collection[str] = ()) -> int:
    """The number of a policy."""
    if recompute == "selective" and modules:
        return sum(1 << MODULES.index(name) for name in set(modules))
    return {"none": NONE, "selective": STACK_SELECTIVE, "full": FULL}[recompute]


def decode_policy(number: int) -> tuple[str, tuple[str, ...]]:
    """Its name, and the modules where they are not the stack's own."""
    if number in (NONE, STACK_SELECTIVE, FULL):
        return {NONE: "none", STACK_SELECTIVE: "selective", FULL: "full"}[number], ()
    return "selective", tuple(name for bit, name in enumerate(MODULES) if number >> bit & 1)


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What of a layer is done again: all of it, or some pieces. `skips_last`: less the last product
    of a dense network (Problem.leaves_last), which would bring `unsent_share` of forward's
    tensor-parallel traffic."""

    whole: bool
    pieces: frozenset[str]
    skips_last: bool = False
    unsent_share: float = 0.0

    @property
    def tensor(self) -> float:
        """Of forward's tensor-parallel traffic: each of two blocks gathers and scatters. That of
        one goes with the feed-forward network; products of `alternate_mm` gather again what they
        read in both, of which nothing is scattered again
        (torchtitan/distributed/activation_checkpoint.py saves what reduce_scatter_tensor gave)."""
        if self.whole:
            return 1.0 - self.unsent_share
        network = bool(self.pieces & {"dense", "experts"})
        gathered = 0.5 if _INPUTS in self.pieces else 0.25 * network
        return gathered + 0.25 * network - ("dense" in self.pieces) * min(self.unsent_share, 0.25)

    @property
    def context(self) -> float:
        return 1.0 if self.whole or "attention" in self.pieces else 0.0

    @property
    def expert(self) -> float:
        return 1.0 if self.whole or "experts" in self.pieces else 0.0


def recomputed(number: int, layer: Layer) -> Recomputed:
    """By a policy with its modules named."""
    pieces: set[str] = set()
    for module in decode_policy(number)[1]:
        pieces |= _pieces(module, layer)
    return Recomputed(number == FULL, frozenset(pieces))


def _pieces(module: str, layer: Layer) -> set[str]:
    dense = {"dense", "dense_half", "dense_act"} if layer.dense else set()
    if module in ("mlp", "shared_experts", "moe"):
        if (module == "mlp") == (layer.moe is not None):
            return set()
        return dense | {"experts", "expert_act"} if module == "moe" else dense
    if module == "moe_act":
        return {"expert_act"} if layer.moe else set()
    if module == "mlp_act":
        return {"dense_act"} if layer.dense else set()
    if module == "mla_up_proj":
        return {"up"} if layer.attention.is_mla else set()
    if module == "alternate_mm":
        up_or_ends = "up" if layer.attention.is_mla else "ends"
        return {up_or_ends, _INPUTS, *({"dense_half"} if layer.dense else ())}
    return {"layernorm": {"norm"}, "core_attn": {"attention"}}[module]
