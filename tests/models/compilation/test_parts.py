"""Functions that only compiled functions call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.compilation.cache_folder import CacheFolders
from models.compilation.compiled import options
from models.compilation.machine_code import MachineCode
from models.compilation.parts import Dispatcher, PartLibrary


def added(x, y):
    return x + y


@pytest.fixture
def functions() -> tuple[Dispatcher, Dispatcher, Dispatcher]:
    """A function, one that calls it twice, and one that calls both."""
    inner = Dispatcher(added, options(forceinline=False))

    def doubled(x, y):
        return inner(x, y) + inner(y, x)

    middle = Dispatcher(doubled, options(forceinline=True))

    def all_of(rows, out):
        for i in range(len(rows)):
            out[i] = middle(rows[i], 1.0) + inner(rows[i], 2.0)

    return inner, middle, Dispatcher(all_of, options(forceinline=False))


def is_part(function: Dispatcher) -> list[bool]:
    return [isinstance(found.library, PartLibrary) for found in function.overloads.values()]


def evaluate(function: Any) -> list[float]:
    out = np.zeros(3)
    function(np.array([0.0, 1.0, 5.0]), out)
    return out.tolist()


def test_what_compiled_functions_call_is_a_part_of_them(functions: Any) -> None:
    inner, middle, outer = functions
    assert evaluate(outer) == [4.0, 7.0, 19.0]
    assert (is_part(inner), is_part(middle), is_part(outer)) == ([True], [True], [False])


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_part_may_be_called_from_python_as_well(functions: Any, before: bool) -> None:
    inner, middle, outer = functions
    if before:
        assert middle(3.0, 1.0) == 8.0
    assert evaluate(outer) == [4.0, 7.0, 19.0]
    assert middle(3.0, 1.0) == 8.0
    assert inner(3.0, 1.0) == 4.0
    assert inner(3, 1) == 4  # of other types
    assert evaluate(outer) == [4.0, 7.0, 19.0]


def test_only_what_python_calls_is_kept(functions: Any, tmp_path: Path) -> None:
    folders = CacheFolders([tmp_path])
    for function in functions:
        function._cache = MachineCode(function.py_func, Path(__file__).parent, folders)
    evaluate(functions[2])
    (file,) = [each.name for each in tmp_path.iterdir()]
    assert "all_of" in file
