"""Models whose layers are not all attention and a network, as patterns of letters
(megatron/core/models/hybrid/hybrid_layer_allocation.py).

Each letter is one mixer or one network: a layer with both is two letters, `*-` or `ME`. `|` ends a
chunk of the pipeline, in the order of the model, and `/` begins a module of multi-token prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from models.spec.architecture import Architecture
from models.spec.layer import Layer
from models.spec.recurrence import DeltaNet, Mamba2
from service.formats.launch.job import Inexpressible, UnknownLayers

MAMBA = "M"
DELTA_NET = "G"
ATTENTION = "*"
LATENT = "+"
SPARSE = "D"
MLP = "-"
EXPERTS = "E"
CHUNK, PREDICTION = "|", "/"


def has_pattern(model: Architecture) -> bool:
    """Returns True where Megatron needs a layer pattern for the model: it is a hybrid, or has
    delta nets beside sparse attention, of which experimental_attention_variant names only one."""
    has_nets = any(isinstance(recurrence, DeltaNet) for recurrence in model.recurrences)
    return model.is_hybrid or (
        has_nets and any(attention.is_sparse for attention in model.attentions)
    )


def pattern_arguments(model: Architecture, chunks: Sequence[int]) -> dict[str, Any]:
    """Returns the arguments that give the kind of each layer by letters: {"num_layers": 4,
    "hybrid_layer_pattern": "M-M-|*-M-"}. `chunks` has the number of layers in each pipeline
    chunk."""
    letters = {kind: _letters_of_layer(model, kind) for kind in model.kinds}
    parts = []
    start = 0
    for count in chunks:
        layers = model.layers[start : start + count]
        parts.append("".join(letters[layer] for layer in layers))
        start += count
    # A module of multi-token prediction has a layer like the last. Each letter counts as a layer.
    modules = [letters[model.layers[-1]]] * model.mtp_layers
    return {
        "num_layers": sum(map(len, parts)),
        "hybrid_layer_pattern": PREDICTION.join([CHUNK.join(parts), *modules]),
    }


def num_letters(model: Architecture, layers: int) -> int:
    """Returns the number of letters that stand for the first `layers` layers of a chunk in a
    pattern, as --recompute-num-layers counts them: one for the mixer of a layer and one for its
    network. Raises Inexpressible where layers have different numbers of letters."""
    counts = {kind.blocks for kind in model.kinds}
    if len(counts) > 1 and layers:
        cure = "the layers of a chunk have as many letters in a pattern each; ask with 0"
        raise Inexpressible("layout.recompute_layers", layers, cure)
    return layers * counts.pop()


def _letters_of_layer(model: Architecture, layer: Layer) -> str:
    """Returns the letters of a layer in a pattern, "*-" for attention and an MLP. Raises
    UnknownLayers for a layer with attention and a recurrence."""
    if len(layer.mixers) > 1:
        supported = "a layer of Megatron-Core has attention or a recurrence, not both side by side"
        raise UnknownLayers("model.layers", model.name, supported)
    return _mixer_letter(layer) + _network_letter(layer)


def _mixer_letter(layer: Layer) -> str:
    """Returns the letter of a layer's attention or recurrence in a pattern; "" where it has
    neither."""
    if attention := layer.attention:
        usual = LATENT if attention.is_mla else ATTENTION
        return SPARSE if attention.is_sparse else usual
    if layer.recurrence:
        return MAMBA if isinstance(layer.recurrence, Mamba2) else DELTA_NET
    return ""


def _network_letter(layer: Layer) -> str:
    """Returns the letter of a layer's feed-forward network in a pattern; "" where it has none."""
    if layer.feed_forward is None:
        return ""
    return EXPERTS if layer.moe else MLP
