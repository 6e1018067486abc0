"""Reads which layers each stage of a pipeline has from Megatron's arguments
(megatron/core/transformer/transformer_block.py, get_num_layers_to_build, and
pipeline_parallel_layer_layout.py).

Chunks are numbered in the order of the model: with p stages, chunk r * p + s is the r-th of stage
s. Layouts are strings such as "Et*3|(tt|)*29m|L": E is the embedding, t a layer, m a module of
multi-token prediction, L the loss, and | ends a chunk. `virtual` is the number of chunks of a
stage. `Stopped` is the error for arguments at which Megatron itself refuses to start.
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
    """Returns the number of chunks of a pipeline stage, from typed arguments. Raises Stopped where
    Megatron refuses them."""
    given_names = [name for name in _VIRTUAL if args.text(name) is not None]
    if (pattern := pattern_of(args)) is not None:
        return _virtual_stages_of_pattern(args, pattern, pp, given_names)
    if len(given_names) > 1:
        name, other = given_names[:2]  # two are enough to contradict each other
        rule = f"does not go with {args.called(name)}: {_STOPS} unless one alone is given"
        raise args.stopped(other, rule, f"drop it, or drop {args.called(name)}")
    # Megatron derives and dumps this number; frameworks on top of it set the number directly.
    if stated := args.integer("virtual_pipeline_model_parallel_size"):
        return stated
    if not given_names:
        return 1
    name = given_names[0]
    if name == "pipeline_model_parallel_layout":
        chunks = len(_chunks_of_layout(args))
        if chunks % pp:
            rule = f"has {chunks} chunks, which {pp} stages must divide"
            raise args.stopped(name, rule, f"as many chunks as a multiple of {pp}")
        return chunks // pp
    virtual = args.required(name)
    if name == "num_layers_per_virtual_pipeline_stage":
        virtual = _virtual_stages_by_layers(args, pp, virtual)
    else:
        _require_even_chunks(args, pp, virtual)
    if virtual > 1 and pp == 1:
        rule = f"needs pipeline stages: {_STOPS} without"
        raise args.stopped(name, rule, f"drop it, or {args.called(_STAGES)} of 2 or more")
    return virtual


def _virtual_stages_of_pattern(
    args: Arguments, pattern: str, pp: int, given_names: Sequence[str]
) -> int:
    """Returns the number of chunks of a stage, by the | in a layer pattern. Raises Stopped where
    one of the arguments in `given_names` sets it too, or the chunks do not divide over the
    stages."""
    if given_names:
        rule = f"does not go with {args.called(PATTERN)}, which divides chunks by |: {_STOPS}"
        raise args.stopped(given_names[0], rule, "drop it, and write | between chunks")
    chunks = len(chunks_of(pattern))
    if chunks > 1 and chunks % pp:
        rule = f"has {chunks} chunks, which {pp} stages must divide: {_STOPS} otherwise"
        raise args.stopped(PATTERN, rule, f"as many chunks as a multiple of {pp}")
    return max(chunks // pp, 1)  # a pattern without | gives each stage one chunk


def _require_even_chunks(args: Arguments, pp: int, virtual: int) -> None:
    """Raises Stopped where the layers of a stage do not divide over its chunks. Where arguments
    set the layers of the first or last stage, `_with_given_ends` checks it."""
    if args.integer("num_layers") is None or any(map(args.text, (FIRST, LAST))):
        return
    of_stage, remainder = divmod(_counted_layers(args), pp)
    if not remainder and of_stage % virtual:
        name = "num_virtual_stages_per_pipeline_rank"
        rule = f"must divide the {of_stage} layers of a stage: {_STOPS} otherwise"
        raise args.stopped(name, rule, _flag_with(args, name, divisors(of_stage)))


def _flag_with(args: Arguments, name: str, values: Iterable[int]) -> str:
    """Returns a flag with the values that it may have: "--pipeline-model-parallel-size 2 or 4"."""
    return f"{args.called(name)} {in_words(values)}"


def _virtual_stages_by_layers(args: Arguments, pp: int, chunk_layers: int) -> int:
    """Returns the number of chunks of a stage, given the layers of a chunk. Raises Stopped where
    these do not divide the layers."""
    name = "num_layers_per_virtual_pipeline_stage"
    for ends in (FIRST, LAST):
        if args.text(ends) is not None:
            rule = f"does not go with {args.called(ends)}: {_STOPS}"
            raise args.stopped(name, rule, args.called("num_virtual_stages_per_pipeline_rank"))
    layers = _counted_layers(args)
    if layers % (pp * chunk_layers):
        rule = f"times {pp} stages must divide {layers} layers: {_STOPS} otherwise"
        # No size of chunks fits where the stages themselves do not divide the layers.
        if layers % pp:
            raise args.stopped(name, rule, _flag_with(args, _STAGES, divisors(layers)))
        raise args.stopped(name, rule, _flag_with(args, name, divisors(layers // pp)))
    return layers // (pp * chunk_layers)


def layers_per_chunk(args: Arguments, pp: int, virtual: int) -> list[int]:
    """Returns the number of layers of each chunk, in the order of the model; an empty list where
    all have equally many. Raises Stopped where they do not add up."""
    if pp == 1:
        return []
    pattern = pattern_of(args)
    if pattern is not None and len(chunks_of(pattern)) > 1:
        return [len(chunk) for chunk in chunks_of(pattern)]
    if args.text("pipeline_model_parallel_layout") is not None:
        counts = [chunk.count("t") for chunk in _chunks_of_layout(args)]
        layers = args.required("num_layers")
        if sum(counts) != layers:
            name = "pipeline_model_parallel_layout"
            rule = f"has {sum(counts)} layers, and must have the {layers} of the model"
            raise args.stopped(name, rule, f"as many t as layers, {layers}")
        return _with_mtp_at_end(counts, _chunks_of_layout(args), pp)
    if args.text(FIRST) is not None or args.text(LAST) is not None:
        return _with_given_ends(args, pp, virtual)
    counted_ends = [name for name in (EMBEDDING, LOSS) if args.boolean(name)]
    if not counted_ends:
        return []
    layers = _counted_layers(args)
    num_chunks = pp * virtual
    if layers % num_chunks:
        rule = f"makes {layers} of the layers, which {num_chunks} chunks must divide: {_STOPS}"
        raise args.stopped(counted_ends[0], f"{rule} otherwise", "drop it")
    counts = [layers // num_chunks] * num_chunks
    # The embedding or the loss takes the place of a layer at its end.
    if EMBEDDING in counted_ends:
        counts[0] -= 1
    if LOSS in counted_ends:
        counts[-1] -= 1
    return counts


def _with_mtp_at_end(counts: list[int], chunks: Sequence[str], pp: int) -> list[int]:
    """Returns the number of layers of each chunk after every module of multi-token prediction
    before the last chunk is swapped for a layer of the last stage. The cost model puts these
    modules beside the loss; the swap keeps the amount of work of every stage. Returns `counts`
    where the last stage has no layer to spare."""
    traded = list(counts)
    for index, chunk in enumerate(chunks[:-1]):
        for _ in range(chunk.count("m")):
            # The chunks of the last stage, without the last one, which has the loss. A stage of
            # one chunk has none of them, and `index` then stands for "none".
            last_stage = range(pp - 1, len(traded) - 1, pp)
            fullest = max(last_stage, key=lambda other: traded[other], default=index)
            if fullest == index or traded[fullest] < 2:
                return counts
            traded[fullest] -= 1
            traded[index] += 1
    return traded


def has_early_mtp(args: Arguments) -> bool:
    """Returns True where a layout has multi-token prediction before its last chunk, which the
    cost model does not describe."""
    early, _, _ = (args.text("pipeline_model_parallel_layout") or "").rpartition("|")
    return "m" in early


def has_empty_chunks(args: Arguments) -> bool:
    """Returns True where the layout string has a chunk without layers between its first and last
    chunk, which no `Layout` can express. Those two may hold the embedding or loss alone."""
    try:
        return not all("t" in chunk for chunk in _chunks_of_layout(args)[1:-1])
    except Invalid:  # the layout is refused elsewhere
        return False


def _counted_layers(args: Arguments) -> int:
    """Returns the number of layers that are split over stages. The embedding and the loss count
    as one each where an argument says so."""
    return args.required("num_layers") + args.boolean(EMBEDDING) + args.boolean(LOSS)


def _with_given_ends(args: Arguments, pp: int, virtual: int) -> list[int]:
    """Returns the number of layers of each chunk where arguments set the layers of the first or
    the last stage. Raises Stopped where the other stages cannot have equally many layers."""
    ends = [name for name in (FIRST, LAST) if args.text(name) is not None]
    for name in (EMBEDDING, LOSS):  # arguments that count the embedding or the loss as a layer
        if args.boolean(name):
            rule = f"does not go with {args.called(ends[0])}: {_STOPS}"
            raise args.stopped(name, rule, "drop it")
    remaining = args.required("num_layers") - sum(args.required(name) for name in ends)
    others = pp - len(ends)
    is_even = remaining % others == 0 if others else remaining == 0
    # Other stages need layers, and layers need other stages.
    if not is_even or remaining < 0 or bool(remaining) != bool(others):
        rule = f"leaves {remaining} layers for {others} other stages, which must have as many each"
        cure = _even_ends(args, ends, pp, virtual)
        raise args.stopped(ends[0], f"{rule}: {_STOPS} otherwise", cure)
    stages = [remaining // others if others else 0] * pp
    for name, stage in ((FIRST, 0), (LAST, -1)):
        if name in ends:
            stages[stage] = args.required(name)
    for count in stages:
        if count % virtual:
            rule = f"leaves a stage {count} layers, which {virtual} virtual stages must divide"
            cure = _even_ends(args, ends, pp, virtual)
            raise args.stopped(ends[0], f"{rule}: {_STOPS} otherwise", cure)
    # In the order of the model: the first chunk of every stage, then the second of every stage.
    return [count // virtual for count in stages] * virtual


def _even_ends(args: Arguments, ends: list[str], pp: int, virtual: int) -> str:
    """Returns what a user may write instead of `ends[0]`: its flag with the nearest numbers that
    leave the other stages equally many layers; "" where there are none. `ends` has the names of
    the arguments, FIRST, LAST or both, that set the layers of an end of the pipeline."""
    given = args.required(ends[0])
    layers = args.required("num_layers") - sum(args.required(name) for name in ends[1:])
    others = pp - len(ends)

    def is_even(candidate: int) -> bool:
        """Returns True where the other stages get equally many layers, which their virtual stages
        divide, if `ends[0]` is this candidate. Without other stages no layer may remain."""
        remaining = layers - candidate
        return (remaining > 0 and remaining % (others * virtual) == 0) if others else not remaining

    # A stage has equally many layers in each of its virtual stages.
    even = filter(is_even, range(virtual, layers + 1, virtual))
    nearest = sorted(even, key=lambda candidate: abs(candidate - given))[:_MOST_VALUES]
    return _flag_with(args, ends[0], sorted(nearest)) if nearest else ""


def _chunks_of_layout(args: Arguments) -> list[str]:
    """Returns the chunks of a layout string with its repeats unfolded: ["Ett", "tt", "ttmL"] for
    Et*2|tt|ttmL. Raises Stopped for a string that Megatron refuses."""
    name = "pipeline_model_parallel_layout"
    text = (args.text(name) or "").strip("\"'").replace(",", "")
    for pattern in (_REPEATED_GROUP, _REPEATED):  # "(tt|)*29" first, then "t*3"
        length = len(text) + sum(
            len(match.group(1)) * int(match.group(2)) for match in pattern.finditer(text)
        )
        if length > _LONGEST_LAYOUT:
            raise args.stopped(name, "has too many layers")
        text = pattern.sub(lambda match: match.group(1) * int(match.group(2)), text)
    chunks = text.split("|")
    unknown = set(text) - set("EtmL|")
    if unknown:
        rule = f"has {', '.join(sorted(unknown))}: letters are E, t, m and L"
        raise args.stopped(name, rule)
    if not chunks[0].startswith("E") or not chunks[-1].endswith("L"):
        raise args.stopped(name, f"must begin with E and end with L: {_STOPS} otherwise")
    return chunks
