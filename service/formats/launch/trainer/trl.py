"""Defaults of TRL, where they differ from those of TrainingArguments (trl 1.16.0,
trainer/*_config.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.formats.launch.accelerate.launcher import with_prefixes
from service.formats.launch.documents import sent_settings
from service.formats.launch.trainer.trainer_settings import OBJECTIVE
from service.formats.settings.field_table import field_table
from service.formats.settings.reservation import Reservation
from service.formats.shell.files import LaunchFiles

_LOSS = "loss_type"
_CHUNKED = "chunked_nll"
_ORIGINS = {
    "max_length": "workload.seq_len",
    "per_device_train_batch_size": "layout.micro_batch",
    "bf16": "workload.precision",
}
_WITHOUT_LOGITS = {"sft": "1.7", "dpo": "1.15", "kto": "1.15"}
"""By objective, the first release whose loss makes logits of some tokens at a time (trainer/
sft_config.py, loss_type; trainer/utils.py, add_fused_lm_head)."""


def fill_in_defaults(
    given: dict[str, Any], default_origins: dict[str, str], assumed: list[str]
) -> None:
    """Put the defaults of TRL among settings, and note which nobody wrote."""
    defaults: Mapping[str, Any] = field_table("transformers").facts["trl_defaults"]
    for name, value in defaults.items():
        is_other_half = name == "bf16" and ("fp16" in given or "mixed_precision" in given)
        if name not in given and not is_other_half:
            given[name] = value
            if name in _ORIGINS:
                default_origins[_ORIGINS[name]] = f"the default of {name} in TRL"
    objective = str(given.get(OBJECTIVE) or "sft")
    if objective != "sft":
        loss = given.pop(_LOSS, None)  # of preferences, of which none makes other logits
        if loss == "apo_zero_unpaired":
            given[OBJECTIVE] = loss
    first = _WITHOUT_LOGITS.get(objective)
    if first is not None and given.get(_LOSS) in (None, "nll"):
        given[_LOSS] = _CHUNKED
        assumed.append(
            f"the loss makes logits of some tokens at a time, as that of TRL does from {first} on:"
            ' give stack {"loss": "pytorch"} for an earlier one, which makes all'
        )


def preset_of(name: str, files: LaunchFiles, reservations: list[Reservation]) -> dict[str, Any]:
    """The document of accelerate that `trl --accelerate_config` names, one of its own or a file."""
    known: Mapping[str, Any] = field_table("transformers").facts["accelerate_presets"]
    if name in known:
        return dict(known[name])
    setting = f"accelerate_config {name}"
    return with_prefixes(sent_settings(name, setting, files, reservations))
