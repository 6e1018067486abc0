"""`fsdp` and `fsdp_config` of TrainingArguments in the names of accelerate (transformers 5.24.0,
training_args.py, _process_fsdp_args). accelerate's *document* is its YAML file of settings."""

from __future__ import annotations

from typing import Any

from service.formats.launch.accelerate.launcher import with_prefixes
from service.formats.launch.accelerate.sharding import STRATEGIES
from service.formats.launch.documents import sent_settings
from service.formats.settings.field import shown
from service.formats.settings.reservation import Reservation
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stop, Stops
from service.formats.shell.faults import invalid_launch
from service.formats.shell.files import LaunchFiles

_STRATEGIES_OF_FSDP2 = ("full_shard", "shard_grad_op")
_OFF_VALUES: tuple[Any, ...] = (None, False, "", "false", "False", [])
_USUAL_VERSION = 2
_VERSION = "fsdp_config.fsdp_version"


def with_fsdp(
    arguments: dict[str, Any], files: LaunchFiles, reservations: list[Reservation]
) -> dict[str, Any]:
    """Returns the arguments with `fsdp` written as in accelerate's document: {"fsdp":
    "full_shard offload"} becomes distributed_type FSDP, fsdp_config.fsdp_reshard_after_forward
    and fsdp_config.fsdp_offload_params. A strategy that FSDP2 does not have stays in `fsdp`."""
    options = arguments.pop("fsdp", None)
    file = arguments.pop("fsdp_config", None)
    if options in _OFF_VALUES:  # fsdp_config alone switches nothing on
        return arguments
    if isinstance(file, str):
        sent = sent_settings(file, f"fsdp_config {file}", files, reservations)
        arguments |= {f"fsdp_config.{name}": value for name, value in sent.items()}
    settings = with_prefixes(arguments)
    settings.setdefault(_VERSION, _USUAL_VERSION)
    words = options if isinstance(options, list) else str(options).replace(",", " ").split()
    for option in map(str, words):
        _put_option(settings, option)
    return {**settings, "distributed_type": "FSDP"}


def stop_at_strategy_of_fsdp1(settings: Settings, stops: Stops) -> None:
    """Notes a stop where `fsdp` is a strategy that only FSDP1 has, and the job runs FSDP2."""
    strategy = settings.text("fsdp")
    if strategy is None:
        return
    rule = (
        "is a strategy of FSDP1 alone, and transformers stops at it from 5 on, which takes FSDP2:"
        " write 1 as version in fsdp_config, or full_shard"
    )
    stops.noted.append(
        Stop(
            setting="fsdp",
            value=strategy,
            rule=rule,
            source="transformers 5.24.0: training_args.py, _apply_legacy_fsdp_to_config",
            cure="full_shard",
            hides_layout=True,
        )
    )


def _put_option(settings: dict[str, Any], option: str) -> None:
    """Sets what one word of `fsdp`, such as "full_shard", means, unless fsdp_config sets it.
    Raises Invalid for an unknown word."""
    if option == "offload":
        settings.setdefault("fsdp_config.fsdp_offload_params", True)
    elif option in STRATEGIES and str(settings[_VERSION]) == "1":
        settings.setdefault("fsdp_config.fsdp_sharding_strategy", option)
    elif option in _STRATEGIES_OF_FSDP2:
        settings.setdefault("fsdp_config.fsdp_reshard_after_forward", option == "full_shard")
    elif option in STRATEGIES:
        settings["fsdp"] = option  # at which transformers stops
    elif option not in ("auto_wrap", "true", "True"):
        rule = f"must be some of {', '.join(STRATEGIES)}, offload and auto_wrap"
        raise invalid_launch(shown("fsdp", option), rule)
