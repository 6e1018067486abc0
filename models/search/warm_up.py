"""The warm-up of a process: it compiles the cost model before anybody waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache

from models.cost.layout_parts import LayoutParts
from models.cost.memory_uncertainty import MemoryUncertainty
from models.cost.pipeline.bubble import micro_batch_group
from models.cost.predictions import predict
from models.errors import Infeasible
from models.layouts.space import Space
from models.search.enumeration import search
from models.search.result import Goal
from models.spec import catalogue
from models.spec.constraints import Constraints
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.workload import Workload


class WarmUp:
    """Compiles whatever an answer may need, or loads what an earlier process compiled. Each step
    answers a small question. Together they compile everything, since the compiled functions get
    arguments of the same types from every question."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        self.steps = steps

    def __call__(self) -> None:
        for step in self.steps:
            step()

    def shares(self, count: int) -> Sequence[Sequence[Callable[[], None]]]:
        """Return the steps for each of `count` processes that compile at the same time."""
        return [self.steps[start::count] for start in range(count)]


@cache
def _search_dense_model() -> None:
    """Compile the search, which has the largest functions. It is a search of a dense model, which
    gets to them soonest."""
    search(Space(_problem("llama-3.1-8b", 16), Constraints()), shipped_profile(), Goal())


@cache
def _predict_layout() -> None:
    """Compile what predictions of a single layout need: its time, the spread of its memory, the
    cost of its parts and its groups of micro-batches under an interleaved schedule."""
    problem, profile = _problem("qwen3-30b-a3b", 16), shipped_profile()
    layout = Layout(dp_shard=16, zero_stage=3)
    coefficients = profile.coefficients(problem.scopes)
    predictions = predict(problem, Layouts.of([layout]), coefficients)
    MemoryUncertainty.of(problem, profile).spreads(predictions)
    LayoutParts.of(problem, layout, coefficients)
    micro_batch_group(2, 4)


@cache
def _find_that_nothing_fits() -> None:
    """Compile what names the most frugal layout, by asking for a model that does not fit."""
    with suppress(Infeasible):
        search(Space(_problem("llama-3.1-405b", 8), Constraints()), shipped_profile(), Goal())


@cache
def _search_sparse_model() -> None:
    """Compile what searches of models with experts need, and predictions of several layouts."""
    profile, problem = shipped_profile(), _problem("qwen3-30b-a3b", 16)
    answer = search(Space(problem, Constraints()), profile, Goal())
    answer.tables.predict(answer.layouts).fits()


def _problem(model: str, num_chips: int) -> Problem:
    """Return a small problem: a model of the catalogue on H100 chips with Megatron."""
    return Problem(
        architecture=catalogue.architecture(model),
        cluster=catalogue.cluster("h100", num_chips),
        workload=Workload(seq_len=4096, global_batch=16),
        stack=catalogue.stack("megatron"),
    )


warm_up = WarmUp(
    # In this order, two processes that take every second step share the time about evenly.
    _search_dense_model,
    _predict_layout,
    _find_that_nothing_fits,
    _search_sparse_model,
)
