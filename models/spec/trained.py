"""The parts of a model that are trained, where some of its own parameters are frozen.

Backward runs through frozen layers too, but ends at the first part that is trained.
"""

from __future__ import annotations

from dataclasses import replace

from models.errors import Invalid
from models.spec.architecture import Architecture
from models.spec.layer import Gradients
from models.spec.workload import Workload


def as_trained(architecture: Architecture, workload: Workload) -> Architecture:
    """Return the model as a workload trains it: with the head that the workload asks for, and with
    each layer marked by the gradients that backward computes in it (Layer.gradients). Raise Invalid
    where the workload names layers and the model has none of them, or where it trains nothing."""
    if workload.head == "score":
        architecture = replace(architecture, tie_word_embeddings=False, head_size=1)
    trained = workload.trained
    # Without a list of layers all are trained. Under LoRA none is, and the code that prices
    # adapters looks at `workload.lora` instead of at the marks.
    if workload.lora or trained is None or trained.layers is None:
        return architecture
    chosen = _layer_numbers(trained.layers, architecture.num_layers)
    # Backward runs from the last layer down to the first that is trained.
    backward_ends_at = min(chosen, default=architecture.num_layers)
    encoder = architecture.encoder
    if trains_embedding(architecture, workload) or (encoder and encoder.projector_trained):
        backward_ends_at = 0  # The embedding or projector lies before all layers.
    elif not (chosen or trains_head(architecture, workload)):
        rule = "trains nothing: name layers, the embedding or the head"
        raise Invalid("workload.trained.layers", [], rule)
    layers = tuple(
        replace(layer, gradients=_gradients(number, chosen, backward_ends_at))
        for number, layer in enumerate(architecture.layers)
    )
    return replace(architecture, layers=layers)


def trains_embedding(architecture: Architecture, workload: Workload) -> bool:
    """Say whether the input embedding is trained, either itself or as the head that it is tied
    to."""
    trained = workload.trained
    if trained is None:
        return workload.lora is None  # adapters freeze it
    return trained.embedding or (architecture.tie_word_embeddings and trained.head)


def trains_head(architecture: Architecture, workload: Workload) -> bool:
    """Say whether the output projection is trained, either itself or as the embedding that it is
    tied to."""
    trained = workload.trained
    if trained is None:
        return workload.lora is None  # adapters freeze it
    return trained.head or (architecture.tie_word_embeddings and trained.embedding)


def _layer_numbers(layers: tuple[int, ...], num_layers: int) -> frozenset[int]:
    """Return layer numbers counted from 0, given numbers that may count from the end (-1 is the
    last). Numbers beyond the model's depth are left out. Raise Invalid where some were given and
    none is left."""
    in_model = [number for number in layers if -num_layers <= number < num_layers]
    if layers and not in_model:
        rule = f"must name some layer of the model, which has {num_layers}: 0 to {num_layers - 1}"
        raise Invalid("workload.trained.layers", list(layers), rule)
    return frozenset(number % num_layers for number in in_model)


def _gradients(number: int, chosen: frozenset[int], backward_ends_at: int) -> Gradients:
    """Return the gradients that backward computes in the layer of this number. Layers `chosen` to
    train have those of weights. Frozen layers from `backward_ends_at` on have those of inputs
    alone, because backward passes through them. Layers before that have none."""
    if number in chosen:
        return "weights"
    return "inputs" if number >= backward_ends_at else "none"
