"""The facts of a layer, from its specification.

Facts are the numbers of a layer that the cost model's compiled functions read
(models.cost.facts.LayerFacts). A *mixer* is the layer's attention or its recurrence. A *product* is
a matrix product of the layer, which may be several projections at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from models.columns import Array
from models.cost.facts import MAX_PRODUCTS, LayerFacts
from models.spec.adapters import Lora
from models.spec.attention import Attention
from models.spec.feed_forward import Moe
from models.spec.layer import Layer
from models.spec.projection import Projection, parameters_of
from models.spec.recurrence import Recurrence


class _Product(NamedTuple):
    """Holds the columns of a product, which models.cost.facts explains at ROWS_LOCAL."""

    rows_local: bool = False
    inputs: int = 0
    outputs: int = 0
    cut_inputs: bool = False
    cut_outputs: bool = False
    kv_outputs: int = 0
    groups: int = 1
    is_up: bool = False


_EMPTY_LAYER = LayerFacts(*[0.0] * len(LayerFacts._fields))  # type: ignore[arg-type]
"""A layer without anything. Fields that a layer does not have are 0 or false."""


def layer_facts(
    layer: Layer, count: float, hidden: int, seq_len: float, lora: Lora | None, skips_last: bool
) -> LayerFacts:
    """Return the facts of a kind of layer, of which the model has `count`, MTP layers included.
    `seq_len` is the number of tokens that attend to each other. `skips_last` is true where
    recompute leaves out the layer's last product."""
    dense = layer.dense
    expert_parameters = layer.moe.expert_parameters(hidden) if layer.moe else 0
    muon_dense, muon_expert = layer.orthogonalisation_flops(hidden)
    products = _products(layer, hidden)
    return _EMPTY_LAYER._replace(
        num_layers=count,
        trains_weights=lora is None and layer.gradients == "weights",
        has_backward=layer.gradients != "none",
        blocks=layer.blocks,
        products=np.pad(products, ((0, MAX_PRODUCTS - len(products)), (0, 0))),
        num_products=len(products),
        **_attention(layer.attention, hidden, seq_len),
        **_recurrence(layer.recurrence, hidden),
        dense_width=dense.intermediate_size if dense else 0,
        dense_matrices=dense.matrices if dense else 0,
        gated=layer.feed_forward.gated if layer.feed_forward else False,
        parallel=layer.parallel,
        num_norms=layer.num_norms,
        skips_last_product=skips_last,
        **_experts(layer.moe, hidden),
        dense_parameters=layer.parameters(hidden) - expert_parameters,
        expert_parameters=expert_parameters,
        kv_parameters=_kv_parameters(layer, hidden),
        replicated_parameters=layer.replicated_parameters(hidden),
        largest_matrix=_largest_matrix(layer, hidden),
        **_training(lora, layer, hidden),
        muon_dense_flops=muon_dense,
        muon_expert_flops=muon_expert,
    )


def _experts(moe: Moe | None, hidden: int) -> dict[str, Any]:
    """Return the fields of LayerFacts about routed experts. A layer without them gets one group of
    one expert, since formulas divide by these numbers."""
    if moe is None:
        return {"num_experts": 1, "num_groups": 1, "groups_per_token": 1}
    return {
        "sparse": True,
        "num_experts": moe.num_experts,
        "experts_per_token": moe.experts_per_token,
        "expert_width": moe.intermediate_size,
        "expert_input": moe.token_size(hidden),
        "expert_matrices": moe.expert.matrices,
        "expert_bias": moe.bias,
        "num_groups": moe.num_groups,
        "groups_per_token": moe.groups_per_token,
    }


def _training(lora: Lora | None, layer: Layer, hidden: int) -> dict[str, Any]:
    """Return the fields of LayerFacts about trained parameters and adapters: all parameters of a
    layer that trains its weights, those of its adapters under LoRA, and none of a frozen layer. An
    adapter reads the inputs of the matrix that it adapts, and reads and writes its outputs."""
    if lora is None and layer.gradients != "weights":
        return {}
    if lora is None:
        expert = layer.moe.expert_parameters(hidden) if layer.moe else 0
        return {
            "trained_dense": layer.parameters(hidden) - expert,
            "trained_expert": expert,
        }
    matrices = list(lora.matrices(layer, hidden))
    of_expert = list(lora.expert_matrices(layer, hidden))
    return {
        "trained_dense": lora.parameters(layer, hidden),
        "trained_expert": lora.expert_parameters(layer, hidden),
        "adapter_elements": sum(matrix.n_in + 2 * matrix.n_out for matrix in matrices),
        "expert_adapter_elements": sum(matrix.n_in + 2 * matrix.n_out for matrix in of_expert),
        "adapters": len(matrices) + len(of_expert),
    }


def _kv_parameters(layer: Layer, hidden: int) -> int:
    """Return the parameters of the projections to key-value heads. They are counted apart because
    tensor parallelism repeats these heads where there are fewer of them than ranks."""
    return parameters_of(
        projection for projection in layer.projections(hidden) if projection.cut == "kv"
    )


def _largest_matrix(layer: Layer, hidden: int) -> int:
    """Return the elements of the largest matrix outside routed experts, which some stacks gather by
    itself under FSDP; one row of the hidden size for a layer without any."""
    matrices = [projection.parameters for projection in layer.projections(hidden)]
    if layer.dense:
        matrices.append(hidden * layer.dense.intermediate_size)
    return max(matrices, default=hidden)


def _products(layer: Layer, hidden: int) -> Array:
    """Return the matrix products of a layer's mixers, (products, columns), with the fields of
    _Product as columns. Fused projections of a mixer, such as queries, keys and values, are one
    product. Projections to the latent of experts and back come last."""
    rows: list[_Product] = []
    for mixer in layer.mixers:
        projections = mixer.projections(hidden)
        fused = [projection for projection in projections if projection.fused]
        if fused:
            outputs = sum(projection.n_out for projection in fused if projection.cut == "columns")
            kv = sum(projection.n_out for projection in fused if projection.cut == "kv")
            rows.append(_Product(inputs=hidden, outputs=outputs, cut_outputs=True, kv_outputs=kv))
        rows += [_product(projection) for projection in projections if not projection.fused]
    if layer.moe and layer.moe.latent_size:
        latent = layer.moe.latent_size
        rows.append(_product(Projection("latent_down", hidden, latent, "whole")))
        rows.append(_product(Projection("latent_up", latent, hidden, "whole")))
    return np.array(rows, dtype=float).reshape(-1, len(_Product._fields))


def _product(projection: Projection) -> _Product:
    """Return the row of a projection that is not fused with others. Its `cut` says what tensor
    parallelism divides: its inputs ("rows"), its outputs ("columns") or neither ("whole")."""
    return _Product(
        rows_local=projection.cut == "whole",  # Ranks have it whole, each for its own tokens.
        inputs=projection.n_in,
        outputs=projection.n_out,
        cut_inputs=projection.cut == "rows",
        cut_outputs=projection.cut == "columns",
        groups=projection.groups,
        is_up=projection.name in ("q_up", "kv_up"),
    )


def _attention(attention: Attention | None, hidden: int, seq_len: float) -> dict[str, Any]:
    """Return the fields of LayerFacts about attention. A layer without it gets one key-value head,
    since formulas divide by that number."""
    if attention is None:
        return {"num_key_value_heads": 1.0}
    indexer = attention.indexer
    scored = attention.mean_scored_keys(seq_len)
    # The results of the indexer and of pooling. Latents, which "_down" gives, count apart.
    index_elements = sum(
        projection.n_out
        for projection in attention.projections(hidden)
        if projection.cut == "whole" and not projection.name.endswith("_down")
    )
    score_dims = attention.head_dim + attention.v_head_dim
    # Context parallelism passes on pooled keys, or latents, beside the indexer's keys.
    passed_keys = attention.kv_dim if attention.compression else 0
    if indexer and attention.kv_lora_rank:
        # Sparse attention over MLA reads chosen keys as latents, which all heads share: a key is a
        # latent with its rotary part, and the value the latent again.
        score_dims = 2 * attention.kv_lora_rank + attention.qk_rope_head_dim
        passed_keys = attention.kv_lora_rank + attention.qk_rope_head_dim
    if indexer and not indexer.shared:
        passed_keys += indexer.head_dim
    return {
        "attends": True,
        "num_attention_heads": attention.num_attention_heads,
        "num_key_value_heads": attention.num_key_value_heads,
        "head_dim": attention.head_dim,
        "v_head_dim": attention.v_head_dim,
        "kv_dim": attention.kv_dim,
        "mla": attention.is_mla,
        "q_lora_rank": attention.q_lora_rank or 0,
        "kv_lora_rank": attention.kv_lora_rank or 0,
        "qk_rope_head_dim": attention.qk_rope_head_dim,
        "sliding_window": attention.sliding_window or 0,
        "mean_keys": attention.mean_keys(seq_len),
        "score_dims": score_dims,
        "gate": attention.gate_size,
        "chooses_keys": attention.is_sparse,
        "scored_keys": scored,
        "scoring_flops": 2 * scored * indexer.num_heads * indexer.head_dim if indexer else 0,
        "chosen_keys": min(indexer.top_k, seq_len) if indexer else 0,
        "index_elements": index_elements,
        "passed_keys": passed_keys,
    }


def _recurrence(recurrence: Recurrence | None, hidden: int) -> dict[str, Any]:
    """Return the fields of LayerFacts about linear attention and state-space models; none for a
    layer without either."""
    if recurrence is None:
        return {}
    # Elements of a token that projections give to the recurrence.
    entered = sum(
        projection.n_out
        for projection in recurrence.projections(hidden)
        if projection.cut == "columns" and projection.name != "out"
    )
    return {
        "recurs": True,
        "recurrence_flops": recurrence.flops,
        "recurrence_traffic": recurrence.kernel_traffic,
        "recurrence_light": recurrence.elementwise_traffic,
        "recurrence_kept": entered + recurrence.kept_elements,
        "recurrence_exchanged": entered + recurrence.value_elements,
    }
