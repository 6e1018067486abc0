"""The tables of the tools, and any values of what is in them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import Invalid
from service.formats.launch.trainer.dialects import DIALECTS
from service.formats.launch.trainer.reader import read, trainer_table
from service.formats.settings.field_table import field_table
from service.formats.shell.files import LaunchFiles

MARKS: dict[str, dict[str, Any]] = {
    "axolotl": {"base_model": "a/b"},
    "llama_factory": {"finetuning_type": "lora"},
    "llama_factory_v1": {"model": "a/b", "model_class": "llm"},
    "ms_swift": {"model": "a/b", "tuner_type": "lora"},
}
"""What tells of a tool."""
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.floats()
    | st.sampled_from(["auto", "lora", "full", "fsdp2", "cpu", "", "8", "$X", "all", "a.json"])
    | st.lists(st.sampled_from(["q_proj", "full_shard", "offload"]), max_size=3)
)


@pytest.mark.parametrize("name", DIALECTS)
def test_what_has_another_name_is_read_and_known_to_the_trainer(name: str) -> None:
    table = field_table(DIALECTS[name].table)
    trainer = trainer_table("transformers")
    assert table.facts["renamed"].keys() <= table.fields.keys()
    for own, theirs in table.facts["renamed"].items():
        assert table.fields[own].use == "read", own
        assert (
            theirs in trainer.fields
            or theirs.partition(".")[0] in ("deepspeed", "fsdp")
            or (theirs == "sequence_parallel_size")
        ), theirs


@pytest.mark.parametrize("name", DIALECTS)
@given(data=st.data())
def test_any_values_of_known_settings_are_read_or_refused(name: str, data: Any) -> None:
    names = sorted(field_table(DIALECTS[name].table).fields)
    drawn = data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=12))
    with suppress(Invalid):
        read(json.dumps({**MARKS[name], **drawn}), None, files=LaunchFiles({"a.json": "{}"}))


@given(data=st.data())
def test_any_values_of_training_arguments_are_read_or_refused(data: Any) -> None:
    names = sorted(trainer_table("transformers").fields)
    drawn = data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=12))
    with suppress(Invalid):
        read(json.dumps({"model_name_or_path": "a/b", **drawn}), None, files=LaunchFiles())
