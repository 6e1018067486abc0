from __future__ import annotations

import time
from pathlib import Path

import pytest

from shardwright.cli.job_files import UnreadableFile, files_beside, script_of


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty: "),
        (b"\n \n", "is empty: "),
        (b"\x7fELF\x02\0\0", "is no script but a binary file"),
        (b"# remark\n" * 10_000, "has 90,000 characters, and a script may have 65,536: "),
    ],
)
def test_what_is_no_script_is_told_by_its_name(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "job.sh"
    path.write_bytes(content)
    with pytest.raises(UnreadableFile) as refused:
        script_of(str(path))
    assert str(refused.value).startswith(f"{path} {said}")


def test_a_folder_and_a_file_that_is_missing_are_told(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.sh"):
        with pytest.raises(UnreadableFile, match=f"^{path} cannot be read: "):
            script_of(str(path))


def test_names_are_found_in_a_script_with_a_long_word_in_no_time(tmp_path: Path) -> None:
    """Such as data in base64. Read once for each of its letters it takes half a minute."""
    (tmp_path / "lora.yaml").write_text("lora_r: 16\n")
    script = f"data={'x' * 60_000}\naxolotl train ./lora.yaml\n"
    began = time.process_time()
    assert list(files_beside(script, tmp_path)) == ["./lora.yaml"]
    assert time.process_time() - began < 1
