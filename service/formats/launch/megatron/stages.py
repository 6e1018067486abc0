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
    """The arguments, by name, that give the chunks these numbers of layers."""
    if pp == 1:
        return {}
    virtual = {"num_virtual_stages_per_pipeline_rank": virtual_stages} if virtual_stages > 1 else {}
    if len(set(layers)) == 1:
        return virtual
    ends = _end_arguments(layers, pp, virtual_stages)
    if ends is not None:
        return {**virtual, **ends}
    return {"pipeline_model_parallel_layout": layout_string(layers, mtp_layers)}


def _end_arguments(layers: Sequence[int], pp: int, virtual_stages: int) -> dict[str, Any] | None:
    """Arguments that change the first and the last stage alone; None where these do not do."""
    stages = [set(layers[stage::pp]) for stage in range(pp)]
    middle = {count for counts in stages[1:-1] for count in counts}
    if all(len(counts) == 1 for counts in stages) and len(middle) <= 1:
        first, last = (counts.pop() * virtual_stages for counts in (stages[0], stages[-1]))
        usual = middle.pop() * virtual_stages if middle else None
        if first and last:
            sizes = {FIRST: first, LAST: last}
            return {name: size for name, size in sizes.items() if size != usual}
    usual = max(layers)
    inner = set(layers[1:-1])
    if inner <= {usual} and layers[0] >= usual - 1 and layers[-1] >= usual - 1:
        counted = {EMBEDDING: layers[0] < usual, LOSS: layers[-1] < usual}
        return {name: True for name, counts in counted.items() if counts}
    return None


def layout_string(layers: Sequence[int], mtp_layers: int) -> str:
    """The layout with so many layers in each chunk, and all else on the first and the last."""
    chunks = [_repeated("t", count) for count in layers]
    chunks[0] = "E" + chunks[0]
    chunks[-1] += _repeated("m", mtp_layers) + "L"
    text = ""
    for chunk, run in groupby(chunks[:-1]):
        times = len(list(run))
        text += f"({chunk}|)*{times}" if times > 2 else f"{chunk}|" * times
    return text + chunks[-1]


def _repeated(letter: str, times: int) -> str:
    return f"{letter}*{times}" if times > 3 else letter * times
