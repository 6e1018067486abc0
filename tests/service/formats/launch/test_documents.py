"""Documents of settings: what is read of them, and what is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import Invalid
from service.formats.launch.deepspeed import reader as deepspeed_reader
from service.formats.launch.documents import (
    flat,
    nested,
    read_document,
)
from service.formats.launch.formats import FORMATS
from service.formats.launch.trainer import reader as accelerate_reader

READERS = (deepspeed_reader.read, accelerate_reader.read)
NAMES = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=5)


@given(
    st.dictionaries(
        NAMES,
        st.recursive(st.integers(), lambda inner: st.dictionaries(NAMES, inner), max_leaves=20),
        max_size=5,
    )
)
def test_dotted_names_are_the_document(document: dict[str, Any]) -> None:
    assert nested(dict(flat(document))) == document


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &b [*b]", "aliases"),
        ("[" * 60_000, "nests deeper|neither"),
        ('{"a":' * 400 + "1" + "}" * 400, "nests deeper"),
        ("{a: " * 15_000, "nests deeper"),
        ("a:\n" + "- " * 30_000, "nests deeper"),
        ("a: " + "9" * 5000, "neither JSON nor YAML"),
        ("a: 0x" + "f" * 5000, "neither JSON nor YAML"),
        ("a: !!python/object:os.system {}", "neither JSON nor YAML"),
        ("a: {? [1] : 2}", "neither JSON nor YAML"),
        ("a: {2026-01-01: 2}", "neither JSON nor YAML"),
        ("a: 1\n b: 2", "line 2"),
        ("1: 2", "mapping of names"),
        ("a", "mapping of names"),
        ("", "mapping of names"),
        ("a: 1\n" * 20_000, "characters"),
    ],
)
def test_texts_that_are_no_document_are_refused(text: str, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        read_document(text)
    assert caught.value.field == "launch.arguments"


def aliases_that_double() -> str:
    """A short text whose value is endless to walk through."""
    levels = "abcdefghij"
    doubled = [
        f"{name}: &{name} [{','.join([f'*{inner}'] * 10)}]"
        for inner, name in zip(levels, levels[1:], strict=False)
    ]
    return "\n".join(["a: &a [x]", *doubled])


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(
    "text",
    [
        aliases_that_double(),
        "--- # a file\n" + aliases_that_double(),
        "run_name: [" * 5000,
        "run_name: " + "9" * 5000,
        "run_name: 2026-99-99",
        "run_name: " + ":".join(["59"] * 10_000),
        "run_name=[" * 5000,
        "run_name='{" + aliases_that_double().replace("\n", ", ") + "}'",
    ],
)
def test_no_format_walks_through_an_endless_text(format_: str, text: str) -> None:
    begun_s = process_time()
    with suppress(Invalid):
        FORMATS[format_].read(text, None)
    assert process_time() - begun_s < 5


@pytest.mark.parametrize("format_", sorted(FORMATS.keys() - {"torchtitan"}))
def test_aliases_are_refused_in_every_format_that_has_yaml(format_: str) -> None:
    with pytest.raises(Invalid, match="aliases"):
        FORMATS[format_].read(aliases_that_double(), None)


def test_settings_are_shown_so_that_every_database_stores_them() -> None:
    text = '{"a\\u0000": "b\\u0000\\ud800", "c": "' + "x" * 1000 + '"}'
    first, second = FORMATS["accelerate"].read(text, None).reservations
    assert first.setting == "a\\u0000 = b\\u0000\\ud800"
    assert len(second.setting) < 100


@pytest.mark.parametrize("read", READERS)
@given(text=st.text())
def test_any_text_is_read_or_refused(read: Any, text: str) -> None:
    with suppress(Invalid):
        read(text, None)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "value", ["1e400", "0x" + "f" * 2000, ".nan", "-.inf", "2026-01-01", "[1]", "{a: 1}", "''"]
)
@pytest.mark.parametrize(
    "name",
    ["train_batch_size", "bf16", "zero_optimization", "num_processes", "fsdp_config", "optim",
        "mixed_precision", "distributed_type", "dynamo_config", "optimizer", "pipeline"],
)  # fmt: skip
def test_any_value_is_read_or_refused(read: Any, name: str, value: str) -> None:
    with suppress(Invalid):
        read(f"{name}: {value}\n", None)


def test_flags_replace_what_stands_in_their_way() -> None:
    script = "cat > a.yaml <<EOF\nfsdp_config: 5\nEOF\n"
    script += "accelerate launch --config_file a.yaml --use_fsdp --fsdp_version 2 t.py"
    assert accelerate_reader.read(script, None).layout["zero_stage"] == 3


def test_json_is_read_as_yaml_does() -> None:
    document = {"a": [1, 2.5, None, True, "no"], "b": {"c": "é\t\"'\U0001f600"}}
    assert read_document(json.dumps(document)) == document
    assert read_document(json.dumps(document, indent=2)) == document


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c': stands twice"),
        ("a:\n  - b: 1\n    b: 2\n", "'b': stands twice"),
        ("a: {b: [1, 2]}\na: {b: [1, 3]}\n", "'a': stands twice"),
        ("a: \x01", "character 4"),
    ],
)
def test_a_document_says_each_setting_once(text: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        read_document(text)


@pytest.mark.parametrize("text", ['{"a": {"b": 1}, "a": {"b": 1}}', "a: {b: 1}\na:\n  b: 1\n"])
def test_a_setting_may_stand_twice_with_one_value(text: str) -> None:
    assert read_document(text) == {"a": {"b": 1}}


@pytest.mark.parametrize(
    "text", ["a: &b 1\nc: *b", "a: 1\nc: 1\na: 1", '{"a": 1, "c": 1, "a": 1}', "c: 1\na: 1\na: 1"]
)
def test_aliases_and_names_that_say_one_thing_twice_are_read(text: str) -> None:
    assert read_document(text) == {"a": 1, "c": 1}
