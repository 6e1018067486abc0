"""Pipelines of torchtitan 0.3.0: its schedules, and the layers of each model chunk
(torchtitan/distributed/pipeline_parallel.py; PyTorch's distributed/pipelining/schedules.py).

A *chunk* is a run of layers that a pipeline rank holds. A rank has one, or several that take turns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from service.formats.settings.stop import Stopped

SCHEDULES: Mapping[str, str] = {"1f1b": "1F1B", "afab": "GPipe", "interleaved": "Interleaved1F1B"}
"""PyTorch's names of the schedules that layouts of torchtitan may have."""
READ_SCHEDULES: Mapping[str, tuple[str, bool]] = {
    **{torch.lower(): (ours, True) for ours, torch in SCHEDULES.items()},
    "zbvzerobubble": ("zero_bubble_v", True),
    "interleavedzerobubble": ("interleaved", False),
    "loopedbfs": ("interleaved", False),
    "dualpipev": ("zero_bubble_v", False),
}
"""By PyTorch's name in lower case, the schedule and whether it is the same or only the nearest."""
FIRST = "parallelism.pipeline_parallel_first_stage_less_layers"
LAST = "parallelism.pipeline_parallel_last_stage_less_layers"
PER_STAGE = "parallelism.pipeline_parallel_layers_per_stage"
NAMES = "parallelism.module_fqns_per_model_part"
_LAYER = re.compile(r"layers\.\d+", re.ASCII)


def named_split(layers_per_chunk: Sequence[int]) -> dict[str, Any]:
    """Returns the setting that splits a model over chunks by listing every module: {NAMES:
    [["tok_embeddings", "layers.0"], ["layers.1", "norm", "lm_head"]]} for [1, 1]."""
    names: list[list[str]] = []
    start = 0
    for count in layers_per_chunk:
        names.append([f"layers.{index}" for index in range(start, start + count)])
        start += count
    names[0].insert(0, "tok_embeddings")
    names[-1] += ["norm", "lm_head"]
    return {NAMES: names}


def split_settings(layers_per_chunk: Sequence[int], *, has_chunks: bool) -> dict[str, Any]:
    """Returns the settings that split a model into chunks of these numbers of layers: weights of
    the embedding and the head where they suffice, else lists of all modules. `has_chunks` says
    that a rank has several chunks."""
    num_layers = sum(layers_per_chunk)
    chunks = len(layers_per_chunk)
    for first, last in _candidate_weights(layers_per_chunk):
        if generated_split(num_layers, chunks, first, last) != tuple(layers_per_chunk):
            continue
        settings: dict[str, Any] = {FIRST: first, LAST: last}
        if has_chunks:
            # With several chunks a rank, torchtitan derives their number from the layers of a
            # chunk.
            effective = num_layers + first + last
            per_stage = math.ceil(effective / chunks)
            if math.ceil(effective / per_stage) != chunks:
                continue
            settings[PER_STAGE] = per_stage
        return settings
    return named_split(layers_per_chunk)


def _candidate_weights(layers_per_chunk: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields the weights of embedding and head, in layers, that may lead to a split; the default
    (1, 1) first. Their sum determines the size of every chunk, so each sum allows one pair."""
    yield 1, 1
    num_layers = sum(layers_per_chunk)
    chunks = len(layers_per_chunk)
    # torchtitan refuses an end that outweighs a chunk; both together are tried up to two chunks.
    for weight in range(2 * max(layers_per_chunk) + 1):
        # With the weights counted, the first `extra` chunks have base + 1 layers, others `base`.
        base, extra = divmod(num_layers + weight, chunks)
        # What an end's layers lack of that size is the weight of the embedding or the head.
        first = base + (extra > 0) - layers_per_chunk[0]
        last = base - layers_per_chunk[-1]
        if first >= 0 and last >= 0 and first + last == weight:
            yield first, last


def generated_split(num_layers: int, chunks: int, first: int, last: int) -> tuple[int, ...] | None:
    """Returns the number of layers in each chunk where the embedding weighs as much as `first`
    layers and the head as `last` (_generate_llm_fqn_per_model_part); None where torchtitan
    refuses such a split."""
    if chunks == 1:
        return (num_layers,)
    base, extra = divmod(num_layers + first + last, chunks)
    # Refused: too few layers for all chunks, or an end that outweighs a whole chunk.
    if base == 0 or first > base or last > base:
        return None
    sizes = [base + (chunk < extra) for chunk in range(chunks)]
    # The ends have fewer layers, by as many as the embedding and the head count for.
    sizes[0] -= first
    sizes[-1] -= last
    return tuple(sizes)


def read_split(
    settings: Mapping[str, Any], num_layers: int | None, pp: int, default_chunks: int
) -> tuple[int, tuple[int, ...] | None]:
    """Returns the number of chunks of a rank, and the number of layers in each chunk of the
    pipeline, None where the model's number is not known. A rank has `default_chunks` where no
    setting says otherwise. Raises Stopped for a split that torchtitan refuses."""
    modules_of_chunks = settings[NAMES]
    if modules_of_chunks is not None:
        counts = tuple(
            len([name for name in modules if _LAYER.fullmatch(name)])
            for modules in modules_of_chunks
        )
        if len(counts) % pp:
            # None: the message shows no value, as the lists of modules are long.
            raise Stopped(f"--{NAMES}", None, _uneven_rule(len(counts), pp))
        return len(counts) // pp, counts
    if num_layers is None:
        return default_chunks, None
    for name, least in ((FIRST, 0), (LAST, 0), (PER_STAGE, 1)):
        if settings[name] is not None and settings[name] < least:
            rule = f"must be at least {least}"
            raise Stopped(f"--{name}", settings[name], rule, f"--{name} {least}")
    # The embedding counts as `first` layers and the head as `last`.
    first = settings[FIRST]
    last = settings[LAST]
    chunks = pp * default_chunks
    per_stage = settings[PER_STAGE]
    if per_stage:
        chunks = math.ceil((num_layers + first + last) / per_stage)
    if chunks % pp:
        cure = _even_chunks(num_layers + first + last, pp, default_chunks)
        raise Stopped(f"--{PER_STAGE}", per_stage, _uneven_rule(chunks, pp), cure)
    split = generated_split(num_layers, chunks, first, last)
    if split is None:
        rule = (
            f"{num_layers} layers with the embedding as {first} and the head as {last} leave too"
            f" few for each of {chunks} chunks: use fewer chunks or smaller weights"
        )
        raise Stopped(f"--{LAST if last > first else FIRST}", max(first, last), rule)
    return chunks // pp, split


def _uneven_rule(chunks: int, pp: int) -> str:
    """Returns the rule that a number of chunks breaks which does not divide evenly over ranks."""
    return f"gives {chunks} chunks, which must be a multiple of the {pp} pipeline ranks"


def _even_chunks(layers: int, pp: int, chunks_of_rank: int) -> str:
    """Returns the setting that gives every rank the chunks that its schedule has by default, for
    a number of layers that counts the embedding and the head; "" where no number of layers does."""
    chunks = pp * chunks_of_rank
    per_stage = math.ceil(layers / chunks)
    return f"--{PER_STAGE} {per_stage}" if math.ceil(layers / per_stage) == chunks else ""
