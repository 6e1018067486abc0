"""Models that a configuration names, where the catalogue has them."""

from __future__ import annotations

from typing import Any

from models.spec import catalogue


def model_of_catalogue(name: str, mtp_layers: int) -> dict[str, Any]:
    """Returns a model of the catalogue as a request writes it: its name, or all of its sizes
    where `mtp_layers`, the number of multi-token prediction modules, differs from the
    catalogue's."""
    if catalogue.architecture(name).mtp_layers == mtp_layers:
        return {"name": name}
    return {**catalogue.architecture_shape(name), "mtp_layers": mtp_layers}
