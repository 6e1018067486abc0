"""Reads details of a model that change neither time nor memory, but that a framework must know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.formats.huggingface.reading import text_tower
from service.formats.rope_scaling import RopeScaling

_NORM_EPSILONS = (
    "rms_norm_eps",
    "layer_norm_epsilon",
    "layer_norm_eps",
    "layernorm_epsilon",
    "norm_epsilon",
    "norm_eps",
)
"""The keys that families have for it."""
_CONTEXT_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")


def rope_theta(config: Mapping[str, object]) -> float | None:
    """Returns the base of rotary positions, where a config has one for all layers."""
    return _rotary_number(config, "rope_theta")


def rotary_share(config: Mapping[str, object]) -> float | None:
    """Returns the share of a head's elements that have rotary positions; None where the config
    has no single share for all layers."""
    return _rotary_number(config, "partial_rotary_factor")


def rope_scaling(config: Mapping[str, object]) -> RopeScaling | None:
    """Returns the scaling of rotary positions to a longer context; None where the config has
    none for all layers."""
    values = text_tower(config).values
    for key in ("rope_parameters", "rope_scaling"):
        scaling = values.get(key)
        if isinstance(scaling, Mapping):
            return RopeScaling.of(scaling)
    return None


def norm_epsilon(config: Mapping[str, object]) -> float | None:
    """Returns the number that norms add to the variance, where a config says it."""
    return _first_number(config, _NORM_EPSILONS)


def context_length(config: Mapping[str, object]) -> int | None:
    """Returns the longest sequence, in tokens, for which the model is made; None where the
    config does not say."""
    length = _first_number(config, _CONTEXT_LENGTHS)
    return None if length is None or not length.is_integer() else int(length)


def _first_number(config: Mapping[str, object], keys: Sequence[str]) -> float | None:
    """Returns the value of the first of these keys that has a number in the config; None where
    none has."""
    values = text_tower(config).values
    numbers = (values.get(key) for key in keys)
    is_number = (number for number in numbers if isinstance(number, (int, float)))
    first = next((number for number in is_number if not isinstance(number, bool)), None)
    return None if first is None else float(first)


def _rotary_number(config: Mapping[str, object], key: str) -> float | None:
    """Returns a number of the rotary positions, which is in `rope_parameters` since transformers
    5, and was beside it before; None where it is in neither."""
    values = text_tower(config).values
    parameters = values.get("rope_parameters")
    inner = parameters if isinstance(parameters, Mapping) else {}
    number = inner.get(key, values.get(key))
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    return float(number) if is_number else None


def activation(config: Mapping[str, object]) -> str | None:
    """Returns the activation function of the networks, by transformers' name for it, such as
    "silu"; None where the config does not say."""
    values = text_tower(config).values
    keys = ("mlp_hidden_act", "hidden_activation", "hidden_act", "activation_function")
    name = next((values[key] for key in keys if values.get(key) is not None), None)
    return name if isinstance(name, str) else None
