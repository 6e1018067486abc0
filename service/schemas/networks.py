"""The networks that mix the channels of each token, as callers give them: an MLP, or experts.
`build` makes the value that the models compute with (models.spec)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from models.errors import Invalid
from models.spec.feed_forward import Mlp, Moe
from service.schemas.common_fields import common_fields
from service.schemas.wire import Size, Wire

Experts = Annotated[int, Field(ge=1, le=65536)]


class MlpFields(Wire):
    """A dense network."""

    intermediate_size: Size
    gated: bool = True
    """SwiGLU and the like: three matrices, not two."""
    bias: bool = False
    learned_activation: bool = False
    """The activation has two parameters (xIELU)."""

    def build(self) -> Mlp:
        return Mlp(**dict(self))


class ExpertFields(Wire):
    """The shape of experts, in every form of a model."""

    num_experts: Annotated[int, Field(ge=2, le=65536)]
    experts_per_token: Experts
    moe_intermediate_size: Size
    num_shared_experts: Annotated[int, Field(ge=0, le=1024)] = 0
    shared_expert_intermediate_size: Size | None = None
    """Width of the shared expert where it is not `num_shared_experts` times that of a routed
    one."""
    bias: bool = False
    """The router and every expert have a bias, as in gpt-oss."""
    num_groups: Annotated[int, Field(ge=1, le=1024)] = 1
    """Groups of experts; a token's are of `groups_per_token` of them, as DeepSeek-V3's are of 4 of
    8."""
    groups_per_token: Annotated[int, Field(ge=1, le=1024)] | None = None
    """All of them unless given."""

    def require_reach(self) -> None:
        """Raises Invalid where a token has more experts than the groups hold from which it may
        choose them, or where the groups do not divide the experts."""
        # The last check finds this too, but its reason names groups, which the caller may not have.
        if self.experts_per_token > self.num_experts:
            rule = f"must be at most num_experts = {self.num_experts}"
            raise Invalid("experts_per_token", self.experts_per_token, rule)
        if self.num_experts % self.num_groups:
            rule = f"must divide num_experts = {self.num_experts}"
            raise Invalid("num_groups", self.num_groups, rule)
        chosen = self.num_groups if self.groups_per_token is None else self.groups_per_token
        if chosen > self.num_groups:
            rule = f"must be at most num_groups = {self.num_groups}"
            raise Invalid("groups_per_token", chosen, rule)
        reach = chosen * (self.num_experts // self.num_groups)
        if self.experts_per_token > reach:
            rule = f"must be at most the {reach} experts of groups_per_token = {chosen} groups"
            raise Invalid("experts_per_token", self.experts_per_token, rule)


class MoeFields(ExpertFields):
    """Experts. The first `first_k_dense` layers are dense; from there every `moe_layer_freq`-th
    layer is sparse."""

    first_k_dense: Annotated[int, Field(ge=0, le=1024)] = 0
    moe_layer_freq: Annotated[int, Field(ge=1, le=1024)] = 1


class LayerMoeFields(ExpertFields):
    """The experts of one layer."""

    gated: bool = True
    """SwiGLU and the like: three matrices an expert, not two."""
    router_bias: bool | None = None
    """The router has a bias, where it is not as `bias` says."""
    shared_gate: bool = False
    """The output of the shared expert is multiplied with a gate (Qwen2-MoE)."""
    selection_bias: bool = False
    """Experts are balanced by a bias, without a loss (DeepSeek-V3)."""
    selection_bias_is_parameter: bool = False
    """And that bias counts as a parameter."""
    router_scales: bool = False
    """The router's input and each expert's output are scaled (Gemma 4)."""
    latent_size: Size | None = None
    """Elements of a token as experts read it, where it is projected to a latent before."""
    latent_norm: bool = False
    """The output of experts is normalised before it is projected back."""
    zero_experts: Annotated[int, Field(ge=0, le=65536)] = 0
    """Experts beside these that compute nothing, among which the router chooses too
    (LongCat-Flash). `experts_per_token` counts those that compute."""

    def build(self) -> Moe:
        """Returns the experts of the layer. Raises Invalid where fields contradict each other."""
        shared = self._shared_size
        self._require_consistent(shared)
        groups = self.num_groups
        # All other fields have the same name and value in both classes.
        converted = {
            "intermediate_size": self.moe_intermediate_size,
            "shared_expert_intermediate_size": shared,
            "router_bias": self.bias if self.router_bias is None else self.router_bias,
            "groups_per_token": groups if self.groups_per_token is None else self.groups_per_token,
        }
        return Moe(**common_fields(self, LayerMoeFields, Moe) | converted)

    @property
    def _shared_size(self) -> int:
        """Returns the intermediate size of all shared experts together; 0 without any."""
        if self.shared_expert_intermediate_size is not None:
            return self.shared_expert_intermediate_size
        return self.num_shared_experts * self.moe_intermediate_size

    def _require_consistent(self, shared_size: int) -> None:
        """Raises Invalid where the numbers of experts and groups contradict each other, or a field
        lacks another one that it needs. `shared_size` is the intermediate size of the shared
        experts."""
        self.require_reach()
        if self.shared_gate and not shared_size:
            rule = "needs a shared expert: give shared_expert_intermediate_size too"
            raise Invalid("shared_gate", True, rule)
        if self.latent_norm and self.latent_size is None:
            raise Invalid("latent_norm", True, "needs latent_size: give it too")
        if self.selection_bias_is_parameter and not self.selection_bias:
            rule = "needs selection_bias: set it too"
            raise Invalid("selection_bias_is_parameter", True, rule)
