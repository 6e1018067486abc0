"""The folders that keep machine code from one process to the next.

A *claim* is a lock, with which one process compiles a function while others wait for its result.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import numba
from numba.misc.appdirs import user_cache_dir

_PACKAGE = Path(__file__).parents[1]
_CLAIMS = "claims"
"""The name of an empty file whose bytes are locked."""
_CHECKSUM_BYTES = hashlib.sha256().digest_size


class CacheFolders:
    """Folders that keep files by name. A file is looked for in each of them, and kept in the first
    that can be written. A name is FUNCTION-VERSION-TYPES: VERSION is a digest of the sources, and
    TYPES one of the argument types. A new version of a function replaces the others.

    A folder counts only where no other user could put a file into it, because its files are code
    that will run.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders

    def existing(self) -> list[Path]:
        return [folder for folder in self._folders if _is_safe(folder)]

    def usable(self) -> Iterator[Path]:
        """Yield the safe folders, in order. Each is made first where it does not exist."""
        for folder in self._folders:
            with suppress(OSError):  # it exists already, or cannot be made
                folder.mkdir(mode=0o755, parents=True)
            if _is_safe(folder):
                yield folder

    def load(self, name: str) -> bytes | None:
        """Return the content that was kept under a name. Return None where no folder has it with
        the right checksum, which lies before the content in the file."""
        for folder in self.existing():
            with suppress(OSError):
                content = (folder / name).read_bytes()
                kept = content[_CHECKSUM_BYTES:]
                if hashlib.sha256(kept).digest() == content[:_CHECKSUM_BYTES]:
                    return kept
        return None

    def claim(self, name: str) -> Claim | None:
        """Wait until no other process has claimed a name, and claim it, so that only one process at
        a time makes its content. Return None where no folder can be written and locked."""
        for folder in self.usable():
            with suppress(OSError):
                return Claim(folder / _CLAIMS, name)
        return None

    def save(self, name: str, content: bytes) -> None:
        """Keep the content under this name, unless no folder can be written. Several processes may
        do this at once: a file gets its name only when it is whole."""
        for folder in self.usable():
            unfinished = folder / f"{name}-{uuid.uuid4().hex}"
            try:
                unfinished.write_bytes(hashlib.sha256(content).digest() + content)
                unfinished.replace(folder / name)
            except OSError:
                _remove(unfinished)
            else:
                _remove_other_versions(folder / name)
                return


class Claim:
    """A lock on a name, which one process holds at a time. It is a lock on a byte of a file, which
    the system frees when the process ends, however that ends."""

    def __init__(self, file: Path, name: str) -> None:
        """Wait until no other process holds the claim on this name, and take it. Raise OSError
        where the file cannot be opened or locked."""
        # Each name has a byte, by its digest; locks may lie beyond the end of the file. Where two
        # names share a byte, a process only waits longer.
        byte = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, byte)
        except OSError:
            self.end()
            raise

    def end(self) -> None:
        os.close(self._descriptor)


def _remove_other_versions(file: Path) -> None:
    """Remove the files of other versions of a file's function. Files are named
    FUNCTION-VERSION-TYPES; files of the same version stay, since they are for other types of
    arguments."""
    function, version, _ = file.name.split("-", 2)
    for other in file.parent.glob(f"{function}-*"):
        if not other.name.startswith(f"{function}-{version}-"):
            _remove(other)


def _remove(file: Path) -> None:
    with suppress(OSError):  # another process may have removed it
        file.unlink()


def _is_safe(folder: Path) -> bool:
    """Say whether a folder exists and only this user, the administrator or the owner of the sources
    can write there: whoever can may have their code run by this process."""
    owners = {os.geteuid(), 0, Path(__file__).stat().st_uid}
    try:
        status = folder.lstat()  # of a link itself, which is no folder: a link is not safe
    except OSError:
        return False
    others_can_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and not others_can_write and status.st_uid in owners


@cache
def machine_code_folders() -> CacheFolders:
    """Return the folders for this package and this interpreter, in this order: the one that
    NUMBA_CACHE_DIR names, that of the sources, the user's for caches, and the one for temporary
    files."""
    interpreter = sys.implementation.cache_tag
    folders = [_PACKAGE / "__pycache__" / f"machine-code-{interpreter}"]
    # Other copies of this package keep machine code in the same places, under another name.
    package = hashlib.sha256(str(_PACKAGE).encode()).hexdigest()[:8]
    name = f"shardwright-{package}-{interpreter}"
    if numba.config.CACHE_DIR:
        folders.insert(0, Path(numba.config.CACHE_DIR).absolute() / name)
    home = Path(user_cache_dir())
    if home.is_absolute():  # a user without a home has a relative one
        folders.append(home / name)
    with suppress(OSError):  # a machine may lack a folder for temporary files
        folders.append(Path(tempfile.gettempdir()) / f"{name}-{os.geteuid()}")
    return CacheFolders(folders)
