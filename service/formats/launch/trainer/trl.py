"""Defaults of TRL, where they differ from those of TrainingArguments (trl 1.16.0,
trainer/*_config.py).

`assumed` collects sentences about settings that are counted as something else, and
`default_origins` those about values that the launch does not set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.formats.launch.accelerate.launcher import with_prefixes
from service.formats.launch.documents import sent_settings
from service.formats.launch.trainer.trainer_settings import FIELD_OF_SETTING, OBJECTIVE
from service.formats.settings.field import TRUE_WORDS
from service.formats.settings.field_table import field_table
from service.formats.settings.reservation import Reservation
from service.formats.shell.files import LaunchFiles

_LOSS = "loss_type"
_EARLIER_LENGTH = "max_seq_length"
_CHUNKED_LOSS = "chunked_nll"
_WITHOUT_LOGITS = {"sft": "1.7", "dpo": "1.15", "kto": "1.15"}
"""By objective, the first release whose loss makes logits of some tokens at a time (trainer/
sft_config.py, loss_type; trainer/utils.py, add_fused_lm_head)."""


def fill_in_defaults(
    arguments: dict[str, Any], default_origins: dict[str, str], assumed: list[str]
) -> None:
    """Adds TRL's defaults to the arguments that the launch does not give, and notes each in
    `default_origins` or `assumed`."""
    defaults: Mapping[str, Any] = field_table("transformers").facts["trl_defaults"]
    # Whatever the launcher says, the format is bf16 unless fp16 is on (base_config.py).
    is_fp16 = str(arguments.get("fp16")).lower() in TRUE_WORDS
    for name, value in defaults.items():
        if name in arguments or (name == "bf16" and is_fp16):
            continue
        if name == "max_length" and _EARLIER_LENGTH in arguments:
            assumed.append(
                f"{_EARLIER_LENGTH} is read as earlier releases of TRL do: 1.16 stops at it, and"
                " has max_length in its place"
            )
            continue
        arguments[name] = value
        if name in FIELD_OF_SETTING:
            default_origins[FIELD_OF_SETTING[name]] = f"the default of {name} in TRL"
    objective = str(arguments.get(OBJECTIVE) or "sft")
    if objective != "sft":
        # Beside sft, loss_type is no choice of a kernel: it names the loss that compares answers.
        # Of these losses only apo_zero_unpaired has other forward passes than its objective.
        loss = arguments.pop(_LOSS, None)
        if loss == "apo_zero_unpaired":
            arguments[OBJECTIVE] = loss
    since = _WITHOUT_LOGITS.get(objective)  # the first release that has such a loss
    if since is not None and arguments.get(_LOSS) in (None, "nll"):
        arguments[_LOSS] = _CHUNKED_LOSS
        assumed.append(
            f"the loss makes logits of some tokens at a time, as that of TRL does from {since} on:"
            ' give stack {"loss": "pytorch"} for an earlier one, which makes all'
        )


def preset_of(name: str, files: LaunchFiles, reservations: list[Reservation]) -> dict[str, Any]:
    """Returns the settings of the accelerate document that `trl --accelerate_config` names: one
    that ships with TRL, such as zero2, or a file. Adds a reservation for a file that was not
    sent."""
    presets: Mapping[str, Any] = field_table("transformers").facts["accelerate_presets"]
    if name in presets:
        return dict(presets[name])
    setting = f"accelerate_config {name}"
    return with_prefixes(sent_settings(name, setting, files, reservations))
