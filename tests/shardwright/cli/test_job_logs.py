from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from shardwright.cli.job_files import UnreadableFile
from shardwright.cli.job_logs import log_of

LONG = b"first\nHF_TOKEN=hf_abcdefghijklmnopqrstuv\n" + b"x" * 2**24 + b"\nlast"


def _is_short(text: str) -> bool:
    return text.startswith("first\nHF_TOKEN=") and text.endswith("\nlast") and len(text) < 9 * 2**20


def test_a_long_log_is_sent_without_its_middle_and_its_secrets(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_bytes(LONG)
    text = log_of(str(path))
    assert _is_short(text)
    assert "hf_abc" not in text


@pytest.mark.long
def test_a_long_log_from_a_pipe_is_sent_without_its_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Pipe(LONG)))
    assert _is_short(log_of("-"))


@pytest.mark.parametrize("size", [1, 2**20, 2**20 + 3])
def test_a_log_that_is_short_enough_is_sent_as_it_is(tmp_path: Path, size: int) -> None:
    path = tmp_path / "short.log"
    path.write_bytes(b"x" * size)
    assert log_of(str(path)) == "x" * size


def test_nul_characters_of_a_node_that_crashed_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "crashed.log"
    path.write_bytes(b"step 1\n" + bytes(4096) + b"step 2\n")
    assert log_of(str(path)) == "step 1\nstep 2\n"


def test_a_log_that_is_empty_or_cannot_be_read_is_told_by_its_name(tmp_path: Path) -> None:
    empty = tmp_path / "empty.log"
    empty.touch()
    with pytest.raises(UnreadableFile, match=f"^{empty} is empty: "):
        log_of(str(empty))
    with pytest.raises(UnreadableFile, match=f"^{tmp_path} cannot be read: "):
        log_of(os.fspath(tmp_path))
