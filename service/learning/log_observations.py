"""Observations that a log itself allows of a run, in plain words: how steady its steps were, and
which of its lines tell what makes it slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from models.package_data import read_json
from models.prediction.prediction import Prediction
from models.spec.problem import Problem
from service.formats.logs import Reading
from service.formats.logs.allocator_message import AllocatorMessage
from service.formats.logs.symptoms import Symptom, SymptomKind
from service.learning.explained_runs import ExplainedRun
from service.schemas.explanation import LogExplained, Observation

_UNSTEADY = 0.1  # of the median, from the 10th to the 90th percentile
_FEW_STEPS = 3
_NEAR_LIMIT = 0.95  # of what the framework can reserve
_TO_SPARE = 0.6
_UNEXPECTED = 1.5  # times the predicted peak
_MUCH_GIB = 1.0
_FRAGMENTED = 0.15  # of what was reserved: so much in small pieces is not usual
_WORDS = read_json(__package__, "log_observations.json")
_LEFT_OUT: dict[str, dict[str, Any]] = _WORDS["left_out"]
"""Codes and words for steps that do not count, by the reason why they do not."""
_SYMPTOMS: dict[SymptomKind, str] = _WORDS["symptoms"]


def log_explained(run: ExplainedRun, prediction: Prediction | None) -> LogExplained | None:
    """Returns the speed that was read off the log of a run, and observations on it; None where
    there is no log. The fields of the speed are None where the log has no step."""
    if run.trouble is None or run.logged is None:
        return None
    reading = run.logged.reading
    observations = [
        *(_step_observations(reading) if reading else ()),
        *(Observation(code="cut_lines", message=note) for note in run.logged.cut_lines),
        *_memory_observations(run, prediction),
        *_allocator_observations(run.trouble.allocator),
        *_symptom_observations(run.trouble.symptoms, run.problem),
        *(
            Observation(code="other_switches", message=note)
            for note in run.logged.stack_differences
        ),
    ]
    if reading is None:
        return LogExplained(
            framework=None, unit=None, value=None, low=None, high=None, steps_found=0,
            steps_used=0, levels=[], observations=observations,
        )  # fmt: skip
    # A regime is a span of steps of one speed. A single one would only repeat the speed itself.
    levels = reading.regimes if len(reading.regimes) > 1 else ()
    return LogExplained.from_attributes(reading, levels=levels, observations=observations)


def _step_observations(reading: Reading) -> Iterator[Observation]:
    """Yields observations on the steps: changes of speed, unsteadiness, steps left out, restarts,
    and whether they are few or unreadable."""
    yield from _speed_changes(reading)
    spread = (reading.high - reading.low) / reading.value
    # With several regimes, the changes of speed account for the spread.
    if spread > _UNSTEADY and len(reading.regimes) == 1:
        yield Observation(
            code="unsteady",
            message=(
                f"steps vary by {spread:.0%} between the fastest and the slowest tenth"
                f" ({reading.low:.4g} to {reading.high:.4g} {reading.unit}): other jobs on the"
                " network, a shared file system or a node in trouble do that, no layout does"
            ),
        )
    for reason, observation in _LEFT_OUT.items():
        count = reading.left_out.get(reason, 0)
        if count:
            message = f"left out of {reading.steps_found} steps: {count} {observation['words']}"
            yield Observation(code=observation["code"], message=message)
    if reading.restarts:
        times = "once" if reading.restarts == 1 else f"{reading.restarts} times"
        yield Observation(code="restarted", message=f"the run started again {times}")
    if reading.steps_used < _FEW_STEPS:
        message = f"the speed rests on {reading.steps_used} of {reading.steps_found} steps"
        yield Observation(code="few_steps", message=message)
    if reading.unread:
        first = reading.unread[0]
        yield Observation(
            code="unread_lines",
            message=(
                f"{len(reading.unread)} lines look like steps and could not be read, such as line"
                f" {first.line}: {first.reason}"
            ),
        )


def _speed_changes(reading: Reading) -> Iterator[Observation]:
    """Yields an observation if the speed changed for good. Its cost is the share of the time that
    would have been saved at the best speed throughout."""
    regimes = reading.regimes
    if len(regimes) == 1:
        return
    is_rate = reading.unit != "step_time_s"
    times = [1 / regime.value if is_rate else regime.value for regime in regimes]
    spent_s = sum(time * regime.steps for time, regime in zip(times, regimes, strict=True))
    best_s = min(times) * sum(regime.steps for regime in regimes)
    words = ", ".join(f"{regime.value:.4g} from step {regime.first_step}" for regime in regimes)
    yield Observation(
        code="speed_changed",
        message=(
            f"the speed changed for good ({reading.unit}: {words}) while the job stayed the same:"
            f" at its best speed it would have taken {1 - best_s / spent_s:.0%} less time. Look at"
            " what happened to the nodes then: clocks, links, other jobs, data"
        ),
        cost=1 - best_s / spent_s,
    )


def _memory_observations(run: ExplainedRun, prediction: Prediction | None) -> Iterator[Observation]:
    """Yields observations on the measured peak of memory: far from the predicted one, near the
    limit, or with much to spare."""
    memory = run.report.memory
    if memory is None or prediction is None:
        return
    factor = run.memory_shown(prediction).peak_factor
    if factor is not None and not 1 / _UNEXPECTED <= factor <= _UNEXPECTED:
        yield Observation(
            code="memory_unexpected",
            message=(
                f"its peak of memory is {factor:.2g} times the predicted one: check that model,"
                " layout and sequence length are those that ran"
            ),
        )
    # Reserved memory is what runs out. A report of memory has at least one of the two.
    peak_gib = memory.reserved_gib or memory.allocated_gib or 0.0
    # Peaks are those of the framework's allocator, which cannot have the memory of the context.
    limit_gib = prediction.usable_gib - prediction.memory_gib["context_gib"]
    share = peak_gib / limit_gib
    peak = f"its peak of {peak_gib:.1f} GiB is {share:.0%} of the {limit_gib:.1f} GiB"
    if share > _NEAR_LIMIT:
        yield Observation(
            code="memory_near_limit",
            message=(
                f"{peak} that tensors can have: an allocator that is this full returns memory and"
                " asks for it again, which halts the device"
            ),
        )
    elif share < _TO_SPARE and not run.has_died:
        yield Observation(
            code="memory_to_spare",
            message=(
                f"{peak} that tensors can have: the rest buys speed, with less recompute, larger"
                " micro-batches or lower degrees"
            ),
        )


def _allocator_observations(message: AllocatorMessage | None) -> Iterator[Observation]:
    """Yields observations on the message that PyTorch's allocator printed when it ran out of
    memory; none without a message."""
    if message is None:
        return
    if message.others_gib > _MUCH_GIB:
        yield Observation(
            code="other_processes",
            message=(
                f"other processes held {message.others_gib:.1f} GiB of the device when it ran out:"
                " end what is left of earlier runs, and start one rank a device"
            ),
        )
    # All that the allocator had reserved: tensors, and free pieces between them.
    held_gib = (message.allocated_gib or 0.0) + (message.unallocated_gib or 0.0)
    if message.unallocated_gib and message.unallocated_gib > _FRAGMENTED * held_gib:
        yield Observation(
            code="fragmentation",
            message=(
                f"{message.unallocated_gib:.1f} GiB were reserved in pieces that were too small:"
                " set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
            ),
        )
    if message.allocated_gib is not None:
        yield Observation(
            code="allocated",
            message=f"its tensors took {message.allocated_gib:.1f} GiB when it ran out",
        )


def _symptom_observations(symptoms: Sequence[Symptom], problem: Problem) -> Iterator[Observation]:
    """Yields an observation for each kind of line that tells of trouble. Sockets are no trouble on
    a cluster without a network between nodes."""
    has_network = bool(problem.cluster.scale_out_mask.any())
    for symptom in symptoms:
        if symptom.kind == "sockets" and not has_network:
            continue
        lines = "line" if symptom.count == 1 else f"{symptom.count} lines, the first of them line"
        yield Observation(
            code=symptom.kind,
            message=f"{_SYMPTOMS[symptom.kind]} ({lines} {symptom.line}: {symptom.text})",
        )
