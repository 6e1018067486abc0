"""`fsdp` and `fsdp_config` of TrainingArguments in the names of accelerate (transformers 5.24.0,
training_args.py, _process_fsdp_args)."""

from __future__ import annotations

from typing import Any

from models.errors import Invalid
from service.formats.launch.accelerate.launcher import with_prefixes
from service.formats.launch.documents import sent_settings
from service.formats.settings.field import shown
from service.formats.settings.reservation import Reservation
from service.formats.shell.faults import PATH
from service.formats.shell.files import LaunchFiles

_STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
_NOTHING = (None, False, "", "false", "False")
_USUAL_VERSION = 2
_VERSION = "fsdp_config.fsdp_version"


def with_fsdp(
    given: dict[str, Any], files: LaunchFiles, reservations: list[Reservation]
) -> dict[str, Any]:
    """Returns the settings with `fsdp` said as accelerate's document says it."""
    written = given.pop("fsdp", None)
    file = given.pop("fsdp_config", None)
    if written in _NOTHING or written == []:
        return given
    if isinstance(file, str):
        sent = sent_settings(file, f"fsdp_config {file}", files, reservations)
        given |= {f"fsdp_config.{name}": value for name, value in sent.items()}
    named = with_prefixes(given)
    named.setdefault(_VERSION, _USUAL_VERSION)
    words = written if isinstance(written, list) else str(written).replace(",", " ").split()
    for word in map(str, words):
        _take(named, word)
    return {**named, "distributed_type": "FSDP"}


def _take(named: dict[str, Any], word: str) -> None:
    """Takes one option of `fsdp`."""
    if word == "offload":
        named.setdefault("fsdp_config.fsdp_offload_params", True)
    elif word in _STRATEGIES and str(named[_VERSION]) == "1":
        named.setdefault("fsdp_config.fsdp_sharding_strategy", word)
    elif word in _STRATEGIES:
        named.setdefault("fsdp_config.fsdp_reshard_after_forward", word != "shard_grad_op")
    elif word not in ("auto_wrap", "true", "True"):
        rule = f"must be some of {', '.join(_STRATEGIES)}, offload and auto_wrap"
        raise Invalid(PATH, shown("fsdp", word), rule)
