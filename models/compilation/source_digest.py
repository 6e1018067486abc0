"""A digest of all that the machine code of a function depends on.

A compiled function contains the functions that it calls and the constants that it names, in
whatever files those are. So the digest covers its own file and all that this file imports.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import llvmlite
import numba
import numpy as np

_IMPORT = re.compile(r"^\s*(?:from|import) ([.\w]+)", re.MULTILINE)


@cache
def source_digest(file: Path, package: Path) -> str:
    """Return a digest of a source file, of all files that it imports from its package, and of the
    versions of Python, numba, llvmlite and numpy, on which machine code depends."""
    versions = platform.python_version(), numba.__version__, llvmlite.__version__, np.__version__
    # Checks of array bounds are a part of machine code where numba is told to make them.
    digest = hashlib.sha256(repr((versions, numba.config.BOUNDSCHECK)).encode())
    for source in sorted(sources(file, package)):
        text = _text(source)
        digest.update(f"{source.relative_to(package)} {len(text)}\n{text}".encode())
    return digest.hexdigest()[:16]


def sources(file: Path, package: Path) -> set[Path]:
    """Return a file of a package and all that it imports from there, directly or not."""
    pending = [file]
    reached = set[Path]()
    while pending:
        file = pending.pop()
        if file not in reached and file.exists():
            reached.add(file)
            for name in _imported(file):
                pending += _files_of(name, package)
    return reached


@cache
def _imported(file: Path) -> list[list[str]]:
    """Return the modules that a file imports, each by the parts of its name."""
    return [name.split(".") for name in _IMPORT.findall(_text(file))]


@cache
def _text(file: Path) -> str:
    """Return the text that a file had at the first call, while its functions were imported. Later
    edits of the file do not change the functions of this process."""
    return file.read_text("utf-8")


def _files_of(name: list[str], package: Path) -> Iterable[Path]:
    """Return the files of a module, whose name is given by its parts: its own file, all modules of
    a folder (_IMPORT sees only the folder in `from folder import module`), or nothing where it is
    not in the package."""
    if name[0] != package.name:
        return []
    module = package.joinpath(*name[1:])
    return module.glob("*.py") if module.is_dir() else [module.with_suffix(".py")]
