"""Kernel times, sizes and kept activations of every part of a model on one device.

A *part* is a layer of one kind, or an *end* of the model: its embedding or its head. A *piece* is a
share of a layer's forward that recompute may repeat by itself. A *shard* is what one device has of
a micro-batch and of a layer.
"""

from __future__ import annotations

from models.compilation.compiled import compiled
from models.cost.compute import (
    LayerTime,
    embedding_time,
    head_time,
    layer_time,
    mtp_projection,
    overhead,
)
from models.cost.encoder import add_encoder_kept, encoder_shard, encoder_size, encoder_time
from models.cost.facts import CoefficientRecord, ProblemRecords
from models.cost.memory import PartSize, activations, embedding_size, head_size, layer_size
from models.cost.mesh import Part
from models.cost.recomputation import kept_bytes, recompute_seconds
from models.cost.rows import Row
from models.cost.shard import Shard
from models.cost.stages import Workspace


@compiled
def set_shard(
    question: ProblemRecords,
    row: Row,
    shard: Shard,
    coefficients: CoefficientRecord,
    workspace: Workspace,
) -> None:
    """Write to the workspace what every part costs on a device that has this shard: kernel times
    and sizes, the seconds that each recompute policy adds to backward, and the bytes that the part
    keeps under it."""
    facts = question.facts[0]
    policies = question.policies
    pieces = workspace.pieces
    for kind in range(facts.kinds):
        layer = question.layers[kind]
        part = workspace.parts[kind]
        seconds = layer_time(facts, layer, shard, coefficients, question.repeated_pieces, pieces)
        set_time(part, seconds)
        set_size(part, layer_size(facts, layer, shard))
        part.forward_only = 0.0 if layer.has_backward else 1.0
        for policy in range(len(policies)):
            workspace.recompute[policy, kind] = recompute_seconds(
                policies[policy, kind], seconds.forward, pieces
            )
        stored = activations(facts, layer, shard, pieces)
        for policy in range(len(policies)):
            workspace.kept[policy, kind] = kept_bytes(policies[policy, kind], stored, pieces)
        # A frozen layer below all that is trained runs no backward to keep or repeat anything for.
        if not layer.has_backward:
            workspace.recompute[:, kind] = 0.0
            workspace.kept[:, kind] = 0.0
    set_ends(question, shard, coefficients, workspace)
    if len(question.images.layers) > 0:
        add_encoder(question, row, coefficients, workspace)


@compiled
def set_ends(
    question: ProblemRecords, shard: Shard, coefficients: CoefficientRecord, workspace: Workspace
) -> None:
    """Write to the workspace what the embedding and the head cost on one device. They keep no
    activations. A policy that recomputes whole layers also repeats the projections of multi-token
    prediction, which count with the head (`last_kind` is the kind of their layers)."""
    facts = question.facts[0]
    embedding, head = facts.kinds, facts.kinds + 1
    set_time(workspace.parts[embedding], embedding_time(facts, shard, coefficients))
    set_size(workspace.parts[embedding], embedding_size(facts, shard))
    set_time(workspace.parts[head], head_time(facts, shard, coefficients))
    set_size(workspace.parts[head], head_size(facts, shard))
    workspace.kept[:, embedding:] = 0.0
    workspace.recompute[:, embedding:] = 0.0
    projection = mtp_projection(facts, shard, coefficients).forward
    repeated = projection * facts.mtp_layers * overhead(facts, coefficients)
    for policy in range(len(question.policies)):
        if question.policies[policy, facts.last_kind].whole:
            workspace.recompute[policy, head] = repeated


@compiled
def add_encoder(
    question: ProblemRecords, row: Row, coefficients: CoefficientRecord, workspace: Workspace
) -> None:
    """Add the times, sizes and kept bytes of the encoder of images to those of the embedding, with
    which it runs, and set the shares of that part's parameters that are the encoder's."""
    images = question.images
    embedding = question.facts[0].kinds
    part = workspace.parts[embedding]
    shard = encoder_shard(images, row)
    recompute = workspace.recompute[:, embedding]
    seconds = encoder_time(images, shard, coefficients, recompute, workspace.pieces)
    add_encoder_kept(images, shard, workspace.kept[:, embedding], workspace.pieces)
    part.forward += seconds.forward
    part.backward += seconds.backward
    part.weight += seconds.weight
    size = encoder_size(images, shard)
    part.dense += size.dense
    part.trained_dense += size.trained_dense
    part.unit = size.unit  # The embedding itself has 0: FSDP gathers only layers one by one.
    part.encoder_share = size.dense / part.dense
    if part.trained_dense > 0:
        part.trained_encoder_share = size.trained_dense / part.trained_dense
    # A frozen encoder has no backward. Its share of the part is measured in parameters.
    part.forward_only = (size.dense - size.trained_dense) / part.dense


@compiled
def set_time(part: Part, seconds: LayerTime) -> None:
    """Copy the seconds of a part into its record."""
    part.forward = seconds.forward
    part.backward = seconds.backward
    part.weight = seconds.weight
    part.attention_forward = seconds.attention_forward
    part.attention_backward = seconds.attention_backward
    part.idle_forward = seconds.idle_forward
    part.idle_backward = seconds.idle_backward
    part.host = seconds.host


@compiled
def set_size(part: Part, size: PartSize) -> None:
    """Copy the numbers of parameters of a part into its record."""
    part.dense = size.dense
    part.expert = size.expert
    part.unit = size.unit
    part.trained_dense = size.trained_dense
    part.trained_expert = size.trained_expert
