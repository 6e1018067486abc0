"""Parts are functions that only compiled functions call, within the machine code of their callers.

numba makes machine code of every function, with that of all that it calls, and again of each that
calls it. In a chain of ten functions the last one is optimised ten times. Here a function that
Python calls, a *whole*, is compiled once. The functions that it calls are only translated to the
intermediate code of LLVM, which goes into the whole. That takes a third of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from numba.core import sigutils
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import CPUDispatcher

_is_part = ContextVar("is_part", default=False)
"""True while a function is compiled for a caller that is being compiled itself."""


def is_part() -> bool:
    """Say whether numba is now compiling a function as a part, for a caller that it compiles."""
    return _is_part.get()


@contextmanager
def set_within(variable: ContextVar[bool], value: bool) -> Iterator[None]:
    """Set a context variable to a value within the block, in this thread."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


class PartLibrary(JITCodeLibrary):
    """The intermediate code of a part, without that of the functions that it calls."""

    def add_linking_library(self, library: Any) -> None:
        """Note a library that this code calls, without linking it: the whole links it."""
        self._linking_libraries.append(library)

    def finalize(self) -> None:
        self._finalized = True

    def with_callees(self) -> list[Any]:
        """Return this library and those of all that it calls, directly or not. A caller that is
        compiled links all of them into its machine code."""
        libraries = [self]
        for library in libraries:  # The loop also visits the callees that it appends.
            if isinstance(library, PartLibrary):
                libraries += [
                    callee for callee in library._linking_libraries if callee not in libraries
                ]
        return libraries


class _Whole(JITCodeLibrary):
    """The machine code of a function that Python calls, with that of all that it calls."""

    def add_linking_library(self, library: Any) -> None:
        """Link a library that this code calls. With a part, link all that the part calls in turn,
        since parts are not linked among themselves."""
        libraries = library.with_callees() if isinstance(library, PartLibrary) else [library]
        for linked in libraries:
            super().add_linking_library(linked)


class _Pipeline(Compiler):
    """The steps of numba's own compiler, for a part or for a whole."""

    def __init__(
        self,
        typing_context: Any,
        target_context: Any,
        _: Any,
        args: Any,
        return_type: Any,
        flags: Any,
        locals_: Any,
    ) -> None:
        """Make the compiler for one function. It puts the code into a library of this module, in
        place of the one that numba passes: the two kinds of library are linked differently."""
        # Only parts are not compiled by themselves (_translate_parts_only).
        kind = PartLibrary if flags.no_compile else _Whole
        library = kind(target_context.codegen(), kind.__name__)
        library.enable_object_caching()
        super().__init__(typing_context, target_context, library, args, return_type, flags, locals_)


class Dispatcher(CPUDispatcher):
    """A function that is compiled when it is first called, whole or as a part, for the types of its
    arguments."""

    def __init__(self, function: Any, options: dict[str, Any]) -> None:
        super().__init__(function, targetoptions=options, pipeline_class=_Pipeline)
        # numba asks this hook for the flags of each compilation: here, whether it is of a part.
        self._compiler._customize_flags = _translate_parts_only

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return numba's template of a call from a function that is being compiled. numba compiles
        this function for it, here as a part."""
        with set_within(_is_part, True):
            return super().get_call_template(args, kws)

    def compile(self, sig: Any) -> Any:
        """Compile for these types: as a part for a caller that is being compiled, and otherwise as
        a whole for Python. A part of the same types is dropped where Python needs a whole, since
        numba would take it as compiled."""
        args, _ = sigutils.normalize_signature(sig)
        compiled = self.overloads.get(tuple(args))
        if compiled and isinstance(compiled.library, PartLibrary) and not is_part():
            del self.overloads[tuple(args)]
        return super().compile(sig)

    def add_overload(self, result: Any) -> None:
        """Register compiled code: a whole for calls from Python, a part for linking into the
        functions that are being compiled."""
        if not isinstance(result.library, PartLibrary):
            super().add_overload(result)
            return
        # numba finds the code of a call by its entry point: a part, which has none, gets a key.
        key = object()
        self.targetctx.insert_user_function(key, result.fndesc, [result.library])
        self.overloads[tuple(result.signature.args)] = result._replace(entry_point=key)


def _translate_parts_only(flags: Any) -> Any:
    """Return numba's flags for a compilation. A part is only translated to LLVM's intermediate
    code, and needs no wrapper because Python does not call it."""
    if is_part():
        flags.no_compile = True
        flags.no_cpython_wrapper = True
    return flags
