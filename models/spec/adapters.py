"""Low-rank adapters: fine-tuning that leaves the model's own weights as they are.

A layer's weight matrices are given as projections (models.spec.projection). The functions yield
those beside which adapters are trained, and count the adapters' parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from models.errors import Invalid
from models.spec.feed_forward import Mlp
from models.spec.layer import Layer
from models.spec.projection import Projection

Target = Literal["attention", "mlp", "experts"]
Module = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BaseBits = Literal[2, 3, 4, 8, 16]
MAX_RANK = 4096  # the largest that a request may have; trained adapters have tens or hundreds
_OF_ATTENTION: tuple[Module, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
_MODULES_OF_MIXERS: Mapping[str, tuple[Module, ...]] = {
    "q": ("q_proj",),
    "k": ("k_proj",),
    "v": ("v_proj",),
    "kv": ("k_proj", "v_proj"),
    "o": ("o_proj",),
}
"""The modules of transformers that each matrix of a mixer corresponds to, by the name of the
matrix; "kv" joins two of them. Matrices that are not listed, such as those of latents, match no
module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """LoRA (arXiv 2106.09685) trains two low-rank matrices beside each chosen one, with `rank`
    elements between them, and freezes everything else. Biases, norms, embedding and head are not
    trained."""

    rank: int = 16
    targets: tuple[Target, ...] = ("attention", "mlp", "experts")
    """The groups of matrices that have adapters: "attention" has those of the mixers, "mlp" those
    of dense networks and shared experts, "experts" those of routed experts."""
    modules: tuple[Module, ...] = ()
    """The modules of these groups that have adapters, one each, by their names in transformers.
    Where none are named, every matrix has one, which keys and values share, and gate and up
    projections."""
    base_bits: BaseBits = 16
    """Bits of a frozen weight in memory. Weights of fewer than 16 bits are converted to 16 wherever
    a layer runs (QLoRA, arXiv 2305.14314)."""

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= MAX_RANK:
            rule = f"must be between 1 and {MAX_RANK}"
            raise Invalid("workload.lora.rank", self.rank, rule)
        if not self.targets or not set(self.targets) <= set(get_args(Target)):
            rule = f"must be some of {', '.join(get_args(Target))}"
            raise Invalid("workload.lora.targets", list(self.targets), rule)
        if not set(self.modules) <= set(get_args(Module)):
            rule = f"must be some of {', '.join(get_args(Module))}"
            raise Invalid("workload.lora.modules", list(self.modules), rule)
        for module in self.modules:
            groups = ("attention",) if module in _OF_ATTENTION else ("mlp", "experts")
            if not set(groups) & set(self.targets):
                rule = f"{module} belongs to {' or '.join(groups)}, which targets does not have"
                raise Invalid("workload.lora.modules", list(self.modules), rule)
        if self.base_bits not in get_args(BaseBits):
            *fewer, most = get_args(BaseBits)
            rule = f"must be {', '.join(map(str, fewer))} or {most}"
            raise Invalid("workload.lora.base_bits", self.base_bits, rule)

    def matrices(self, layer: Layer, hidden_size: int) -> Iterator[Projection]:
        """Yield the matrices outside routed experts that have adapters. If modules are named, these
        are the matrices that correspond to one of them."""
        if "attention" in self.targets:
            for matrix in layer.projections(hidden_size):
                modules = _MODULES_OF_MIXERS.get(matrix.name, ())
                yield from self._matrices_with_adapters(matrix, modules)
        if "mlp" in self.targets and layer.dense:
            yield from self._mlp_matrices(layer.dense, hidden_size)

    def expert_matrices(self, layer: Layer, hidden_size: int) -> Iterator[Projection]:
        """Yield the matrices of each routed expert that have adapters."""
        if layer.moe and "experts" in self.targets:
            yield from self._mlp_matrices(layer.moe.expert, layer.moe.token_size(hidden_size))

    def parameters(self, layer: Layer, hidden_size: int) -> int:
        """Return the number of trained parameters outside routed experts."""
        return self._adapter_parameters(self.matrices(layer, hidden_size))

    def expert_parameters(self, layer: Layer, hidden_size: int) -> int:
        """Return the number of trained parameters in all routed experts."""
        experts = layer.moe.num_experts if layer.moe else 0
        return experts * self._adapter_parameters(self.expert_matrices(layer, hidden_size))

    def _adapter_parameters(self, matrices: Iterable[Projection]) -> int:
        """Return the parameters of the adapters of these matrices: two factors each, of n_in · rank
        and rank · n_out elements."""
        return sum(self.rank * (matrix.n_in + matrix.n_out) for matrix in matrices)

    def _mlp_matrices(self, mlp: Mlp, token_size: int) -> Iterator[Projection]:
        """Yield the matrices of a feed-forward network that have adapters. The gate and up
        projections of a gated one read the same input and count as one matrix unless modules are
        named."""
        width = mlp.intermediate_size
        # All matrices but one, the down projection, read the token: up, and gate if there is one.
        up = Projection("up", token_size, (mlp.matrices - 1) * width, "columns")
        down = Projection("down", width, token_size, "rows")
        up_modules: tuple[Module, ...] = ("gate_proj", "up_proj") if mlp.gated else ("up_proj",)
        yield from self._matrices_with_adapters(up, up_modules)
        yield from self._matrices_with_adapters(down, ("down_proj",))

    def _matrices_with_adapters(
        self, matrix: Projection, modules: Sequence[Module]
    ) -> Iterator[Projection]:
        """Yield the matrix itself if `self.modules` is empty, because every matrix then has an
        adapter. Otherwise yield each of the matrix's `modules` that is named there, with an equal
        share of the outputs: "kv" becomes "k_proj" and "v_proj"."""
        if not self.modules:
            yield matrix
        for module in modules:
            if module in self.modules:
                yield matrix._replace(name=module, n_out=matrix.n_out // len(modules))
