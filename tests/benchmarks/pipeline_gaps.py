"""How well is it known what a pipeline is worth?

Published questions that were measured both without and with one tell.

    python -m tests.benchmarks.pipeline_gaps --runs FILE [FILE ...]

A question is a model, a cluster, a workload and a stack. Of the layouts that were measured of it,
those count that are predicted to be the fastest without and with a pipeline. Printed is how far the
logarithm of the ratio of their predicted step times lies from that of the measured ones, beside
what models.prediction.prediction.log_ratio_spread says; the shipped profile was fitted to these
runs.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from models.calibration.observation import Observation
from models.cost.predictions import predict
from models.prediction.prediction import log_ratio_spread
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Z80, shipped_profile
from service.tools.fit_profile import observations
from tests.benchmarks.fidelity import every


def questions_with_both_sides(
    runs: list[Observation],
) -> Iterator[tuple[Problem, list[Observation]]]:
    """Yield the questions that were measured both without and with a pipeline, with their runs."""
    by_problem = defaultdict[Problem, list[Observation]](list)
    for run in runs:
        if run.step_time_s is not None:
            by_problem[run.problem].append(run)
    for problem, measured in by_problem.items():
        if len({run.layout.pp > 1 for run in measured}) == 2:
            yield problem, measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, nargs="+", required=True)
    profile = shipped_profile()
    rows = [row for path in parser.parse_args().runs for row in every(path)]
    errors = []
    spreads = []
    for problem, runs in questions_with_both_sides(observations(rows, profile)):
        layouts = Layouts.of([run.layout for run in runs])
        predictions = predict(problem, layouts, profile.coefficients(problem.scopes))
        with_pipeline = layouts.pp > 1
        sides = [np.flatnonzero(with_pipeline == side) for side in (False, True)]
        best = [int(rows[np.argmin(predictions.step_time_s[rows])]) for rows in sides]
        predicted = math.log(predictions.step_time_s[best[0]] / predictions.step_time_s[best[1]])
        measured = math.log((runs[best[0]].step_time_s or 0) / (runs[best[1]].step_time_s or 1))
        errors.append(abs(measured - predicted))
        spreads.append(log_ratio_spread(predictions.take(np.array(best)), profile))
    print(f"{len(errors)} questions were measured both without and with a pipeline")
    print(f"spread of the error of the log ratio: {np.quantile(errors, 0.8) / Z80:.3f}")
    print(f"spread as predicted, median: {np.median(spreads):.3f}")
    inside = np.mean(np.array(errors) <= Z80 * np.array(spreads))
    print(f"inside the 80% interval: {inside:.0%}")


if __name__ == "__main__":
    main()
