"""A layer of a model, as callers give it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from models.errors import Invalid
from models.spec.architecture import MAX_LAYERS
from models.spec.feed_forward import Mlp, Moe
from models.spec.layer import Layer
from service.json_pointers import prefix_errors
from service.schemas.mixers import AttentionFields, RecurrenceForm
from service.schemas.networks import LayerMoeFields, MlpFields
from service.schemas.wire import Wire

Layers = Annotated[int, Field(ge=1, le=MAX_LAYERS)]


class LayerFields(Wire):
    """A layer: what mixes tokens (`attention`, a `recurrence`, or both side by side), and then a
    network (`mlp` or `moe`). It may have only one of the two."""

    attention: AttentionFields | None = None
    recurrence: RecurrenceForm | None = None
    """A state-space model or linear attention, by its `kind`."""
    mlp: MlpFields | None = None
    """A network that every token visits."""
    moe: LayerMoeFields | None = None
    """Experts, with or without a shared one."""
    num_norms: Annotated[int, Field(ge=0, le=8)] | None = None
    """On the residual stream. Unless given, one before the mixer and one before the network; 4 with
    one after each too."""
    post_norms: bool = False
    """Norms stand only after mixer and network (OLMo 2)."""
    norm_weight: bool = True
    norm_bias: bool = False
    """The norms have a bias, as LayerNorm has."""
    parallel_blocks: bool | None = None
    """Mixer and network run side by side; unless said, where a layer with both has one norm."""
    attention_residuals: bool = False
    """Mixer and network read a weighted sum of what groups of layers before put out (Kimi K3)."""

    def build(self, hidden_size: int, residual_streams: int) -> Layer:
        """Returns the layer. `residual_streams` is the model's number of parallel residual streams.
        Raises Invalid where fields contradict each other."""
        layer = self._build_blocks(hidden_size)
        num_norms = layer.blocks if self.num_norms is None else self.num_norms
        parallel = self.parallel_blocks
        if parallel is None:
            # A mixer and a network behind one norm read the same input, and so run in parallel.
            parallel = layer.blocks == 2 and num_norms == 1
        elif parallel and layer.blocks < 2:
            raise Invalid("parallel_blocks", True, "needs a mixer and a network: leave it out")
        return replace(
            layer,
            num_norms=num_norms,
            post_norms=self.post_norms,
            norm_weight=self.norm_weight,
            norm_bias=self.norm_bias,
            parallel=parallel,
            attention_residuals=self.attention_residuals,
            residual_streams=residual_streams,
        )

    def _build_blocks(self, hidden_size: int) -> Layer:
        """Returns the layer with its mixers and its network, and all other fields at their
        defaults. Raises Invalid for an empty layer, and where there is both an MLP and experts."""
        if self.mlp and self.moe:
            rule = (
                "is there beside mlp: leave one out; an MLP that every token visits beside experts"
                " is moe.shared_expert_intermediate_size"
            )
            raise Invalid("moe", None, rule)
        attention = recurrence = None
        network: Mlp | Moe | None = None
        if self.attention:
            with prefix_errors("attention"):
                attention = self.attention.build(hidden_size)
        if self.recurrence:
            with prefix_errors("recurrence"):
                recurrence = self.recurrence.build()
        if self.mlp:
            network = self.mlp.build()
        if self.moe:
            with prefix_errors("moe"):
                network = self.moe.build()
        layer = Layer(attention=attention, recurrence=recurrence, feed_forward=network)
        if not layer.blocks:
            # "" is the layer itself: the caller puts its place in front.
            raise Invalid("", None, "is empty: give attention, recurrence, mlp or moe")
        return layer


class LayerGroup(LayerFields):
    """A layer, and how many of it are in a row."""

    count: Layers = 1
    """Number of such layers in a row."""
