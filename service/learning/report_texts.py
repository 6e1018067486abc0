"""The reports of a batch as texts. Each is stored as it was written, and a mistake in one does not
affect the others."""

from __future__ import annotations

import json
import re
from typing import Any

from models.errors import Invalid
from service.errors import Refused
from service.schemas.limits import MAX_BATCH_REPORTS
from service.web.json_text import TOKENS, parse, require_few_containers

_NAME = "reports"
_SPACE = re.compile(r"[ \t\n\r]*+")
_LIST = re.compile(r"[ \t\n\r]*+:[ \t\n\r]*+\[")
_span_decoder = json.JSONDecoder(parse_int=str, parse_float=str)
"""Finds where a value ends. The value itself is read later, so numbers need no conversion."""


def parse_batch(text: str) -> Any:
    """Returns the value of a JSON text (service.web.json_text), with each item of `reports` left as
    the text that it was sent as."""
    start = _reports_start(text)
    if start is None:
        return parse(text)
    require_few_containers(text)
    try:
        texts, end = _item_texts(text, start)
    except json.JSONDecodeError:
        return parse(text)  # raises an error that says what is wrong
    # Spaces in place of the list keep the positions that errors name.
    body = parse(text[:start] + " " * (end - start) + text[end:])
    return {**body, _NAME: texts}


def _reports_start(text: str) -> int | None:
    """Returns the position after the bracket that opens the list of reports; None where the text
    has no such list."""
    depth = 0
    for token in TOKENS.finditer(text):
        if token[0] in "{[":
            depth += 1
        elif token[0] in "}]":
            depth -= 1
        elif depth == 1:  # a string directly in the outermost object: a member's name, or a value
            bracket = _LIST.match(text, token.end())
            if bracket is not None and _spells_reports(token[0]):
                return bracket.end()
    return None


def _spells_reports(token: str) -> bool:
    """Returns whether a JSON token, possibly with escapes, spells the name `reports`."""
    try:
        return bool(json.loads(token) == _NAME)
    except json.JSONDecodeError:
        return False


def _item_texts(text: str, start: int) -> tuple[list[str], int]:
    """Returns the text of each item of a JSON list, and the position of the bracket that closes the
    list. `start` is the position after the opening bracket. Raises JSONDecodeError, or Refused for
    too many items."""
    texts: list[str] = []
    position = _past_space(text, start)
    if text[position : position + 1] == "]":
        return texts, position
    while True:
        end = _value_end(text, position)
        texts.append(text[position:end])
        if len(texts) > MAX_BATCH_REPORTS:
            raise Refused([Invalid(_NAME, None, f"must be at most {MAX_BATCH_REPORTS} at once")])
        position = _past_space(text, end)
        if text[position : position + 1] == "]":
            return texts, position
        if text[position : position + 1] != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, position)
        position = _past_space(text, position + 1)


def _past_space(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return position if space is None else space.end()


def _value_end(text: str, start: int) -> int:
    """Returns the position after the JSON value that begins at `start`. The end of a value that is
    nested too deeply for the decoder is found by counting brackets, so that only its report is
    refused."""
    try:
        return _span_decoder.raw_decode(text, start)[1]
    except RecursionError:
        depth = 0
        for token in TOKENS.finditer(text, start):
            if token[0] in "{[":
                depth += 1
            elif token[0] in "}]":
                depth -= 1
            if not depth:
                return token.end()
        raise json.JSONDecodeError("Expecting a closing bracket", text, len(text)) from None
