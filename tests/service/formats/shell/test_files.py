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


SENT = LaunchFiles({"conf/a.yaml": "a: 1\n", "b.yaml": "b: 1\n"})
TRAIN = "\ntorchrun train.py --config a.yaml"


@pytest.mark.parametrize(
    ("script", "name", "text"),
    [
        ("echo 'c: 2' >> conf/a.yaml", "conf/a.yaml", "a: 1\nc: 2\n"),
        ("echo 'c: 2' >> ./conf/a.yaml", "a.yaml", "a: 1\nc: 2\n"),
        ("echo 'c: 2' >> a.yaml\necho 'd: 3' >> a.yaml", "conf/a.yaml", "a: 1\nc: 2\nd: 3\n"),
        ("echo 'c: 2' > ./b.yaml", "b.yaml", "c: 2\n"),
        ("cp conf/a.yaml /tmp/run.yaml\necho 'c: 2' >> /tmp/run.yaml", "run.yaml", "a: 1\nc: 2\n"),
        ("mv b.yaml /tmp/", "/tmp/b.yaml", "b: 1\n"),
        ("cp none.yaml b.yaml", "b.yaml", "b: 1\n"),
    ],
)
def test_a_script_adds_to_files_that_are_sent(script: str, name: str, text: str) -> None:
    assert split_command(script + TRAIN, SENT).files.text(name) == text


@pytest.mark.parametrize(
    "edit",
    [
        "sed -i 's/1/2/' conf/a.yaml",
        "sed --in-place=.old -e 's/1/2/' ./conf/a.yaml",
        "perl -pi -e 's/1/2/' a.yaml",
        "yq -i '.a = 2' a.yaml",
        "python - <<E\nopen('a.yaml', 'w').write('a: 2')\nE",
        "python3 -c \"import yaml; yaml.dump({'a': 2}, open('a.yaml', 'w'))\"",
        "echo 'a: 1' > new.yaml\nsed -i 's/1/2/' new.yaml",
    ],
)
def test_a_command_that_changes_a_file_in_place_is_noted(edit: str) -> None:
    ((name, command),) = split_command(edit + TRAIN, SENT).edits.items()
    assert name.endswith(("a.yaml", "new.yaml"))
    assert command.split()[0] in ("sed", "perl", "yq", "python", "python3")


@pytest.mark.parametrize(
    "command",
    [
        "sed -n 's/1/2/p' conf/a.yaml",
        "sed -i 's/1/2/' other.yaml",
        "python - <<E\nprint(open('a.yaml').read())\nE",
        "grep -i a conf/a.yaml",
        "perl -MList::Util=sum -ne 'print' conf/a.yaml",
    ],
)
def test_a_command_that_changes_no_known_file_is_not_noted(command: str) -> None:
    assert split_command(command + TRAIN, SENT).edits == {}


@pytest.mark.parametrize("command", ["sed -i 's/1/2/' c/a.yaml", "cp c/a.yaml d.yaml"])
def test_a_command_may_name_a_file_that_may_be_one_of_several(command: str) -> None:
    files = LaunchFiles({"a/a.yaml": "a: 1\n", "b/a.yaml": "a: 2\n"})
    started = split_command(f"{command}\n{TRAIN}", files)
    assert (started.edits, "d.yaml" in started.files) == ({}, False)


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
