"""Fit the shipped profile to published runs.

`python -m service.tools.fit_profile --runs FILE --out models/data [--keep-terms]`

FILE holds one run a line, as JSON. The prior is made of hardware measurements with their sources
(models/data/priors.json), plus an offset of mean zero for every generation, chip and stack that a
coefficient may vary with. Runs are weighted so that a large family of runs counts like a mid-sized
one, and runs of which their source is less sure count less. With `--keep-terms`, runs that came
after the fit only tell how far the step times of sources lie apart, and their peaks of memory.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from models.calibration.calibrate import Calibration, calibrate, with_published_terms
from models.calibration.observation import Observation
from models.cost.predictions import predict
from models.errors import DomainError, Invalid
from models.layouts.rules import RULES, first_broken
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem, number_by_problem
from models.spec.profile import NewestSoftware, Profile, priors
from service.formats import published

# No family counts for more runs than this.
FAMILY_WEIGHT = 60.0
# Nor does any model on one stack within a family: what is odd about a model shows on every chip.
MODEL_WEIGHT = 8.0
TRUST_WEIGHT = {"A": 1.0, "B": 0.7, "C": 0.3, "D": 0.3}
# Share of the weight of a run whose source does not say how long or how many its sequences were.
UNSTATED_WORKLOAD_WEIGHT = 0.1
_MADE_BY = "fit to published runs (service.tools.fit_profile)"

_SHAPE_FIELDS = (
    "num_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "head_dim", "vocab_size", "moe", "mla",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _ReadRun:
    """A row of published runs, what was read of it, its alternative layouts that are legal, and its
    weight in the fit."""

    row: dict[str, Any]
    run: published.Run
    layouts: Layouts
    weight: float


def choose_layout(run: published.Run, profile: Profile) -> Layout:
    """Returns the layout that a run most likely had, of those that its source leaves open. Raises
    Invalid where none is legal.

    Preferred is the fastest layout that fits under the first recompute policy, then the fastest
    that fits under any, then the one that needs least memory. A stack that by default processes all
    sequences of a device at once takes the largest micro-batch that fits. The run's own
    measurements play no part.
    """
    layouts = Layouts.of(run.alternatives)
    broken = first_broken(run.problem, layouts)
    if (broken >= 0).all():
        rule = RULES[int(broken[0])]  # that the first layout breaks
        raise Invalid(rule.field, rule.name, rule.message(run.problem, layouts[0]))
    return _likeliest(run.problem, layouts.take(broken < 0), profile)


def _likeliest(problem: Problem, layouts: Layouts, profile: Profile) -> Layout:
    """Returns the layout that a run most likely had. Preferred is the fastest that fits under the
    recompute policy of the first layout, then the fastest that fits under any, then the one that
    needs least memory."""
    if len(layouts) == 1:
        return layouts[0]
    predictions = predict(problem, layouts, profile.coefficients(problem.scopes))
    fits = predictions.fits()
    # A stack with a usual number of sequences fills its devices with them: only the largest
    # micro-batch comes into question.
    if problem.stack.usual_sequences and (layouts.pp == 1).all():
        most = layouts.micro_batch[fits].max() if fits.any() else layouts.micro_batch.max()
        largest = np.flatnonzero(layouts.micro_batch == most)
        layouts = layouts.take(largest)
        predictions = predictions.take(largest)
        fits = fits[largest]
    if not fits.any():
        return layouts[int(np.argmin(predictions.needed_bytes))]
    fits_under_first_policy = fits & (layouts.recompute == layouts.recompute[0])
    candidates = fits_under_first_policy if fits_under_first_policy.any() else fits
    return layouts[int(np.argmin(np.where(candidates, predictions.step_time_s, np.inf)))]


def observations(rows: Iterable[dict[str, Any]], profile: Profile) -> list[Observation]:
    """Returns the runs that the models can express, weighted by family, model and trust. Failed
    runs count only where their source names memory as the reason."""
    return _observations(_readable_runs(rows, profile.software_year), profile)


def _readable_runs(rows: Iterable[dict[str, Any]], software_year: float) -> list[_ReadRun]:
    """Returns the runs that the models can express and that have a legal layout, with their
    weights. `software_year` is the date of the newest software, as a year with a fraction."""
    usable_rows = [
        row for row in rows if row["outcome"] == "ok" or row["failure"] == "out_of_memory"
    ]
    weights = _weights(usable_rows)
    # Equal problems become one object, so that their runs are predicted together.
    problems: dict[Problem, Problem] = {}
    readable = []
    for row, weight in zip(usable_rows, weights, strict=True):
        try:
            run = published.read(row, software_year)
        except DomainError:  # the models cannot express the run
            continue
        if {"seq_len", "global_batch"} & {*run.assumed}:  # which its source does not state
            weight *= UNSTATED_WORKLOAD_WEIGHT
        run = replace(run, problem=problems.setdefault(run.problem, run.problem))
        readable.append((row, run, weight))
    layouts = _legal_layouts([run for _, run, _ in readable])
    return [
        _ReadRun(row, run, legal, weight)
        for (row, run, weight), legal in zip(readable, layouts, strict=True)
        if len(legal)
    ]


def _legal_layouts(runs: Sequence[published.Run]) -> list[Layouts]:
    """Returns for each run those of its alternative layouts that are legal. Runs of equal problems
    are judged in one batch."""
    runs_by_problem: defaultdict[int, list[int]] = defaultdict(list)
    for i, number in enumerate(number_by_problem(run.problem for run in runs)):
        runs_by_problem[number].append(i)
    result = [Layouts.of([])] * len(runs)
    for indices in runs_by_problem.values():
        alternatives = Layouts.of(layout for i in indices for layout in runs[i].alternatives)
        try:
            # first_broken gives the first rule that each breaks, and -1 where it breaks none.
            is_legal = first_broken(runs[indices[0]].problem, alternatives) < 0
        # A problem that the models refuse leaves its runs without a legal layout.
        except DomainError:
            continue
        # The run that each of the joined alternatives belongs to.
        owner = np.repeat(indices, [len(runs[i].alternatives) for i in indices])
        for i in indices:
            result[i] = alternatives.take(is_legal & (owner == i))
    return result


def _observations(runs: Sequence[_ReadRun], profile: Profile) -> list[Observation]:
    """Returns the runs as observations, each with the layout that it most likely had."""
    result = []
    for read_run in runs:
        row, run = read_run.row, read_run.run
        result.append(
            Observation(
                key=row["id"],
                problem=run.problem,
                layout=_likeliest(run.problem, read_run.layouts, profile),
                step_time_s=run.step_time_s,
                memory_bytes=run.memory_bytes,
                memory_kind=run.memory_kind,
                out_of_memory=row["outcome"] != "ok",  # runs with other failures are not here
                weight=read_run.weight,
                source=row["family"],
                group=group_key(row),
                organisation=organisation(row),
                # Runs of one sparse model by one organisation may all be off alike.
                effect_group=_effect_group(row) if run.problem.architecture.is_moe else "",
            )
        )
    return result


def _weights(rows: Sequence[dict[str, Any]]) -> list[float]:
    """Returns the weight of each row in the fit, as a number of runs. A row counts less if its
    source is less trusted, and if there are many rows of its model or family, which would outvote
    others."""
    # First each model within a family is limited, and then the sum of what is left of the family.
    counts = Counter(_model_key(row) for row in rows)
    model_weight = {key: min(1.0, MODEL_WEIGHT / count) for key, count in counts.items()}
    family_size: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        family_size[row["family"]] += model_weight[_model_key(row)]
    return [
        TRUST_WEIGHT[row["trust"]]
        * model_weight[_model_key(row)]
        * min(1.0, FAMILY_WEIGHT / family_size[row["family"]])
        for row in rows
    ]


def group_key(row: dict[str, Any]) -> str:
    """Returns the model shape, chip and stack of a row as a key. Rows of different sources share
    it, so that cross-validation holds out all runs of one setup together."""
    return json.dumps([model_shape(row), row["cluster"]["chip"], row["stack"]], sort_keys=True)


def _effect_group(row: dict[str, Any]) -> str:
    """Returns a key that runs of one model by one organisation share. The fit lets all runs with
    one key be off alike."""
    return json.dumps([organisation(row), model_shape(row)], sort_keys=True)


def organisation(row: dict[str, Any]) -> str:
    """Returns the name of the organisation that ran a row; its family where the source does not
    say."""
    return str(row["source"].get("organisation") or row["family"])


def _model_key(row: dict[str, Any]) -> str:
    """Returns the family, model shape and stack of a row as a key. Rows with one key share their
    weight."""
    return json.dumps([row["family"], model_shape(row), row["stack"]], sort_keys=True)


def model_shape(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a row's model that tell it from others, whatever its name."""
    return {key: row["model"].get(key) for key in _SHAPE_FIELDS}


def fit(rows: Sequence[dict[str, Any]]) -> Calibration:
    """Returns the profile fitted to published runs, twice: layouts that sources leave open are
    chosen by predictions of the prior at first, and then by those of the first fit. Prints a
    summary to standard error."""
    prior = priors()
    runs = _readable_runs(rows, prior.software_year)
    # A term of a profile is a coefficient or its offset for a chip or stack, with a spread.
    first_fit = with_published_terms(prior, _observations(runs, prior))
    observed = _observations(runs, first_fit)
    fitted = calibrate(prior, observed, _MADE_BY, published=True)  # runs of many sources
    newest = newest_software(rows, observed, prior.software_year)
    fitted = replace(fitted, profile=replace(fitted.profile, newest=newest))
    sys.stderr.write(
        f"{fitted.observations} runs, {len(fitted.profile.terms)} terms, {len(fitted.moved)} moved,"
        f" median error {fitted.error_before:.1%} -> {fitted.error_after:.1%},"
        f" {len(fitted.outliers)} outliers\n"
    )
    return fitted


def newest_software(
    rows: Iterable[dict[str, Any]], observed: Iterable[Observation], software_year: float
) -> tuple[NewestSoftware, ...]:
    """Returns for each generation of chips the date of the newest software whose runs were timed,
    as a year with a fraction. Still newer software is predicted as if it had that date. Rows
    without a date do not count."""
    dated = {row["id"] for row in rows if row.get("date")}
    years: dict[str, float] = {}
    for run in observed:
        if run.step_time_s is not None and run.key in dated:
            scope = f"generation:{run.problem.cluster.chip.generation}"
            # An age counts back from `software_year`; the newest date is kept.
            years[scope] = max(software_year - run.problem.stack.age_years, years.get(scope, 0.0))
    return tuple(
        NewestSoftware(scope=scope, year=round(year, 3)) for scope, year in sorted(years.items())
    )


def data_files(fitted: Calibration) -> tuple[str, str]:
    """Returns the texts of profile.json and posterior.json."""
    content = fitted.profile.to_json()
    # Terms are logarithms or log-odds: four decimals are a hundredth of a percent of a step's time.
    content["terms"] = [
        {**term, "mean": round(term["mean"], 4), "spread": round(term["spread"], 4)}
        for term in content["terms"]
    ]
    return (
        json.dumps(content, indent=1) + "\n",
        json.dumps(fitted.posterior.to_json(), indent=1) + "\n",
    )


def main() -> None:
    """Fits the profile and writes its files; with --keep-terms, only the spreads between
    sources."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument(
        "--out", type=Path, required=True, help="a folder: profile.json and posterior.json"
    )
    parser.add_argument(
        "--keep-terms",
        action="store_true",
        help="write nothing but how far step times and memory of sources lie apart",
    )
    arguments = parser.parse_args()
    with threadpool_limits(1, user_api="blas"):
        fitted = fit(published.read_rows(arguments.runs))
    profile, posterior = data_files(fitted)
    if arguments.keep_terms:
        shipped = json.loads((arguments.out / "profile.json").read_text())
        for name in ("between_sources", "memory_between_sources"):
            shipped[name] = getattr(fitted.profile, name)
        (arguments.out / "profile.json").write_text(json.dumps(shipped, indent=1) + "\n")
        return
    (arguments.out / "profile.json").write_text(profile)
    (arguments.out / "posterior.json").write_text(posterior)


if __name__ == "__main__":
    main()
