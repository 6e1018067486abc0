"""Reads details of a model that change neither time nor memory, but that the launches which the
service writes must state, such as the epsilon of norms and the base of rotary positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.formats.huggingface.families import FAMILIES
from service.formats.huggingface.reading import text_tower
from service.formats.model_details import ModelDetails
from service.formats.rope_scaling import RopeScaling

_NORM_EPSILONS = (
    "rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "layernorm_epsilon", "norm_epsilon",
    "norm_eps",
)  # fmt: skip
"""The keys that families have for the number that norms add to the variance."""
_CONTEXT_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")
_ACTIVATIONS = ("mlp_hidden_act", "hidden_activation", "hidden_act", "activation_function")


def details(config: Mapping[str, object]) -> ModelDetails:
    """Returns the details that a config.json states for all layers of its language model."""
    text = text_tower(config)
    values = text.values
    parameters = values.get("rope_parameters")
    # The numbers of rotary positions are in this object since transformers 5.
    rotary = {**values, **parameters} if isinstance(parameters, Mapping) else values
    objects = (parameters, values.get("rope_scaling"))  # rope_scaling is the older key
    scaling = next((value for value in objects if isinstance(value, Mapping)), None)
    length = _first_number(values, _CONTEXT_LENGTHS)
    activation = next((values[key] for key in _ACTIVATIONS if values.get(key) is not None), None)
    return ModelDetails(
        rope_theta=_float_or_none(rotary.get("rope_theta")),
        rotary_share=_float_or_none(rotary.get("partial_rotary_factor")),
        has_positions=FAMILIES[text.model_type].has_positions(text),
        rope_scaling=None if scaling is None else RopeScaling.of(scaling),
        norm_epsilon=_first_number(values, _NORM_EPSILONS),
        context_length=int(length) if length is not None and length.is_integer() else None,
        activation=activation if isinstance(activation, str) else None,
    )


def _first_number(values: Mapping[str, object], keys: Sequence[str]) -> float | None:
    """Returns the value of the first of these keys that has a number; None where none has."""
    numbers = (_float_or_none(values.get(key)) for key in keys)
    return next((number for number in numbers if number is not None), None)


def _float_or_none(value: object) -> float | None:
    """Returns a value that is a number; None for any other, such as true."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)
