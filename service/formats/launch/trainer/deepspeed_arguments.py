"""TrainingArguments and settings of accelerate beside a DeepSpeed document (transformers 5.24.0,
integrations/deepspeed.py; accelerate 1.15.0, utils/dataclasses.py, DeepSpeedPlugin).

A *stop* is a setting with which the Trainer refuses to start. A *reservation* is a remark that a
setting could matter and is not taken into account.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from service.formats.launch.documents import read_settings, sent_settings
from service.formats.launch.trainer.dialects import DIALECTS
from service.formats.launch.trainer.launched import Launched
from service.formats.launch.trainer.models import MODEL_NAMES
from service.formats.launch.trainer.trainer_settings import OBJECTIVE, note_stop
from service.formats.launch.trainer.training import accumulation_steps
from service.formats.settings.field import shown
from service.formats.settings.field_table import field_table
from service.formats.settings.reservation import Reservation
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stop, Stops
from service.formats.shell.files import LaunchFiles

_AUTO = "auto"
_SETTING_OF_PLUGIN = {
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
}
"""By setting of accelerate's deepspeed_config, the setting of the document that it becomes."""
_USUAL_STAGE = 2  # of DeepSpeedPlugin
_MICRO_BATCH = "train_micro_batch_size_per_gpu"
_STEPS = "gradient_accumulation_steps"
_BATCH = "train_batch_size"
_MICRO_ARGUMENT = "per_device_train_batch_size"
_FINALIZE = "transformers 5.24.0: integrations/deepspeed.py, trainer_config_finalize"
_OF_FILE = (*_SETTING_OF_PLUGIN, "offload_optimizer_nvme_path", "offload_param_nvme_path",
    "zero3_save_16bit_model")  # fmt: skip
"""The settings of accelerate's deepspeed_config that only the document may have, if there is one
(_deepspeed_config_checks)."""
_NAMES_DOCUMENT = "deepspeed_config.deepspeed_config_file"
_WITH_DEFAULTS_OF_TRAINER = ("trl", "llama_factory")
"""Tools whose programs take the defaults of TrainingArguments for what DeepSpeed's document has
too."""
_Reaction = Literal["stop", "reservation", "pass"]
"""The kind of note where a document contradicts the default of an argument that is not given: a
stop where the tool is known to have the default of TrainingArguments, a reservation where the
program may have one of its own, and nothing where the program may not be one of the Trainer."""


def document_of(
    arguments: dict[str, Any], files: LaunchFiles, reservations: list[Reservation]
) -> dict[str, Any] | None:
    """Removes the DeepSpeed document from the arguments of a launch, and returns its settings.
    It is a file or JSON (--deepspeed ds.json), single settings
    (deepspeed.zero_optimization.stage), or the document that accelerate makes of its settings in
    deepspeed_config. Returns None where DeepSpeed does not run."""
    prefix = "deepspeed."
    inline = {
        name.removeprefix(prefix): arguments.pop(name)
        for name in [*arguments]
        if name.startswith(prefix)
    }
    document = arguments.pop("deepspeed", None)
    of_launcher = arguments.pop("deepspeed_config", None)
    of_accelerate = arguments.pop(_NAMES_DOCUMENT, None)
    # These switch DeepSpeed on or off, and name no document.
    if str(document).lower() in ("true", "none", "false", ""):
        document = None
    named = document or of_launcher or of_accelerate
    if named is not None:
        settings = {**_read_document(str(named), files, reservations), **inline}
        if settings and named is of_accelerate:
            settings.setdefault(_STEPS, 1)  # which accelerate writes before the Trainer compares
        return settings
    if inline:
        return inline
    if str(arguments.get("distributed_type")).upper() == "DEEPSPEED":
        return _document_of_plugin(arguments)
    return None


def _read_document(
    document: str, files: LaunchFiles, reservations: list[Reservation]
) -> dict[str, Any]:
    """Returns the settings of a document that is given as JSON, or as the name of a file. Adds a
    reservation for a file that was not sent."""
    if document.lstrip().startswith("{"):
        return read_settings(document)
    return sent_settings(document, f"deepspeed {document}", files, reservations)


def _document_of_plugin(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the DeepSpeed document that accelerate makes of deepspeed_config, by default with
    ZeRO 2: {"zero_optimization.stage": 2, …}."""
    document: dict[str, Any] = {"zero_optimization.stage": _USUAL_STAGE}
    for name, setting in _SETTING_OF_PLUGIN.items():
        value = arguments.get(f"deepspeed_config.{name}")
        if value is not None:
            document[setting] = value
    return document


def _reaction_to_defaults(launched: Launched, arguments: Settings) -> _Reaction | None:
    """Returns what is noted where a DeepSpeed document contradicts a default of the Trainer; None
    for a program that is named after being without one, such as run_clm_no_trainer.py."""
    if "no_trainer" in launched.program:
        return None
    if launched.dialect in _WITH_DEFAULTS_OF_TRAINER:
        return "stop"
    # The Trainer takes a document as --deepspeed, and DeepSpeed's own parser as this flag.
    has_own_engine = "deepspeed_config" in launched.settings
    has_other_defaults = launched.dialect in DIALECTS
    runs_trainer = any(name in arguments.given for name in (*MODEL_NAMES, _MICRO_ARGUMENT))
    may_compare = runs_trainer and not (has_own_engine or has_other_defaults)
    return "reservation" if may_compare else "pass"


def _other_defaults(launched: Launched, arguments: Settings) -> dict[str, Any]:
    """Returns defaults of the tool, by argument, that a DeepSpeed document may contradict and that
    are not those of TrainingArguments; None for one that is not known."""
    if launched.dialect != "trl":
        return {}
    rates = arguments.table.facts["trl_learning_rates"]
    return {"learning_rate": rates.get(arguments.given.get(OBJECTIVE) or "sft")}


def stop_at_refused(launched: Launched, layout: Mapping[str, Any], stops: Stops) -> None:
    """Notes a stop for each setting that the tool refuses beside DeepSpeed or its ZeRO 3."""
    dialect = DIALECTS.get(launched.dialect)
    if dialect is None:
        return
    settings = Settings(field_table(dialect.table), launched.settings)
    facts = settings.table.facts
    refused = {"DeepSpeed": facts.get("refused_beside_deepspeed", [])}
    if layout["zero_stage"] == 3:
        refused["ZeRO 3 of DeepSpeed"] = facts.get("refused_in_zero_3", [])
    for beside, names in refused.items():
        for name in filter(settings.boolean, names):  # of LLaMA-Factory; no other tool has such
            rule = f"does not go with {beside}"
            note_stop(settings, name, rule, "hparams/parser.py", "leave it out")
    stops.noted += settings.stops


def stop_at_settings_of_file(launched: Launched, stops: Stops) -> None:
    """Notes a stop for each setting of accelerate's document that DeepSpeed's own document, named
    beside it, decides. Flags of `accelerate launch` may set these."""
    is_named = "deepspeed" in launched.settings or _NAMES_DOCUMENT in launched.launcher
    kind = str(launched.launcher.get("distributed_type")).upper()
    if not is_named or kind != "DEEPSPEED":
        return
    document = launched.launcher_document
    names = [f"deepspeed_config.{name}" for name in _OF_FILE]
    for name in [*names, "mixed_precision"]:
        if document.get(name) is not None:
            stops.noted.append(
                Stop(
                    setting=name,
                    value=document[name],
                    rule="stands beside deepspeed_config_file, which decides it: accelerate stops",
                    source="accelerate 1.15.0: utils/dataclasses.py, _deepspeed_config_checks",
                    cure="leave it out of accelerate's document",
                )
            )


def with_trainer_values(
    document: Mapping[str, Any],
    arguments: Settings,
    num_ranks: int | None,
    launched: Launched,
    stops: Stops,
) -> dict[str, Any]:
    """Returns the document as the Trainer completes it: a value that is "auto" or missing comes
    from TrainingArguments. Notes a stop for each value that contradicts these, and for one that
    contradicts a default what `_reaction_to_defaults` returns."""
    completed = dict(document)
    of_trainer = {
        _MICRO_BATCH: arguments.integer(_MICRO_ARGUMENT),
        _STEPS: accumulation_steps(arguments),
        **_number_formats(arguments),
    }
    for name, value in of_trainer.items():
        if value is None:
            if completed.get(name) == _AUTO and name.endswith(".enabled"):
                completed[name] = False  # the default of TrainingArguments
        elif completed.get(name) in (None, _AUTO):
            completed[name] = value
    reaction = _reaction_to_defaults(launched, arguments)
    if reaction is not None:
        defaults = _other_defaults(launched, arguments)
        comparison = _Comparison(document, arguments, stops, reaction, defaults)
        comparison.compare_values()
        if comparison.compare_batch(num_ranks):
            del completed[_BATCH]  # the numbers of a rank count for more
    is_unset = {
        name: completed.get(name) in (None, _AUTO) for name in (_MICRO_BATCH, _STEPS, _BATCH)
    }
    if is_unset[_STEPS] and is_unset[_BATCH] and not is_unset[_MICRO_BATCH]:
        completed[_STEPS] = 1  # the default of TrainingArguments
    if completed.get(_BATCH) == _AUTO:
        del completed[_BATCH]
    # transformers fills in the sizes of ZeRO's buckets by the width of the model, which is not
    # known here: they count as not set. Devices are no such sizes.
    automatic = [name for name, value in completed.items() if value == _AUTO]
    for name in automatic:
        if name.startswith("zero_optimization.") and "device" not in name:
            del completed[name]
    return completed


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Compares a document with TrainingArguments, as the Trainer does (fill_match)."""

    document: Mapping[str, Any]
    arguments: Settings
    stops: Stops
    reaction: _Reaction
    defaults: Mapping[str, Any]
    """Defaults of the tool, by argument, where they differ from those of TrainingArguments."""

    def compare_values(self) -> None:
        """Notes the values of the document that are not those of the arguments."""
        compared: Mapping[str, Mapping[str, Any]] = self.arguments.table.facts["in_deepspeed"]
        formats = _number_formats(self.arguments)
        # By trial it takes any micro-batch, and none is compared.
        finds_batch = self.arguments.boolean("auto_find_batch_size")
        for name, defaults in compared.items():
            if name == _MICRO_BATCH and finds_batch:
                continue
            given = [self._given(argument) for argument in defaults]
            values = [
                self.defaults.get(argument, default) if value is None else value
                for value, (argument, default) in zip(given, defaults.items(), strict=True)
            ]
            is_given = any(value is not None for value in given)
            if formats.get(name) is not None:  # which the launcher may set too
                values, is_given = [formats[name]], True
            if None not in values:
                value = values if len(values) > 1 else values[0]
                said = f"which --{' and --'.join(defaults)} of TrainingArguments says"
                self._compare(name, value, said, is_given=is_given)

    def compare_batch(self, num_ranks: int | None) -> bool:
        """Notes a train_batch_size of the document that is not what the Trainer calculates from
        the arguments of a rank. Returns True where it is noted."""
        micro_batch = self.arguments.integer(_MICRO_ARGUMENT)
        steps = self.arguments.integer(_STEPS)
        if not (micro_batch and num_ranks) or self.arguments.boolean("auto_find_batch_size"):
            return False
        calculated = micro_batch * (steps or 1) * num_ranks
        said = f"which the Trainer calculates for {num_ranks} ranks"
        return self._compare(_BATCH, calculated, said, is_given=steps is not None)

    def _given(self, argument: str) -> Any:
        """Returns the value of an argument; None where it is not given or not known."""
        if argument not in self.arguments.given:
            return None
        value = self.arguments.value(argument)
        return None if isinstance(value, str) else value

    def _compare(self, name: str, value: Any, said: str, *, is_given: bool) -> bool:
        """Notes a value of the document that is not that of the arguments. `said` is the clause
        that says which of them have `value`. Returns True where a stop is noted."""
        in_document = self.document.get(name)
        is_alike = in_document == value or str(in_document).lower() == str(value).lower()
        if in_document in (None, _AUTO) or is_alike:
            return False
        rule = f"is not {json.dumps(value)}, {said}{'' if is_given else ' by default'}"
        if is_given or self.reaction == "stop":
            self.stops.noted.append(
                Stop(
                    setting=name,
                    value=in_document,
                    rule=f"{rule}: transformers stops",
                    source=_FINALIZE,
                    cure=f'"{_AUTO}"',
                )
            )
            return True
        if self.reaction == "reservation":
            self.arguments.add_text_reservation(
                shown(name, in_document),
                f"it {rule}: transformers stops, unless the program has another default",
                f'write "{_AUTO}" in the document, or the argument',
            )
        return False


def _number_formats(arguments: Settings) -> dict[str, bool | None]:
    """Returns whether TrainingArguments or accelerate switch bf16 and fp16 on: {"bf16.enabled":
    True, "fp16.enabled": False}. None where neither sets it."""
    mixed_precision = arguments.text("mixed_precision")
    formats: dict[str, bool | None] = {}
    for name in ("bf16", "fp16"):
        is_set = name in arguments.given or mixed_precision is not None
        is_on = arguments.boolean(name) or mixed_precision == name
        formats[f"{name}.enabled"] = is_on if is_set else None
    if all(formats.values()):  # at which transformers stops, whatever the document says
        formats["fp16.enabled"] = False
    return formats
