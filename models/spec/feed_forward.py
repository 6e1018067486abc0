"""The part of a layer that mixes the channels of each token: a dense network, or experts.

Some models project a token to a *latent* of fewer elements before its experts, and back after them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """A dense feed-forward block: gated (SwiGLU, GeGLU; three matrices) or plain (two)."""

    intermediate_size: int
    gated: bool = True
    bias: bool = False
    learned_activation: bool = False
    """The activation has two parameters (xIELU, arXiv 2411.13010)."""

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2

    def parameters(self, hidden_size: int) -> int:
        # The down projection puts out a token; up, and gate if there is one, the intermediate size.
        bias = hidden_size + (self.matrices - 1) * self.intermediate_size if self.bias else 0
        activation = 2 if self.learned_activation else 0  # the two parameters of xIELU
        return self.matrices * hidden_size * self.intermediate_size + bias + activation


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """A mixture of experts: a router, `num_experts` routed experts, and a shared expert that every
    token visits, where it has a size."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    """The intermediate size of each routed expert."""
    shared_expert_intermediate_size: int = 0
    """The intermediate size of the shared expert; 0 where there is none."""
    gated: bool = True
    bias: bool = False
    """Every expert has biases."""
    router_bias: bool = False
    shared_gate: bool = False
    """The output of the shared expert is multiplied with a gate that the token gives."""
    selection_bias: bool = False
    """The router adds a bias for each expert when it selects experts: DeepSeek's balancing without
    an auxiliary loss. The bias is updated by a rule, not by a gradient. Checkpoints carry it and
    `transformers` counts it as a buffer, so it is not counted as a parameter."""
    selection_bias_is_parameter: bool = False
    """The bias of the selection counts as a parameter, because `transformers` counts it in this
    model."""
    router_scales: bool = False
    """The router's input is scaled element by element, and the output of each expert is scaled too
    (Gemma 4)."""
    num_groups: int = 1
    """Groups that the experts are divided into, each of the same number of experts in a row
    (DeepSeek-V2, arXiv 2405.04434 §2.2.2)."""
    groups_per_token: int = 1
    """The most groups that the experts of one token come from."""
    latent_size: int | None = None
    """Elements of a token as experts read it. Tokens are projected to this size before they are
    sent to experts, and back afterwards (latent experts, arXiv 2601.18089). None stands for experts
    that read the stream itself."""
    latent_norm: bool = False
    """The output of experts is normalised before it is projected back."""
    zero_experts: int = 0
    """Experts that compute nothing, which the router chooses among as well (LongCat-Flash, arXiv
    2509.01322 §2.1). `experts_per_token` counts only experts that compute."""

    @property
    def expert(self) -> Mlp:
        return Mlp(intermediate_size=self.intermediate_size, gated=self.gated, bias=self.bias)

    @property
    def shared(self) -> Mlp | None:
        size = self.shared_expert_intermediate_size
        return Mlp(intermediate_size=size, gated=self.gated, bias=self.bias) if size else None

    def token_size(self, hidden_size: int) -> int:
        """Return the elements of a token as experts read and write it: those of a latent where
        tokens are projected to one first."""
        return hidden_size if self.latent_size is None else self.latent_size

    def expert_parameters(self, hidden_size: int) -> int:
        """Return the parameters of all routed experts."""
        return self.num_experts * self.expert.parameters(self.token_size(hidden_size))

    def replicated_parameters(self, hidden_size: int) -> int:
        """Return the parameters that every tensor-parallel rank has whole: the router, and the
        projections to the latent and back."""
        latent = self.latent_size or 0
        # The router also scores the experts that compute nothing (`zero_experts`).
        return hidden_size * (self.num_experts + self.zero_experts + 2 * latent)

    def parameters(self, hidden_size: int) -> int:
        """Return all parameters: routed experts, router, latent projections, gates, and the shared
        expert."""
        total = self.expert_parameters(hidden_size) + self.replicated_parameters(hidden_size)
        total += self.token_size(hidden_size) if self.latent_norm else 0
        total += self.num_experts if self.router_bias else 0
        total += self.num_experts if self.selection_bias_is_parameter else 0
        # A scale for each element of the router's input, and one for each expert's output.
        total += hidden_size + self.num_experts if self.router_scales else 0
        total += hidden_size if self.shared_gate else 0
        return total + (self.shared.parameters(hidden_size) if self.shared else 0)
