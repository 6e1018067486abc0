"""The compiled cost model against the one over arrays, on random layouts of random problems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pytest

from models.columns import Array
from models.cost import combine
from models.cost import step as by_arrays
from tests.benchmarks.problems import NAMED
from tests.oracles.random_questions import random_coefficients, random_layouts, random_problem

RELATIVE = 1e-9
"""Of the step time, or of all memory."""
SEEDS = range(8)
LAYOUTS = 2500
"""Of each seed, and many of each problem."""
OF_A_PROBLEM = 50
_MOST_TIES = 4
"""Stages of a layout that take equally long, of which each is looked at."""
_ROUNDING = 1e-12
LONG_SEEDS = range(100, 120)
LONG_LAYOUTS = 50_000
LONG_OF_A_PROBLEM = 2000


class Found(Protocol):
    """Time and memory of n layouts by term, arrays of shape (n,)."""

    @property
    def time(self) -> dict[str, Array]: ...

    @property
    def memory(self) -> dict[str, Array]: ...

    @property
    def memory_stage(self) -> Array: ...

    @property
    def host_bytes(self) -> Array: ...


def assert_same(expected: by_arrays.Predictions, found: Found) -> None:
    """That all terms are equal to a billionth of their sum, the fullest stage is the same, and so
    is what is on the host. Names the term that is furthest off, and the layout where it is.

    Where stages take equally long, or hold as much, rounding errors decide whose terms are given:
    those of any of them will do.
    """
    for kind in ("time", "memory"):
        values, own = _values(expected, kind), _values(found, kind)
        assert own.keys() == values.keys(), f"terms of {kind}"
        for name in values:
            assert np.shape(own[name]) == values[name].shape, name
        off = _shares_off(expected, kind, values, own)
        wrong = np.flatnonzero(off.max(axis=0) > RELATIVE)
        wrong = _not_of_a_tied_stage(expected, kind, own, wrong)
        if len(wrong):
            term, at = np.unravel_index(off[:, wrong].argmax(), (len(off), len(wrong)))
            name, row = list(values)[term], int(wrong[at])
            raise AssertionError(
                f"{name} of layout {row} is {values[name][row]!r}, found {own[name][row]!r},"
                f" off by {off[term, row]:.1e}; of {off.shape[1]} layouts {len(wrong)} differ;"
                f" it is {expected.layouts[row]}"
            )


def _not_of_a_tied_stage(
    expected: by_arrays.Predictions, kind: str, own: dict[str, Array], rows: Array
) -> Array:
    """Of rows that differ, those that are not the terms of another stage that ties."""
    for tie in range(_MOST_TIES):
        if not len(rows):
            break
        some = expected.take(rows)
        of_rows = {name: column[rows] for name, column in own.items()}
        off = _shares_off(some, kind, _of_tied_stage(some, kind, tie), of_rows)
        rows = rows[off.max(axis=0) > RELATIVE]
    return rows


def _values(of: Found, kind: str) -> dict[str, Array]:
    if kind == "time":
        return of.time
    return {**of.memory, "host_bytes": of.host_bytes, "memory_stage": of.memory_stage}


def _shares_off(
    expected: by_arrays.Predictions, kind: str, values: dict[str, Array], own: dict[str, Array]
) -> Array:
    """Differences by term, (terms, n), as shares of the step time or of all memory; infinite where
    there is no number, or another stage."""
    whole = expected.step_time_s if kind == "time" else expected.needed_bytes
    off = []
    for name, column in values.items():
        difference = np.abs(own[name] - column)
        if name == "memory_stage":
            difference = np.where(difference > 0, np.inf, 0.0)
        off.append(difference / np.maximum(whole, expected.host_bytes * (name == "host_bytes")))
    return np.nan_to_num(np.array(off), nan=np.inf)


def _of_tied_stage(expected: by_arrays.Predictions, kind: str, tie: int) -> dict[str, Array]:
    """The terms of the stage with this number among those that tie but for rounding errors, or of
    the last of them."""

    def largest(values: Array) -> Array:
        ties = values >= values.max(axis=0) * (1 - _ROUNDING)
        number = np.cumsum(ties, axis=0)
        stage = (number > np.minimum(tie, number[-1] - 1)).argmax(axis=0)
        return np.asarray(stage * values.shape[1] + np.arange(values.shape[1]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combine, "_largest", largest)
        again = expected.take(np.arange(len(expected.layouts)))
        return _values(again, kind)


# -- against the kernel

Predict = Callable[..., Any]


@pytest.fixture(scope="module")
def predict() -> Predict:
    kernel = pytest.importorskip("models.kernel.step")
    if not hasattr(kernel, "predict"):
        kernel = pytest.importorskip("models.kernel.predictions")
    return kernel.predict


def compare(predict: Predict, seed: int, layouts: int, of_a_problem: int) -> None:
    """So many layouts of random problems, no more than some of each."""
    left, index = layouts, 0
    while left > 0:
        rng = np.random.default_rng([seed, index])
        problem = random_problem(rng)
        rows = random_layouts(problem, rng, min(of_a_problem, left))
        c = random_coefficients(problem, rng)
        if len(rows):
            try:
                assert_same(by_arrays.predict(problem, rows, c), predict(problem, rows, c))
            except AssertionError as error:
                error.add_note(f"of random problem [{seed}, {index}]: {problem}\n{c}")
                raise
        left -= len(rows)
        index += 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_compiled_step_is_that_over_arrays(predict: Predict, seed: int) -> None:
    compare(predict, seed, LAYOUTS, OF_A_PROBLEM)


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG_SEEDS)
def test_so_are_a_million(predict: Predict, seed: int) -> None:
    compare(predict, seed, LONG_LAYOUTS, LONG_OF_A_PROBLEM)


@pytest.mark.parametrize("name", NAMED)
def test_so_are_those_of_the_named_problems(predict: Predict, name: str) -> None:
    problem, rng = NAMED[name](), np.random.default_rng(0)
    rows = random_layouts(problem, rng, 200)
    if not len(rows):
        pytest.skip("no layout of all chips is legal")
    c = random_coefficients(problem, rng)
    assert_same(by_arrays.predict(problem, rows, c), predict(problem, rows, c))


# -- the comparison itself


class _Copied:
    """Predictions that can be spoiled."""

    def __init__(self, of: Found) -> None:
        self.time = {name: values.copy() for name, values in of.time.items()}
        self.memory = {name: values.copy() for name, values in of.memory.items()}
        self.memory_stage = of.memory_stage.copy()
        self.host_bytes = of.host_bytes.copy()


@pytest.fixture(scope="module")
def predictions() -> by_arrays.Predictions:
    problem, rng = NAMED["llama-3.1-405b"](), np.random.default_rng(1)
    rows = random_layouts(problem, rng, 300)
    return by_arrays.predict(problem, rows, random_coefficients(problem, rng))


def _longer(factor: float) -> Callable[[_Copied, by_arrays.Predictions], None]:
    """The step of one layout, so much longer."""

    def spoil(copied: _Copied, of: by_arrays.Predictions) -> None:
        copied.time["compute_s"][7] += factor * of.step_time_s[7]

    return spoil


def _not_a_number(copied: _Copied, of: by_arrays.Predictions) -> None:
    copied.memory["logits_bytes"][7] = np.nan


def _more_memory(copied: _Copied, of: by_arrays.Predictions) -> None:
    copied.memory["activations_bytes"][7] += 1e-8 * of.needed_bytes[7]


def _another_stage(copied: _Copied, of: by_arrays.Predictions) -> None:
    copied.memory_stage[7] += 1


def _more_on_host(copied: _Copied, of: by_arrays.Predictions) -> None:
    copied.host_bytes[7] += 100.0 + of.host_bytes[7]


def _without_a_term(copied: _Copied, of: by_arrays.Predictions) -> None:
    del copied.time["fixed_s"]


def test_what_differs_by_rounding_is_the_same(predictions: by_arrays.Predictions) -> None:
    copied = _Copied(predictions)
    _longer(1e-11)(copied, predictions)
    assert_same(predictions, copied)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_longer(2e-9), "compute_s of layout 7"),
        (_more_memory, "activations_bytes of layout 7"),
        (_not_a_number, "logits_bytes of layout 7"),
        (_another_stage, "memory_stage of layout 7"),
        (_more_on_host, "host_bytes of layout 7"),
        (_without_a_term, "terms of time"),
    ],
)
def test_what_differs_by_more_is_named(
    predictions: by_arrays.Predictions,
    spoil: Callable[[_Copied, by_arrays.Predictions], None],
    said: str,
) -> None:
    copied = _Copied(predictions)
    spoil(copied, predictions)
    with pytest.raises(AssertionError, match=said):
        assert_same(predictions, copied)
