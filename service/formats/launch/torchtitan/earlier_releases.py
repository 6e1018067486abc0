"""Settings of torchtitan before 0.3.0, which were sections of a TOML file or flags of the same
names (torchtitan 0.2.2 config/job_config.py).

A *flavor* was the size of a model, such as 8B, and a *converter* what makes its matrix products run
in fp8. A *reservation* is a remark that a setting could matter and is not, or not fully, taken into
account.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.spec import catalogue
from service.formats.launch.torchtitan.writer import RECOMPUTE, TABLE
from service.formats.launch.torchtitan.writer import RELEASE as WRITTEN
from service.formats.settings.field import Field, shown
from service.formats.settings.field_table import field_table
from service.formats.settings.release import known_release
from service.formats.settings.settings import MOST_HINTS, Settings
from service.formats.shell.faults import invalid_launch
from service.nearest_names import suggestion

RELEASE = "0.2.2"
_MODES = {
    "selective": "selective",
    "full": "full",
    "none": "none",
    "memory_budget": "memory-budget",
}
_CONVERTERS = {
    "float8": "fp8",
    "mx": "mxfp8",
    "quantize.linear.float8": "fp8",
    "quantize.linear.mx": "mxfp8",
}
_EXPERT_CONVERTERS = ("quantize.grouped_mm.float8", "quantize.grouped_mm.mx")
_IN_16_BITS = ("output", "router.gate", "moe.router.gate", "auto_filter_small_kn")
"""Layers that stay in 16 bits, as the cost model counts them: the head, the router, and layers that
are too small to gain by a conversion."""
EXPERT_TENSOR = "parallelism.expert_tensor_parallel_degree"
IN_BACKWARD = "optimizer.early_step_in_backward"
_FILTER = "quantize.linear.float8.filter_fqns"
_RECIPE = "quantize.linear.float8.recipe_name"
GATHERS = "quantize.linear.float8.enable_fsdp_float8_all_gather"


def is_of_earlier_release(name: str) -> bool:
    """Returns True for a setting that only releases before 0.3.0 have."""
    facts = field_table(TABLE).facts["earlier"]
    return name in facts["renamed"] or name in facts["read"] or name.startswith("job.")


def words_of_today(name: str, value: Any) -> str:
    """Returns what to write in 0.3.0 in place of an earlier release's flag, such as
    "activation-checkpoint:full"; "" where 0.3.0 has nothing like it."""
    name_today = field_table(TABLE).facts["earlier"]["renamed"].get(name, "")
    if name_today == RECOMPUTE:
        return f"{name_today.replace('_', '-')}:{_checkpointing_mode(value)}"
    return f"--{name_today} {value}" if name_today else ""


def name_in(name: str, release: str | None) -> str:
    """Returns the name that a release has for a setting of 0.3.0, the release that launch
    configurations are written for (WRITTEN)."""
    if release is None or known_release("torchtitan", release) == WRITTEN:
        return name
    return str(field_table(TABLE).facts["earlier"]["named"].get(name, name))


class EarlierSettings(Settings):
    """The settings of a file or of flags, by their names in 0.3.0; `older` are those that 0.3.0
    has no name for. `ignored` change nothing, and `assumed` are sentences about what is counted as
    something else than it is."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(field_table(TABLE))
        self.ignored: list[str] = []
        self.assumed: list[str] = []
        facts = self.table.facts["earlier"]
        # A ? behind the type, "int?", says that the setting may be null.
        self._fields = {
            name: Field(name=name, kind=kind.rstrip("?"), default=default)
            for name, (kind, default) in facts["read"].items()
        }
        """The settings that 0.3.0 has no name for."""
        self.older = {name: field.default for name, field in self._fields.items()}
        """The values of settings that 0.3.0 has no name for."""
        for name, value in settings.items():
            self._read_setting(name, value)
        self.config = self._read_config(facts["flavors"])
        """The settings that a config function makes in 0.3.0: the model, its precision and its
        optimizer."""

    def _read_setting(self, name: str, value: Any) -> None:
        """Takes one setting by its name before 0.3.0: renames it, ignores it, or records a
        reservation."""
        facts = self.table.facts["earlier"]
        name_today = facts["renamed"].get(name, name)
        if name_today == RECOMPUTE:
            self.put(RECOMPUTE, _checkpointing_mode(value))
        elif name_today in self._fields:
            self.older[name_today] = _typed_value(self._fields[name_today], value)
        elif name in facts["not_described"]:
            default, *reason_and_cure = facts["not_described"][name]
            if str(value).lower() == str(default).lower():
                self.ignored.append(shown(name, value))
            else:
                self.add_text_reservation(shown(name, value), *reason_and_cure)
        elif name_today in self.table.fields:
            self.put(name_today, _typed_value(self.table.fields[name_today], value))
        elif any(f"{name}.".startswith(f"{section}.") for section in facts["ignored"]):
            self.ignored.append(shown(name, value))
        else:
            # A similar name takes time to find, and an answer shows only the first hints.
            has_hint = len(self.reservations) < MOST_HINTS
            known = [*self._fields, *self.table.fields] if has_hint else ()
            reason = f"torchtitan {RELEASE} has no such setting{suggestion(name, known)}"
            self.add_text_reservation(
                shown(name, value), reason, "leave it out if it changes nothing"
            )

    def _read_config(self, flavors: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
        """Returns the model of a flavor with its precision, as {"model": "llama-3-8b", "layers":
        32}: what a config function decides in 0.3.0. `flavors` maps names and flavors to models
        of the catalogue."""
        name = self.older["model.name"]
        flavor = self.older["model.flavor"]
        model = flavors.get(name, {}).get(flavor)
        config: dict[str, Any] = {"model": model}
        if model:
            config["layers"] = catalogue.architecture(model).num_layers
        elif name is not None:
            setting = shown("model.flavor", f"{name} {flavor}")
            reason = "this flavor is not in the catalogue"
            self.add_text_reservation(setting, reason, "describe the model", answered_by="model")
        is_sparse = model is not None and catalogue.architecture(model).is_moe
        config |= self._read_converters(is_sparse)
        optimizer = self.older["optimizer.name"]
        if optimizer not in ("AdamW", "Adam"):
            reason = "the state of this optimizer is not described"
            self.add_text_reservation(shown("optimizer.name", optimizer), reason)
        if self.older[IN_BACKWARD]:
            reason = "each gradient is then freed during backward, and all are counted as kept"
            self.add_text_reservation(shown(IN_BACKWARD, True), reason, "leave it out")
        return config

    @property
    def converts_with_recipe(self) -> bool:
        """Returns True where products run in fp8 by a recipe of scales that has a name."""
        return self.config.get("precision") == "fp8" and self.older[_RECIPE] is not None

    def _read_converters(self, is_sparse: bool) -> dict[str, Any]:
        """Returns the format of matrix products and the granularity of their scales:
        {"precision": "fp8", "scaling": {"fp8_scaling": "rowwise"}}; nothing for bf16. Records
        reservations for converters that are unknown, or convert only some products. `is_sparse`
        says that the model has experts, which have converters of their own."""
        converters: list[str] = self.older["model.converters"]
        formats = [_CONVERTERS[converter] for converter in converters if converter in _CONVERTERS]
        if self.older["float8.enable_float8_linear"]:
            formats.append("fp8")
        others = [
            converter
            for converter in converters
            if converter not in _CONVERTERS and converter not in _EXPERT_CONVERTERS
        ]
        if others:
            reason = "what they make of layers is not known"
            self.add_text_reservation(shown("model.converters", others), reason)
        converts_experts = any(converter in _EXPERT_CONVERTERS for converter in converters)
        if is_sparse and bool(formats) != converts_experts:
            reason = "only some products are in a narrow format, and all are read alike"
            setting = shown("model.converters", converters)
            self.add_text_reservation(setting, reason, "convert linear and grouped_mm, or neither")
        if not formats:
            return {}
        wide = [layer for layer in self.older[_FILTER] if layer not in _IN_16_BITS]
        if wide:
            reason = "these layers stay in 16 bits, and are read as converted"
            self.add_text_reservation(shown(_FILTER, wide), reason, "leave them out")
        if formats[0] != "fp8":
            return {"precision": formats[0]}
        by_row = str(self.older[_RECIPE] or "tensorwise") != "tensorwise"
        if not by_row and not self.older[GATHERS]:
            self.assumed.append(f"FSDP is counted as gathering 8 bits, as with {GATHERS}")
        return {"precision": "fp8", "scaling": {"fp8_scaling": "rowwise"} if by_row else {}}

    def layout(
        self, values: Mapping[str, Any], degrees: Mapping[str, int], settings: Settings
    ) -> dict[str, Any]:
        """Returns the fields of the layout whose settings were removed in 0.3.0. `values` has
        all settings by their names in 0.3.0, and `degrees` those of the layout's axes."""
        knobs: dict[str, Any] = {"etp": self._expert_tensor_degree(degrees)}
        # "op" recomputes some operations of every layer, and a number n every n-th layer whole.
        option = self.older["activation_checkpoint.selective_ac_option"]
        if values[RECOMPUTE] == "selective" and option != "op":
            knobs["recompute"] = "full"
            if option != "1":
                setting = shown("activation_checkpoint.selective_ac_option", option)
                reason = "every layer of so many is recomputed, and all are read as such"
                settings.add_text_reservation(setting, reason, "use op, or 1")
        return knobs

    def _expert_tensor_degree(self, degrees: Mapping[str, int]) -> int:
        """Returns the degree of tensor parallelism within experts. Without expert parallelism it is
        that of the dense layers, whatever the setting (models/llama4/infra/parallelize.py,
        apply_moe_ep_tp). It is 1 where the model is not known or has no experts."""
        model = self.config["model"]
        if model is None or not catalogue.architecture(model).is_moe:
            return 1
        degree: int = self.older[EXPERT_TENSOR]
        return degree if degrees["ep"] > 1 else degrees["tp"]


def _checkpointing_mode(value: Any) -> str:
    """Returns the activation checkpointing of 0.3.0 for a mode of an earlier release. Raises
    Invalid for an unknown mode."""
    if value not in _MODES:
        rule = f"must be one of {', '.join(_MODES)}"
        raise invalid_launch(shown("activation_checkpoint.mode", value), rule)
    return _MODES[value]


def _typed_value(field_: Field, value: Any) -> Any:
    """Returns a value of the field's type. A text comes from a flag, or from TOML, where a number
    may stand in place of a word. Raises Invalid for a value of another type."""
    if isinstance(value, str):
        return field_.parse(value)
    return str(value) if field_.kind == "str" else field_.checked(value)
