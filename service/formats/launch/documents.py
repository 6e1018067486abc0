"""Documents of settings in JSON or YAML, as dotted names and back. A *reservation* says that a
setting, or a file of settings that was not sent, is not taken into account.

YAML is read with the safe loader of PyYAML. Texts come from anybody, and a short one with aliases
(*name) can stand for endlessly many values: these are counted, and refused beyond a limit.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import yaml

from models.errors import Invalid
from service.formats.settings.reservation import Reservation
from service.formats.shell.faults import invalid_launch
from service.formats.shell.files import LaunchFiles

_MOST_CHARACTERS = 2**16
_MOST_SHOWN = 80
_DEEPEST = 32  # far deeper than any framework nests settings; parsers recurse
_LONGEST_NAME = 400
"""Characters of a name with its dots: frameworks have none of half as many, and every setting of an
object repeats the name of the object."""
_MANY_STEPS = re.compile(
    r"""(?:(?:[\w-]{1,80}+|"[^"\n]{0,80}+"|'[^'\n]{0,80}+')[ \t]{0,9}+\.[ \t]{0,9}+){32}"""
)
"""A dotted name of TOML with more steps than a document may nest. The parser keeps every prefix of
a name, which takes gigabytes for a name of 64 KB."""
_MOST_VALUES = 2**16
"""Values of a document with its aliases written out. Without aliases no text of _MOST_CHARACTERS
has more."""
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_document(text: str) -> dict[str, Any]:
    """Returns the mapping that a text in YAML or JSON holds. Raises Invalid where it holds none."""
    document = _json_value(text) or read_yaml(text)
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        rule = "must be a mapping of names to values, as the text of a JSON or YAML file is"
        raise invalid_launch(text[:_MOST_SHOWN], rule)
    return document


def read_yaml(text: str) -> Any:
    """Returns the value of a YAML text, with no other types than JSON has. Raises Invalid for a
    text that is no YAML, whose aliases make it endless, or that is longer or more deeply nested
    than a document of settings."""
    shown = text[:_MOST_SHOWN]
    if len(text) > _MOST_CHARACTERS:
        rule = f"has {len(text)} characters; a document of settings has {_MOST_CHARACTERS} at most"
        raise invalid_launch(shown, rule)
    try:
        value = _yaml_value(text)
        json.dumps(value, default=str)  # raises for numbers and names that JSON cannot hold
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        problem = _parser_reason(error)
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" in line {mark.line + 1}"
        raise invalid_launch(shown, f"is neither JSON nor YAML: {problem}{place}") from None
    return value


def _parser_reason(error: Exception) -> str:
    """Returns the reason why a text could not be parsed, in the parser's own words where it has
    some."""
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position + 1} is none of a text: take it out"
    problem = getattr(error, "problem", None)  # YAML's errors have one
    return str(problem or error) or type(error).__name__  # some errors have no words


def _json_value(text: str) -> Any:
    """Returns the value of a JSON text; None for a text that is no JSON or is too long. Raises
    Invalid where it nests too deeply."""
    if len(text) > _MOST_CHARACTERS:
        return None  # read_yaml, which gets the text next, refuses it for its length
    try:
        value = json.loads(text, object_pairs_hook=_object_without_repeats)
    except (ValueError, RecursionError):
        return None
    values = [value]
    for _ in range(_DEEPEST):  # each pass goes one level deeper
        values = [inner for container in values for inner in _inner_values(container)]
    if values:
        raise _too_deep(text)
    return value


def _object_without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the object that has these names and values, as a hook of the JSON parser. Raises
    Invalid where a name comes twice with different values."""
    distinct: dict[str, Any] = {}
    for name, value in pairs:
        if name in distinct and distinct[name] != value:
            raise _repeated_name(name)
        distinct[name] = value
    return distinct


def _repeated_name(name: str) -> Invalid:
    """Returns the error for a name that an object has twice with different values, which
    frameworks refuse or resolve either way."""
    rule = "stands twice in one object of the document, with values that differ: write it once"
    return invalid_launch(name[:_MOST_SHOWN], rule)


def _inner_values(value: Any) -> Collection[Any]:
    """Returns the values directly inside of an object or a list; none for any other value."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _yaml_value(text: str) -> Any:
    """Returns the value of a YAML text. Raises Invalid where a name comes twice with different
    values, where aliases make it too large, and where it nests too deeply. Depth is counted on
    the stream of events, which needs no recursion and so cannot overflow the stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise _too_deep(text)
    root = yaml.compose(text, Loader=_Loader)
    if root is not None:
        _Measuring(text).size(root)
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader


def _too_deep(text: str) -> Invalid:
    return invalid_launch(text[:_MOST_SHOWN], f"nests deeper than {_DEEPEST} levels")


class _Measuring:
    """Counts the values of a document with what its aliases stand for."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sizes: dict[int, tuple[int, int]] = {}
        """The number of values in a node, and their depth, by the node's id."""
        self.open: set[int] = set()
        """The ids of the nodes around the one that is counted."""

    def size(self, node: yaml.Node) -> tuple[int, int]:
        """Returns the number of values in a node, aliases written out, and their depth. Raises
        Invalid where an alias contains itself, or where there are too many values or levels."""
        if id(node) in self.sizes:
            return self.sizes[id(node)]
        if id(node) in self.open:
            rule = "uses YAML aliases (*name) inside of what they name: write the values out"
            raise invalid_launch(self.text[:_MOST_SHOWN], rule)
        self.open.add(id(node))
        inner = [self.size(child) for child in _checked_children(node)]
        self.open.discard(id(node))
        count = 1 + sum(size for size, _ in inner)
        height = 1 + max((height for _, height in inner), default=0)
        if count > _MOST_VALUES:
            rule = (
                f"uses YAML aliases (*name) that make more than {_MOST_VALUES} values of it: write"
                " out those that matter"
            )
            raise invalid_launch(self.text[:_MOST_SHOWN], rule)
        if height > _DEEPEST + 1:  # a value alone has a height of 1
            raise _too_deep(self.text)
        self.sizes[id(node)] = (count, height)
        return count, height


def _checked_children(node: yaml.Node) -> list[yaml.Node]:
    """Returns the child nodes of a node. Raises Invalid where a mapping has a name twice with
    different values."""
    if isinstance(node, yaml.SequenceNode):
        return list(node.value)
    if not isinstance(node, yaml.MappingNode):
        return []
    named: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            before = named.setdefault(key.value, value)
            if before is not value and not _are_alike(before, value):
                raise _repeated_name(key.value)
    return _children(node)


def _are_alike(first: yaml.Node, second: yaml.Node) -> bool:
    """Returns True where two nodes have equal values. Aliases can make trees that are endless to
    walk, so the comparison gives up, as unequal, after as many nodes as a document of settings
    may have."""
    uncompared = [(first, second)]  # pairs of nodes
    for _ in range(_MOST_VALUES):
        if not uncompared:
            return True
        left, right = uncompared.pop()
        if type(left) is not type(right) or left.tag != right.tag:
            return False
        if isinstance(left, yaml.ScalarNode):
            if left.value != right.value:
                return False
        elif len(left.value) != len(right.value):
            return False
        else:
            uncompared += zip(_children(left), _children(right), strict=True)
    return not uncompared


def _children(node: yaml.Node) -> list[yaml.Node]:
    """Returns the nodes that are directly in a list or a mapping."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value)


def read_toml(text: str) -> dict[str, Any]:
    """Returns the settings of a TOML text by dotted name: {"training.steps": 10}. Raises Invalid
    for a text that is no TOML, and for a name with more steps than a document may nest."""
    if _MANY_STEPS.search(text):
        rule = f"has a name of {_DEEPEST} steps or more, which no setting of a framework has"
        raise invalid_launch(text[:_MOST_SHOWN], rule)
    try:
        return flat(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise invalid_launch(text[:_MOST_SHOWN], f"is no TOML: {error}") from None


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the document of settings with dotted names: {"bf16": {"enabled": True}} for
    {"bf16.enabled": True}."""
    document: dict[str, Any] = {}
    for name, value in settings.items():
        *steps, last = name.split(".")
        inner = document
        for step in steps:
            if not isinstance(inner.get(step), dict):
                inner[step] = {}
            inner = inner[step]
        inner[last] = value
    return document


def read_settings(text: str) -> dict[str, Any]:
    """Returns the settings of a text in YAML or JSON, by dotted names."""
    return flat(read_document(text))


def sent_settings(
    name: str, setting: str, files: LaunchFiles, reservations: list[Reservation]
) -> dict[str, Any]:
    """Returns the settings of the file `name`, which is the value of `setting`. Where that file
    was not sent, returns none and adds a reservation: a remark that they could matter. A value
    that is itself a JSON object is read in place of a file (transformers 5.24.0, training_args.py,
    _VALID_DICT_FIELDS). Raises Invalid, with the file's name, for a text that is no document."""
    text = name if name.lstrip().startswith("{") else files.find(name)
    if text is None:
        reservations.append(Reservation.of_file(setting, name))
        return {}
    try:
        return read_settings(text)
    except Invalid as fault:
        raise Invalid(fault.field, f"{name}: {fault.value}", fault.rule) from None


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the settings of a document by dotted name, in its order: {"bf16.enabled": True} for
    {"bf16": {"enabled": True}}. An empty object stays a value. Raises Invalid for a name that is
    too long."""
    dotted: dict[str, Any] = {}
    for name, value in document.items():
        path = f"{prefix}{name}"
        if len(path) > _LONGEST_NAME:
            rule = f"is a name of {len(path)} characters; no setting has one of {_LONGEST_NAME}"
            raise invalid_launch(path[:_MOST_SHOWN], rule)
        if isinstance(value, Mapping) and value:
            dotted |= flat(value, f"{path}.")
        else:
            dotted[path] = value
    return dotted
