"""Why not this layout? Two of them side by side."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from models.advice.comparison import compare
from models.spec.constraints import Constraints
from models.spec.layout import Layout
from service.ask.oom_history import least_that_failed, left_out, out_of_memory, warnings
from service.ask.predictions import require_legal
from service.resolve.answer_basis import grounds
from service.resolve.assumptions import of_the_chunks, of_the_layout
from service.resolve.profiles import wanted_profile
from service.resolve.resolution import Resolver
from service.runtime.deadline import Deadline, nobody
from service.schemas.comparison import ComparisonAnswer, ComparisonRequest, Side
from service.schemas.layout import LayoutFields
from service.store import Store


class Comparisons:
    def __init__(self, store: Store) -> None:
        self._store = store

    def compare(
        self, request: ComparisonRequest, require_client: Callable[[], None] = nobody
    ) -> dict[str, Any]:
        with self._store.reading() as rows:
            resolved = Resolver(rows).problem(request)
            profile = wanted_profile(rows, request.profile)
        problem = resolved.problem
        given = {"first": request.first, "second": request.second}
        open_ = {name: side.layout for name, side in given.items() if side.layout}
        settled = {name: layout.settled(problem) for name, layout in open_.items()}
        require_legal(
            problem,
            {f"{name}.layout": layout.build() for name, layout in settled.items()},
            {f"{name}.layout": layout for name, layout in open_.items()},
        )
        should_continue = Deadline(request.time_limit_s, require_client)
        first, second = (_side(side, settled.get(name)) for name, side in given.items())
        failed = out_of_memory(self._store, problem, profile)
        found = compare(problem, profile, first, second, should_continue, least_that_failed(failed))
        answer = ComparisonAnswer.of(
            found, problem.cluster.usd_per_hour, grounds(request, resolved, profile)
        )
        sides = {"first": answer.first.prediction, "second": answer.second.prediction}
        searched = [
            prediction.needed_gib for name, prediction in sides.items() if name not in settled
        ]
        answer.reasons += [
            *left_out(max(searched, default=math.inf), failed),
            *warnings(sides, failed),
        ]
        for name, side in sides.items():
            answer.assumptions += of_the_chunks(f"the {name}", side)
        for name, layout in settled.items():
            answer.assumptions.extend(
                of_the_layout(f"{name}.layout", given[name].layout or layout, layout, problem)
            )
            given[name] = Side(layout=layout)
        answer.request.update(
            {name: side.model_dump(mode="json", exclude_none=True) for name, side in given.items()}
        )
        return answer.model_dump(mode="json")


def _side(side: Side, layout: LayoutFields | None) -> Layout | Constraints:
    if layout is not None:
        return layout.build()
    return side.constraints.build() if side.constraints else Constraints()
