"""How long an exact answer takes, and how many complete predictions a second and core.

    python -m tests.benchmarks.search [--repeat 15] [--problem NAME] [--json] [--write]

Every problem runs in a process of its own, on one core, with a new search each time; imports and
loading the profile are left out. A search is all that a recommendation does: the fastest, the
ranking, the simplest within 3%, the best without and with a pipeline. Where only fewer chips are
legal, the searches on those are part of it. Peak memory is that of the whole process.
`--write` puts the table into docs/speed.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

from models.advice.recommendation import recommend
from models.kernel.predictions import predict
from models.spec.constraints import Constraints
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from tests.benchmarks import pages
from tests.benchmarks.problems import NAMED
from tests.oracles.brute_force import legal

_BULK = 1 << 18


def timed(name: str, repeat: int) -> dict[str, Any]:
    """One problem, in this process."""
    profile, seconds = shipped_profile(), []
    for _ in range(repeat + 1):
        problem = NAMED[name]()
        start = time.perf_counter()
        found = recommend(problem, profile)
        seconds.append(time.perf_counter() - start)
    certificate = found.certificate
    return {
        "name": name,
        "chips": problem.cluster.num_chips,
        "median_s": float(np.median(seconds[1:])),
        "p95_s": float(np.quantile(seconds[1:], 0.95)),
        "space": certificate.space,
        "evaluated": certificate.evaluated,
        "over_memory": certificate.over_memory,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "exact": certificate.exact,
        "fastest": found.fastest.prediction.layout.summary(),
        "step_time_s": found.fastest.prediction.step_time_s,
    }


def bulk(repeat: int) -> float:
    """Complete predictions a second: every term of time and memory and whether it fits, for
    different layouts."""
    problem = NAMED["llama-3.1-405b"]()
    layouts = _many(problem)
    coefficients, seconds = shipped_profile().coefficients(problem.scopes), []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        predictions = predict(problem, layouts, coefficients)
        _ = predictions.time, predictions.memory, predictions.fits()
        seconds.append(time.perf_counter() - start)
    return len(layouts) / float(np.median(seconds[1:]))


def _many(problem: Problem) -> Layouts:
    """Some of the legal layouts, no two alike."""
    parts: list[Layouts] = []
    for part in legal(problem, Constraints(allowed={"micro_batch": (1, 2)})):
        parts.append(part)
        if sum(map(len, parts)) > 2 * _BULK:
            break
    rows = Layouts.concatenate(parts)
    return rows.take(np.random.default_rng(0).permutation(len(rows))[:_BULK])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--problem", choices=NAMED)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    if asked.problem:
        print(json.dumps(timed(asked.problem, asked.repeat)))
        return
    problems = [_elsewhere(name, asked.repeat) for name in NAMED]
    rate = bulk(3)
    _print(problems, rate)
    if asked.json:
        print(json.dumps({"problems": problems, "bulk_layouts_per_s": rate}))
    if asked.write:
        command = f"python -m tests.benchmarks.search --repeat {asked.repeat} --write"
        pages.write_between_markers("speed.md", "search", search_table(problems, rate), command)


def search_table(problems: list[dict[str, Any]], rate: float) -> str:
    heads = ["problem", "chips", "space", "evaluated", "median", "95th pct.", "peak memory"]
    rows = [
        [
            p["name"], f"{p['chips']:,}", f"{p['space']:.1e}", f"{p['evaluated']:,}",
            f"{p['median_s'] * 1e3:.0f} ms", f"{p['p95_s'] * 1e3:.0f} ms",
            f"{p['peak_mib']:.0f} MiB",
        ]
        for p in problems
    ]  # fmt: skip
    said = f"Complete predictions, every term of time and memory: {rate:,.0f} a second and core."
    return f"{pages.table(heads, rows)}\n\n{said}"


def _elsewhere(name: str, repeat: int) -> dict[str, Any]:
    """In a process with one core, so that peaks of memory are told apart."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.search",
        "--problem",
        name,
        "--repeat",
        str(repeat),
    ]
    done = subprocess.run(
        command, env={**os.environ, **one_thread}, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def _print(problems: list[dict[str, Any]], rate: float) -> None:
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, numpy"
        f" {np.__version__}"
    )
    print(
        f"{'':20}{'chips':>8}{'median':>10}{'p95':>10}{'space':>10}{'evaluated':>11}{'peak':>10} "
        " fastest"
    )
    for p in problems:
        print(
            f"{p['name']:20}{p['chips']:8}{p['median_s'] * 1e3:7.0f} ms{p['p95_s'] * 1e3:7.0f}"
            f" ms{p['space']:10.1e}{p['evaluated']:11}{p['peak_mib']:6.0f} MiB  {p['fastest']},"
            f" {p['step_time_s']:.4g} s"
        )
    print(f"{rate:,.0f} complete predictions a second on one core")


if __name__ == "__main__":
    main()
