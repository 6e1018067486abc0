"""Where the time of an exact answer goes, and how long it would take at least.

    python -m tests.benchmarks.search_profile [--seconds 6] [--problem NAME] [--write]

Each named problem is answered again and again while a timer looks a thousand times a second which
step of it runs. The floor is the same question with every knob but placement pinned to its answer:
one layout to be found, with all that is said of it. What was evaluated takes next to nothing at the
rate of predictions in bulk; what lies between are bounds.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from types import FrameType
from typing import Any

from models.advice.candidate import candidates
from models.advice.fewer_chips import fastest_on_fewer
from models.advice.recommendation import Recommendation, recommend
from models.advice.safe_fit import fastest_bolder_layout
from models.layouts.space import Space
from models.search.enumeration import _Search
from models.search.infeasibility import why_none
from models.search.tables import SearchTables
from models.spec.constraints import KNOBS, Constraints
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile, shipped_profile
from tests.benchmarks import pages
from tests.benchmarks.problems import NAMED

_BESIDES: dict[Callable[..., Any], str] = {
    fastest_on_fewer: "fewer chips",
    fastest_bolder_layout: "bolder layout",
    candidates: "intervals",
    why_none: "intervals",
}
"""Steps that an answer takes besides its search, wherever they are."""
_LEVELS: dict[Callable[..., Any], str] = {
    SearchTables.__init__: "tables",
    Space.trunks.func: "tables",
    _Search._cross_with_experts: "cores",
    _Search._open_cores: "cores",
    _Search._bounded_meshes: "meshes",
    _Search._open_meshes: "layouts",
}
"""Levels of the search, by the innermost."""
_COLUMNS = (*dict.fromkeys(_LEVELS.values()), *dict.fromkeys(_BESIDES.values()), "rest")


_STEPS_BESIDES = {step.__code__: column for step, column in _BESIDES.items()}
_STEPS_OF_LEVELS = {step.__code__: column for step, column in _LEVELS.items()}


def step_of(frame: FrameType | None) -> str:
    """The column of the step that an answer is at."""
    level = besides = ""
    while frame is not None:
        level = level or _STEPS_OF_LEVELS.get(frame.f_code, "")
        besides = _STEPS_BESIDES.get(frame.f_code, besides)
        frame = frame.f_back
    return besides or level or "rest"


def sampled(problem: Problem, profile: Profile, seconds: float) -> Counter[str]:
    """How often each step was met, over so many seconds."""
    met: Counter[str] = Counter()

    def look(_: int, frame: FrameType | None) -> None:
        met[step_of(frame)] += 1

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        recommend(problem, profile)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)
    return met


def least_of(
    problem: Problem, profile: Profile, constraints: Constraints, times: int = 9
) -> tuple[float, Recommendation]:
    """Seconds of the fastest of some answers to a question, and the answer."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        found = recommend(problem, profile, constraints)
        seconds.append(time.perf_counter() - start)
    return min(seconds), found


def pinned(layout: Layout) -> Constraints:
    """Every knob at its value in a layout."""
    own = {
        field.name: getattr(layout, field.name) for field in fields(layout) if field.name in KNOBS
    }
    modules = own.pop("recompute_modules")
    allowed = {knob: (value,) for knob, value in own.items()} | (
        {"recompute_modules": modules} if modules else {}
    )
    return Constraints(allowed=allowed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--problem", choices=NAMED)
    parser.add_argument("--write", action="store_true")
    asked, profile = parser.parse_args(), shipped_profile()
    rows = []
    for name in [asked.problem] if asked.problem else NAMED:
        problem = NAMED[name]()
        whole, found = least_of(problem, profile, Constraints())
        floor, _ = least_of(found.problem, profile, pinned(found.fastest.prediction.layout))
        met = sampled(problem, profile, asked.seconds)
        shares = (f"{met[column] / met.total():.0%}" for column in _COLUMNS)
        rows.append([name, f"{whole * 1e3:.0f} ms", f"{floor * 1e3:.0f} ms", *shares])
        print(*rows[-1], sep="  ", flush=True)
    text = pages.table(["problem", "answer", "floor", *_COLUMNS], rows)
    print(text)
    if asked.write:
        command = f"python -m tests.benchmarks.search_profile --seconds {asked.seconds:g} --write"
        pages.write_between_markers("search.md", "search profile", text, command)


if __name__ == "__main__":
    main()
