"""The fields of the frameworks (service/formats/launch/fields), and what the writers say with them,
against what the real parsers said of themselves."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from models.errors import Invalid
from models.spec import catalogue
from models.spec.switches import switches_of
from service.formats.launch.documents import flat
from service.formats.launch.formats import FORMATS
from service.formats.launch.megatron_bridge import fields as bridge_fields
from service.formats.megatron import flags as megatron_flags
from tests.launchers.jobs import random_jobs
from tests.paths import ROOT, SHARED

REAL = SHARED / "launch_fields"
OURS = ROOT / "service/formats/launch/fields"
JOBS = 40
SECTIONS = {
    "comm": "CommConfig",
    "compile": "CompileConfig",
    "debug": "DebugConfig",
    "parallelism": "ParallelismConfig",
    "training": "TrainingConfig",
}
"""The sections of torchtitan whose classes are known."""
DOCUMENTS = {
    "zero_optimization": "DeepSpeedZeroConfig",
    "zero_optimization.offload_optimizer": "DeepSpeedZeroOffloadOptimizerConfig",
    "zero_optimization.offload_param": "DeepSpeedZeroOffloadParamConfig",
    "tensor_parallel": "TPTrainingConfig",
}
"""The objects of a DeepSpeed document whose classes are known."""
BESIDE = (
    "activation_checkpointing", "data_parallel_size", "expert_parallel", "pipeline",
    "sequence_parallel_size",
)  # fmt: skip
"""What DeepSpeed reads of a document outside of runtime/constants.py."""

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason=f"{REAL} is not there")


@cache
def real(file: str) -> dict[str, Any]:
    return json.loads((REAL / f"{file}.json").read_text())


@cache
def ours(file: str) -> dict[str, Any]:
    return json.loads((OURS / f"{file}.json").read_text())


@cache
def written(format_: str) -> tuple[tuple[str, Any], ...]:
    """Every setting of some random jobs, with the dots of its name."""
    found = []
    for count, job in enumerate(random_jobs(FORMATS[format_].stacks, seed=f"facts {format_}")):
        if count == JOBS:
            return tuple(found)
        try:
            found += flat(FORMATS[format_].write(job).settings).items()
        except Invalid:  # which the format has no words for
            continue
    raise AssertionError


def _choices(type_: str) -> list[Any] | None:
    """The values that a Literal has."""
    literal = re.search(r"Literal(\[.*\])", type_)
    return ast.literal_eval(literal.group(1)) if literal else None


def _require_type(name: str, type_: str, value: Any) -> None:
    choices = _choices(type_)
    assert choices is None or value in choices, (name, value)
    for word, kind in (("'int'", int), ("'bool'", bool), ("'float'", (int, float))):
        if type_ == f"<class {word}>":
            assert isinstance(value, kind), (name, value)


# -- Megatron-LM


def test_flags_of_megatron_are_those_of_its_parser() -> None:
    table = megatron_flags.table()
    flags = real("megatron_core_0.19.2")["flags"]
    assert table.fields.keys() == flags.keys()
    for name, flag in flags.items():
        field = table.fields[name]
        assert megatron_flags.argument_of(name) == flag["dest"]
        assert (field.kind == "bool") == (flag["nargs"] == 0), name
        assert (field.kind == "list") == (flag["nargs"] not in (None, 0)), name
        assert field.is_optional == (flag["nargs"] == "*")
        choices = [str(choice).rpartition(".")[2] for choice in flag["choices"] or ()]
        assert [*map(str, field.choices)] == choices
        kind = table.facts["items"].get(name, field.kind)
        if kind in ("int", "float") or flag["type"] in ("int", "float"):
            assert kind == flag["type"], name
        default = megatron_flags.text_of(name, field.default)
        is_off = default == "False" and not flag["default"]
        assert is_off or default == str(flag["default"]).removeprefix("AttnBackend."), name


@pytest.mark.parametrize("stack", ["megatron", "megatron-bridge"])
def test_switches_of_megatron_are_settings_that_are_read(stack: str) -> None:
    table = {"megatron": megatron_flags.table, "megatron-bridge": bridge_fields.table}[stack]()
    for switch in switches_of(catalogue.stack(stack)):
        for name in switch.arguments:
            assert table.fields[name].use == "read", name


def test_arguments_of_megatron_are_flags_with_values_that_they_take() -> None:
    flags = real("megatron_core_0.19.2")["flags"]
    for name, value in written("megatron"):
        flag = flags[name]
        assert (value is True) == (flag["nargs"] == 0), name
        for each in value if isinstance(value, list) else [value]:
            # Members of an enumeration go by their names.
            known = [str(choice).rpartition(".")[2] for choice in flag["choices"] or ()]
            assert not known or str(each) in known, name
            if flag["type"] == "int":
                assert isinstance(each, int), name


# -- torchtitan


def _fields_of_torchtitan() -> Iterator[tuple[str, Mapping[str, Any]]]:
    classes = real("torchtitan_0.3.0")["classes"]
    for section, class_ in SECTIONS.items():
        yield from ((f"{section}.{name}", field) for name, field in classes[class_].items())


def test_fields_of_torchtitan_are_those_of_its_classes() -> None:
    table = ours("torchtitan_0.3.0")["fields"]
    for name, field in _fields_of_torchtitan():
        assert name in table
        # A default that a function makes is not in the real list.
        assert field["default"] in (None, table[name][1]), name


def test_flags_of_torchtitan_have_values_of_their_types() -> None:
    fields = dict(_fields_of_torchtitan())
    for name, value in written("torchtitan"):
        if name.partition(".")[0] in SECTIONS:
            _require_type(name, fields[name]["type"], value)


# -- MaxText


def test_fields_of_maxtext_are_those_of_its_classes() -> None:
    table = ours("maxtext_0.2.5")["fields"]
    fields = real("maxtext_0.2.5")["fields"]
    assert table.keys() == fields.keys()
    for name, field in fields.items():
        if plain := re.fullmatch(r"<class '(int|bool|float)'>", field["type"]):
            assert table[name][0].rstrip("?") == plain.group(1), name


def test_settings_of_maxtext_have_values_of_their_types() -> None:
    fields = real("maxtext_0.2.5")["fields"]
    for name, value in written("maxtext"):
        _require_type(name, fields[name]["type"], value)


# -- DeepSpeed


def _real_section(name: str) -> Mapping[str, Any] | None:
    """The fields of the object that a setting is in, where they are known."""
    class_ = DOCUMENTS.get(name.rpartition(".")[0])
    return real("deepspeed_0.19.8")["classes"][class_] if class_ else None


def test_defaults_of_deepspeed_are_those_of_its_classes() -> None:
    for name, (_, value, _) in ours("deepspeed")["fields"].items():
        section = _real_section(name)
        if section is not None and value is not None:
            default = section[name.rpartition(".")[2]]["default"].replace(",", "")
            assert str(value) in (default, default.removesuffix(".0")), name


def test_settings_of_deepspeed_are_fields_of_its_classes() -> None:
    top = real("deepspeed_0.19.8")["classes"]["top_level_keys"]
    for name, value in written("deepspeed"):
        section = _real_section(name)
        if section is None:
            assert name.partition(".")[0] in {*top, *BESIDE}, name
        else:
            _require_type(name, section[name.rpartition(".")[2]]["type"], value)


def test_what_megatron_refuses_is_said_of_its_own_arguments() -> None:
    rows = ours("megatron_refusals")
    named = {name for row in (*rows["refusals"], *rows["of_parser"]) for name in _conditions(row)}
    known = {*megatron_flags.flag_of_argument(), "virtual_pipeline_model_parallel_size"}
    assert named <= known


def _conditions(row: list[Any]) -> Iterator[str]:
    argument, condition, _ = row
    yield argument
    for each in (condition, *condition.get("any", ())):
        yield from each.keys() - {"any"}
