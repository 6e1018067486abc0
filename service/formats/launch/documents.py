"""Documents of settings in JSON or YAML, as dotted names and back.

YAML is read with the safe loader of PyYAML; aliases are refused, with which a short text makes a
value that is endless to walk through.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import yaml

from models.errors import Invalid
from service.formats.launch.shell_script import PATH

_MOST_CHARACTERS = 2**16
_MOST_SHOWN = 80
_DEEPEST = 32
_LONGEST_NAME = 400
"""Characters of a name with its dots: frameworks have none of half as many, and every setting of an
object repeats the name of the object."""
_MANY_STEPS = re.compile(
    r"""(?:(?:[\w-]{1,80}+|"[^"\n]{0,80}+"|'[^'\n]{0,80}+')[ \t]{0,9}+\.[ \t]{0,9}+){32}"""
)
"""A dotted name of TOML of more steps than a document nests: its parser keeps every beginning of a
name, which is gigabytes for a name of 64 KB."""
_WRITES_DOCUMENT = re.compile(r"<<-?[ \t]*['\"]?([A-Za-z_]\w{0,40})", re.ASCII)
_SHELL_VARIABLE = re.compile(r"(?<!\\)\$\{?(\w+)\}?", re.ASCII)
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_document(text: str) -> dict[str, Any]:
    """The mapping that a text in YAML or JSON holds. Raises Invalid where it holds none."""
    document = _json_value(text) or read_yaml(text)
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        rule = "must be a mapping of names to values, as the text of a JSON or YAML file is"
        raise Invalid(PATH, text[:_MOST_SHOWN], rule)
    return document


def read_yaml(text: str) -> Any:
    """The value of a text in YAML, of the kinds that JSON has too. All YAML that a caller sends is
    read here. Raises Invalid where it is none, where it has aliases, and where it is longer or
    nests deeper than a document of settings."""
    shown = text[:_MOST_SHOWN]
    if len(text) > _MOST_CHARACTERS:
        rule = f"has {len(text)} characters; a document of settings has {_MOST_CHARACTERS} at most"
        raise Invalid(PATH, shown, rule)
    try:
        value = _yaml_value(text)
        json.dumps(value, default=str)  # which refuses numbers and names that JSON has not
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        problem = _problem(error)
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" in line {mark.line + 1}"
        raise Invalid(PATH, shown, f"is neither JSON nor YAML: {problem}{place}") from None
    return value


def _problem(error: Exception) -> str:
    """What is wrong with a text, in the words of the parser where it has some."""
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position + 1} is none of a text: take it out"
    return str(getattr(error, "problem", None) or error or type(error).__name__)


def _json_value(text: str) -> Any:
    """The value of a JSON text; None where a text is none. Raises Invalid where it nests deeper
    than a document of settings does."""
    if len(text) > _MOST_CHARACTERS:
        return None
    try:
        value = json.loads(text, object_pairs_hook=_distinct)
    except (ValueError, RecursionError):
        return None
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for outer in level for inner in _items(outer)]
    if level:
        raise Invalid(PATH, text[:_MOST_SHOWN], f"nests deeper than {_DEEPEST} levels")
    return value


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The object of some pairs. Raises Invalid where two have the same name and other values."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found and found[name] != value:
            raise _twice(name)
        found[name] = value
    return found


def _twice(name: str) -> Invalid:
    """An error of a name that an object has twice. Frameworks stop at it, or take either."""
    rule = "stands twice in one object of the document, with different values: write it once"
    return Invalid(PATH, name[:_MOST_SHOWN], rule)


def _items(value: Any) -> Collection[Any]:
    """What is in an object or a list."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _yaml_value(text: str) -> Any:
    """The value of a YAML text. Raises Invalid where it has aliases or a name twice with different
    values, or nests deeper than a document of settings does: its events come one by one, so that no
    text is too deep to find out."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            rule = "uses YAML aliases (*name): write the values out"
            raise Invalid(PATH, text[:_MOST_SHOWN], rule)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise Invalid(PATH, text[:_MOST_SHOWN], f"nests deeper than {_DEEPEST} levels")
    nodes = [yaml.compose(text, Loader=_Loader)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.MappingNode):
            _require_distinct(node)
            nodes += [inner for _, inner in node.value]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader


def _require_distinct(mapping: yaml.MappingNode) -> None:
    """Raise Invalid for a name that an object has twice, with different values."""
    first: dict[str, yaml.Node] = {}
    for key, value in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.value in first and not _is_same(first[key.value], value):
            raise _twice(key.value)
        first[key.value] = value


def _is_same(node: yaml.Node, other: yaml.Node) -> bool:
    """Whether two nodes of YAML stand for one value."""
    if type(node) is not type(other) or node.tag != other.tag:
        return False
    if isinstance(node, yaml.ScalarNode):
        return bool(node.value == other.value)
    if len(node.value) != len(other.value):
        return False
    pairs = zip(node.value, other.value, strict=True)
    if isinstance(node, yaml.MappingNode):
        return all(_is_same(one[0], two[0]) and _is_same(one[1], two[1]) for one, two in pairs)
    return all(_is_same(one, two) for one, two in pairs)


def document_in_script(text: str) -> str | None:
    """The one document that a shell script writes into a file (cat > FILE <<END); None where a text
    writes none, or several. Variables in it become the text of their names."""
    found: list[list[str]] = []
    end: str | None = None
    for line in text.splitlines():
        if end is None:
            match = _WRITES_DOCUMENT.search(line)
            if match:
                end = match.group(1)
                found.append([])
        elif line.strip() == end:
            end = None
        else:
            found[-1].append(line)
    if len(found) != 1:
        return None
    named = _SHELL_VARIABLE.sub(r'"$\1"', "\n".join(found[0]))
    return re.sub(r"\\([\\$`])", r"\1", named)


def sent_document(text: str, setting: str) -> str:
    """The document that a script writes, of which a setting names the file. Raises Invalid where
    it writes none."""
    written = document_in_script(text)
    if written is None:
        rule = (
            "has settings that were not sent: send the text of that file, alone or in the script"
            " that writes it (cat > FILE <<END)"
        )
        raise Invalid(PATH, setting, rule)
    return written


def read_toml(text: str) -> dict[str, Any]:
    """The settings of a text in TOML, with dotted names. Raises Invalid where it is none, and for a
    name of more steps than a document nests."""
    if _MANY_STEPS.search(text):
        rule = f"has a name of {_DEEPEST} steps or more, which no setting of a framework has"
        raise Invalid(PATH, text[:_MOST_SHOWN], rule)
    try:
        return dict(flat(tomllib.loads(text)))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Invalid(PATH, text[:_MOST_SHOWN], f"is no TOML: {error}") from None


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with dotted names as a document: "bf16.enabled" is `enabled` of the object
    `bf16`."""
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


def flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a document with dotted names, in its order. An empty object is a value.
    Raises Invalid for a name that is longer than any of a framework."""
    for name, value in document.items():
        path = f"{prefix}{name}"
        if len(path) > _LONGEST_NAME:
            rule = f"is a name of {len(path)} characters; no setting has one of {_LONGEST_NAME}"
            raise Invalid(PATH, path[:_MOST_SHOWN], rule)
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{path}.")
        else:
            yield path, value
