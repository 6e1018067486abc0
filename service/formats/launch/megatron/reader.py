"""Reads launches of Megatron-LM: arguments as they are typed, as it dumps them, or as YAML.

Typed arguments leave out what Megatron fills in: its defaults, and what follows from other
arguments. Both are filled in here. `service.formats.megatron.arguments` then reads the result as it
reads the dump of a run. A *stop* is a setting with which Megatron refuses to start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.errors import Invalid
from service.formats.launch.job import NO_CHANGES, Changes, LaunchReading
from service.formats.launch.megatron.half_read import why_half_read
from service.formats.launch.megatron.question import launch_reading, without_refused
from service.formats.launch.megatron.refusals import SOURCE
from service.formats.launch.megatron.source import Source, read_source
from service.formats.launch.megatron.writer import FRAMEWORK, NAME
from service.formats.megatron.derived import filled_in, vocabulary_of_tokenizer
from service.formats.megatron.flags import argument_of, flag_of_argument, switches_off, takes_value
from service.formats.megatron.values import Arguments
from service.formats.megatron.versions import in_todays_names
from service.formats.settings.release import known_release
from service.formats.settings.settings import UnreadSettings
from service.formats.settings.stop import Stops
from service.formats.shell.files import NO_FILES, LaunchFiles

_FLAG_OF_SAME_SWITCH = {"--fp4-param-gather": "--fp8-param-gather"}
"""Flags that make the same choice as another one, which stands for both."""
_NEEDED_BY = {"dsa": ("--no-rope-fusion",)}
"""Flags without which a kind of attention does not start. Its predictions assume them anyway."""


def read(
    text: str,
    version: str | None = None,
    *,
    changes: Changes = NO_CHANGES,
    files: LaunchFiles = NO_FILES,
) -> LaunchReading:
    """Returns the reading of Megatron's arguments. Raises Invalid for those that its parser
    refuses.

    A flag that is required and missing may have been misspelt. The text is then read again with
    the spelling corrected, and a stop at the misspelling.
    """
    release = known_release(NAME, version)
    source = read_source(text, files)
    source.change(changes)
    arguments = Arguments(in_todays_names(filled_in(source.values)), flag_of_argument())
    stops = Stops(SOURCE)
    args = without_refused(arguments, stops)
    unread = _unread(args, source)
    try:
        reading = launch_reading(
            args,
            stops,
            stack_id=NAME,
            framework=FRAMEWORK,
            release=release,
            environment=source.environment,
            switches=_switch_arguments(args, source),
            unread=unread,
        )
    except Invalid as fault:
        # A stop at a flag that Megatron does not know names the flag that was meant.
        misspelt = next((stop for stop in unread.stops if stop.meant == fault.value), None)
        if misspelt is None or misspelt.meant in changes:  # the correction did not help either
            raise
        corrected = {**changes, misspelt.meant: misspelt.value}
        return read(text, version, changes=corrected, files=files)
    given = source.settings.given
    # A switch that is off counts as a flag that is not set.
    return replace(
        reading,
        default_origins=_default_origins(reading, source.values),
        assumed=(*reading.assumed, *source.settings.assumed_defaults()),
        settings={flag: None if given[flag] is False else given[flag] for flag in source.flags},
    )


def _default_origins(reading: LaunchReading, values: Mapping[str, str]) -> dict[str, str]:
    """Returns sentences for the answer, by field of the request, on where values come from that the
    launch does not set."""
    origins = {}
    # A number of micro-batches is read only where --global-batch-size is missing.
    if reading.num_micro_batches is not None:
        origins["num_micro_batches"] = "what Megatron-LM takes without --global-batch-size"
    sizes = {values.get(name, "None") for name in ("vocab_size", "padded_vocab_size")}
    size = vocabulary_of_tokenizer(values)
    if size is not None and sizes == {"None"}:  # the launch gives neither size
        tokenizer = values["tokenizer_model"]
        origins["model.vocab_size"] = f"the {size} entries of {tokenizer}, padded as Megatron does"
    return origins


def _switch_arguments(args: Arguments, source: Source) -> dict[str, Any]:
    """Returns the arguments that the text sets, by flag, as models.spec.switches has them:
    {"--bf16": True, "--moe-token-dispatcher-type": "alltoall"}. Flags that are off are left out."""
    arguments: dict[str, Any] = {}
    for name in source.flags:
        value = args.text(argument_of(name))
        if takes_value(name):
            arguments[name] = value
        # A flag such as --no-rope-fusion is on where its argument is False.
        elif value == str(not switches_off(name)):
            # Two flags may make one choice, --fp4-param-gather that of --fp8-param-gather.
            arguments[_FLAG_OF_SAME_SWITCH.get(name, name)] = True
    return arguments


def _unread(args: Arguments, source: Source) -> UnreadSettings:
    """Returns the settings that are not read: stops at misspelt flags, and reservations (remarks
    that a setting could matter), also about settings that are read in part. Removes the flags that
    the model's attention needs, as they change nothing."""
    settings = source.settings
    if settings.given.keys() - settings.known.keys():  # a fork's, whose values may be others too
        for stop in settings.stops:
            cure = "leave it out if it changes nothing"
            settings.add_reservation(stop.setting, f"{FRAMEWORK} takes no such value", cure)
        settings.stops.clear()
    settings.is_other_release = args.boolean("deepspeed")  # Megatron-DeepSpeed has other flags too
    needed = _NEEDED_BY.get(args.text("experimental_attention_variant") or "", ())
    settings.change(dict.fromkeys(needed))  # a value of None removes the flag
    for flag in source.flags:
        if reason_and_cure := why_half_read(argument_of(flag), args):
            settings.add_reservation(flag, *reason_and_cure)
    return settings.unread()
