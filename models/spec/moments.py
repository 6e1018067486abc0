"""Moments of an optimizer that projects gradients to a lower rank, as GaLore and APOLLO do."""

from __future__ import annotations

from collections.abc import Iterator

from models.spec.adapters import Lora
from models.spec.architecture import Architecture
from models.spec.layer import Layer
from models.spec.projection import Projection
from models.spec.workload import Workload

PROJECTION_BYTES = 4.0
"""Bytes of an element of the projection matrix, which is in fp32 (galore_torch
galore_projector.py). APOLLO draws that matrix anew from a seed."""


def mean_moment_bytes(architecture: Architecture, workload: Workload) -> float:
    """Return the bytes that the optimizer keeps of a parameter beside its master copy, on average
    over the model.

    For an m x n matrix of a layer, m <= n, whose gradient is projected to rank r, the optimizer
    keeps moments of r x n elements and an m x r projection. Embedding, head, norms and biases have
    moments of their own size.
    """
    unprojected_bytes = workload.optimizer_state.moment_bytes
    if workload.moment_rank is None:
        return unprojected_bytes
    projected_elements = kept_bytes = 0.0
    for kind, count in zip(architecture.kinds, architecture.layers_per_kind, strict=True):
        for matrix, copies in _matrices(kind, architecture.hidden_size):
            # Each block of a block-diagonal matrix is a matrix of its own.
            short, long = sorted((matrix.n_in // matrix.groups, matrix.n_out // matrix.groups))
            # A matrix no larger than the rank is not projected.
            if short <= workload.moment_rank:
                continue
            projected_elements += count * copies * short * long
            # For each unit of rank: a row of moments (n), and a column of the projection (m).
            bytes_per_rank = unprojected_bytes * long + PROJECTION_BYTES * short
            kept_bytes += count * copies * workload.moment_rank * bytes_per_rank
    total = architecture.parameters.total
    return (kept_bytes + unprojected_bytes * (total - projected_elements)) / total


def _matrices(layer: Layer, hidden_size: int) -> Iterator[tuple[Projection, int]]:
    """Yield the weight matrices of a layer, each with the number of its copies: the blocks of a
    block-diagonal matrix, or the experts that have one."""
    # Adapters without named modules stand beside every matrix, so these are all matrices.
    beside_all = Lora(targets=("attention", "mlp", "experts"))
    for matrix in beside_all.matrices(layer, hidden_size):
        yield matrix, matrix.groups
    for matrix in beside_all.expert_matrices(layer, hidden_size):
        yield matrix, layer.moe.num_experts if layer.moe else 0
