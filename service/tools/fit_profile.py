"""Fit the shipped profile to published runs.

`python -m service.tools.fit_profile --runs FILE --out models/data`

The prior is models/data/priors.json, hardware measurements with their sources, plus an offset of
mean zero for every generation, chip and stack a coefficient may vary with. Families are weighted so
that a large sweep counts like a mid-sized one, and rows their source is less sure of count less.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from models.calibration.calibrate import Calibration, Observation, calibrate
from models.calibration.priors import priors
from models.cost.step import predict
from models.errors import DomainError, Invalid
from models.layouts.rules import RULES, first_broken
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import NewestSoftware, Profile
from service.formats import runs

FAMILY_WEIGHT = 60.0  # no family counts for more runs than this
MODEL_WEIGHT = (
    8.0  # nor any model on one stack within it: what is odd about a model shows on every chip
)
TRUST = {"A": 1.0, "B": 0.7, "C": 0.3, "D": 0.3}
OPEN_QUESTION = 0.1  # of its say has a run of which the source leaves open what it trained on


_SHAPE = (
    "num_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "head_dim", "vocab_size", "moe", "mla",
)  # fmt: skip


def choose(run: runs.Run, profile: Profile) -> Layout:
    """The fastest that fits under the first recompute policy, or under any where that never does;
    what needs least memory if none does. A stack that takes all sequences of a device at once takes
    as many as fit, or else all.

    The measurement plays no part.
    """
    layouts = Layouts.of(run.alternatives)
    broken = first_broken(run.problem, layouts)
    if (broken >= 0).all():
        rule = RULES[int(broken[0])]
        raise Invalid(rule.field, rule.name, rule.message(run.problem, layouts[0]))
    layouts = layouts.take(broken < 0)
    if len(layouts) == 1:
        return layouts[0]
    found = predict(run.problem, layouts, profile.coefficients(run.problem.scopes))
    fits = found.fits()
    if run.problem.stack.usual_sequences and (layouts.pp == 1).all():
        most = layouts.micro_batch[fits].max() if fits.any() else layouts.micro_batch.max()
        kept = np.flatnonzero(layouts.micro_batch == most)
        layouts, found, fits = layouts.take(kept), found.take(kept), fits[kept]
    if not fits.any():
        return layouts[int(np.argmin(found.needed_bytes))]
    first = fits & (layouts.recompute == layouts.recompute[0])
    return layouts[
        int(np.argmin(np.where(first if first.any() else fits, found.step_time_s, np.inf)))
    ]


def observations(rows: Iterable[dict[str, Any]], profile: Profile) -> list[Observation]:
    """The rows that can be expressed and say something, weighted by family, model and trust.

    A run that failed says something only where the source gives memory as the reason.
    """
    kept = [row for row in rows if row["outcome"] == "ok" or row["failure"] == "out_of_memory"]
    models = Counter(_model(row) for row in kept)
    share = {key: min(1.0, MODEL_WEIGHT / count) for key, count in models.items()}
    sizes: defaultdict[str, float] = defaultdict(float)
    for row in kept:
        sizes[row["family"]] += share[_model(row)]
    shared: dict[Problem, Problem] = {}
    result = []
    for row in kept:
        try:
            run = runs.read(row, profile.software_year)
            layout = choose(run, profile)
        except DomainError:
            continue
        weight = (
            TRUST[row["trust"]]
            * share[_model(row)]
            * min(1.0, FAMILY_WEIGHT / sizes[row["family"]])
        )
        weight *= OPEN_QUESTION if {"seq_len", "global_batch"} & {*run.assumed} else 1.0
        result.append(
            Observation(
                key=row["id"],
                problem=_shared(shared, run.problem),
                layout=layout,
                step_time_s=run.step_time_s,
                memory_bytes=run.memory_bytes,
                out_of_memory=row["outcome"] != "ok",
                weight=weight,
                source=row["family"],
                group=group(row),
                model=json.dumps(shape(row), sort_keys=True),
            )
        )
    return result


def group(row: dict[str, Any]) -> str:
    """Model shape, chip and stack of a row, whatever its source: what generalises must generalise
    to another one."""
    return json.dumps([shape(row), row["cluster"]["chip"], row["stack"]], sort_keys=True)


def _model(row: dict[str, Any]) -> str:
    return json.dumps([row["family"], shape(row), row["stack"]], sort_keys=True)


def shape(row: dict[str, Any]) -> dict[str, Any]:
    """What tells models apart whatever they are called."""
    return {key: row["model"].get(key) for key in _SHAPE}


def _shared(known: dict[Any, Problem], problem: Problem) -> Problem:
    """One object for equal problems, so that their runs are predicted together."""
    return known.setdefault(problem, problem)


def fit(rows: Sequence[dict[str, Any]]) -> Calibration:
    """What a run leaves open is as the fit would have it, and not its prior: it is chosen again
    under a first fit."""
    prior, made_by = priors(), "fit to published runs (service.tools.fit_profile)"
    first = calibrate(prior, observations(rows, prior), made_by, grouped=True)
    observed = observations(rows, first.profile)
    found = calibrate(prior, observed, made_by, grouped=True)
    found = replace(
        found, profile=replace(found.profile, newest=newest(rows, observed, prior.software_year))
    )
    sys.stderr.write(
        f"{found.observations} runs, {len(found.moved)} of {len(prior.terms)} terms identified,"
        f" median error {found.error_before:.1%} -> {found.error_after:.1%}, {len(found.outliers)}"
        " outliers\n"
    )
    return found


def newest(
    rows: Iterable[dict[str, Any]], observed: Iterable[Observation], software_year: float
) -> tuple[NewestSoftware, ...]:
    """The newest software that was timed on each generation of chips; runs without a date do not
    tell."""
    dated = {row["id"] for row in rows if row.get("date")}
    years: dict[str, float] = {}
    for one in observed:
        if one.step_time_s is not None and one.key in dated:
            scope = f"generation:{one.problem.cluster.chip.generation}"
            years[scope] = max(software_year - one.problem.stack.age_years, years.get(scope, 0.0))
    return tuple(NewestSoftware(scope=scope, year=round(year, 3)) for scope, year in sorted(years.items()))


def written(found: Calibration) -> tuple[str, str]:
    """The profile and its joint posterior as data files."""
    content = found.profile.to_json()
    content["terms"] = [
        {**t, "mean": round(t["mean"], 4), "spread": round(t["spread"], 4)}
        for t in content["terms"]
    ]
    return (
        json.dumps(content, indent=1) + "\n",
        json.dumps(found.posterior.to_json(), indent=1) + "\n",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument(
        "--out", type=Path, required=True, help="a folder: profile.json and posterior.json"
    )
    arguments = parser.parse_args()
    with arguments.runs.open() as lines, threadpool_limits(1, user_api="blas"):
        found = fit([json.loads(line) for line in lines])
    for name, text in zip(("profile.json", "posterior.json"), written(found), strict=True):
        (arguments.out / name).write_text(text)


if __name__ == "__main__":
    main()
