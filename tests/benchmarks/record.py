"""Prints which pipeline published runs of the largest sparse models used, and which one the search
would have them use.

    python -m tests.benchmarks.record --runs FILE [--parameters 5e11] > record.md

Every published run of a sparse model of so many parameters, as the same model, chips, batch and
stack: its own layout, and the best without and with a pipeline. Runs that differ in nothing else
share a line, the fastest stands for them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.advice.sweep import FrontierSweep, Point
from models.errors import DomainError
from models.spec.constraints import EVEN_CHANCE, Constraints
from models.spec.layout import Layout
from models.spec.profile import Profile, shipped_profile
from service.formats import published
from service.tools.fit_profile import choose_layout
from tests.benchmarks import fidelity

TOLERANCE = 0.03
_HEAD = """# Pipelines of published runs of the largest sparse models

Printed by `python -m tests.benchmarks.record`. The best layouts are of the run's software, with
every knob of its stack. A pipeline is said to be needed where it is worth more than
{tolerance:.0%}. Of {cases} cases {used} were published with a pipeline, {needed} need one by the
prediction, and {agree} agree.
"""


@dataclass(frozen=True)
class Line:
    where: str
    published: Layout
    measured_s: float
    domain: int
    here: Point


def lines(rows: list[dict[str, Any]], profile: Profile, parameters: float) -> Iterator[Line]:
    fastest: dict[tuple[Any, ...], tuple[float, published.Run, Layout, str]] = {}
    for row in rows:
        try:
            run = published.read(row, profile.software_year)
            layout = choose_layout(run, profile)
        except DomainError:
            continue
        architecture, cluster, workload = (
            run.problem.architecture,
            run.problem.cluster,
            run.problem.workload,
        )
        if row["outcome"] != "ok" or run.step_time_s is None:
            continue
        if not architecture.is_moe or architecture.parameters.total < parameters:
            continue
        key = (
            cluster.chip.id,
            cluster.num_chips,
            run.problem.stack.id,
            workload.global_batch,
            workload.precision,
        )
        if key not in fastest or run.step_time_s < fastest[key][0]:
            fastest[key] = run.step_time_s, run, layout, row["model"]["name"]
    for key, (seconds, run, layout, name) in sorted(
        fastest.items(), key=lambda item: tuple(map(str, item[0]))
    ):
        chip, chips, stack, batch, precision = key
        where = f"{name}, {chips} {chip}, {stack}, {batch} sequences, {precision}"
        here = FrontierSweep(
            run.problem, profile, Constraints(min_fit_probability=EVEN_CHANCE)
        ).point({})
        yield Line(where, layout, seconds, run.problem.cluster.scale_up_domain, here)


def _row(line: Line) -> str:
    here = line.here
    best = min((s for s in (here.without_s, here.with_s) if s is not None), default=None)
    needed = (
        "nothing fits" if here.gap is None else "no" if here.needs_no_pipeline(TOLERANCE) else "yes"
    )
    gap = "" if here.without_s is None or here.with_s is None else f"{here.gap:+.1%}"
    with_pp = "" if here.with_pp is None else f"pp={here.with_pp.pp}, {here.with_s:.3g} s"
    without = "" if here.without is None else f"{here.without_s:.3g} s"
    faster = "" if best is None else f"{line.measured_s / best:.2f}"
    pp = line.published.pp
    cells = [
        line.where,
        f"pp={pp}",
        f"{line.measured_s:.3g} s",
        without,
        with_pp,
        gap,
        needed,
        faster,
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--parameters", type=float, default=5e11)
    asked = parser.parse_args()
    rows = fidelity.every(asked.runs)
    found = list(lines(rows, shipped_profile(), asked.parameters))
    used = [line.published.pp > 1 for line in found]
    needed = [
        line.here.gap is not None and not line.here.needs_no_pipeline(TOLERANCE) for line in found
    ]
    agree = sum(a == b for a, b in zip(used, needed, strict=True))
    print(
        _HEAD.format(
            cases=len(found), used=sum(used), needed=sum(needed), agree=agree, tolerance=TOLERANCE
        )
    )
    for name, members in (
        ("up to 8 chips", [line for line in found if line.domain <= 8]),
        ("more", [line for line in found if line.domain > 8]),
    ):
        gaps = [
            line.here.gap
            for line in members
            if line.here.without_s and line.here.with_s and line.here.gap
        ]
        if gaps:
            print(
                f"- Scale-up domains of {name}: a pipeline is worth {min(gaps):+.1%} to"
                f" {max(gaps):+.1%}."
            )
    print(
        "\n| run | published | measured | best at pp = 1 | best at pp > 1 | gap | needed | measured"
        " / best |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for line in found:
        print(_row(line))


if __name__ == "__main__":
    main()
