"""Predict published runs in their own layouts and compare: `python -m tests.benchmarks.fidelity --runs FILE [--json]`.

Every measured run goes through the code of POST /v1/predictions; its identifier, title, notes and measurement are no
inputs. Runs that publish only FLOP/s or MFU are converted in their own convention and counted as such.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.errors import DomainError, Invalid
from models.layout import Layout, Layouts
from models.profile import Profile, shipped_profile
from models.rules import RULES, require_legal
from models.step import predict
from service.fit_profile import choose
from service.formats import runs

SMALL_FAMILY = 5


@dataclass(frozen=True, slots=True)
class Scored:
    """A run with its best admissible layout. `error` = predicted / measured - 1."""

    row: dict[str, Any]
    run: runs.Run
    layout: Layout
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / (self.run.step_time_s or np.nan) - 1


def load(path: Path) -> list[dict[str, Any]]:
    with path.open() as lines:
        return [row for row in map(json.loads, lines) if row["outcome"] == "ok"]


def score(rows: Iterable[dict[str, Any]], profile: Profile) -> tuple[list[Scored], Counter[str]]:
    scored: list[Scored] = []
    skipped: Counter[str] = Counter()
    for row in rows:
        try:
            run = runs.read(row, profile.software_year)
            if run.step_time_s is None:
                raise Invalid("measured", None, "neither a time nor a rate")
            layout = choose(run, profile)
            require_legal(run.problem, layout)
        except DomainError as error:
            skipped[reason(error)] += 1
            continue
        prediction = predict(run.problem, Layouts.of([layout]), profile.coefficients(run.problem.scopes))
        scored.append(Scored(row, run, layout, float(prediction.step_time_s[0])))
    return scored, skipped


def reason(error: DomainError) -> str:
    if isinstance(error, Invalid):
        named = error.value if error.value in {rule.name for rule in RULES} else error.rule
        return f"{error.field}: {named}"
    return str(error)


def statistics(scored: list[Scored]) -> dict[str, Any]:
    errors = np.array([s.error for s in scored])
    return {
        "n": len(scored),
        "converted": sum(s.run.converted for s in scored),
        "median_abs_error": float(np.median(np.abs(errors))),
        "p90_abs_error": float(np.quantile(np.abs(errors), 0.9)),
        "bias": float(np.median(errors)),
    }


def report(scored: list[Scored], skipped: Counter[str], total: int) -> dict[str, Any]:
    families: defaultdict[str, list[Scored]] = defaultdict(list)
    for s in scored:
        families[s.row["family"]].append(s)
    small = [s for group in families.values() if len(group) < SMALL_FAMILY for s in group]
    named = {name: group for name, group in sorted(families.items()) if len(group) >= SMALL_FAMILY}
    named |= {"small": small} if small else {}
    by_family = {name: statistics(group) for name, group in named.items()}
    overall = {key: float(np.mean([f[key] for f in by_family.values()])) for key in ("p90_abs_error", "bias")} | {
        "n": len(scored),
        "converted": sum(s.run.converted for s in scored),
        "median_abs_error": float(np.median([f["median_abs_error"] for f in by_family.values()])),
        "pooled_median_abs_error": statistics(scored)["median_abs_error"],
    }
    return {
        "expressed": len(scored),
        "total": total,
        "skipped": dict(skipped.most_common()),
        "overall": overall,
        "families": by_family,
    }


def show(result: dict[str, Any]) -> None:
    print(f"{result['expressed']} of {result['total']} measured runs expressed")
    for why, count in result["skipped"].items():
        print(f"  skipped {count:4d}  {why}")
    print(f"{'family':16s} {'n':>5s} {'converted':>9s} {'median':>7s} {'p90':>7s} {'bias':>7s}")
    for name, f in [*result["families"].items(), ("macro", result["overall"])]:
        values = f"{f['median_abs_error']:7.1%} {f['p90_abs_error']:7.1%} {f['bias']:+7.1%}"
        print(f"{name:16s} {f['n']:5d} {f['converted']:9d} {values}")
    print("macro: the median of the families' medians; means of their 90th percentiles and biases")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = load(arguments.runs)
    scored, skipped = score(rows, shipped_profile())
    result = report(scored, skipped, len(rows))
    show(result)
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
