"""Makespan of an interleaved pipeline in closed form (models.cost.pipeline.makespan explains the
paths, and the arrays `stage`, `forward` and `backward`)."""

from __future__ import annotations

from models.columns import Array
from models.compilation.compiled import inlined
from models.cost.pipeline.makespan import StagePasses, insert, set_ready

_EARLY = 3
"""The number of listed stages to which a path may go round: the first, and one or two of those that
follow it."""


@inlined
def turning_stages_of_rounds(
    pp: int, micro_batches: int, group: int, stretch_ends: Array, stage: Array
) -> int:
    """Write the stages at which the paths of an interleaved pipeline can turn, and return their
    number. They are the `stretch_ends` where a stretch of equal stages begins or ends. Where the
    micro-batches are one group, late stages alternate forward and backward and early stages do not,
    so that paths turn between them too."""
    count = 0
    for stretch_end in stretch_ends:
        count = insert(stage, count, stretch_end)
    if micro_batches <= group:
        turn = max(pp - 1 - micro_batches // 2, 0)
        count = insert(stage, count, turn)
        count = insert(stage, count, min(turn + 1, pp - 1))
    return count


@inlined
def interleaved(
    pp: int, micro_batches: int, group: int, stage: Array, forward: Array, backward: Array
) -> float:
    """Return the seconds of a pipeline with chunks dealt out in rounds. A group of micro-batches
    passes the chunks of one round before those of the next. There are as many micro-batches as
    stages, or more.

    The schedule is 1F1B of chunks. A stage has all but the last round of a group ahead, and two
    more forwards for every stage that follows. Before it alternates, it waits for its own forwards,
    for as many of a stage before it, or for what the first backward takes from a later one. From
    its last forward on, all this holds with time turned round.
    """
    _set_rounds_ahead(pp, micro_batches, group, stage, forward)
    _set_rounds_ahead(pp, micro_batches, group, stage, backward)
    set_ready(forward, backward)
    set_ready(backward, forward)
    if micro_batches > group:
        return _several_groups(pp, micro_batches, group, stage, forward, backward)
    return _one_group(pp, micro_batches, stage, forward, backward)


@inlined
def _last_round_passes_ahead(pp: int, micro_batches: int, stage: int) -> int:
    """Return the number of passes that a stage does of the last round, and then of the next group's
    first one, before it alternates. It has done the other rounds of a group by then."""
    return min(2 * (pp - 1 - stage) + 1, micro_batches)


@inlined
def _rounds_ahead(passes: StagePasses, group: int, late: int) -> float:
    """Return the seconds of a group's passes on a stage in all rounds but the last, and of `late`
    passes after them."""
    earlier = group * (passes.per_micro_batch - passes.last)
    return earlier + min(late, group) * passes.last + max(late - group, 0) * passes.first


@inlined
def _set_rounds_ahead(pp: int, micro_batches: int, group: int, stage: Array, passes: Array) -> None:
    """Set `before`, `upto` and `done`. A stage is done when it has done the passes that it has
    ahead; or when a stage before it has done as many, and the last of them has come down from
    there."""
    first = last = 0.0
    before = -1
    for i in range(len(stage)):
        steps = stage[i] - before
        first += steps * passes[i].first
        last += steps * passes[i].last
        passes[i].before = first - passes[i].first
        passes[i].upto = last
        before = stage[i]
        late = _last_round_passes_ahead(pp, micro_batches, stage[i])
        done = 0.0
        for j in range(i + 1):
            down = last - passes[j].upto
            done = max(done, passes[j].before + _rounds_ahead(passes[j], group, late) + down)
        passes[i].done = done


@inlined
def _one_group(pp: int, micro_batches: int, stage: Array, forward: Array, backward: Array) -> float:
    """Return the seconds of an interleaved pipeline whose micro-batches are one group. (A path that
    leaves a stage for the head is one of those through the last stage.)"""
    longest = 0.0
    for i in range(len(stage)):
        f = forward[i]
        b = backward[i]
        late = _last_round_passes_ahead(pp, micro_batches, stage[i])
        if micro_batches > late:
            work = micro_batches * (f.per_micro_batch + b.per_micro_batch)
            ahead = _rounds_ahead(f, micro_batches, late) + _rounds_ahead(b, micro_batches, late)
            path = f.ready + (work - ahead) + b.ready
        else:
            path = max(f.done + b.ready, f.ready + b.done)
        longest = max(longest, path)
    return longest


@inlined
def _several_groups(
    pp: int, micro_batches: int, group: int, stage: Array, forward: Array, backward: Array
) -> float:
    """Return the seconds of an interleaved pipeline with more micro-batches than one group.

    With every group the path may leave its stage, where another way is longer. It may go to the
    head (_detour_to_head) if it is back before the next group's first round is over; it then misses
    the passes of that round which the stage does meanwhile. It misses forwards in the first group,
    backwards in the last one, and both in the groups between. In the groups between it may go round
    instead (_detour_round_pipeline).
    """
    longest = 0.0
    groups = micro_batches / group
    around = _detour_round_pipeline(group, stage, forward, backward)
    for i in range(len(stage)):
        f = forward[i]
        b = backward[i]
        away = 2 * (pp - 1 - stage[i])
        ahead = _rounds_ahead(f, group, away + 1)
        behind = _rounds_ahead(b, group, away + 1)
        early = between = later = 0.0
        if away <= group:
            head = _detour_to_head(group, f, b, forward[-1], backward[-1])
            early = head - away * f.first
            between = head - away * (f.first + b.first)
            later = min(groups - 1, 1.0) * (head - away * b.first)
        between = max(between, around - group * (f.per_micro_batch + b.per_micro_batch), 0.0)
        path = (
            max(f.ready, f.before + ahead + early)
            + (micro_batches * (f.per_micro_batch + b.per_micro_batch) - ahead - behind)
            + max(groups - 2, 0.0) * between
            + max(b.ready, b.before + behind + later)
        )
        longest = max(longest, path)
    return longest


@inlined
def _detour_to_head(
    group: int, f: StagePasses, b: StagePasses, f_end: StagePasses, b_end: StagePasses
) -> float:
    """Return the seconds that a path takes longer when it leaves a stage for the last round of the
    last stage, which has the head (`f_end`, `b_end`). It does the stage's last round there, but for
    one pass of each kind, and passes the stages on the way there and back."""
    more = f_end.last + b_end.last - f.last - b.last
    on_the_way = f_end.upto + b_end.upto - f.upto - b.upto
    return (group - 1) * more + on_the_way


@inlined
def _detour_round_pipeline(group: int, stage: Array, forward: Array, backward: Array) -> float:
    """Return the most seconds that a path takes with every group when it goes round; 0 where none
    can. It goes on from the last stage to an early one, for the first round of the next group
    there, and back from the first stage. So it sees first rounds more often, and no last one."""
    longest = 0.0
    end = forward[-1].upto + backward[-1].upto
    for at in range(min(len(stage), _EARLY)):
        f = forward[at]
        b = backward[at]
        early = group * (f.first + b.first) + f.upto + b.upto - f.last - b.last
        for i in range(len(stage)):
            beyond = stage[i] - stage[at]
            if 2 * beyond >= group:
                f = forward[i]
                b = backward[i]
                own = group * (f.per_micro_batch + b.per_micro_batch) + 2 * (beyond - group) * (
                    f.first + b.first
                )
                own -= (group - 1) * (f.last + b.last) + f.upto + b.upto
                longest = max(longest, early + own + end)
    return longest


@inlined
def moving_path(
    pp: int,
    micro_batches: int,
    group: int,
    steady: float,
    ahead: float,
    last: float,
    forward: Array,
    backward: Array,
) -> float:
    """Return the seconds of a path of an interleaved pipeline that moves with every round to the
    stage that has more in it, where rounds differ from stage to stage
    (models.cost.pipeline.stage_partition).

    All micro-batches but one group take `steady` seconds each, on a path that alternates. The first
    and the last group have one kind of pass each, and together take `ahead` for each micro-batch,
    as where all forwards come first; that path ends at stage `last`. The path also waits for the
    first round to come down the stages: typically for half of it, and with one group for the part
    before `last`.
    """
    waits = 0.5 if micro_batches > group else last / (pp - 1)
    before = forward[-1].before + backward[-1].before
    return group * ahead + (micro_batches - group) * steady + waits * before
