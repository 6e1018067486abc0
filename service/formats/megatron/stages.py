"""Reads which layers each stage of a pipeline has from Megatron's arguments
(megatron/core/transformer/transformer_block.py, get_num_layers_to_build, and
pipeline_parallel_layer_layout.py).

Chunks are numbered in the order of the model: with p stages, chunk r * p + s is the r-th of stage
s. Layouts are strings such as "Et*3|(tt|)*29m|L": E is the embedding, t a layer, m a module of
multi-token prediction, L the loss, and | ends a chunk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from models.errors import Invalid
from models.layouts.factors import divisors
from service.formats.launch.job import in_words
from service.formats.megatron.layers import PATTERN, chunks_of, pattern_of
from service.formats.megatron.values import Arguments

_LONGEST_LAYOUT = 20_000  # as many layers as requests take, with their strokes, and more
_REPEATED_GROUP = re.compile(r"\(([^()]*)\)\*(\d{1,4})", re.ASCII)
_REPEATED = re.compile(r"(.)\*(\d{1,4})", re.ASCII | re.DOTALL)
_VIRTUAL = (
    "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank",
    "pipeline_model_parallel_layout",
)
_STAGES = "pipeline_model_parallel_size"
FIRST = "decoder_first_pipeline_num_layers"
LAST = "decoder_last_pipeline_num_layers"
EMBEDDING = "account_for_embedding_in_pipeline_split"
LOSS = "account_for_loss_in_pipeline_split"
_STOPS = "Megatron-Core stops"
_MOST_VALUES = 4  # that a cure names


def virtual_stages(args: Arguments, pp: int) -> int:
    """The number of chunks of a stage. Raises Stopped where Megatron stops."""
    stated = [name for name in _VIRTUAL if args.text(name) is not None]
    if (pattern := pattern_of(args)) is not None:
        return _virtual_stages_of_pattern(args, pattern, pp, stated)
    if len(stated) > 1:
        rule = f"does not go with {args.called(stated[0])}: {_STOPS} unless one alone is given"
        raise args.stopped(stated[1], rule, f"drop it, or drop {args.called(stated[0])}")
    if dumped := args.integer("virtual_pipeline_model_parallel_size"):
        return dumped
    if not stated:
        return 1
    name = stated[0]
    if name == "pipeline_model_parallel_layout":
        chunks = len(_chunks(args))
        if chunks % pp:
            rule = f"has {chunks} chunks, which {pp} stages must divide"
            raise args.stopped(name, rule, f"as many chunks as a multiple of {pp}")
        return chunks // pp
    virtual = args.required(name)
    if name == "num_layers_per_virtual_pipeline_stage":
        virtual = _by_layers_per_chunk(args, pp, virtual)
    else:
        _require_even_chunks(args, pp, virtual)
    if virtual > 1 and pp == 1:
        rule = f"needs pipeline stages: {_STOPS} without"
        raise args.stopped(name, rule, f"drop it, or {args.called(_STAGES)} of 2 or more")
    return virtual


def _virtual_stages_of_pattern(
    args: Arguments, pattern: str, pp: int, stated: Sequence[str]
) -> int:
    """The number of chunks of a stage of a hybrid, whose pattern has them."""
    if stated:
        rule = f"does not go with {args.called(PATTERN)}, which divides chunks by |: {_STOPS}"
        raise args.stopped(stated[0], rule, "drop it, and write | between chunks")
    chunks = len(chunks_of(pattern))
    if chunks > 1 and chunks % pp:
        rule = f"has {chunks} chunks, which {pp} stages must divide: {_STOPS} otherwise"
        raise args.stopped(PATTERN, rule, f"as many chunks as a multiple of {pp}")
    return max(chunks // pp, 1)


def _require_even_chunks(args: Arguments, pp: int, virtual: int) -> None:
    """Raises Stopped where the layers of a stage do not divide over its chunks, unless its first or
    last stage is said by itself."""
    if args.integer("num_layers") is None or any(map(args.text, (FIRST, LAST))):
        return
    of_stage, remainder = divmod(_counted_layers(args), pp)
    if not remainder and of_stage % virtual:
        name = "num_virtual_stages_per_pipeline_rank"
        rule = f"must divide the {of_stage} layers of a stage: {_STOPS} otherwise"
        raise args.stopped(name, rule, _flag_with(args, name, divisors(of_stage)))


def _flag_with(args: Arguments, name: str, values: Iterable[int]) -> str:
    """A flag with the values that it may have."""
    return f"{args.called(name)} {in_words(values)}"


def _by_layers_per_chunk(args: Arguments, pp: int, size: int) -> int:
    name = "num_layers_per_virtual_pipeline_stage"
    for ends in (FIRST, LAST):
        if args.text(ends) is not None:
            rule = f"does not go with {args.called(ends)}: {_STOPS}"
            raise args.stopped(name, rule, args.called("num_virtual_stages_per_pipeline_rank"))
    layers = _counted_layers(args)
    if layers % (pp * size):
        rule = f"times {pp} stages must divide {layers} layers: {_STOPS} otherwise"
        if layers % pp:
            raise args.stopped(name, rule, _flag_with(args, _STAGES, divisors(layers)))
        raise args.stopped(name, rule, _flag_with(args, name, divisors(layers // pp)))
    return layers // (pp * size)


def layers_per_chunk(args: Arguments, pp: int, virtual: int) -> list[int]:
    """Returns how many layers each chunk has; empty where nothing says that they differ, so that
    all have as many. Raises Stopped where Megatron stops because they do not add up."""
    if pp == 1:
        return []
    pattern = pattern_of(args)
    if pattern is not None and len(chunks_of(pattern)) > 1:
        return [len(chunk) for chunk in chunks_of(pattern)]
    if args.text("pipeline_model_parallel_layout") is not None:
        counts = [chunk.count("t") for chunk in _chunks(args)]
        layers = args.required("num_layers")
        if sum(counts) != layers:
            name = "pipeline_model_parallel_layout"
            rule = f"has {sum(counts)} layers, and must have the {layers} of the model"
            raise args.stopped(name, rule, f"as many t as layers, {layers}")
        return _with_late_prediction(counts, _chunks(args), pp)
    named = [name for name in (FIRST, LAST) if args.text(name) is not None]
    if named:
        return _with_named_ends(args, named, pp, virtual)
    counted = [name for name in (EMBEDDING, LOSS) if args.boolean(name)]
    if not counted:
        return []
    layers = _counted_layers(args)
    if layers % (pp * virtual):
        rule = f"makes {layers} of the layers, which {pp * virtual} chunks must divide: {_STOPS}"
        raise args.stopped(counted[0], f"{rule} otherwise", "drop it")
    counts = [layers // (pp * virtual)] * (pp * virtual)
    counts[0] -= EMBEDDING in counted
    counts[-1] -= LOSS in counted
    return counts


def _with_late_prediction(counts: list[int], chunks: Sequence[str], pp: int) -> list[int]:
    """The layers of each chunk if multi-token prediction, which cost models have beside the loss,
    moves there and a layer of the last stage comes in its place, so that every stage does as much
    as before. The same where that stage has no chunk with a layer to spare."""
    moved = list(counts)
    for at, chunk in enumerate(chunks[:-1]):
        for _ in range(chunk.count("m")):
            last_stage = range(pp - 1, len(moved) - 1, pp)
            fullest = max(last_stage, key=lambda index: moved[index], default=at)
            if fullest == at or moved[fullest] < 2:
                return counts
            moved[fullest] -= 1
            moved[at] += 1
    return moved


def has_early_prediction(args: Arguments) -> bool:
    """Returns True where multi-token prediction stands before the last chunk, which the cost model
    does not describe."""
    early, _, _ = (args.text("pipeline_model_parallel_layout") or "").rpartition("|")
    return "m" in early


def has_empty_chunks(args: Arguments) -> bool:
    """Returns True where chunks other than the first and the last have no layer, which no rule of
    layouts allows."""
    try:
        return not all("t" in chunk for chunk in _chunks(args)[1:-1])
    except Invalid:  # of which there is no layout
        return False


def _counted_layers(args: Arguments) -> int:
    """The layers, and the embedding and the loss where they are counted as one."""
    return args.required("num_layers") + args.boolean(EMBEDDING) + args.boolean(LOSS)


def _with_named_ends(args: Arguments, named: list[str], pp: int, virtual: int) -> list[int]:
    for name in (EMBEDDING, LOSS):
        if args.boolean(name):
            rule = f"does not go with {args.called(named[0])}: {_STOPS}"
            raise args.stopped(name, rule, "drop it")
    left = args.required("num_layers") - sum(args.required(name) for name in named)
    others = pp - len(named)
    if left < 0 or bool(left) != bool(others) or (others and left % others):
        rule = f"leaves {left} layers for {others} other stages, which must have as many each"
        cure = _even_ends(args, named, pp, virtual)
        raise args.stopped(named[0], f"{rule}: {_STOPS} otherwise", cure)
    stages = [left // others if others else 0] * pp
    for name, stage in ((FIRST, 0), (LAST, -1)):
        if name in named:
            stages[stage] = args.required(name)
    for count in stages:
        if count % virtual:
            rule = f"leaves a stage {count} layers, which {virtual} virtual stages must divide"
            cure = _even_ends(args, named, pp, virtual)
            raise args.stopped(named[0], f"{rule}: {_STOPS} otherwise", cure)
    return [count // virtual for count in stages] * virtual


def _even_ends(args: Arguments, named: list[str], pp: int, virtual: int) -> str:
    """The numbers of layers of the first of the named stages that leave the others as many each,
    those near the given one; empty where there are none."""
    asked = args.required(named[0])
    layers = args.required("num_layers") - sum(args.required(name) for name in named[1:])
    others = pp - len(named)
    even = [
        count
        for count in range(virtual, layers + 1, virtual)
        if (
            layers > count and (layers - count) % (others * virtual) == 0
            if others
            else layers == count
        )
    ]
    near = sorted(sorted(even, key=lambda count: abs(count - asked))[:_MOST_VALUES])
    return _flag_with(args, named[0], near) if near else ""


def _chunks(args: Arguments) -> list[str]:
    """The chunks of a layout string, each with a letter for all it has."""
    name = "pipeline_model_parallel_layout"
    text = (args.text(name) or "").strip("\"'").replace(",", "")
    for pattern in (_REPEATED_GROUP, _REPEATED):
        length = len(text) + sum(
            len(match.group(1)) * int(match.group(2)) for match in pattern.finditer(text)
        )
        if length > _LONGEST_LAYOUT:
            raise args.stopped(name, "has too many layers")
        text = pattern.sub(lambda match: match.group(1) * int(match.group(2)), text)
    chunks = text.split("|")
    strange = set(text) - set("EtmL|")
    if strange:
        rule = f"has {', '.join(sorted(strange))}: letters are E, t, m and L"
        raise args.stopped(name, rule)
    if not chunks[0].startswith("E") or not chunks[-1].endswith("L"):
        raise args.stopped(name, f"must begin with E and end with L: {_STOPS} otherwise")
    return chunks
