"""Coverage says what a prediction rests on: which of its terms the runs behind the profile
exercised, where those runs were, and between which sizes and degrees they lie.

A term is *measured* where runs on the same chip and stack exercised it. It is *inherited* where
only runs on the chip's generation, or of the stack, did. Compute is inherited from the generation
alone, and from nothing on a chip that is announced. Otherwise a term rests on the *data sheet* and
the priors (data/priors.json). A run exercises a term that takes at least EXERCISED_SHARE of the
time, or of the memory, that was measured.

Terms here are those of the breakdown, the parts of a step time or of memory. A *scope* names a set
of runs, such as "generation:hopper" or "stack:megatron".
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2s
from typing import Any, Literal

import numpy as np

from models.columns import Array
from models.cost.predictions import MEMORY_TERMS, TIME_TERMS, in_gib, predict
from models.spec.identity import cached_by_identity
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem, number_by_problem
from models.spec.profile import Profile, QuantityRange, TermCoverage

EXERCISED_SHARE = 0.02  # of a step or of memory: a smaller term is lost in the scatter of runs
DECISIVE_SHARE = 0.05  # of a step: the weakest of the terms above it grades the prediction

# Runs of a stack on another generation of chips say nothing of these terms.
COMPUTE_TERMS = frozenset({"compute_s", "recompute_s"})

EvidenceLevel = Literal["measured", "inherited", "data_sheet"]
_FROM_STRONGEST: tuple[EvidenceLevel, ...] = ("measured", "inherited", "data_sheet")

_EVERYWHERE = "all"  # the scope of the ranges of all runs

_ANY = (-math.inf, math.inf)  # the range of a quantity of which no run has a value
_CACHED_SCOPES = 256  # chips, generations and stacks, each with a profile
_CACHED_PROBLEMS = 64  # pairs of a profile and a generation or stack

_TermKey = tuple[str, str]  # a term and a scope


@dataclass(frozen=True, slots=True, kw_only=True)
class TermEvidence:
    """The evidence behind one term: its kind (`ground`: measured, inherited or data sheet), the
    scope of the runs, and the numbers of runs and of their sources. `sources` is None where the
    profile does not say it."""

    ground: EvidenceLevel
    scope: str
    runs: int
    sources: int | None

    @classmethod
    def of(cls, ground: EvidenceLevel, seen: TermCoverage) -> TermEvidence:
        """Return evidence of this kind from the runs of one scope."""
        return cls(
            ground=ground, scope=seen.scope, runs=seen.runs, sources=len(seen.sources) or None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The evidence behind a prediction, by the name of the term.

    `grade` is the weakest evidence among the terms that decide the step. `outside` says, in words,
    where the prediction extrapolates beyond every run.
    """

    grade: EvidenceLevel
    terms: Mapping[str, TermEvidence]
    outside: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FittedRun:
    """A run behind a profile, with its source, and whether its step time and its memory were
    measured."""

    problem: Problem
    layout: Layout
    has_step_time: bool
    has_memory: bool
    source: str = ""


def provenance(
    problem: Problem,
    layout: Layout,
    time: Mapping[str, float],
    memory: Mapping[str, float],
    profile: Profile,
) -> Provenance:
    """Return the evidence behind a prediction. `time` has its seconds and `memory` its GiB by term;
    terms that are zero are left out. The grade is the weakest evidence of any term of time that
    takes at least DECISIVE_SHARE of the step."""
    is_announced = problem.cluster.chip.is_data_sheet_only
    generation = None if is_announced else _generation_scope(problem)
    evidence = _evidence_of_terms(
        profile, _chip_and_stack_scope(problem), generation, _stack_scope(problem)
    )
    terms = {name: evidence[name] for name, value in {**time, **memory}.items() if value > 0}
    step_time_s = sum(time.values())
    least_s = DECISIVE_SHARE * step_time_s
    decisive = [terms[name].ground for name, seconds in time.items() if seconds >= least_s]
    return Provenance(
        grade=max(decisive, key=_FROM_STRONGEST.index),  # the weakest
        terms=terms,
        outside=tuple(_extrapolations(problem, layout, profile)),
    )


@cached_by_identity(_CACHED_SCOPES)
def _evidence_of_terms(
    profile: Profile, chip_and_stack: str, generation: str | None, stack: str
) -> dict[str, TermEvidence]:
    """Return the evidence behind each term of time and memory, by the term's name. The scopes name
    runs on the chip with the stack, on the chip's generation, and of the stack. `generation` is
    None where its runs say nothing of the chip."""
    terms = [*TIME_TERMS, *map(in_gib, MEMORY_TERMS)]
    return {
        term: _term_evidence(term, profile, chip_and_stack, generation, stack) for term in terms
    }


def _term_evidence(
    term: str, profile: Profile, chip_and_stack: str, generation: str | None, stack: str
) -> TermEvidence:
    """Return the evidence behind one term. Runs on this chip and stack count first ("measured"),
    then the more numerous of runs on the generation and of the stack ("inherited"), then the data
    sheet. Runs of the stack on other chips say nothing of compute."""
    coverage = profile.coverage_of
    if seen := coverage.get((term, chip_and_stack)):
        return TermEvidence.of("measured", seen)
    relatives = [] if generation is None else [generation]
    if term not in COMPUTE_TERMS:
        relatives.append(stack)
    related = [seen for scope in relatives if (seen := coverage.get((term, scope)))]
    if related:
        return TermEvidence.of("inherited", max(related, key=lambda seen: seen.runs))
    return TermEvidence(ground="data_sheet", scope="none", runs=0, sources=0)


def extrapolates(problem: Problem, layouts: Layouts, profile: Profile) -> Array:
    """Return for each of n layouts whether it has some quantity outside the range of all runs, or
    outside that of the runs on the chip's generation, (n,): intervals are wider there. It is true
    for all layouts where the profile's runs are all on other generations, or where nothing has been
    measured on the chip."""
    is_unmeasured = problem.cluster.chip.is_data_sheet_only
    has_runs = _has_runs_on_generation(problem, profile)
    result = np.full(len(layouts), is_unmeasured or not has_runs)
    ranges = _ranges_on_generation(profile, _generation_scope(problem))
    for name, value in quantities(problem, layouts).items():
        low, high = ranges.get(name, _ANY)
        result |= (value < low) | (value > high)
    return result


@cached_by_identity(_CACHED_PROBLEMS)
def _ranges_on_generation(profile: Profile, generation: str) -> dict[str, tuple[float, float]]:
    """Return, by quantity, the range (low, high) that is both within that of all runs and within
    that of the runs on the chip's generation. Quantities of which no run has a value are left
    out."""
    ranges: dict[str, tuple[float, float]] = {}
    for span in profile.spans:
        if span.scope in (_EVERYWHERE, generation):
            low, high = ranges.get(span.quantity, _ANY)
            ranges[span.quantity] = max(low, span.low), min(high, span.high)
    return ranges


def _extrapolations(problem: Problem, layout: Layout, profile: Profile) -> Iterator[str]:
    """Yield a sentence for each way in which a question lies outside the runs behind the profile,
    such as "pp = 64 is beyond the 32 of any run"."""
    chip = problem.cluster.chip
    generation = chip.generation
    if chip.is_data_sheet_only:
        yield f"nothing has been measured on {chip.id}"
    if not _has_runs_on_generation(problem, profile):
        yield f"no run behind the profile is on {generation} chips"
    densities = _densities_of_stack(profile, _stack_scope(problem))
    if densities and problem.density not in densities:
        yield (
            f"no run of stack {problem.stack.id} behind the profile is of a {problem.density} model"
        )
    scopes = {_EVERYWHERE: "any run", _generation_scope(problem): f"any run on {generation}"}
    for name, value in quantities(problem, layout).items():
        for scope, runs in scopes.items():
            span = profile.range_of.get((name, scope))
            if span is None or span.low <= value <= span.high:
                continue
            if value > span.high:
                yield f"{name} = {value:g} is beyond the {span.high:g} of {runs}"
            else:
                yield f"{name} = {value:g} is below the {span.low:g} of {runs}"
            break  # beyond all runs is beyond those on the generation too


@cached_by_identity(_CACHED_PROBLEMS)
def _densities_of_stack(profile: Profile, stack: str) -> set[str]:
    """Return the densities ("dense", "sparse") of the models that runs of this stack behind the
    profile trained."""
    # Neighbourhoods of a stack have scopes such as "stack:torchtitan/dense".
    prefix = f"{stack}/"
    return {
        neighbourhood.scope.removeprefix(prefix)
        for neighbourhood in profile.neighbourhoods
        if neighbourhood.scope.startswith(prefix)
    }


def _has_runs_on_generation(problem: Problem, profile: Profile) -> bool:
    """Say whether some run was on the chip's generation. It is true of a profile without any run
    too: its priors are wide already, and nothing has to widen them."""
    generation = _generation_scope(problem)
    return not profile.spans or generation in profile.scopes_of_ranges


def _chip_and_stack_scope(problem: Problem) -> str:
    return f"chip:{problem.cluster.chip.id}/{_stack_scope(problem)}"


def _generation_scope(problem: Problem) -> str:
    return f"generation:{problem.cluster.chip.generation}"


def _stack_scope(problem: Problem) -> str:
    return f"stack:{problem.stack.calibrated_as}"


def quantities(problem: Problem, layout: Layout | Layouts) -> dict[str, Any]:
    """Return the sizes and degrees by which runs are told apart, by name. They are numbers for one
    layout; for several layouts the degrees are arrays of shape (n,)."""
    workload = problem.workload
    parameters = problem.architecture.parameters
    return {
        "chips": float(problem.cluster.num_chips),
        "parameters": float(parameters.total),
        "active_parameters": float(parameters.active),
        "seq_len": float(workload.seq_len),
        "tokens_per_step": float(workload.tokens),
        "tp": layout.tp,
        "pp": layout.pp,
        "cp": layout.cp,
        "ep": layout.ep,
    }


def with_coverage(profile: Profile, runs: Sequence[FittedRun]) -> Profile:
    """Return the profile with these runs added to its coverage: to the numbers of runs that
    exercise each term, by the profile's own predictions, and to the ranges of quantities."""
    counts = Counter[_TermKey]()
    sources = defaultdict[_TermKey, set[str]](set)
    for key, seen in profile.coverage_of.items():
        counts[key] = seen.runs
        sources[key].update(seen.sources)
    for same_problem in _runs_by_problem(runs):
        problem = same_problem[0].problem
        scopes = (_chip_and_stack_scope(problem), _generation_scope(problem), _stack_scope(problem))
        for term, exercising in _exercising_runs(problem, same_problem, profile).items():
            for scope in scopes:
                counts[term, scope] += len(exercising)
                sources[term, scope].update(source_pseudonym(run.source) for run in exercising)
    covered = tuple(
        TermCoverage(
            term=term, scope=scope, runs=count, sources=tuple(sorted(sources[term, scope]))
        )
        for (term, scope), count in sorted(counts.items())
        if count
    )
    return replace(with_ranges(profile, runs), seen=covered)


def with_ranges(profile: Profile, runs: Iterable[FittedRun]) -> Profile:
    """Return the profile with its ranges of quantities extended to cover these runs, as far as
    their step time was measured."""
    ranges = {key: (span.low, span.high) for key, span in profile.range_of.items()}
    for run in runs:
        if not run.has_step_time:
            continue
        for quantity, value in quantities(run.problem, run.layout).items():
            for scope in (_EVERYWHERE, _generation_scope(run.problem)):
                low, high = ranges.get((quantity, scope), (value, value))
                ranges[quantity, scope] = min(low, value), max(high, value)
    spans = tuple(
        QuantityRange(quantity=quantity, scope=scope, low=low, high=high)
        for (quantity, scope), (low, high) in sorted(ranges.items())
    )
    return replace(profile, spans=spans)


def source_pseudonym(source: str) -> str:
    """Return a short pseudonym of a source, from which the source's name cannot be read: a profile
    tells sources apart by it without naming them."""
    return blake2s(source.encode(), digest_size=4).hexdigest()


def _runs_by_problem(runs: Sequence[FittedRun]) -> Iterable[list[FittedRun]]:
    """Return the runs in groups of equal problems, in order of first appearance."""
    groups: dict[int, list[FittedRun]] = {}
    for number, run in zip(number_by_problem(run.problem for run in runs), runs, strict=True):
        groups.setdefault(number, []).append(run)
    return groups.values()


def _exercising_runs(
    problem: Problem, runs: Sequence[FittedRun], profile: Profile
) -> dict[str, list[FittedRun]]:
    """Return, by term, the runs that exercise it: those in which it is predicted to take at least
    EXERCISED_SHARE of the step time or memory, and in which that was measured. All runs are of the
    same problem."""
    layouts = Layouts.of([run.layout for run in runs])
    predicted = predict(problem, layouts, profile.coefficients(problem.scopes))
    has_step_time = np.array([run.has_step_time for run in runs])
    has_memory = np.array([run.has_memory for run in runs])
    least_s = EXERCISED_SHARE * predicted.step_time_s
    least_bytes = EXERCISED_SHARE * predicted.needed_bytes
    time = {name: has_step_time & (value >= least_s) for name, value in predicted.time.items()}
    memory = {
        in_gib(name): has_memory & (value >= least_bytes)
        for name, value in predicted.memory.items()
    }
    return {
        name: [runs[i] for i in np.flatnonzero(exercised).tolist()]
        for name, exercised in {**time, **memory}.items()
    }
