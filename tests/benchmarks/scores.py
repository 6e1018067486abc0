"""How good predictions of measured runs are: errors, intervals, ranking of sweeps, verdicts on
memory."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from models.cost.predictions import predict
from models.prediction.prediction import describe, log_spreads
from models.spec.constraints import SAFE_FIT_PROBABILITY
from models.spec.hardware import GIB
from models.spec.layout import Layout, Layouts
from models.spec.profile import Z80, Profile
from service.formats import published
from service.tools.fit_profile import model_shape

SMALL_FAMILY = 5
SWEEP = 5  # distinct layouts that make one
NEAR = 0.03  # measured step times closer than this are not ranked


@dataclass(frozen=True, slots=True)
class Scored:
    """A run in its own layout, with what was predicted of it.

    `step_time_s` and `memory_bytes`, which count what the run's peak counts, with the standard
    deviations of their logs; whether it `fits`, and how likely. A run that `failed` has only a
    verdict.
    """

    row: dict[str, Any]
    run: published.Run
    layout: Layout
    step_time_s: float
    spread: float
    memory_bytes: float
    memory_spread: float
    fits: bool
    fit_probability: float

    @classmethod
    def of(
        cls, row: dict[str, Any], run: published.Run, layout: Layout, profile: Profile
    ) -> Scored:
        """A run as predicted by a profile."""
        problem = run.problem
        found = predict(problem, Layouts.of([layout]), profile.coefficients(problem.scopes))
        spreads = log_spreads(found, profile)
        prediction = describe(found, 0, spreads, profile)
        memory_gib = {
            "allocated": prediction.allocated_gib,
            "reserved": prediction.reserved_gib,
            "needed": prediction.needed_gib,
        }[run.memory_kind]
        seconds = prediction.step_time_s
        slower = run.step_time_s is not None and run.step_time_s > seconds
        return cls(
            row=row,
            run=run,
            layout=layout,
            step_time_s=seconds,
            spread=float((spreads.slower if slower else spreads.faster)[0]),
            memory_bytes=memory_gib * GIB,
            memory_spread=float(spreads.reserved[0]),
            fits=prediction.fits,
            fit_probability=prediction.fit_probability,
        )

    @property
    def failed(self) -> bool:
        return bool(self.row["outcome"] != "ok")

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.step_time_s / (self.run.step_time_s or np.nan) - 1

    @property
    def covered(self) -> bool:
        return abs(np.log1p(self.error)) <= Z80 * self.spread

    @property
    def half_width(self) -> float:
        """Of the 80% interval, relative."""
        return float(np.expm1(Z80 * self.spread))


def statistics(scored: Sequence[Scored]) -> dict[str, Any]:
    timed = [s for s in scored if not s.failed]
    errors = np.array([s.error for s in timed]) if timed else np.array([np.nan])
    found: dict[str, Any] = {
        "n": len(timed),
        "converted": sum(s.run.converted for s in timed),
        "median_abs_error": float(np.median(np.abs(errors))),
        "p90_abs_error": float(np.quantile(np.abs(errors), 0.9)),
        "bias": float(np.median(errors)),
        "coverage80": float(np.mean([s.covered for s in timed])) if timed else None,
        "half_width80": float(np.median([s.half_width for s in timed])) if timed else None,
        "repeat_noise": repeat_noise(timed),
        **ranking(timed),
        **verdicts(scored),
    }
    return {name: value for name, value in found.items() if value is not None}


def repeat_noise(scored: Sequence[Scored]) -> float | None:
    """Median distance, of log step time, from the median of the runs alike in every field of
    problem and layout.

    Runs of different software dates count as alike: the date is no choice of layout.
    """
    alike: defaultdict[Hashable, list[float]] = defaultdict(list)
    for s in scored:
        alike[_question(s), s.layout].append(float(np.log(s.run.step_time_s or np.nan)))
    away = [abs(t - np.median(times)) for times in alike.values() if len(times) > 1 for t in times]
    return float(np.median(away)) if away else None


def _question(s: Scored) -> str:
    return json.dumps(
        [model_shape(s.row), s.row["cluster"], s.row["stack"], s.run.problem.workload.__repr__()],
        sort_keys=True,
        default=str,
    )


def ranking(scored: Sequence[Scored]) -> dict[str, float | None]:
    """Mean Kendall τ-b and top-1 regret over the sweeps among these runs."""
    taus, regrets = [], []
    for sweep in sweeps(scored):
        measured = np.array([s.run.step_time_s or np.nan for s in sweep])
        predicted = np.array([s.step_time_s for s in sweep])
        tau = kendall_tau(predicted, measured)
        if tau is not None:
            taus.append(tau)
        regrets.append(float(1 - measured.min() / measured[int(predicted.argmin())]))
    return {
        "sweeps": float(len(taus)) or None,
        "kendall_tau": float(np.mean(taus)) if taus else None,
        "top1_regret": float(np.mean(regrets)) if regrets else None,
    }


def sweeps(scored: Sequence[Scored]) -> list[list[Scored]]:
    """Runs of one source, model shape, chip, chip count, sequence, batch and format, with the same
    switches, in five or more layouts.

    Of repeats of a layout one is returned, with the mean of the measured times.
    """
    together: defaultdict[str, defaultdict[Layout, list[Scored]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for s in scored:
        w, cluster = s.run.problem.workload, s.row["cluster"]
        key = [
            s.row["source"]["title"],
            model_shape(s.row),
            cluster["chip"],
            cluster["num_chips"],
            w.seq_len,
            s.row["training"].get("switches"),
        ]
        together[json.dumps([*key, w.global_batch, w.precision], sort_keys=True)][s.layout].append(
            s
        )
    return [
        [_averaged(repeats) for repeats in layouts.values()]
        for layouts in together.values()
        if len(layouts) >= SWEEP
    ]


def _averaged(repeats: list[Scored]) -> Scored:
    one = repeats[0]
    mean = float(np.mean([s.run.step_time_s or np.nan for s in repeats]))
    return replace(one, run=replace(one.run, step_time_s=mean))


def kendall_tau(predicted: np.ndarray, measured: np.ndarray) -> float | None:
    """τ-b over the pairs that differ by more than NEAR as measured."""
    agree, ranked, tied = 0, 0, 0
    for i, j in combinations(range(len(measured)), 2):
        if abs(np.log(measured[i] / measured[j])) <= NEAR:
            continue
        ranked += 1
        order = np.sign(predicted[i] - predicted[j])
        tied += order == 0
        agree += int(order * np.sign(measured[i] - measured[j]))
    return agree / float(np.sqrt((ranked - tied) * ranked)) if ranked > tied else None


def verdicts(scored: Sequence[Scored]) -> dict[str, float | None]:
    """Share of out-of-memory points flagged, share of measured runs said to fit, error of measured
    memory."""
    failed = [s for s in scored if s.failed]
    ran = [s for s in scored if not s.failed]
    peaks = [abs(s.memory_bytes / s.run.memory_bytes - 1) for s in ran if s.run.memory_bytes]
    inside = [
        abs(np.log(s.memory_bytes / s.run.memory_bytes)) <= Z80 * s.memory_spread
        for s in ran
        if s.run.memory_bytes
    ]
    return {
        "oom_recall": float(np.mean([not s.fits for s in failed])) if failed else None,
        "fit_precision": float(np.mean([s.fits for s in ran])) if ran else None,
        "oom_called_sure": called_sure(failed),
        "ran_called_sure": called_sure(ran),
        "memory_median_abs_error": float(np.median(peaks)) if peaks else None,
        "memory_coverage80": float(np.mean(inside)) if inside else None,
    }


def called_sure(scored: Sequence[Scored]) -> float | None:
    """The share of runs that are said to fit as surely as what is recommended has to."""
    if not scored:
        return None
    return float(np.mean([s.fit_probability >= SAFE_FIT_PROBABILITY for s in scored]))


def by(scored: Iterable[Scored], name: Callable[[Scored], str]) -> dict[str, dict[str, Any]]:
    groups: defaultdict[str, list[Scored]] = defaultdict(list)
    for s in scored:
        groups[name(s)].append(s)
    return {
        key: statistics(group)
        for key, group in sorted(groups.items())
        if any(not s.failed for s in group)
    }


def families(scored: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    """By source; those of few runs together as "small"."""
    sizes: defaultdict[str, int] = defaultdict(int)
    for s in scored:
        sizes[s.row["family"]] += not s.failed
    return by(
        scored, lambda s: s.row["family"] if sizes[s.row["family"]] >= SMALL_FAMILY else "small"
    )


def overall(by_family: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Macro-averages over families, each of those that have the figure; counts are sums."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for family in by_family.values() for name in family):
        values = [family[name] for family in by_family.values() if name in family]
        found[name] = (
            int(sum(values)) if name in ("n", "converted", "sweeps") else float(np.mean(values))
        )
    found["median_of_medians"] = float(
        np.median([family["median_abs_error"] for family in by_family.values()])
    )
    return found
