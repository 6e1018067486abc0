"""The rules by which Megatron-Core refuses to start, beyond those of layouts. A *stop* is a setting
that breaks one. Each rule is a row of `fields/megatron_refusals.json`, with a *condition* such as
{"use_torch_fsdp2": "on", "pipeline_model_parallel_size": {"above": 1}}.

A condition is met where every argument in it is as stated, and one alternative under `any` is met.
A word says that the argument is `set`, `unset`, `on` (neither unset nor False) or `off`; any other
word is its text. An object relates the argument to something: its text `is` or is `not` one of some
texts, and `has` or `lacks` some in it; its count is `above` or `at_most` a number, and `at_least`
or `below` another argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from service.formats.launch.facts import facts
from service.formats.launch.megatron.job_arguments import MANY_QUEUES
from service.formats.megatron.values import Arguments
from service.formats.settings.stop import Stop

_RULES = "megatron_refusals"
SOURCE: str = facts(_RULES)["source"]
_STATES: Mapping[str, Callable[[str | None], bool]] = {
    "set": lambda text: text is not None,
    "unset": lambda text: text is None,
    "on": lambda text: text not in (None, "False"),
    "off": lambda text: text in (None, "False"),
}
_FSDP_ARGUMENTS = ("use_megatron_fsdp", "use_torch_fsdp2")
_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


def refusals(
    args: Arguments, environment: Mapping[str, str], *, is_newest: bool
) -> tuple[Stop, ...]:
    """Returns a stop for each rule of Megatron-Core that these arguments break. `is_newest` says
    that the newest release runs, whose parser has rules of its own."""
    stops = [*_stops_of_rules("refusals", args, SOURCE)]
    if is_newest:
        stops += _stops_of_rules("of_parser", args, facts(_RULES)["of_parser_source"])
    # Kernels of FSDP need more than one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS).
    sharding = next((name for name in _FSDP_ARGUMENTS if args.boolean(name)), None)
    if sharding is not None and environment.get(_QUEUES) == "1":
        rule = f"needs {_QUEUES} above 1 or unset, and it is 1"
        stops.append(Stop(setting=args.called(sharding), value=True, rule=rule, source=SOURCE))
    elif is_newest and sharding is None:
        stops += _stops_of_queues(args, environment.get(_QUEUES, "1"))
    return tuple(stops)


def _stops_of_queues(args: Arguments, queues: str) -> Iterator[Stop]:
    """Yields a stop where tensor or context parallelism has another number of hardware queues than
    one, which chips before Blackwell need for the order of its kernels. `queues` is the text of
    CUDA_DEVICE_MAX_CONNECTIONS. Overlapped traffic of experts is let pass, with a warning."""
    degrees = ("tensor_model_parallel_size", "context_parallel_size")
    is_parallel = any((args.integer(name) or 1) > 1 for name in degrees)
    is_known = queues.isdecimal() and queues != "1"  # a variable may stand for any number
    if is_parallel and is_known and not args.boolean("overlap_moe_expert_parallel_comm"):
        yield Stop(
            setting=_QUEUES,
            value=queues,
            rule="must be 1 with tensor or context parallelism on chips before Blackwell",
            source=facts(_RULES)["of_parser_source"],
            cure=f"{_QUEUES}=1",
            not_on=MANY_QUEUES,
        )


def _stops_of_rules(table: str, args: Arguments, source: str) -> Iterator[Stop]:
    """Yields a stop for each rule of a table that the arguments break. A row of the table is an
    argument, the condition under which Megatron refuses it, and the rule in words."""
    for argument, condition, rule in facts(_RULES)[table]:
        if _is_met(condition, args):
            setting = args.called(argument)
            value = args.shortened(argument)
            yield Stop(setting=setting, value=value, rule=rule, source=source)


def _is_met(condition: Mapping[str, Any], args: Arguments) -> bool:
    """Returns True where the arguments meet a condition, such as {"use_torch_fsdp2": "on",
    "any": [{"pipeline_model_parallel_size": {"above": 1}}, {"bf16": "off"}]}. All entries must
    hold, and one alternative of "any"."""
    for name, expected in condition.items():
        if name == "any":
            is_met = any(_is_met(alternative, args) for alternative in expected)
        elif isinstance(expected, str):
            text = args.text(name)
            is_met = _STATES[expected](text) if expected in _STATES else text == expected
        else:
            is_met = all(_is_related(args, name, *comparison) for comparison in expected.items())
        if not is_met:
            return False
    return True


def _is_related(args: Arguments, name: str, relation: str, other: Any) -> bool:
    """Returns True where an argument stands in a relation to `other`: a list of texts for "is",
    "not", "has" and "lacks", a number for "above" and "at_most", another argument's name for
    the rest."""
    text = args.text(name)
    # The second relation of each pair is the negation of the first.
    if relation in ("is", "not"):
        return (("unset" if text is None else text) in other) == (relation == "is")
    if relation in ("has", "lacks"):
        return any(part in (text or "") for part in other) == (relation == "has")
    if relation in ("above", "at_most"):
        count = args.integer(name, least=0)  # an absent count is 1
        return ((1 if count is None else count) > other) == (relation == "above")
    if text is None or args.text(other) is None:  # no rule is broken by a number that is not known
        return False
    least = args.required(other)
    return (args.required(name, least=0) >= least) == (relation == "at_least")
