"""`fsdp` and `fsdp_config` of TrainingArguments in the names of accelerate (transformers 5.24.0,
training_args.py, _process_fsdp_args)."""

from __future__ import annotations

from typing import Any

from models.errors import Invalid
from service.formats.launch.documents import flat, read_document
from service.formats.launch.shell_script import PATH
from service.formats.launch.trainer.files import Files
from service.formats.settings.field import shown
from service.formats.settings.reservation import Reservation

_STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
_NOTHING = (None, False, "", "false", "False")
_USUAL_VERSION = 2
_VERSION = "fsdp_config.fsdp_version"


def with_fsdp(
    given: dict[str, Any], files: Files, reservations: list[Reservation]
) -> dict[str, Any]:
    """The settings with `fsdp` said as accelerate's document says it."""
    written = given.pop("fsdp", None)
    file = given.pop("fsdp_config", None)
    if written in _NOTHING or written == []:
        return given
    if isinstance(file, str):
        text = files.find(file)
        if text is None:
            reservations.append(Reservation.of_file(f"fsdp_config {file}", file))
        else:
            given |= {f"fsdp_config.{name}": value for name, value in flat(read_document(text))}
    named = _prefixed(given)
    named.setdefault(_VERSION, _USUAL_VERSION)
    words = written if isinstance(written, list) else str(written).replace(",", " ").split()
    for word in map(str, words):
        _take(named, word)
    return {**named, "distributed_type": "FSDP"}


def _take(named: dict[str, Any], word: str) -> None:
    """One option of `fsdp`."""
    if word == "offload":
        named.setdefault("fsdp_config.fsdp_offload_params", True)
    elif word in _STRATEGIES and str(named[_VERSION]) == "1":
        named.setdefault("fsdp_config.fsdp_sharding_strategy", word)
    elif word in _STRATEGIES:
        named.setdefault("fsdp_config.fsdp_reshard_after_forward", word != "shard_grad_op")
    elif word not in ("auto_wrap", "true", "True"):
        rule = f"must be some of {', '.join(_STRATEGIES)}, offload and auto_wrap"
        raise Invalid(PATH, shown("fsdp", word), rule)


def _prefixed(given: dict[str, Any]) -> dict[str, Any]:
    """Settings with `fsdp_` in front of the keys of fsdp_config."""
    named: dict[str, Any] = {}
    for name, value in given.items():
        config, _, key = name.partition(".")
        is_bare = config == "fsdp_config" and not key.startswith("fsdp_")
        named[f"fsdp_config.fsdp_{key}" if is_bare else name] = value
    return named
