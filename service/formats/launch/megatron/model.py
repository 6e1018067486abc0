"""A model in the arguments of Megatron-Core, by name. The writers of Megatron and of
Megatron-Bridge say them in their own spelling.

`model.kinds` are the distinct layers of a model. `supported` is what Megatron does make, for the
error about what it does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from models.spec.architecture import Architecture
from models.spec.feed_forward import Mlp, Moe
from service.formats.launch.job import Job, UnknownLayers
from service.formats.launch.megatron.mixers import mixer_arguments
from service.formats.launch.megatron.patterns import has_pattern, pattern_arguments

_VOCABULARY_DIVISORS = (128, 64, 32, 16, 8, 4, 2)


def model_arguments(job: Job) -> dict[str, Any]:
    """Returns the arguments that make the model of a job, by name: {"num_layers": 32, …}. Raises
    UnknownLayers or Inexpressible where Megatron-Core cannot make it."""
    model = job.problem.architecture
    mixers = mixer_arguments(model)
    dense, moe = _feed_forward(model)
    gated = all(network.gated for network in (dense, moe) if network)
    _require_plain_layers(model)
    arguments: dict[str, Any] = {
        **_layer_arguments(job),
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": _dense_width(dense, moe),
        **mixers,
        "swiglu": gated,
        # Of the two norms only LayerNorm has a bias.
        "normalization": "LayerNorm" if model.layers[0].norm_bias else "RMSNorm",
        **_bias_arguments(model),
        "untie_embeddings_and_output_weights": not model.tie_word_embeddings,
        "position_embedding_type": _position_embedding_type(job),
        **_window_arguments(model),
        **_vocabulary_arguments(model, job.layout.tp),
        "attention_dropout": 0.0,  # Megatron has 0.1 unless told otherwise
        "hidden_dropout": 0.0,
    }
    if not gated and job.details.activation == "relu2":
        arguments["squared_relu"] = True
    if moe:
        arguments |= _expert_arguments(model, moe)
    if model.mtp_layers:
        arguments["mtp_num_layers"] = model.mtp_layers
    return arguments


def _layer_arguments(job: Job) -> dict[str, Any]:
    """Returns the arguments of the number of layers, and of where recurrent ones stand."""
    model = job.problem.architecture
    if has_pattern(model):
        chunks = job.layers_per_chunk
        has_one_stage = job.layout.pp == 1
        # Without a pipeline the pattern has no | between chunks.
        return pattern_arguments(model, [sum(chunks)] if has_one_stage else chunks)
    # Recurrences without a pattern are gated delta nets, as Mamba-2 makes a model a hybrid.
    is_recurrent = [layer.recurrence is not None for layer in model.layers]
    if not any(is_recurrent):
        return {"num_layers": model.num_layers}
    return {
        "num_layers": model.num_layers,
        "experimental_attention_variant": "gated_delta_net",
        "linear_attention_freq": _attention_period(is_recurrent) or list_expression(is_recurrent),
    }


def _attention_period(is_recurrent: Sequence[bool]) -> int | None:
    """Returns the period that linear_attention_freq takes: 4 where every fourth layer has
    attention and the others are recurrent. None where layers with attention stand irregularly."""
    # The first layer with attention ends the first period.
    period = is_recurrent.index(False) + 1 if False in is_recurrent else 0
    if period < 2:
        return None
    expected = [(index + 1) % period > 0 for index in range(len(is_recurrent))]
    return period if list(is_recurrent) == expected else None


def _position_embedding_type(job: Job) -> str:
    if job.problem.architecture.learned_positions:
        return "learned_absolute"
    return "rope" if job.details.has_positions else "none"


def model_notes(model: Architecture, tp: int) -> Iterator[str]:
    """Yields notes on how the model that Megatron makes differs from the one asked for."""
    if model.vocab_size % tp:
        padded = -(-model.vocab_size // tp) * tp
        yield f"The vocabulary of {model.vocab_size} is padded to {padded}, a multiple of tp({tp})."
    networks = [layer.feed_forward for layer in model.kinds if layer.feed_forward]
    biases = {attention.attention_output_bias for attention in model.attentions} | {
        network.bias for network in networks
    }
    if biases == {True, False}:
        yield (
            "The model has biases in some of its linear layers, and the model that Megatron-Core"
            " makes has them in all: it can leave them out only everywhere, or everywhere but in"
            " the projections of queries, keys and values."
        )


def _require_plain_layers(model: Architecture) -> None:
    """Raises UnknownLayers for layers with mixers side by side, several residual streams, more
    norms, or parallel blocks, which no argument of Megatron makes."""
    for layer in model.kinds:
        if len(layer.mixers) > 1:
            supported = (
                "a layer of Megatron-Core has attention or a recurrence, not both side by side"
            )
            raise UnknownLayers("model.layers", model.name, supported)
        if layer.residual_streams > 1 or layer.attention_residuals:
            supported = "there is one residual stream"
            raise UnknownLayers("model.residual_streams", layer.residual_streams, supported)
        # `blocks` is 2 for a layer with a mixer and a network, 1 with one of them alone.
        if layer.num_norms != layer.blocks or layer.post_norms:
            supported = (
                "a layer has a norm before its mixer and one before its network, and no others"
            )
            raise UnknownLayers("model.num_norms", layer.num_norms, supported)
        if layer.parallel:
            supported = "the MLP runs behind attention, not beside it"
            raise UnknownLayers("model.parallel_blocks", True, supported)


def _feed_forward(model: Architecture) -> tuple[Mlp | None, Moe | None]:
    """Returns the MLP of dense layers and the experts of sparse ones, None where there are none.
    Raises UnknownLayers where layers of one kind differ."""
    networks = {layer.feed_forward for layer in model.kinds}
    dense = [network for network in networks if isinstance(network, Mlp)]
    sparse = [network for network in networks if isinstance(network, Moe)]
    gates = {mlp.gated for mlp in dense} | {mlp.gated for mlp in sparse}
    if len(dense) > 1 or len(sparse) > 1 or len(gates) > 1:
        supported = "dense layers are alike, and sparse layers are, all gated or none"
        raise UnknownLayers("model", model.name, supported)
    return next(iter(dense), None), next(iter(sparse), None)


def _dense_width(dense: Mlp | None, moe: Moe | None) -> int:
    """Returns the value of ffn_hidden_size: the width of dense networks, or else of experts; 0
    where the model has neither."""
    if dense:
        return dense.intermediate_size
    return moe.intermediate_size if moe else 0


def has_biases(model: Architecture) -> bool:
    """Returns True where linear layers beyond the projections of queries, keys and values have
    biases."""
    networks = any(kind.feed_forward and kind.feed_forward.bias for kind in model.kinds)
    return networks or any(attention.attention_output_bias for attention in model.attentions)


def _bias_arguments(model: Architecture) -> dict[str, Any]:
    """Returns the arguments for biases: in all linear layers, only in the projections of queries,
    keys and values, or nowhere."""
    if has_biases(model):
        return {"add_bias_linear": True}
    of_queries = any(attention.attention_bias for attention in model.attentions)
    return {"add_bias_linear": False, "add_qkv_bias": of_queries}


def _window_arguments(model: Architecture) -> dict[str, Any]:
    """Returns the arguments of sliding-window attention. Raises UnknownLayers where windows have
    several sizes, or attention is chunked."""
    sizes = {size for attention in model.attentions if (size := attention.sliding_window)}
    if not sizes:
        return {}
    if len(sizes) > 1 or any(attention.chunked_attention for attention in model.attentions):
        supported = "layers have one sliding window or none, and no chunks"
        raise UnknownLayers("model.sliding_window", model.name, supported)
    # Megatron counts keys to the left and to the right of a query, without the query's own.
    arguments: dict[str, Any] = {"window_size": [sizes.pop() - 1, 0]}
    if has_pattern(model):
        if any(attention.sliding_window is None for attention in model.attentions):
            supported = "beside layers of another kind, all attention has a window or none has"
            raise UnknownLayers("model.sliding_window", model.name, supported)
        return arguments
    has_window = [
        bool(layer.attention and layer.attention.sliding_window) for layer in model.layers
    ]
    if not all(has_window):
        arguments["window_attn_skip_freq"] = list_expression(has_window)
    return arguments


def _vocabulary_arguments(model: Architecture, tp: int) -> dict[str, int]:
    """Returns the size of the vocabulary, and the largest divisor to pad it by that adds no
    padding."""
    divisors = (count for count in _VOCABULARY_DIVISORS if model.vocab_size % (count * tp) == 0)
    divisor = next(divisors, 1)
    return {"vocab_size": model.vocab_size, "make_vocab_size_divisible_by": divisor}


def _expert_arguments(model: Architecture, moe: Moe) -> dict[str, Any]:
    """Returns the arguments of the experts in sparse layers. Raises UnknownLayers for norms or
    scales that Megatron's experts do not have."""
    if moe.latent_norm or moe.router_scales:
        supported = "experts read tokens, or a latent of them, without further norms or scales"
        raise UnknownLayers("model.moe", model.name, supported)
    arguments: dict[str, Any] = {
        "num_experts": moe.num_experts,
        "moe_router_topk": moe.experts_per_token,
        "moe_ffn_hidden_size": moe.intermediate_size,
    }
    sparse = [layer.moe is not None for layer in model.layers]
    if not all(sparse) and not has_pattern(model):
        arguments["moe_layer_freq"] = list_expression(sparse)
    if moe.shared_expert_intermediate_size:
        arguments["moe_shared_expert_intermediate_size"] = moe.shared_expert_intermediate_size
    if moe.shared_gate:
        arguments["moe_shared_expert_gate"] = True
    if moe.latent_size:
        arguments["moe_latent_size"] = moe.latent_size
    if moe.groups_per_token < moe.num_groups:  # else groups of experts limit no choice
        arguments["moe_router_num_groups"] = moe.num_groups
        arguments["moe_router_group_topk"] = moe.groups_per_token
    return arguments


def list_expression(switches: Sequence[bool]) -> str:
    """Returns a switch for each layer as the Python expression that Megatron reads:
    "([0]*3+[1]*58)", or "([1,0])*12" where they alternate."""
    for period in range(2, len(switches) // 2 + 1):
        start = list(switches[:period])
        # A start of equal switches is a run, which the last lines write.
        times, remainder = divmod(len(switches), period)
        if not remainder and start * times == list(switches) and len(set(start)) > 1:
            digits = ",".join(str(int(switch)) for switch in start)
            return f"([{digits}])*{times}"
    runs = [f"[{int(switch)}]*{len(list(run))}" for switch, run in groupby(switches)]
    return f"({'+'.join(runs)})"
