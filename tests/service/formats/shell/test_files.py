"""Files that a script writes, or that are sent beside it."""

from __future__ import annotations

import pytest

from models.errors import Invalid
from service.formats.shell.command import files_of, split_command
from service.formats.shell.files import LaunchFiles, NotSent


@pytest.mark.parametrize(
    ("script", "document"),
    [
        ("cat <<END > x\na: $B\nEND\n", 'a: "$B"\n'),
        ("cat <<'E'\na: ${B}\nE", 'a: "$B"\n'),
        ("cat <<-E\n\ta: \\$b\n\tE", 'a: "$b"\n'),
        ("cat <<A > a\na: 1\nA\ncat <<B > b\nb: 1\nB", None),
        ("tee a >/dev/null <<A\na: 1\nA", "a: 1\n"),
        ('B=4\ncat > a <<A\n{"a": $B, "b": "$C"}\nA', '{"a": 4, "b": "$C"}\n'),
        ("echo 'a: 1' > a\necho 'b: 2' >> a", "a: 1\nb: 2\n"),
        ("cat <<A | tee a\na: 1\nA", "a: 1\n"),
        ("echo", None),
    ],
)
def test_a_script_writes_the_files_of_its_heredocs(script: str, document: str | None) -> None:
    assert files_of(script).only_text() == document


def test_each_of_several_files_is_found_by_its_name() -> None:
    script = (
        "cat > conf/a.yaml <<E\na: 1\nE\ntee b.json <<E\n{}\nE\ntorchrun t.py --c ./conf/a.yaml"
    )
    files = split_command(script).files
    assert files.text("/data/conf/a.yaml") == "a: 1\n"
    assert files.text("b.json") == "{}\n"
    with pytest.raises(NotSent, match="c.json"):
        files.text("c.json")


def test_of_files_of_one_name_that_of_the_same_folder_is_taken() -> None:
    files = LaunchFiles({"a/ds.json": "1", "b/ds.json": "2"})
    assert files.text("conf/b/ds.json") == "2"
    with pytest.raises(Invalid, match="may be any of"):
        files.text("ds.json")


def test_a_file_of_variables_is_read_in_place() -> None:
    files = LaunchFiles(
        {"env.sh": "TP=4\nexport PP=2", "run.sh": "torchrun --nnodes 2 t.py --tp $TP --x $1"}
    )
    text = "source ./env.sh\nsrun -N 2 bash run.sh 7"
    command = split_command(text, files)
    assert command.words == ("--tp", "4", "--x", "7")
    assert command.environment == {"PP": "2"}
    assert command.nnodes == 2
