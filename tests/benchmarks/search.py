"""How long an exact answer takes, how many complete predictions there are a second and core, and
what threads add.

    python -m tests.benchmarks.search [--repeat 15] [--problem NAME] [--generic] [--json] [--write]

Every problem runs in a process of its own, on one core, with a new search each time; imports and
loading the profile are left out. A search is all that a recommendation does: the fastest, the
ranking, the simplest within 3%, the best without and with a pipeline. Where only fewer chips are
legal, the searches on those are part of it. Peak memory is that of the whole process. Each problem
is answered under the `generic` stack too, a fifth as often. With `--problem` it is that one only,
in this process.

Predictions are timed for layouts in random order, and in that in which they are written down, where
those with much in common follow each other. Eight answers to one question at a time, each in a
thread, are timed against one.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from models.advice.recommendation import recommend
from models.columns import Array
from models.cost.predictions import predict
from models.spec import catalogue
from models.spec.constraints import Constraints
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from tests.benchmarks import pages
from tests.benchmarks.problems import NAMED
from tests.oracles.brute_force import legal

_BULK = 1 << 18
_IN_THREADS, _THREADS = "llama-3.1-405b", 8
_OWN_FOR_GENERIC = 5
"""How many times as often a problem is answered under its own stack."""


def question(name: str, *, generic: bool) -> Problem:
    """A named problem, with its own stack or with `generic`."""
    problem = NAMED[name]()
    return replace(problem, stack=catalogue.stack("generic")) if generic else problem


def timed(name: str, repeat: int, *, generic: bool) -> dict[str, Any]:
    """One problem, in this process."""
    profile, seconds = shipped_profile(), []
    for _ in range(repeat + 1):
        problem = question(name, generic=generic)
        start = time.perf_counter()
        found = recommend(problem, profile)
        seconds.append(time.perf_counter() - start)
    certificate = found.certificate
    return {
        "name": "… under generic" if generic else name,
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


def bulk(repeat: int) -> dict[str, float]:
    """Complete predictions a second, by the order of the layouts: every term of time and memory and
    whether it fits, for different layouts."""
    problem = NAMED["llama-3.1-405b"]()
    layouts, order = _many(problem)
    return {
        "in random order": _rate(problem, layouts.take(order), repeat),
        "as written down": _rate(problem, layouts.take(np.sort(order)), repeat),
    }


def _rate(problem: Problem, layouts: Layouts, repeat: int) -> float:
    """Complete predictions of layouts a second."""
    coefficients, seconds = shipped_profile().coefficients(problem.scopes), []
    layouts = layouts.materialised()
    for _ in range(repeat + 1):
        start = time.perf_counter()
        predictions = predict(problem, layouts, coefficients)
        _ = predictions.time, predictions.memory, predictions.fits()
        seconds.append(time.perf_counter() - start)
    return len(layouts) / float(np.median(seconds[1:]))


def _many(problem: Problem) -> tuple[Layouts, Array]:
    """Legal layouts, no two alike, as brute force writes them down: policy by policy of a mesh; and
    the positions of some of them in random order."""
    parts: list[Layouts] = []
    for part in legal(problem, Constraints(allowed={"micro_batch": (1, 2)})):
        parts.append(part)
        if sum(map(len, parts)) > 2 * _BULK:
            break
    rows = Layouts.concatenate(parts)
    return rows, np.random.default_rng(0).permutation(len(rows))[:_BULK]


def in_threads(repeat: int) -> dict[str, float]:
    """Seconds that one answer takes, and that so many take at a time, each in a thread."""
    problem, profile = NAMED[_IN_THREADS](), shipped_profile()
    first = recommend(problem, profile)
    alone, together = [], []
    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in range(repeat):
            start = time.perf_counter()
            recommend(problem, profile)
            between = time.perf_counter()
            answers = list(threads.map(lambda _: recommend(problem, profile), range(_THREADS)))
            alone.append(between - start)
            together.append(time.perf_counter() - between)
            if any(answer != first for answer in answers):
                raise SystemExit("answers in threads differ from those alone")
    return {"alone_s": float(np.median(alone)), "together_s": float(np.median(together))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--problem", choices=NAMED)
    parser.add_argument("--generic", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    if asked.problem:
        print(json.dumps(timed(asked.problem, asked.repeat, generic=asked.generic)))
        return
    _print_machine()
    problems = []
    for name in NAMED:
        own = _elsewhere(name, asked.repeat)
        generic = _elsewhere(name, max(asked.repeat // _OWN_FOR_GENERIC, 1), generic=True)
        problems.append(own | {"generic": generic})
        _print(own)
        _print(generic)
    rates, threads = bulk(3), in_threads(asked.repeat)
    said = _said(rates, threads)
    print(said)
    if asked.json:
        found = {"problems": problems, "bulk_layouts_per_s": rates, "threads": threads}
        print(json.dumps(found))
    if asked.write:
        command = f"python -m tests.benchmarks.search --repeat {asked.repeat} --write"
        text = f"{search_table(problems)}\n\n{said}"
        pages.write_between_markers("speed.md", "search", text, command)


def search_table(problems: list[dict[str, Any]]) -> str:
    heads = [
        "problem", "chips", "space", "evaluated", "median", "95th pct.", "peak memory", "`generic`",
    ]  # fmt: skip
    rows = [
        [
            p["name"], f"{p['chips']:,}", f"{p['space']:.1e}", f"{p['evaluated']:,}",
            f"{p['median_s'] * 1e3:.0f} ms", f"{p['p95_s'] * 1e3:.0f} ms",
            f"{p['peak_mib']:.0f} MiB", f"{p['generic']['median_s'] * 1e3:,.0f} ms",
        ]
        for p in problems
    ]  # fmt: skip
    return pages.table(heads, rows)


def _said(rates: dict[str, float], threads: dict[str, float]) -> str:
    """What the table has no column for."""
    orders = ", ".join(f"{rate:,.0f} {order}" for order, rate in rates.items())
    alone, together = threads["alone_s"], threads["together_s"]
    times = _THREADS * alone / together
    return (
        f"Complete predictions, every term of time and memory, a second and core: {orders}.\n\n"
        f"{_THREADS} answers to {_IN_THREADS} at a time, in threads of one process on"
        f" {os.cpu_count()} cores: {together * 1e3:.0f} ms, where one takes {alone * 1e3:.0f} ms;"
        f" that is {times:.1f} times as many answers a second."
    )


def _elsewhere(name: str, repeat: int, *, generic: bool = False) -> dict[str, Any]:
    """In a process with one core, so that peaks of memory are told apart."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "tests.benchmarks.search", "--problem", name]
    command += ["--repeat", str(repeat), *(["--generic"] if generic else [])]
    done = subprocess.run(
        command, env={**os.environ, **one_thread}, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def _print_machine() -> None:
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, numpy"
        f" {np.__version__}"
    )
    print(
        f"{'':20}{'chips':>8}{'median':>11}{'p95':>11}{'space':>10}{'evaluated':>11}{'peak':>10} "
        " fastest"
    )


def _print(p: dict[str, Any]) -> None:
    print(
        f"{p['name']:20}{p['chips']:8}{p['median_s'] * 1e3:8.0f} ms{p['p95_s'] * 1e3:8.0f}"
        f" ms{p['space']:10.1e}{p['evaluated']:11}{p['peak_mib']:6.0f} MiB  {p['fastest']},"
        f" {p['step_time_s']:.4g} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
