"""Facts that a log states of its own run, outside of its steps and its arguments: how many
parameters and layers the model has, the batch, the sequence length, the number of devices. They are
held against what a request says of the run.

A fact is recognised by the words around it, whatever framework the log is of.
`stated_facts.json` has the rules, with the code that prints them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from models.package_data import read_json

Fact = Literal[
    "parameters", "sharded_parameters", "trainable_parameters", "adapter_parameters",
    "num_layers", "seq_len", "global_batch", "step_tokens", "num_devices", "data_parallel",
    "tp", "pp", "cp", "micro_batch", "zero_stage",
]  # fmt: skip
_INTEGER = r"(\d{1,3}(?:,\d{3}){1,5}|\d{1,18})(?![\d,]*\d)"
_DECIMAL = r"(\d{1,9}(?:\.\d{1,9})?)"
_REACH = 300  # characters around a mark that are looked at
_MOST_OF_A_MARK = 200
"""Lines with one mark that are read. A rank may say the same in each of its lines, and a thousand
ranks once each."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A fact as the log states it."""

    fact: Fact
    value: float
    rounding: float
    """By how much the value may be off because digits were cut."""
    line: int
    """From 1."""
    text: str
    """The words that state it, such as `8,030,261,248 total parameters`."""


@dataclass(frozen=True, slots=True)
class _Rule:
    fact: Fact
    mark: str
    pattern: re.Pattern[str]
    scale: float


_NUMBERS = {"<integer>": _INTEGER, "<decimal>": _DECIMAL}


def _rule(fact: Fact, mark: str, pattern: str, scale: float = 1) -> _Rule:
    """Returns the rule for a fact. `mark` is plain text beside it with which a line is found
    quickly. `pattern` has <integer> or <decimal> where the value is printed, in units of
    `scale`."""
    for name, number in _NUMBERS.items():
        pattern = pattern.replace(name, number)
    return _Rule(fact, mark, re.compile(pattern), scale)


_RULES = [
    _rule(**fact)
    for framework in read_json(__package__, "stated_facts.json")
    for fact in framework["facts"]
]
_TOTAL_BATCH = next(rule for rule in _RULES if rule.mark.startswith("Total train batch size"))
_MESHES = (
    # torchtitan distributed/parallel_dims.py
    (
        "Building device mesh with parallelism:",
        re.compile(
            r"pp=(\d{1,6}), dp_replicate=(\d{1,6}), dp_shard=(\d{1,6}), cp=(\d{1,6}), tp=(\d{1,6})"
        ),
    ),
    ("device mesh with [", re.compile(r"device mesh with \[[^\]]{1,120}\], \[([\d, ]{1,60})\]")),
)
_PARAMETERS_OF_A_RANK = (
    # Megatron-LM training.py
    "number of parameters on (tensor, pipeline) model parallel rank",
    re.compile(rf"parallel rank \((\d{{1,6}}), (\d{{1,6}})\): {_INTEGER}"),
)
_MODEL_PARALLEL_SIZES = (
    # Megatron-LM initialize.py, in the order of the ranks above
    (
        "tensor-model-parallel size:",
        re.compile(rf"tensor-model-parallel size: {_INTEGER}"),
    ),
    (
        "pipeline-model-parallel size:",
        re.compile(rf"pipeline-model-parallel size: {_INTEGER}"),
    ),
)
_ALL_PARAMETERS = re.compile(rf"trainable params: {_INTEGER} \|\| all params: {_INTEGER} ")
_BATCH_OF_A_RANK = (
    "Instantaneous batch size per device",
    re.compile(rf"batch size per device = {_INTEGER}"),
)
_ACCUMULATION = (
    "Gradient Accumulation steps",
    re.compile(rf"Gradient Accumulation steps = {_INTEGER}"),
)


def stated_facts(text: str) -> list[Statement]:
    """Returns the facts that a log states of its run, such as its devices; each different value
    once. The text must be free of colour codes."""
    statements: dict[tuple[Fact, float], Statement] = {}
    for statement in chain(
        _plain_facts(text),
        _devices_of_meshes(text),
        _parameters_under_adapters(text),
        _ranks_by_batch(text),
        _parameters_of_all_ranks(text),
    ):
        statements.setdefault((statement.fact, statement.value), statement)
    return [*statements.values()]


def _plain_facts(text: str) -> Iterator[Statement]:
    """Yields the facts that a single pattern finds, such as a number of parameters."""
    for rule in _RULES:
        for start, segment in _segments(text, rule.mark):
            for match in rule.pattern.finditer(segment):
                yield _printed_fact(text, start, match, rule.fact, rule.scale)


def _devices_of_meshes(text: str) -> Iterator[Statement]:
    """Yields the number of devices as the product of the degrees of a device mesh: 32 for
    "device mesh with ['dp_shard', 'tp'], [8, 4]"."""
    for mark, pattern in _MESHES:
        for start, segment in _segments(text, mark):
            if match := pattern.search(segment):
                # One pattern has a group for each degree, the other one group with a list.
                degrees = re.findall(r"\d+", " ".join(match.groups()))
                devices = math.prod(map(int, degrees))
                yield _statement(text, start, match, "num_devices", float(devices))


def _parameters_under_adapters(text: str) -> Iterator[Statement]:
    """Yields the model's number of parameters where adapters are trained: the printed total
    without the trainable ones."""
    for start, segment in _segments(text, "trainable params:"):
        if match := _ALL_PARAMETERS.search(segment):
            trained, total = (int(number.replace(",", "")) for number in match.groups())
            yield _statement(text, start, match, "parameters", float(total - trained))


def _parameters_of_all_ranks(text: str) -> Iterator[Statement]:
    """Yields the sum of the parameters that each rank of tensor and pipeline parallelism prints
    for itself. Yields nothing where a rank is missing. The number of ranks follows from the
    degrees that the log states, or else from the highest ranks that print."""
    mark, pattern = _PARAMETERS_OF_A_RANK
    of_ranks: dict[tuple[int, int], int] = {}
    last: tuple[int, re.Match[str]] | None = None
    for start, segment in _segments(text, mark):
        if match := pattern.search(segment):
            last = start, match
            of_ranks[int(match[1]), int(match[2])] = int(match[3].replace(",", ""))
    stated = [_only_value(text, mark, pattern) for mark, pattern in _MODEL_PARALLEL_SIZES]
    # Ranks count from 0, so the highest rank of each axis shows its degree. No rank, no degree.
    seen = [1 + max(ranks_of_axis) for ranks_of_axis in zip(*of_ranks, strict=True)]
    ranks = math.prod(size or degree for size, degree in zip(stated, seen, strict=False))
    if last and len(of_ranks) == ranks:
        yield _statement(text, *last, "sharded_parameters", float(sum(of_ranks.values())))


def _ranks_by_batch(text: str) -> Iterator[Statement]:
    """Yields the number of data-parallel ranks: the Trainer's total batch divided by the batch
    of one rank and the accumulated micro-batches."""
    of_rank, accumulation = (
        _only_value(text, mark, pattern) for mark, pattern in (_BATCH_OF_A_RANK, _ACCUMULATION)
    )
    if not of_rank or not accumulation:
        return
    for start, segment in _segments(text, _TOTAL_BATCH.mark):
        if match := _TOTAL_BATCH.pattern.search(segment):
            ranks = int(match[1].replace(",", "")) / (of_rank * accumulation)
            if ranks.is_integer():  # otherwise the three values are not of one run
                yield _statement(text, start, match, "data_parallel", ranks)


def _only_value(text: str, mark: str, pattern: re.Pattern[str]) -> int | None:
    """Returns the number that a pattern finds beside a mark; None where there is none, or
    several differ."""
    values = {
        int(match[1].replace(",", ""))
        for _, segment in _segments(text, mark)
        if (match := pattern.search(segment))
    }
    return values.pop() if len(values) == 1 else None


def _segments(text: str, mark: str) -> Iterator[tuple[int, str]]:
    """Yields, for each mark in the text, the offset of a stretch around it, and that stretch. It
    stays within the line. Only the first _MOST_OF_A_MARK marks are looked at, because ranks repeat
    each other."""
    position = text.find(mark)
    for _ in range(_MOST_OF_A_MARK):
        if position < 0:
            return
        # From the beginning of the line to its end, or _REACH characters to either side.
        start = max(text.rfind("\n", max(0, position - _REACH), position) + 1, position - _REACH)
        end = text.find("\n", position, position + len(mark) + _REACH)
        yield start, text[start : end if end >= 0 else position + len(mark) + _REACH]
        position = text.find(mark, position + len(mark))


def _printed_fact(
    text: str, start: int, match: re.Match[str], fact: Fact, scale: float
) -> Statement:
    """Returns the fact whose value a match prints, in units of `scale`. Its rounding error is
    half of the last printed digit."""
    printed = match[1].replace(",", "")
    decimals = len(printed.partition(".")[2])
    # A value in its own unit is a count, and printed in full.
    rounding = scale * 10**-decimals / 2 if scale != 1 else 0.0
    return _statement(text, start, match, fact, float(printed) * scale, rounding)


def _statement(
    text: str,
    start: int,
    match: re.Match[str],
    fact: Fact,
    value: float,
    rounding: float = 0.0,
) -> Statement:
    """Returns a fact with this value and the number of its line. `start` is the offset of the
    text that was matched, and `rounding` the largest error of the value."""
    line = text.count("\n", 0, start + match.start()) + 1
    return Statement(fact=fact, value=value, rounding=rounding, line=line, text=match[0].strip())
