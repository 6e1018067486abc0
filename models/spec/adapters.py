"""Low-rank adapters: fine-tuning that leaves the model's own weights as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from models.errors import Invalid
from models.spec.feed_forward import Mlp
from models.spec.layer import Layer
from models.spec.projection import Projection

Target = Literal["attention", "mlp", "experts"]
BaseBits = Literal[2, 3, 4, 8, 16]
MAX_RANK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """LoRA (arXiv 2106.09685): beside each chosen matrix two of `rank` elements between them are
    trained, and everything else is frozen. Biases, norms, embedding and head are not trained."""

    rank: int = 16
    targets: tuple[Target, ...] = ("attention", "mlp", "experts")
    """The matrices that have adapters: those of the mixers, of dense networks and shared experts,
    and of routed experts."""
    base_bits: BaseBits = 16
    """Of a frozen weight in memory: fewer than 16 are converted to 16 wherever a layer runs (QLoRA,
    arXiv 2305.14314)."""

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= MAX_RANK:
            rule = f"must be between 1 and {MAX_RANK}"
            raise Invalid("workload.lora.rank", self.rank, rule)
        if not self.targets or not set(self.targets) <= set(get_args(Target)):
            rule = f"must be some of {', '.join(get_args(Target))}"
            raise Invalid("workload.lora.targets", list(self.targets), rule)
        if self.base_bits not in get_args(BaseBits):
            *fewer, most = get_args(BaseBits)
            rule = f"must be {', '.join(map(str, fewer))} or {most}"
            raise Invalid("workload.lora.base_bits", self.base_bits, rule)

    def matrices(self, layer: Layer, hidden_size: int) -> Iterator[Projection]:
        """The matrices outside routed experts that have adapters."""
        if "attention" in self.targets:
            yield from layer.projections(hidden_size)
        if "mlp" in self.targets and layer.dense:
            yield from _network(layer.dense, hidden_size)

    def expert_matrices(self, layer: Layer, hidden_size: int) -> Iterator[Projection]:
        """The matrices of each routed expert that have adapters."""
        if layer.moe and "experts" in self.targets:
            yield from _network(layer.moe.expert, layer.moe.token_size(hidden_size))

    def parameters(self, layer: Layer, hidden_size: int) -> int:
        """Trained parameters outside routed experts."""
        return self._parameters_beside(self.matrices(layer, hidden_size))

    def expert_parameters(self, layer: Layer, hidden_size: int) -> int:
        """Trained parameters of all routed experts."""
        experts = layer.moe.num_experts if layer.moe else 0
        return experts * self._parameters_beside(self.expert_matrices(layer, hidden_size))

    def _parameters_beside(self, matrices: Iterable[Projection]) -> int:
        return sum(self.rank * (each.n_in + each.n_out) for each in matrices)


def _network(mlp: Mlp, token_size: int) -> Iterator[Projection]:
    """The matrices of a network, those that read the token as one."""
    width = mlp.intermediate_size
    yield Projection("up", token_size, (mlp.matrices - 1) * width, "columns")
    yield Projection("down", width, token_size, "rows")
