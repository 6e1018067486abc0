"""JSON texts, read strictly: nothing is guessed, and nothing is let in that a database cannot
store. A *rejection* stands in the parsed tree for a value that is refused."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.errors import MalformedBody, Unreadable
from service.field_violations import echoed_value
from service.schemas.architecture import is_config

MAX_DEPTH = 64  # far deeper than any body of the API; parsers recurse
MAX_MEMBERS = 100_000
"""Most members of all objects together. Each member that no schema knows costs an entry in an
error, which is made on the event loop."""
MAX_OWN_MEMBERS = 20_000
"""Most members of one object."""
MAX_CONTAINERS = 1_000_000
"""Arrays and objects. Each takes about 30 times as much memory as its brackets take bytes."""
_QUANTIZATION = "quantization_config"
_MOST_QUANTIZATION_SETTINGS = 100
"""Entries of a list or object in a quantization_config, above which it is a list of modules."""
_MAX_EXACT_INTEGER = 2**53
"""Largest integer up to which a 64-bit float tells neighbours apart."""
_SHOWN_CHARACTERS = 40
"""Characters that an error shows of a number, and of a text in front of the character it
refuses."""
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
STRINGS = re.compile(_STRING, re.DOTALL)
TOKENS = re.compile(rf"{_STRING}|[\[\]{{}}]", re.DOTALL)
"""Strings, and the brackets around and between them."""
_UNSTORABLE_CHARACTER = re.compile(r"[\0\ud800-\udfff]")


class NonFiniteNumber(str):
    """NaN or Infinity as it was written. Neither is JSON, but Python writes both into the
    config.json of Hugging Face models.

    It is kept as text, because no database stores it as a number and no reader of such a config
    needs its value.
    """


@dataclass(frozen=True, slots=True)
class _Rejected:
    """Stands in the parsed tree for a value that is refused. The parser's hooks know the value but
    not its location, which a walk through the tree finds afterwards."""

    value: object
    rule: str


class _TooManyMembers(_Rejected):
    """Stands for an object that has more than MAX_OWN_MEMBERS."""


def decode_utf8(body: bytes) -> str:
    """Returns the text of a body. Raises MalformedBody where it is not UTF-8."""
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedBody(
            f"The body is not UTF-8: byte {error.start} begins no character."
        ) from None


def parse_body(body: bytes, parse_text: Callable[[str], Any]) -> Any:
    return parse_text(decode_utf8(body))


def parse(text: str) -> Any:
    """Returns the value of a JSON text (RFC 8259). Raises MalformedBody where it is not JSON, and
    Unreadable for JSON that the service does not take.

    Refused are names that an object has twice, NUL characters, lone surrogates, and anything above
    the limits of this module. NaN and Infinity are read as NonFiniteNumber in a config.json that is
    given as `model`, and refused everywhere else. Settings of a quantization_config for single
    modules are dropped.
    """
    require_few_containers(text)
    try:
        value = _decoder.decode(text)
    except RecursionError:
        raise Unreadable(_TOO_DEEP) from None
    except json.JSONDecodeError as error:
        raise MalformedBody(
            f"The body is not JSON: {error.msg} at character {error.pos}."
        ) from None
    # Most bodies pass this cheap check. Only others need the slow walk that knows locations.
    if not _is_acceptable(value):
        rejection = next(_rejections(value, ()), None)
        if rejection is not None:
            raise rejection
    return value


def require_few_containers(text: str) -> None:
    """Raises Unreadable where a text opens more than MAX_CONTAINERS arrays and objects. Brackets
    within strings do not count."""
    # Taking strings out is slow, and most texts have few brackets with them.
    if _count_brackets(text) <= MAX_CONTAINERS:
        return
    if _count_brackets(STRINGS.sub("", text)) > MAX_CONTAINERS:
        raise Unreadable(f"opens more than {MAX_CONTAINERS} arrays and objects")


def _count_brackets(text: str) -> int:
    return text.count("[") + text.count("{")


_TOO_DEEP = f"nests deeper than {MAX_DEPTH} levels"


def _is_acceptable(value: Any) -> bool:
    """Returns whether the value certainly has nothing to refuse. False means that a closer look is
    needed. Walks level by level, and raises Unreadable for too many levels or members."""
    level = [value]  # all values at one depth of the tree
    members = 0
    acceptable = True
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                # NaN and Infinity were parsed into texts of this class.
                if isinstance(item, NonFiniteNumber) or _UNSTORABLE_CHARACTER.search(item):
                    acceptable = False
            elif isinstance(item, dict):
                members += len(item)
                inner += item.keys()
                inner += item.values()
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, _Rejected):
                acceptable = False
        if not inner:
            if members > MAX_MEMBERS:
                raise Unreadable(f"holds objects of more than {MAX_MEMBERS} members together")
            return acceptable
        level = inner
    raise Unreadable(_TOO_DEEP)


def _rejections(
    value: Any, location: tuple[str | int, ...], *, allow_nan: bool = False
) -> Iterator[Unreadable]:
    """Yields an error for each refused part of the value, with its location. NaN and Infinity are
    refused unless `allow_nan`."""
    if isinstance(value, _Rejected):
        yield Unreadable(value.rule, value.value, location)
    elif isinstance(value, NonFiniteNumber):  # NaN or Infinity, as a text
        if not allow_nan:
            yield Unreadable("is not JSON, whose numbers are finite", str(value), location)
    elif isinstance(value, str):
        if match := _UNSTORABLE_CHARACTER.search(value):
            rule = (
                f"holds a NUL character or half a surrogate pair at its character {match.start()}"
            )
            first_shown = max(match.start() - _SHOWN_CHARACTERS, 0)
            yield Unreadable(rule, _escaped(value[first_shown:]), location)
    elif isinstance(value, dict):
        # A config.json that Python has written may have NaN and Infinity, and is read all the same.
        is_model_config = location == ("model",) and is_config(value)
        yield from _rejections_in_object(value, location, allow_nan=allow_nan or is_model_config)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _rejections(item, (*location, index), allow_nan=allow_nan)


def _rejections_in_object(
    value: Mapping[str, Any], location: tuple[str | int, ...], *, allow_nan: bool
) -> Iterator[Unreadable]:
    """Yields an error for each refused name or value of an object, with its location. NaN and
    Infinity are refused unless `allow_nan`."""
    for name, item in value.items():
        if _UNSTORABLE_CHARACTER.search(name):
            rule = "is a name with a NUL character or half a surrogate pair"
            yield Unreadable(rule, _escaped(name), location)
        else:
            yield from _rejections(item, (*location, name), allow_nan=allow_nan)


def _escaped(text: str) -> object:
    """Returns the text as JSON writes it in ASCII, which every reader and database takes."""
    return echoed_value(json.dumps(text)[1:-1])


def _parse_integer(literal: str) -> int | _Rejected:
    """Returns the integer, or a rejection where it has more digits than Python converts."""
    try:
        return int(literal)
    except ValueError:
        rule = "is an integer of more digits than the service reads"
        return _Rejected(f"{literal[:_SHOWN_CHARACTERS]}…", rule)


def _parse_number(literal: str) -> float | _Rejected:
    """Returns a number with a fraction or exponent, or a rejection where it is beyond a 64-bit
    float. A whole value that a float holds exactly becomes an integer: 1e3 is 1000 (JSON Schema
    2020-12, validation §6.1.1)."""
    value = float(literal)
    if math.isinf(value):
        return _Rejected(literal[:_SHOWN_CHARACTERS], "is beyond the range of a 64-bit float")
    return int(value) if value.is_integer() and abs(value) <= _MAX_EXACT_INTEGER else value


def _object_without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any] | _Rejected:
    """Returns the object with these members, or a rejection where there are too many. A name that
    comes twice gets a rejection as its value, and a quantization_config loses its lists of
    modules."""
    if len(pairs) > MAX_OWN_MEMBERS:
        rule = f"has more than {MAX_OWN_MEMBERS}"
        return _TooManyMembers(f"an object with {len(pairs)} members", rule)
    value = dict(pairs)
    # The lists of modules in a quantization_config are long, and would break the limits, though
    # nothing that reads a model's config needs them.
    if isinstance(quantization := value.get(_QUANTIZATION), dict):
        value[_QUANTIZATION] = _without_modules(quantization)
    if len(value) < len(pairs):
        times = Counter(name for name, _ in pairs)
        value |= {name: _repeated_name(value[name]) for name, count in times.items() if count > 1}
    return value


def _without_modules(quantization: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a quantization_config without its lists of modules. They are as long as the model is
    deep, and no reader needs them."""
    return {
        key: item
        for key, item in quantization.items()
        if not isinstance(item, _TooManyMembers)
        and not (isinstance(item, (dict, list)) and len(item) > _MOST_QUANTIZATION_SETTINGS)
    }


def _repeated_name(item: Any) -> _Rejected:
    """Returns the rejection of a name that an object has twice. `item` is the last value under that
    name."""
    rule = "is given twice in one object"
    if isinstance(item, dict):
        return _Rejected("an object", rule)
    if isinstance(item, list):
        return _Rejected("an array", rule)
    if isinstance(item, _Rejected):
        return _Rejected(item.value, rule)
    return _Rejected(_escaped(item) if isinstance(item, str) else item, rule)


_decoder = json.JSONDecoder(
    parse_constant=NonFiniteNumber,
    parse_float=_parse_number,
    parse_int=_parse_integer,
    object_pairs_hook=_object_without_repeats,
)
