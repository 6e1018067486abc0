"""What it costs a recommendation to be sure that its layout fits.

    python -m tests.benchmarks.fit_margin

Every named problem is answered with the shipped profile and with one whose memory is known better:
as if sources did not differ, and as if there were no spread at all. The answers fit with 90% in
each case, so that the differences are the seconds that the spread of memory costs.
"""

from __future__ import annotations

from dataclasses import replace

from models.advice.recommendation import recommend
from models.errors import Infeasible
from models.spec.constraints import Constraints
from models.spec.problem import Problem
from models.spec.profile import Profile, shipped_profile
from tests.benchmarks.problems import NAMED


def step_time_s(problem: Problem, profile: Profile, fit_probability: float) -> float | None:
    """Of the fastest layout that fits with this probability; None where none does."""
    try:
        found = recommend(problem, profile, Constraints(min_fit_probability=fit_probability))
    except Infeasible:
        return None
    return found.fastest.prediction.step_time_s


def main() -> None:
    shipped = shipped_profile()
    alike = replace(shipped, memory_between_sources=0.0)
    print(f"{'':20s} {'at 90%':>10s} {'sources alike':>14s} {'at 50%':>8s}")
    for name, make in NAMED.items():
        problem = make()
        sure = step_time_s(problem, shipped, 0.9)
        others = (step_time_s(problem, alike, 0.9), step_time_s(problem, shipped, 0.5))
        if sure is None:
            print(f"{name:20s} nothing fits with 90%")
            continue
        costs = [f"{sure / other - 1:+.1%}" if other else "-" for other in others]
        print(f"{name:20s} {sure:8.3f} s {costs[0]:>14s} {costs[1]:>8s}")


if __name__ == "__main__":
    main()
