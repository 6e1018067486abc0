"""How fast the service learns a cluster that it has never seen: error by the number of reports.

    python -m tests.benchmarks.learning --runs FILE [--seeds 20] [--of-organisations]
        [--json] [--write]

For each family of published runs: a profile that saw none of them, then 1, 3 and 10 of them posted
to POST /v1/reports and learnt by POST /v1/profiles/default/calibrations, and the median error of
the rest of the family under what that made. With `--of-organisations` the profile saw no run of
whoever ran the family either. The same ten runs are kept out of the score whatever
number of them is reported. Means over seeds, with their standard error. Every seed begins with a
database of its own. `--write` puts the table into docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from models.calibration.observation import Observation
from models.calibration.posterior import Posterior
from models.spec.profile import Profile, shipped_profile
from service.app import create_app
from service.resolve.calibration_targets import log_residuals
from service.resolve.profiles import install_profile, profile_version
from service.settings import Settings
from service.store import Store, database
from service.tools.carry_runs import published_run_documents
from tests.benchmarks import fidelity, pages
from tests.benchmarks.unseen import Unseen

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

REPORTS = (0, 1, 3, 10)
ENOUGH = 15


@dataclass(frozen=True)
class Family:
    """Its runs, as the models see them and as they are reported."""

    name: str
    profile: Profile
    posterior: Posterior
    runs: list[Observation]
    bodies: list[dict[str, Any]]

    def curve(self, seed: int, folder: Path) -> dict[int, float]:
        """Median error after so many reports."""
        order = np.random.default_rng(seed).permutation(len(self.runs))
        told, rest = order[: max(REPORTS)], [self.runs[i] for i in order[max(REPORTS) :]]
        found = {}
        for count in REPORTS:
            profile = (
                self.profile
                if not count
                else self._after([self.bodies[i] for i in told[:count]], folder)
            )
            found[count] = float(np.median(np.abs(np.expm1(-log_residuals(rest, profile)))))
        return found

    def _after(self, bodies: Sequence[dict[str, Any]], folder: Path) -> Profile:
        """What the service makes of these reports."""
        file = folder / "asked.db"
        shutil.copy(folder / "template.db", file)
        url = f"sqlite:///{file}"
        with Store(database.connect(url)).writing() as rows:
            install_profile(rows, self.profile, self.posterior)
        with TestClient(create_app(Settings(database_url=url))) as client:
            answer = client.post(
                "/v1/reports", json={"reports": list(bodies), "all_or_nothing": True}
            )
            assert answer.status_code == 201, answer.text
            made = client.post("/v1/profiles/default/calibrations")
            assert made.status_code == 201, made.text
        with Store(database.connect(url)).reading() as rows:
            profile = profile_version(rows, "default", version=made.json()["version"])
        for leftover in folder.glob("asked.db*"):
            leftover.unlink()
        return profile


def families(rows: list[dict[str, Any]], *, of_organisations: bool = False) -> list[Family]:
    """The families of these rows, each with a profile that saw none of its runs, or none of its
    organisation's."""
    unseen = Unseen(rows)
    timed = {o.key: o for o in unseen.observations if o.step_time_s is not None}
    reported = {body["id"]: body for body in published_run_documents(rows, shipped_profile())}
    sizes = Counter(o.source for o in timed.values())
    found = []
    for name in sorted(name for name, size in sizes.items() if size >= ENOUGH):
        hidden = {o.key for o in unseen.observations if o.source == name}
        if of_organisations:
            theirs = {o.organisation for o in unseen.observations if o.key in hidden}
            hidden = {o.key for o in unseen.observations if o.organisation in theirs}
        profile, posterior = unseen.without(frozenset(hidden))
        runs = [o for o in timed.values() if o.source == name and o.key in reported]
        bodies = [_body(run, reported[run.key]) for run in runs]
        found.append(Family(name, replace(profile, id="default"), posterior, runs, bodies))
    return found


def _body(run: Observation, document: dict[str, Any]) -> dict[str, Any]:
    """A report of the run, in the words of POST /v1/reports."""
    question = {name: document[name] for name in ("model", "cluster", "workload", "layout")}
    stack = {**document["stack"], "age_years": run.problem.stack.age_years}
    return {
        **question,
        "stack": stack,
        "outcome": "ok",
        "measured": {"step_time_s": run.step_time_s},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--of-organisations", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine = database.connect(f"sqlite:///{folder / 'template.db'}")
        database.migrate(engine)
        engine.dispose()
        found = families(fidelity.load(asked.runs), of_organisations=asked.of_organisations)
        result = _measured(found, asked.seeds, folder)
    if asked.json:
        print(json.dumps(result))
    if asked.write:
        left_out = " --of-organisations" if asked.of_organisations else ""
        command = f"python -m tests.benchmarks.learning --runs FILE{left_out} --seeds {asked.seeds}"
        pages.write_between_markers(
            "accuracy.md", "learning", learning_table(result), f"{command} --write"
        )


def learning_table(result: dict[str, Any]) -> str:
    heads = ["family", "runs", *(f"{count} reports" for count in REPORTS)]
    rows = []
    for name, curve in result["families"].items():
        errors = result["standard_errors"][name]
        cells = [f"{curve[str(n)]:.1%} ± {errors[str(n)] * 100:.1f}" for n in REPORTS]
        rows.append([name, f"{result['runs'][name]:,}", *cells])
    macro = [f"{result['macro_median'][str(count)]:.1%}" for count in REPORTS]
    return pages.table(heads, [*rows, ["**macro median**", "", *macro]])


def _measured(found: Sequence[Family], seeds: int, folder: Path) -> dict[str, Any]:
    print(f"{'':16s}{'runs':>6}" + "".join(f"{count:>9} reports" for count in REPORTS))
    result: dict[str, dict[str, float]] = {}
    standard_errors: dict[str, dict[str, float]] = {}
    for family in found:
        curves = [family.curve(seed, folder) for seed in range(seeds)]
        result[family.name] = {
            str(count): float(np.mean([curve[count] for curve in curves])) for count in REPORTS
        }
        errors = {
            str(count): float(np.std([curve[count] for curve in curves]) / np.sqrt(seeds))
            for count in REPORTS
        }
        standard_errors[family.name] = errors
        cells = (f"{result[family.name][str(n)]:9.1%} ±{errors[str(n)]:5.1%} " for n in REPORTS)
        print(f"{family.name:16s}{len(family.runs):6d}" + "".join(cells), flush=True)
    macro = {
        str(n): float(np.median([curve[str(n)] for curve in result.values()])) for n in REPORTS
    }
    mean = {str(n): float(np.mean([curve[str(n)] for curve in result.values()])) for n in REPORTS}
    print(f"{'macro median':22s}" + "".join(f"{macro[str(n)]:9.1%}        " for n in REPORTS))
    print(f"{'macro mean':22s}" + "".join(f"{mean[str(n)]:9.1%}        " for n in REPORTS))
    return {
        "families": result,
        "runs": {family.name: len(family.runs) for family in found},
        "standard_errors": standard_errors,
        "macro_median": macro,
        "macro_mean": mean,
    }


if __name__ == "__main__":
    main()
