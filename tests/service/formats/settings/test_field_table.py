from __future__ import annotations

import json
from typing import Any

import pytest

from models.errors import Invalid
from models.spec import catalogue
from service.formats.settings.field import Field
from service.formats.settings.field_table import field_table
from tests.paths import SHARED

FIELDS = SHARED / "launch_fields"
SECTIONS = {
    "CommConfig": "comm",
    "CompileConfig": "compile",
    "DebugConfig": "debug",
    "ParallelismConfig": "parallelism",
    "TrainingConfig": "training",
    "ActivationCheckpoint.FullAC": "activation_checkpoint",
    "ActivationCheckpoint.MemoryBudgetAC": "activation_checkpoint",
    "ActivationCheckpoint.SelectiveAC": "activation_checkpoint",
}

needs_fields = pytest.mark.skipif(not FIELDS.exists(), reason="the real fields are not here")


def real(file: str) -> Any:
    return json.loads((FIELDS / f"{file}.json").read_text())


@needs_fields
def test_every_setting_of_torchtitan_is_known() -> None:
    table = field_table("torchtitan_0.3.0")
    for owner, section in SECTIONS.items():
        for name, fact in real("torchtitan_0.3.0")["classes"][owner].items():
            field = table.fields[f"{section}.{name}"]
            kind = "list" if "list[" in fact["type"] else field.kind
            assert field.kind in (kind, "lists")
            default = fact["default"]
            if isinstance(default, (int, float, bool)):
                assert field.default == default


@needs_fields
def test_every_setting_of_maxtext_is_known() -> None:
    table = field_table("maxtext_0.2.5")
    facts = real("maxtext_0.2.5")["fields"]
    assert facts.keys() <= table.fields.keys()
    for name, fact in facts.items():
        field = table.fields[name]
        if fact["type"] in ("<class 'int'>", "<class 'float'>", "<class 'bool'>"):
            assert fact["type"] == f"<class '{field.kind}'>"


@pytest.mark.parametrize("file", ["torchtitan_0.3.0", "maxtext_0.2.5"])
def test_defaults_are_values_that_their_fields_may_have(file: str) -> None:
    for field in field_table(file).fields.values():
        if field.default is not None:
            assert field.checked(field.default) == field.default


def test_models_that_tables_name_are_in_the_catalogue() -> None:
    for name in field_table("maxtext_0.2.5").facts["models"].values():
        assert catalogue.architecture(name).name == name
    facts = field_table("torchtitan_0.3.0").facts
    configs = [config for module in facts["configs"].values() for config in module.values()]
    named = [config for config in configs if config["model"]]
    assert named
    for config in named:
        assert catalogue.architecture(config["model"]).num_layers == config["layers"]
    for flavors in facts["earlier"]["flavors"].values():
        assert all(catalogue.architecture(name) for name in flavors.values())


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        ("int", "8", 8),
        ("float", "1e-4", 1e-4),
        ("bool", "True", True),
        ("bool", "no", False),
        ("list", "[a, 'b']", ["a", "b"]),
        ("str", "None", "None"),
    ],
)
def test_values_are_read_by_their_type(kind: str, written: str, value: object) -> None:
    assert Field(name="x", kind=kind, default=None).parse(written) == value


@pytest.mark.parametrize(
    ("kind", "written"), [("int", "8.5"), ("float", "nan"), ("bool", "2"), ("int", "$N")]
)
def test_values_of_another_type_are_refused(kind: str, written: str) -> None:
    with pytest.raises(Invalid):
        Field(name="x", kind=kind, default=None).parse(written)


def test_a_setting_that_changes_nothing_may_be_a_variable() -> None:
    field = Field(name="steps", kind="int", default=1, use="no_account")
    assert field.parse("$STEPS") == "$STEPS"
