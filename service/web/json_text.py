"""JSON texts, read strictly: nothing a parser guesses and nothing a database cannot store."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.errors import MalformedBody, Unreadable
from service.field_violations import shown
from service.schemas.architecture import is_config

MAX_DEPTH = 64
MAX_MEMBERS = 100_000
"""Of all objects together: each that no schema knows costs an entry in an error that is made on the
event loop."""
MAX_OWN_MEMBERS = 20_000
"""Of one object."""
MAX_CONTAINERS = 1_000_000
"""Brackets that open one: each takes 30 times its bytes of memory."""
_MOST_EXACT = 2**53
"""Up to which a 64-bit float tells neighbouring integers apart."""
_SHOWN = 40  # digits of a number, and characters of a text before the one that is refused
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
STRINGS = re.compile(_STRING, re.DOTALL)
TOKENS = re.compile(rf"{_STRING}|[\[\]{{}}]", re.DOTALL)
"""Strings, and the brackets around and between them."""
_UNSTORABLE = re.compile(r"[\0\ud800-\udfff]")


class NonFinite(str):
    """NaN or Infinity as it was written: no JSON, but what Python puts into a Hugging Face
    config.json.

    Kept as text, because no database stores it as a number and no reader of such a config needs its
    value.
    """


@dataclass(frozen=True, slots=True)
class _Wrong:
    """In the place of a value that is refused, until it is known where that is."""

    value: object
    rule: str


def decoded(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedBody(
            f"The body is not UTF-8: byte {error.start} begins no character."
        ) from None


def parse(text: str) -> Any:
    """The value of a JSON text (RFC 8259), without repeated names, NUL characters or lone
    surrogates.

    NaN and Infinity are read as NonFinite in a config.json given as `model`, and refused everywhere
    else.
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
    if not _is_plain(value) and (wrong := next(_wrong(value, ()), None)):
        raise wrong
    return value


def require_few_containers(text: str) -> None:
    if _opened(text) > MAX_CONTAINERS and _opened(STRINGS.sub("", text)) > MAX_CONTAINERS:
        raise Unreadable(f"opens more than {MAX_CONTAINERS} arrays and objects")


def _opened(text: str) -> int:
    return text.count("[") + text.count("{")


_TOO_DEEP = f"nests deeper than {MAX_DEPTH} levels"


def _is_plain(value: Any) -> bool:
    """Whether nothing is in it that may have to be refused."""
    level, members, plain = [value], 0, True
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                plain = (
                    plain and not isinstance(item, NonFinite) and _UNSTORABLE.search(item) is None
                )
            elif isinstance(item, dict):
                members += len(item)
                inner += item.keys()
                inner += item.values()
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, _Wrong):
                plain = False
        if not inner:
            if members > MAX_MEMBERS:
                raise Unreadable(f"holds objects of more than {MAX_MEMBERS} members together")
            return plain
        level = inner
    raise Unreadable(_TOO_DEEP)


def _wrong(
    value: Any, location: tuple[str | int, ...], *, finite: bool = True
) -> Iterator[Unreadable]:
    """What is refused, and where it is."""
    if isinstance(value, _Wrong):
        yield Unreadable(value.rule, value.value, location)
    elif isinstance(value, NonFinite):
        if finite:
            yield Unreadable("is not JSON, whose numbers are finite", str(value), location)
    elif isinstance(value, str):
        if found := _UNSTORABLE.search(value):
            rule = (
                f"holds a NUL character or half a surrogate pair at its character {found.start()}"
            )
            yield Unreadable(rule, _escaped(value[max(found.start() - _SHOWN, 0) :]), location)
    elif isinstance(value, dict):
        yield from _wrong_in(
            value, location, finite=finite and not (location == ("model",) and is_config(value))
        )
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _wrong(item, (*location, index), finite=finite)


def _wrong_in(
    value: Mapping[str, Any], location: tuple[str | int, ...], *, finite: bool
) -> Iterator[Unreadable]:
    for name, item in value.items():
        if _UNSTORABLE.search(name):
            rule = "is a name with a NUL character or half a surrogate pair"
            yield Unreadable(rule, _escaped(name), location)
        else:
            yield from _wrong(item, (*location, name), finite=finite)


def _escaped(text: str) -> object:
    """As JSON writes it in ASCII, which every reader and database takes."""
    return shown(json.dumps(text)[1:-1])


def _integer(literal: str) -> int | _Wrong:
    try:
        return int(literal)
    except ValueError:
        return _Wrong(f"{literal[:_SHOWN]}…", "is an integer of more digits than the service reads")


def _number(literal: str) -> float | _Wrong:
    """What has no fraction is an integer, however it is written (JSON Schema 2020-12, validation
    §6.1.1)."""
    value = float(literal)
    if math.isinf(value):
        return _Wrong(literal[:_SHOWN], "is beyond the range of a 64-bit float")
    return int(value) if value.is_integer() and abs(value) <= _MOST_EXACT else value


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any] | _Wrong:
    if len(pairs) > MAX_OWN_MEMBERS:
        return _Wrong(f"an object with {len(pairs)} members", f"has more than {MAX_OWN_MEMBERS}")
    value = dict(pairs)
    if len(value) < len(pairs):
        times = Counter(name for name, _ in pairs)
        value |= {name: _twice(value[name]) for name, count in times.items() if count > 1}
    return value


def _twice(item: Any) -> _Wrong:
    rule = "is given twice in one object"
    if isinstance(item, (dict, list)):
        return _Wrong("an object" if isinstance(item, dict) else "an array", rule)
    return _Wrong(_escaped(item) if isinstance(item, str) else getattr(item, "value", item), rule)


_decoder = json.JSONDecoder(
    parse_constant=NonFinite, parse_float=_number, parse_int=_integer, object_pairs_hook=_unique
)
