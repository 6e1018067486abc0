"""What the branch-and-bound search answers, to be compared with what another search answers.

    python -m tests.oracles.recorded_answers --problems 2000 --out FILE [--seed 0]

The file has one question a line, as JSON: first the named problems (tests/benchmarks/problems.py),
then as many random ones (small_search_problem). A command that was stopped goes on where it was,
and writes the same file as one that was not.

Each line says how to draw its question again, with a digest by which to tell that it is still the
same, and under "answers" what was found for each of the goals of `goals`: either an answer, or the
error that was raised. Times are as exact as they were found. An answer has

    fastest   how long the fastest layout takes, with those that were met which take as long
    ranked    the fastest meshes, each with its best policy and placement
    front     the fastest of each complexity, from the simplest on
    without, with_pp   the best without and with a pipeline; null where there is none, or the goal
              does not ask
    certificate        what the search looked at (models.search.result.Certificate)

Layouts are given by the knobs that differ from the default, with their seconds and their points of
complexity. Where several layouts take equally long, which of them is named is chance.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from models.errors import Infeasible, Invalid
from models.layouts.space import Space
from models.search.enumeration import search
from models.search.result import Goal, NothingFaster
from models.search.result import SearchAnswer as Answer
from models.search.tables import NoLegalLayout
from models.spec.constraints import Constraints
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile, shipped_profile
from tests.benchmarks.problems import NAMED
from tests.oracles import brute_force
from tests.oracles.random_questions import UNSURE, small_search_problem

PROFILES: Mapping[str, Profile] = {"shipped": shipped_profile(), "unsure": UNSURE}
ERRORS = (Infeasible, Invalid, NoLegalLayout, NothingFaster)
_MOST_TIES = 8  # layouts that take as long as the fastest, of one answer
_PLAIN = Layout()


def questions(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """How to draw each question again, as `drawn` does."""
    for name in NAMED:
        yield {"name": name, "profile": "shipped"}
    for index in range(count):
        yield {"seed": seed, "index": index, "profile": "unsure" if index % 4 == 3 else "shipped"}


def drawn(question: Mapping[str, Any]) -> tuple[Problem, Constraints]:
    if "name" in question:
        return NAMED[question["name"]](), Constraints()
    return small_search_problem(np.random.default_rng([question["seed"], question["index"]]))


def goals(fastest_s: float | None) -> dict[str, Goal]:
    """What is asked of each question: of all layouts, and where one fits, whose fastest takes so
    long, of those that take hardly longer and of those that take less, which there are none."""
    near = Goal(tolerance=0.03, top=5, both_sides=True)
    asked = {"fastest": Goal(), "near": near, "wide": replace(near, tolerance=0.3, top=20)}
    if fastest_s is not None:
        asked["hardly slower"] = replace(near, faster_than=1.02 * fastest_s)
        asked["faster"] = replace(near, faster_than=(1 - 1e-6) * fastest_s)
    return asked


def recorded(question: Mapping[str, Any]) -> dict[str, Any]:
    """The question with all that was found."""
    problem, constraints = drawn(question)
    profile = PROFILES[question["profile"]]
    asked = goals(_answered(problem, constraints, profile, Goal()).get("fastest_s"))
    legal = None
    if "name" not in question:
        legal = sum(map(len, brute_force.legal(problem, constraints)))
    return {
        **question,
        "digest": digest(problem, constraints, question["profile"]),
        "problem": _described(problem),
        "constraints": asdict(constraints),
        "legal": legal,
        "answers": {
            name: _answered(problem, constraints, profile, goal) for name, goal in asked.items()
        },
    }


def digest(problem: Problem, constraints: Constraints, profile: str) -> str:
    """Of all that decides the answers, but for the code; `profile` is a name in PROFILES."""
    return _sha(repr((problem, constraints, _digest_of_profile(profile))))


@cache
def _digest_of_profile(name: str) -> str:
    return _sha(repr(PROFILES[name]))


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _described(problem: Problem) -> str:
    workload, cluster = problem.workload, problem.cluster
    return (
        f"{problem.architecture.name} on {cluster.num_chips} x {cluster.chip.id}"
        f" ({cluster.fabric.id}), {problem.stack.id}, {workload.precision},"
        f" {workload.global_batch} x {workload.seq_len} tokens"
    )


def _answered(
    problem: Problem, constraints: Constraints, profile: Profile, goal: Goal
) -> dict[str, Any]:
    try:
        answer = search(Space(problem, constraints), profile, goal)
    except ERRORS as error:
        return {"goal": _goal(goal), "error": _error(error)}
    return {"goal": _goal(goal), **_answer(answer)}


def _goal(goal: Goal) -> dict[str, Any]:
    limited = goal.faster_than < np.inf
    return {**asdict(goal), "faster_than": goal.faster_than if limited else None}


def _answer(answer: Answer) -> dict[str, Any]:
    ties = np.flatnonzero(answer.times == answer.times[0])
    return {
        "fastest_s": float(answer.times[0]),
        "fastest": [_row(answer, int(row)) for row in ties[:_MOST_TIES]],
        "ranked": [_row(answer, row) for row in answer.ranked],
        "front": [_row(answer, row) for row in answer.front],
        "without": _row(answer, answer.without),
        "with_pp": _row(answer, answer.with_pp),
        "certificate": asdict(answer.certificate),
    }


def _row(answer: Answer, row: int | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {
        "seconds": float(answer.times[row]),
        "points": int(answer.complexities[row]),
        "layout": _knobs(answer.layouts[row]),
    }


def _knobs(layout: Layout) -> dict[str, Any]:
    """Those that differ from the default."""
    values = {field.name: getattr(layout, field.name) for field in fields(layout)}
    return {name: value for name, value in values.items() if value != getattr(_PLAIN, name)}


def _error(error: Exception) -> dict[str, Any]:
    said: dict[str, Any] = {"class": type(error).__name__, "message": str(error)}
    if isinstance(error, NoLegalLayout):
        said["rejected"] = dict(sorted((+error.rejected).items()))
    if isinstance(error, Invalid):
        said |= {"field": error.field}
    if isinstance(error, Infeasible):
        names = ("constraint", "needed", "available", "unit")
        said |= {name: getattr(error, name) for name in names}
        if surest := error.surest:
            said["surest"] = {
                "layout": _knobs(surest.layout),
                "fit_probability": surest.fit_probability,
                "min_fit_probability": surest.min_fit_probability,
            }
    return said


def read(path: Path) -> list[dict[str, Any]]:
    """The questions of a file with their answers."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    done = _finished_lines(asked.out)
    with asked.out.open("a") as file:
        for number, question in enumerate(questions(asked.problems, asked.seed)):
            if number >= done:
                file.write(json.dumps(recorded(question), default=_plain, allow_nan=False) + "\n")
                file.flush()


def _finished_lines(path: Path) -> int:
    """How many lines a file has, without what was cut off in the middle of one."""
    if not path.exists():
        return 0
    whole, newline, _ = path.read_text().rpartition("\n")
    path.write_text(whole + newline)
    return (whole + newline).count("\n")


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python."""
    return value.item()


if __name__ == "__main__":
    main()
