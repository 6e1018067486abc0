"""Low-rank adapters: fine-tuning that leaves the model's own weights as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from models.errors import Invalid
from models.spec.layer import Layer
from models.spec.projection import Projection

Target = Literal["attention", "mlp", "experts"]
MAX_RANK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """LoRA (arXiv 2106.09685): beside each chosen matrix two of `rank` elements between them are
    trained, and everything else is frozen. Biases, norms, embedding and head are not trained."""

    rank: int = 16
    targets: tuple[Target, ...] = ("attention", "mlp", "experts")
    """The matrices that have adapters: those of the mixers, of dense networks and shared experts,
    and of routed experts."""
    base_bits: Literal[4, 8, 16] = 16
    """Of a frozen weight in memory: 4 and 8 are converted to 16 wherever a layer runs (QLoRA, arXiv
    2305.14314)."""

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= MAX_RANK:
            rule = f"must be between 1 and {MAX_RANK}"
            raise Invalid("workload.lora.rank", self.rank, rule)
        if not self.targets or not set(self.targets) <= set(get_args(Target)):
            rule = f"must be some of {', '.join(get_args(Target))}"
            raise Invalid("workload.lora.targets", list(self.targets), rule)
        if self.base_bits not in (4, 8, 16):
            raise Invalid("workload.lora.base_bits", self.base_bits, "must be 4, 8 or 16")

    def matrices(self, layer: Layer, hidden_size: int) -> Iterator[Projection]:
        """The matrices outside routed experts that have adapters."""
        if "attention" in self.targets:
            yield from layer.projections(hidden_size)
        if "mlp" in self.targets and layer.dense:
            width, matrices = layer.dense.intermediate_size, layer.dense.matrices
            yield Projection("up", hidden_size, (matrices - 1) * width, "columns")
            yield Projection("down", width, hidden_size, "rows")

    def parameters(self, layer: Layer, hidden_size: int) -> int:
        """Trained parameters outside routed experts."""
        matrices = self.matrices(layer, hidden_size)
        return sum(self.rank * (each.n_in + each.n_out) for each in matrices)

    def expert_parameters(self, layer: Layer, hidden_size: int) -> int:
        """Trained parameters of all routed experts."""
        if layer.moe is None or "experts" not in self.targets:
            return 0
        width, tokens = layer.moe.intermediate_size, layer.moe.token_size(hidden_size)
        up = tokens + (layer.moe.expert.matrices - 1) * width
        return layer.moe.num_experts * self.rank * (up + width + tokens)
