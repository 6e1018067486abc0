"""Implausible values are legal in a question, and almost surely were not meant: a batch given in
tokens, a sequence one short of a power of two. The question is answered all the same, and the
answer names them first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from models.spec import catalogue
from models.spec.problem import Problem

_MOST_TOKENS = 2**28
"""The most tokens of a step that raise no question: four times as many as the largest published
batch has (Kimi K2, arXiv 2507.20534: 67 million tokens)."""
_FEWEST_TOKENS = 1e5  # a training of fewer tokens is given in billions or trillions
_LONGEST_STEP_S = 3600.0  # a training of many thousands of steps has no time for longer ones
_ROUND_LENGTH = 1024  # people choose lengths that are multiples of it
_LEAST_POWER = 256  # people choose lengths that are powers of two from here on


def implausible_values(
    problem: Problem, step_time_s: float, micro_batches: Sequence[int] = ()
) -> list[str]:
    """Return a sentence for every implausible value of a question: the field, its value, and what
    was probably meant. `step_time_s` is the predicted step time, and `micro_batches` are those that
    constraints allow."""
    # A batch that was given in tokens also explains a step of hours, which is then not named.
    in_tokens = [*_batch_in_tokens(problem)]
    return [
        *in_tokens,
        *([] if in_tokens else _step_of_hours(problem, step_time_s)),
        *_budget_below_a_step(problem),
        *_length_beside_a_round_one(problem),
        *_micro_batches_that_do_not_divide(problem, micro_batches),
        *_graphs_of_no_experts(problem),
        *_network_in_bits(problem),
    ]


def _batch_in_tokens(problem: Problem) -> Iterator[str]:
    """Yield a sentence if the global batch is so large that it was probably given in tokens."""
    workload = problem.workload
    if workload.tokens <= _MOST_TOKENS:
        return
    batch = workload.global_batch
    # _MOST_TOKENS is four times the largest published batch.
    sentence = (
        f"check workload.global_batch = {batch}: it counts sequences, not tokens, and"
        f" {workload.tokens:,} tokens a step are {workload.tokens / _MOST_TOKENS * 4:.3g} times"
        " those of the largest published runs"
    )
    sequences = round(batch / workload.seq_len)
    if sequences:
        sentence += f"; {batch:,} tokens would be workload.global_batch = {sequences}"
    yield sentence


def _step_of_hours(problem: Problem, step_time_s: float) -> Iterator[str]:
    """Yield a sentence if a step takes hours."""
    if step_time_s <= _LONGEST_STEP_S:
        return
    yield (
        f"check workload.global_batch = {problem.workload.global_batch} and cluster.num_chips ="
        f" {problem.cluster.num_chips}: a step takes {step_time_s / 3600:.3g} hours, and trainings"
        " take many thousands of steps; fewer sequences a step, or more chips, were probably meant"
    )


def _budget_below_a_step(problem: Problem) -> Iterator[str]:
    """Yield a sentence if the token budget is less than one step."""
    workload = problem.workload
    budget = workload.token_budget
    if budget is None or budget >= workload.tokens:
        return
    sentence = (
        f"check workload.token_budget = {budget:g}: it counts tokens, and the whole training is"
        f" less than one step of {workload.tokens:,}"
    )
    if budget < _FEWEST_TOKENS:
        sentence += f"; {budget:g}e9 or {budget:g}e12 was probably meant"
    yield sentence


def _length_beside_a_round_one(problem: Problem) -> Iterator[str]:
    """Yield a sentence if the sequence length is one less or one more than a round number. Inputs
    and targets are shifted by a token, but frameworks are told the full length."""
    seq_len = problem.workload.seq_len
    for step, how in ((1, "one short of"), (-1, "one more than")):
        meant = seq_len + step
        is_power = meant >= _LEAST_POWER and meant & (meant - 1) == 0
        if is_power or (meant > 0 and meant % _ROUND_LENGTH == 0):
            yield (
                f"check workload.seq_len = {seq_len}: it is {how} {meant}, which was probably"
                " meant, and divides by next to no cp and tp; frameworks shift inputs against"
                " targets themselves"
            )


def _graphs_of_no_experts(problem: Problem) -> Iterator[str]:
    """Yield a sentence if the stack captures graphs of experts, which a dense model does not
    have."""
    graphs = problem.stack.moe_graphs
    if graphs != "none" and not problem.architecture.is_moe:
        yield (
            f"check stack.moe_graphs = {graphs}: it is of sparse models, and"
            f" {problem.architecture.name} is dense; stack.launch = graph was probably meant"
        )


def _network_in_bits(problem: Problem) -> Iterator[str]:
    """Yield a sentence if the network is so fast that it was probably given in bits."""
    fastest_gb_s = _fastest_network_gb_s()
    for dim in problem.cluster.dims:
        if dim.scale == "out" and dim.gb_s > fastest_gb_s:
            yield (
                f"check the {dim.gb_s:g} GB/s of each chip's network ({dim.name}): the fastest"
                f" known has {fastest_gb_s:g}; {dim.gb_s:g} Gb/s are {dim.gb_s / 8:g} GB/s"
            )
            return


@cache
def _fastest_network_gb_s() -> float:
    """Return the bandwidth of the fastest network that a chip of the catalogue has, one way."""
    levels = [level for chip in catalogue.chips().values() for level in chip.fabric.levels]
    return max(level.gb_s_per_chip for level in levels if level.scale == "out")


def _micro_batches_that_do_not_divide(
    problem: Problem, micro_batches: Sequence[int]
) -> Iterator[str]:
    """Yield a sentence for each allowed micro-batch that does not divide the global batch."""
    batch = problem.workload.global_batch
    useless = [size for size in micro_batches if batch % size]
    for size in useless:
        below = next(other for other in range(min(size, batch), 0, -1) if batch % other == 0)
        above = next((other for other in range(size, batch + 1) if batch % other == 0), None)
        meant = f"{below} or {above}" if above is not None else f"{below}"
        yield (
            f"check constraints.micro_batch = {size}: it divides workload.global_batch = {batch}"
            f" over no data-parallel ranks; {meant} was probably meant"
        )
