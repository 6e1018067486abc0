"""Makespan of an interleaved pipeline in closed form (models.cost.pipeline.makespan explains the
paths, and the stages where they turn).

A *round* is one chunk of layers on every stage, and a *group* of micro-batches passes one round
before the next. A stage *alternates* while each of its forwards is followed by a backward. A
*detour* is a stretch of a path that leaves its stage and comes back.

StagePasses has the seconds of a stage's forwards or backwards: `first` and `last` are one
micro-batch's in the first and in the last round. `before` sums those of the first round over the
stages before this one, and `upto` those of the last round over the stages up to it. `done` is when
the stage has done the passes before it alternates, and `ready` when it may begin to.
"""

from __future__ import annotations

from models.columns import Array
from models.compilation.compiled import inlined
from models.cost.pipeline.makespan import StagePasses, TurningStages, insert_ascending, set_ready

_EARLY_STAGES = 3
"""The number of turning stages, from the first, to which a path may go on from the last stage
(`_detour_round_pipeline`)."""


@inlined
def list_turning_stages(
    pp: int, micro_batches: int, group: int, stretch_ends: Array, stage: Array
) -> int:
    """Write to `stage`, in ascending order, the stages at which the longest path through an
    interleaved pipeline can turn, and return their number. They are `stretch_ends`, the stages
    where a stretch of equal stages begins or ends, and two more where the step is one group of
    micro-batches. `group` is the size of a group."""
    count = 0
    for stretch_end in stretch_ends:
        count = insert_ascending(stage, count, stretch_end)
    # A stage that does all forwards of the last round first (_last_round_passes_ahead) does not
    # alternate forwards and backwards. With one group, only stages after `turn` alternate. The path
    # may turn on either side of this change. (Stages alternate if their 2 (pp - 1 - stage) + 1
    # early forwards of the last round are fewer than the micro-batches.)
    if micro_batches <= group:
        turn = max(pp - 1 - micro_batches // 2, 0)
        count = insert_ascending(stage, count, turn)
        count = insert_ascending(stage, count, min(turn + 1, pp - 1))
    return count


@inlined
def interleaved(pp: int, micro_batches: int, group: int, turning: TurningStages) -> float:
    """Return the seconds of a pipeline whose stages have a chunk in each of several rounds. A group
    of `group` micro-batches passes the chunks of one round before those of the next. There must be
    at least pp micro-batches. The longest path turns at stages in `turning`, of whose records the
    fields that are not given (`upto` to `ready`) are filled here.

    The schedule is 1F1B of chunks. Before a stage alternates forwards and backwards, it does the
    forwards of a group in all rounds but the last, and two more for every stage that follows. It
    starts to alternate once these are done here or on an earlier stage, or once the first backward
    has come from a later stage. The end of the step mirrors its start, with backwards for forwards.
    """
    _set_passes_ahead(pp, micro_batches, group, turning.stage, turning.forward)
    _set_passes_ahead(pp, micro_batches, group, turning.stage, turning.backward)
    set_ready(turning.forward, turning.backward)
    set_ready(turning.backward, turning.forward)
    if micro_batches > group:
        return _several_groups(pp, micro_batches, group, turning)
    return _one_group(pp, micro_batches, turning)


@inlined
def _last_round_passes_ahead(pp: int, micro_batches: int, stage: int) -> int:
    """Return how many forwards a stage does before it alternates, beyond those of a group in all
    rounds but the last: two for each later stage, and one. They are the group's in the last round,
    and after these the next group's in the first round."""
    return min(2 * (pp - 1 - stage) + 1, micro_batches)


@inlined
def _seconds_ahead(passes: StagePasses, group: int, late: int) -> float:
    """Return the seconds of a group's passes on a stage in all rounds but the last, and of `late`
    passes after them. Up to `group` late passes are the group's in the last round; those beyond are
    the next group's in the first round."""
    earlier = group * (passes.per_micro_batch - passes.last)
    return earlier + min(late, group) * passes.last + max(late - group, 0) * passes.first


@inlined
def _set_passes_ahead(pp: int, micro_batches: int, group: int, stage: Array, passes: Array) -> None:
    """Set the fields `before`, `upto` and `done` of the StagePasses in `passes`, one for each stage
    listed in `stage`. A stage is done once the passes that precede its alternation have run
    here, or once as many have run on an earlier stage and the last has come down from there."""
    first = last = 0.0  # of all stages so far: a pass in the first round, and in the last
    previous = -1
    for i in range(len(stage)):
        # Stages between two that are listed are equal to the second.
        steps = stage[i] - previous
        first += steps * passes[i].first
        last += steps * passes[i].last
        passes[i].before = first - passes[i].first
        passes[i].upto = last
        previous = stage[i]
        late = _last_round_passes_ahead(pp, micro_batches, stage[i])
        done = 0.0
        for j in range(i + 1):
            # As many passes as the stage has ahead run on the earlier stage j once the first
            # micro-batch has come there. The last of them then comes down to the stage.
            down = last - passes[j].upto
            done = max(done, passes[j].before + _seconds_ahead(passes[j], group, late) + down)
        passes[i].done = done


@inlined
def _one_group(pp: int, micro_batches: int, turning: TurningStages) -> float:
    """Return the seconds of an interleaved pipeline whose micro-batches are one group: the longest
    over `turning` of the path that turns from forwards to backwards there. A path that leaves a
    stage for the head needs no case of its own: it is the path of the last stage."""
    longest = 0.0
    for i in range(len(turning.stage)):
        f = turning.forward[i]
        b = turning.backward[i]
        # Of the last round's forwards, those that the stage does before it alternates. Where these
        # are all, the stage does all forwards first and never alternates.
        late = _last_round_passes_ahead(pp, micro_batches, turning.stage[i])
        if micro_batches > late:
            work = micro_batches * (f.per_micro_batch + b.per_micro_batch)
            ahead = _seconds_ahead(f, micro_batches, late) + _seconds_ahead(b, micro_batches, late)
            path = f.ready + (work - ahead) + b.ready
        else:
            path = max(f.done + b.ready, f.ready + b.done)
        longest = max(longest, path)
    return longest


@inlined
def _several_groups(pp: int, micro_batches: int, group: int, turning: TurningStages) -> float:
    """Return the seconds of an interleaved pipeline with more micro-batches than one group: the
    longest over `turning` of the path that stays on that stage, with detours where these are
    longer.

    In every group the path may go to the head and back (_detour_to_head), if it returns before the
    next group's first round is over. It then skips the passes of that round that the stage does
    meanwhile: forwards in the first group, backwards in the last, and both in the groups between.
    In these it may go round the pipeline instead (_detour_round_pipeline).
    """
    longest = 0.0
    groups = micro_batches / group
    round_pipeline = _detour_round_pipeline(group, turning)
    for i in range(len(turning.stage)):
        f = turning.forward[i]
        b = turning.backward[i]
        # passes that the stage does while the path is at the head
        away = 2 * (pp - 1 - turning.stage[i])
        ahead = _seconds_ahead(f, group, away + 1)
        behind = _seconds_ahead(b, group, away + 1)
        # Seconds that detours add in the first group, in each group between, and in the last.
        early = between = later = 0.0
        if away <= group:
            head = _detour_to_head(group, f, b, turning.forward[-1], turning.backward[-1])
            early = head - away * f.first
            between = head - away * (f.first + b.first)
            # The last of two groups may be a part of one, and then counts as that part.
            later = min(groups - 1, 1.0) * (head - away * b.first)
        staying = group * (f.per_micro_batch + b.per_micro_batch)
        between = max(between, round_pipeline - staying, 0.0)
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
    """Return the seconds by which a path gets longer when it leaves a stage for the last stage,
    which has the head, in the last round. `f` and `b` are the forwards and backwards of the stage,
    and `f_end` and `b_end` those of the last one. All of a group's passes in that round but one of
    each kind then run there, and each stage on the way there and back adds a pass."""
    more = f_end.last + b_end.last - f.last - b.last
    on_the_way = f_end.upto + b_end.upto - f.upto - b.upto
    return (group - 1) * more + on_the_way


@inlined
def _detour_round_pipeline(group: int, turning: TurningStages) -> float:
    """Return the most seconds that a path takes for one group when it goes round the pipeline; 0
    where no path can. From the last stage it goes on to an early stage, does the first round of the
    next group there, and returns from the first stage. It has more passes of first rounds than a
    path that stays, and fewer of last rounds."""
    stage = turning.stage
    longest = 0.0
    # The seconds of the path are a sum of what the last stage (`end`), the early one (`early`) and
    # stage i (`own`) contribute.
    end = turning.forward[-1].upto + turning.backward[-1].upto
    for early_stage in range(min(len(stage), _EARLY_STAGES)):
        f = turning.forward[early_stage]
        b = turning.backward[early_stage]
        early = group * (f.first + b.first) + f.upto + b.upto - f.last - b.last
        for i in range(len(stage)):
            beyond = stage[i] - stage[early_stage]  # stages from the early one to stage i
            # The way there and back, two passes a stage, must take at least a group's passes.
            if 2 * beyond >= group:
                f = turning.forward[i]
                b = turning.backward[i]
                own = group * (f.per_micro_batch + b.per_micro_batch) + 2 * (beyond - group) * (
                    f.first + b.first
                )
                own -= (group - 1) * (f.last + b.last) + f.upto + b.upto
                longest = max(longest, early + own + end)
    return longest
