"""Models that a configuration names, where the catalogue has them."""

from __future__ import annotations

from typing import Any

from models.spec import catalogue


def named_model(name: str, mtp_layers: int) -> dict[str, Any]:
    """Returns a model of the catalogue in the wire form, with so many modules of multi-token
    prediction: its name alone, or all of its fields where the catalogue has another number."""
    if catalogue.architecture(name).mtp_layers == mtp_layers:
        return {"name": name}
    return {**catalogue.architecture_shape(name), "mtp_layers": mtp_layers}
