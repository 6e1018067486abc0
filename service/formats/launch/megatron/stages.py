"""Writes which layers each stage of a pipeline has, for Megatron. `formats.megatron.stages` reads
it.

Chunks are numbered in the order of the model: with p stages, chunk r * p + s is the r-th of stage
s.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from service.formats.megatron.stages import EMBEDDING, FIRST, LAST, LOSS


def stage_arguments(
    layers: Sequence[int], pp: int, virtual_stages: int, mtp_layers: int
) -> dict[str, Any]:
    """Returns the arguments that split the model over pipeline chunks. `layers` has the number
    of layers in each chunk, in the order of the model."""
    if pp == 1:
        return {}
    virtual = {"num_virtual_stages_per_pipeline_rank": virtual_stages} if virtual_stages > 1 else {}
    if len(set(layers)) == 1:
        return virtual
    ends = _end_arguments(layers, pp, virtual_stages)
    if ends is not None:
        return {**virtual, **ends}
    # Megatron counts the virtual stages by the string's chunks, and refuses their number beside it.
    return {"pipeline_model_parallel_layout": layout_string(layers, mtp_layers)}


def _end_arguments(layers: Sequence[int], pp: int, virtual_stages: int) -> dict[str, Any] | None:
    """Returns arguments that change the number of layers in the first and the last stage alone,
    or that count the embedding and the loss as a layer each. None where these cannot give such a
    split."""
    # Chunk i is on stage i % pp.
    counts_of_stages = [set(layers[stage::pp]) for stage in range(pp)]  # layers of its chunks
    middle_counts = set().union(*counts_of_stages[1:-1])
    is_even_within_stages = all(len(counts) == 1 for counts in counts_of_stages)
    if is_even_within_stages and len(middle_counts) <= 1 and layers[0] and layers[-1]:
        # An end with as many layers as every middle stage needs no argument.
        middle = middle_counts.pop() * virtual_stages if middle_counts else None
        # These arguments count the layers of a stage, which are those of all its chunks.
        sizes = {FIRST: layers[0] * virtual_stages, LAST: layers[-1] * virtual_stages}
        return {name: size for name, size in sizes.items() if size != middle}
    # Where the embedding and the loss count as layers, the ends have at most one layer less.
    most = max(layers)
    is_even_between_ends = set(layers[1:-1]) <= {most}
    if is_even_between_ends and layers[0] >= most - 1 and layers[-1] >= most - 1:
        counts_as_layer = {EMBEDDING: layers[0] < most, LOSS: layers[-1] < most}
        return {name: True for name, counts in counts_as_layer.items() if counts}
    return None


def layout_string(layers: Sequence[int], mtp_layers: int) -> str:
    """Returns a split in the language of --pipeline-model-parallel-layout: "Et*3|(tt|)*6t*3L". E
    is the embedding, t a layer, m a module of multi-token prediction and L the loss; | ends a
    chunk."""
    chunks = [_repeated("t", count) for count in layers]
    chunks[0] = "E" + chunks[0]
    chunks[-1] += _repeated("m", mtp_layers) + "L"
    text = ""
    for chunk, run in groupby(chunks[:-1]):
        times = len(list(run))
        # A chunk that comes once or twice is as short written out.
        text += f"({chunk}|)*{times}" if times > 2 else f"{chunk}|" * times
    return text + chunks[-1]


def _repeated(letter: str, times: int) -> str:
    """Returns a letter repeated, "t*4"; written out where that is as short, "ttt"."""
    return f"{letter}*{times}" if times > 3 else letter * times
