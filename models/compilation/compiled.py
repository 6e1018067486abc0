"""Compilation of the cost model's functions to machine code.

Functions of this package are plain loops and branches over numbers, which numba compiles when they
are first called. They release the interpreter lock, so that threads run on all cores.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from models.compilation.cache_folder import machine_code_folders
from models.compilation.machine_code import MachineCode
from models.compilation.parts import Dispatcher
from models.compilation.processor import target_shared_processor_level

F = TypeVar("F", bound=Callable[..., Any])

_PACKAGE = Path(__file__).parents[1]

target_shared_processor_level()


def compiled(function: F) -> F:
    """Return the function as machine code. A quotient with the divisor zero is infinite or not a
    number, as in numpy."""
    return _compiled(function, forceinline=False)


def inlined(function: F) -> F:
    """Return the function as machine code that is copied into every compiled function that calls
    it. Use it for functions that run for every layout and are called from few places."""
    return _compiled(function, forceinline=True)


def _compiled(function: F, *, forceinline: bool) -> F:
    """Return a dispatcher that compiles the function for the types of its arguments at the first
    call. Its machine code is kept in files if the function is from this package, and not if it is
    from a test."""
    dispatcher = Dispatcher(function, options(forceinline=forceinline))
    if function.__module__.startswith(f"{_PACKAGE.name}."):
        # In place of numba's own cache, which misses changes of the functions that are called.
        dispatcher._cache = MachineCode(function, _PACKAGE, machine_code_folders())
    return cast(F, dispatcher)


def options(*, forceinline: bool) -> dict[str, Any]:
    """Return the options of numba. Compiled functions allocate no arrays and only borrow those of
    their callers in Python, so they need no counts of references (`_nrt`). No function is called
    from C, so none needs a wrapper."""
    return {
        "nopython": True,
        "nogil": True,
        "error_model": "numpy",
        "_nrt": False,
        "no_cfunc_wrapper": True,
        "forceinline": forceinline,
        "boundscheck": None,  # None leaves it to NUMBA_BOUNDSCHECK
    }
