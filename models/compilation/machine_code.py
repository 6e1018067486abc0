"""The machine code of a compiled function, kept from one process to the next.

It replaces numba's own cache, which takes no notice of a change in another file: a function goes on
calling the old version of what it calls. Processes that write that cache at once may mix up its
entries, and it needs a folder that can be written.

A *part* is a function that only compiled functions call (models.compilation.parts). A *claim* is a
lock, with which one process compiles a function while others wait for its result.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from models.compilation.cache_folder import CacheFolders, Claim
from models.compilation.parts import PartLibrary, is_part, set_within
from models.compilation.source_digest import source_digest

_may_compile = ContextVar("may_compile", default=True)
_takes_turns = ContextVar("takes_turns", default=False)


class NotKept(Exception):
    """The machine code of a function is not kept, and compiling it is not allowed."""


def only_kept() -> AbstractContextManager[None]:
    """Forbid compilation within a `with` block, in this thread. A function whose machine code is
    not in the cache raises NotKept when it is called."""
    return set_within(_may_compile, False)


def taking_turns() -> AbstractContextManager[None]:
    """Make each function that is to be compiled within a `with` block wait while another process
    compiles it, and then take that process's result."""
    return set_within(_takes_turns, True)


class MachineCode:
    """The cache that numba asks for machine code (numba.core.caching). It has a file for each
    combination of argument types and kind of processor. `package` is the folder of the package that
    the function is from."""

    def __init__(self, function: Callable[..., Any], package: Path, folders: CacheFolders) -> None:
        digest = source_digest(Path(function.__code__.co_filename), package)
        # The first two parts of its files' names, FUNCTION-VERSION-TYPES (CacheFolders).
        self._function = f"{function.__module__}.{function.__qualname__}-{digest}"
        self._folders = folders
        self._claim: Claim | None = None

    @property
    def cache_path(self) -> str:
        return str(next(iter(self._folders.existing()), None))

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the compiled code kept for these types of arguments, or None to make numba
        compile. Raise NotKept where none is kept and compiling is not allowed (`only_kept`). Within
        `taking_turns`, wait first for another process that is compiling it."""
        target.refresh()  # kept code may need what numba registered since the last call
        if is_part():  # parts are not kept
            return None
        name = self._file_name(signature, target.codegen())
        kept = self._folders.load(name)
        if kept is None and not _may_compile.get():
            raise NotKept(self._function)
        if kept is None and _takes_turns.get():
            self._claim = self._folders.claim(name)
            # Another process may have saved it during the wait.
            kept = self._folders.load(name)
        # Now numba compiles; save_overload ends the claim.
        if kept is None:
            return None
        self._end_claim()
        return CompileResult._rebuild(target, *pickle.loads(kept))

    def save_overload(self, signature: Any, result: Any) -> None:
        """Write the compiled code of a function that Python calls to the cache. Parts, which only
        compiled functions call, are quickly made anew and not kept."""
        if isinstance(result.library, PartLibrary):
            return
        # Dynamic globals are addresses in this process, which mean nothing in another one.
        if not result.library.has_dynamic_globals:
            name = self._file_name(signature, result.library.codegen)
            self._folders.save(name, dumps(result._reduce()))
        self._end_claim()

    def _end_claim(self) -> None:
        """Let other processes compile the function, if this one has claimed to do it."""
        if self._claim is not None:
            self._claim.end()
            self._claim = None

    def _file_name(self, signature: Any, codegen: Any) -> str:
        """Return the file name for these types of arguments on this kind of processor."""
        # numba's magic tuple describes the processor.
        key = repr((str(signature), codegen.magic_tuple()))
        return f"{self._function}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
