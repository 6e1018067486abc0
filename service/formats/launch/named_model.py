"""Models that a configuration names, where the catalogue has them."""

from __future__ import annotations

from typing import Any

from models.spec import catalogue


def named_model(name: str, mtp_layers: int) -> dict[str, Any]:
    """A model of the catalogue in the form of LaunchReading, with so many modules of multi-token
    prediction: the name alone, or where it has others all of its fields."""
    if catalogue.architecture(name).mtp_layers == mtp_layers:
        return {"name": name}
    return {**catalogue.architecture_shape(name), "mtp_layers": mtp_layers}
