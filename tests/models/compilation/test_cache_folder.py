from __future__ import annotations

import errno
import os
from pathlib import Path

import numba
import pytest

from models.compilation.cache_folder import CacheFolders, machine_code_folders
from tests.paths import ROOT

NAME = "of-version-key"
CODE = b"\x00machine code" * 100


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return tmp_path / "first"


@pytest.fixture
def folders(tmp_path: Path, first: Path) -> CacheFolders:
    return CacheFolders([first, tmp_path / "missing" / "second"])


def refuse_writing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As a read-only file system does, even to the administrator."""
    write, make = Path.write_bytes, Path.mkdir

    def write_elsewhere(path: Path, content: bytes) -> int:
        if path.is_relative_to(folder):
            raise OSError(errno.EROFS, "Read-only file system")
        return write(path, content)

    def make_elsewhere(path: Path, *args: object, **options: object) -> None:
        if path.is_relative_to(folder):
            raise OSError(errno.EROFS, "Read-only file system")
        make(path, *args, **options)

    monkeypatch.setattr(Path, "write_bytes", write_elsewhere)
    monkeypatch.setattr(Path, "mkdir", make_elsewhere)


def test_what_is_kept_is_found_again(folders: CacheFolders, first: Path) -> None:
    assert folders.load(NAME) is None
    folders.save(NAME, CODE)
    assert folders.load(NAME) == CODE
    assert folders.existing() == [first]
    assert [file.name for file in first.iterdir()] == [NAME]


def test_a_folder_that_cannot_be_made_falls_back_to_the_next(
    folders: CacheFolders, first: Path
) -> None:
    first.write_text("is no folder")
    folders.save(NAME, CODE)
    assert folders.load(NAME) == CODE
    assert [folder.name for folder in folders.existing()] == ["second"]


def test_a_read_only_folder_is_used_as_it_is(
    folders: CacheFolders, first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.save(NAME, CODE)
    refuse_writing(monkeypatch, first)
    assert folders.load(NAME) == CODE
    assert folders.existing() == [first]


def test_what_a_read_only_folder_lacks_is_kept_in_the_next(
    folders: CacheFolders, first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.save(NAME, CODE)
    refuse_writing(monkeypatch, first)
    folders.save("other-version-key", b"other")
    assert folders.load("other-version-key") == b"other"
    assert [folder.name for folder in folders.existing()] == ["first", "second"]


def test_where_nothing_can_be_written_nothing_is_kept(
    folders: CacheFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_writing(monkeypatch, tmp_path)
    folders.save(NAME, CODE)
    assert folders.load(NAME) is None
    assert folders.existing() == []


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_folder_that_others_can_write_is_not_trusted(
    folders: CacheFolders, first: Path, mode: int
) -> None:
    folders.save(NAME, CODE)
    first.chmod(mode)
    assert folders.load(NAME) is None
    folders.save(NAME, b"own")
    assert folders.load(NAME) == b"own"
    assert [folder.name for folder in folders.existing()] == ["second"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can give a folder away")
def test_a_folder_of_another_user_is_not_trusted(folders: CacheFolders, first: Path) -> None:
    folders.save(NAME, CODE)
    os.chown(first, 12345, -1)
    assert folders.load(NAME) is None


def test_a_link_to_a_folder_is_not_trusted(folders: CacheFolders, first: Path) -> None:
    elsewhere = first.with_name("elsewhere")
    elsewhere.mkdir(mode=0o755)
    first.symlink_to(elsewhere)
    folders.save(NAME, CODE)
    assert [*elsewhere.iterdir()] == []


def test_a_new_version_replaces_older_ones(folders: CacheFolders, first: Path) -> None:
    for name in ("of-old-1", "of-old-2", "of_another-old-1", "of-new-1", "of-new-2"):
        folders.save(name, CODE)
    left = {file.name for file in first.iterdir()}
    assert left == {"of-new-1", "of-new-2", "of_another-old-1"}


@pytest.mark.parametrize("left", [b"", b"short", None])
def test_what_a_crash_left_incomplete_is_not_used(
    folders: CacheFolders, first: Path, left: bytes | None
) -> None:
    folders.save(NAME, CODE)
    file = first / NAME
    file.write_bytes(file.read_bytes()[:-1] if left is None else left)
    assert folders.load(NAME) is None


def test_the_folder_that_was_chosen_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    chosen = machine_code_folders.__wrapped__()
    chosen.save(NAME, CODE)
    assert chosen.existing()[0].parent == tmp_path


def test_machine_code_lies_with_the_sources_unless_another_folder_was_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    folder = next(machine_code_folders.__wrapped__().usable())
    assert folder.parent == ROOT / "models" / "__pycache__"
