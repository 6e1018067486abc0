"""Settings of MaxText for what changes neither time nor memory of a model: norms, positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from service.formats.model_details import ModelDetails

_LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192.0,
}
"""The numbers of Llama 3's rope scaling that MaxText has written into its code
(layers/embeddings.py, LLaMARotaryEmbedding)."""


def detail_settings(details: ModelDetails) -> dict[str, Any]:
    """Returns the settings for those details of a model that are known: the epsilon of its
    norms, and its rotary positions."""
    settings: dict[str, Any] = {}
    if details.norm_epsilon is not None:
        settings["normalization_layer_epsilon"] = details.norm_epsilon
    # MaxText's setting is a whole number.
    if details.rope_theta is not None and details.rope_theta.is_integer():
        settings["rope_max_timescale"] = int(details.rope_theta)
    return {**settings, **_rope_scaling(details)}


def _rope_scaling(details: ModelDetails) -> dict[str, Any]:
    """Returns the settings that scale rotary positions to a longer context. Returns none where
    the model does not, and where MaxText has no equivalent."""
    scaling = details.rope_scaling
    if scaling is None:
        return {}
    # MaxText has the numbers of _LLAMA3 in its code, and no settings for them.
    if scaling.kind == "llama3" and scaling.has_numbers(**_LLAMA3):
        return {"rope_type": "llama3.1", "rope_use_scale": True}
    # Numbers that the model leaves out have the defaults of MaxText's settings.
    factor = scaling.number("factor", 40.0)
    original = scaling.number("original_max_position_embeddings", 4096.0)
    # MaxText takes whole factors, and has no setting for mscale_all_dim.
    if (
        scaling.kind != "yarn"
        or not factor.is_integer()
        or not scaling.has_numbers(mscale_all_dim=0.0)
    ):
        return {}
    return {
        "rope_type": "yarn",
        "rope_factor": int(factor),
        "original_max_position_embeddings": int(original),
        "max_position_embeddings": details.context_length or int(factor * original),
        "beta_fast": int(scaling.number("beta_fast", 32.0)),
        "beta_slow": int(scaling.number("beta_slow", 1.0)),
        "mscale": scaling.number("mscale", 1.0),
    }


def detail_notes(details: ModelDetails) -> Iterator[str]:
    """Yields notes on details that are not known of the model, or that MaxText has no setting
    for."""
    unknown = [
        setting
        for setting, value in {
            "normalization_layer_epsilon": details.norm_epsilon,
            "rope_max_timescale": details.rope_theta,
        }.items()
        if value is None
    ]
    if unknown:
        yield (
            f"{' and '.join(unknown)} are left at MaxText's defaults, since the model was not given"
            " as a config.json: set them to its rms_norm_eps and rope_theta."
        )
    if details.rope_scaling is not None and not _rope_scaling(details):
        yield (
            f"The model stretches rotary positions ({details.rope_scaling.shown}), and MaxText has"
            " no settings that do the same: they are left as they are. Step time and memory do not"
            " depend on it; the loss does."
        )
